#pragma once
#include "internal_record.h"

/* What a verified record at `position` does to the directory. */
sarp_change change_of(const sarp_base *base, const uint8_t *record, uint64_t position);
