/* Routing points and filters (format-spec/postings.md, section 1). */
#pragma once
#include "internal_bits.h"

enum {
    POINTS = 8,
    LAST_POINT = 7,
    LAST_FIXED_POINT = 6,
    NO_POINT = 8,
    FINGERPRINTS = 8,
    STATE_EXPANDED = 1,
    STATE_REFINED = 2
};

static inline uint32_t point_offset(uint32_t point) { return point == LAST_POINT ? SARP_WINDOW - 1 : 8 * point; }

/* The point whose lists have what a list at `point` routes on to; NO_POINT if there is none. */
static inline uint32_t point_successor(uint32_t point, uint32_t flags) {
    if (point >= LAST_FIXED_POINT) return point == LAST_FIXED_POINT && (flags & STATE_REFINED) ? LAST_POINT : NO_POINT;
    return point % 2 ? point + 1 : flags & STATE_REFINED ? point + 1 : point + 2;
}

static inline uint64_t fingerprint_of(const sarp_base *base, const uint8_t *id) {
    const uint64_t mixed = (load64(id) ^ base->secret[1]) * UINT64_C(0x9E3779B97F4A7C15);
    return 1 + ((mixed >> 32) * 255 >> 32);
}

/* Fingerprints that a sequence of `n` blocks of a window has in the filter of a point. */
static inline uint32_t fingerprints_of(uint32_t n, uint32_t point) {
    const uint32_t first = point_offset(point) / 2;
    if (point == LAST_POINT || n / 2 <= first) return 0;
    return n / 2 - first < FINGERPRINTS ? n / 2 - first : FINGERPRINTS;
}

/* The filter of a point, of a window's ids, of which there are n. */
static inline uint64_t filter_of(const sarp_base *base, const uint8_t *ids, uint32_t n, uint32_t point) {
    const uint32_t count = fingerprints_of(n, point);
    const uint8_t *id = ids + (point_offset(point) + 1) * SARP_ID;
    uint64_t filter = 0;
    for (uint32_t i = 0; i < count; i++) filter |= fingerprint_of(base, id + 2 * i * SARP_ID) << (56 - 8 * i);
    return filter;
}

/* Leading fingerprints that are there. */
static inline uint32_t filter_length(uint64_t filter) {
    uint32_t count = 0;
    while (count < FINGERPRINTS && (filter >> (56 - 8 * count) & 0xFF)) count++;
    return count;
}
