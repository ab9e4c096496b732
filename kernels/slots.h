/* Which slot a log file has (format-spec/README.md, section 2), and back. */
#pragma once
#include "types.h"

/* A slot stands for this file from now on; 0: for none. */
void sarp_slot_set(sarp_base *base, uint32_t slot, uint64_t file_number);
