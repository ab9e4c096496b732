/* Runtime dispatch. The kernel keeps no state: the caller asks once and hands the answer to every call. */
#pragma once
#include <stdint.h>

enum { SARP_CPU_SSE42 = 1, SARP_CPU_AVX2 = 2, SARP_CPU_SHA_NI = 4, SARP_CPU_F16C = 8 };

/* SSE42 means SSE4.2 together with PCLMULQDQ, its companion in all but the first CPUs that had it. */

/* The features this machine has. 0 selects the portable path everywhere. */
uint32_t sarp_cpu_features(void);
