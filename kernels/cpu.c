#include "cpu.h"

#if defined(__x86_64__)
#include <cpuid.h>

/* AVX2 also needs the operating system to save the upper halves of the registers (XCR0 bits 1 and 2). */
static int os_saves_ymm(void) {
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low & 6) == 6;
}

uint32_t sarp_cpu_features(void) {
    uint32_t a, b, c, d, features = 0;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return 0;
    const int sse42 = (c >> 20) & (c >> 1) & 1; /* with PCLMULQDQ */
    const int ssse3 = (c >> 9) & 1, osxsave = (c >> 27) & 1, avx = (c >> 28) & 1, f16c = (c >> 29) & 1;
    const int ymm = osxsave && avx && os_saves_ymm();
    if (sse42) features |= SARP_CPU_SSE42;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return features;
    if (ymm && ((b >> 5) & 1)) features |= SARP_CPU_AVX2;
    if (ymm && f16c) features |= SARP_CPU_F16C;
    if (sse42 && ssse3 && ((b >> 29) & 1)) features |= SARP_CPU_SHA_NI;
    return features;
}
#else
uint32_t sarp_cpu_features(void) { return 0; }
#endif
