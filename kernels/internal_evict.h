/* What the sweeps of both directories ask of an entry. */
#pragma once
#include "evict.h"
#include "internal_recency.h"
#include "internal_record.h"

static inline uint64_t record_bytes(const sarp_base *base, uint32_t n) {
    return record_units(segment_bytes(n, base->location_bytes)) * (uint64_t)SARP_UNIT;
}

static inline void recency_count(const sarp_base *base, sarp_recency *out, uint64_t word1, uint64_t reference, uint32_t n,
                                 uint32_t d) {
    const uint32_t level = level_of(base, word1);
    const uint64_t bytes = record_bytes(base, n);
    out->levels[level] += bytes;
    if (!out->slots || level != out->level) return;
    out->offsets[d] += bytes;
    if (!d) out->slots[reference >> 24] += bytes;
}

static inline int threshold_takes(const sarp_base *base, const sarp_threshold *threshold, uint64_t word1, uint64_t reference,
                                  uint32_t d) {
    const uint32_t level = level_of(base, word1);
    if (level != threshold->level) return level < threshold->level;
    if (d != threshold->d) return d > threshold->d;
    return base->slot_files[reference >> 24] >= threshold->file_number;
}
