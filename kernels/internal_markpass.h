/* The inside of the mark pass, between its C files. */
#pragma once
#include "internal_bits.h"
#include "markpass.h"

enum { VERDICT_MISSING = 255 };

/* For each of a partition's references the blocks that stay: SARP_WINDOW where it is newer than the pass, VERDICT_MISSING where the
   pass should have seen its record and did not. */
void verdicts_of(const sarp_mark_plan *plan, const sarp_base *base, const uint64_t *references, uint32_t count, uint8_t *blocks);

/* --- mask bits set since a pass began */

/* The place of a root key, or the free one where it would go. */
static inline uint64_t *fresh_place(const sarp_fresh_masks *fresh, uint64_t key) {
    const uint32_t mask = fresh->size - 1;
    uint32_t slot = (uint32_t)(key * UINT64_C(0x9E3779B97F4A7C15) >> 32) & mask;
    while (fresh->roots[slot] && fresh->roots[slot] >> 16 != key) slot = (slot + 1) & mask;
    return fresh->roots + slot;
}

static inline void fresh_note(sarp_fresh_masks *fresh, uint64_t key, uint64_t bit) {
    if (!fresh || fresh->full) return;
    uint64_t *place = fresh_place(fresh, key);
    if (!*place && ++fresh->used > fresh->size / 2) fresh->full = 1;
    else *place |= key << 16 | bit;
}

/* Bits of a root key that must stay; all of them where that is not known. */
static inline uint64_t fresh_bits(const sarp_fresh_masks *fresh, uint64_t key) {
    return !fresh || fresh->full ? 0xFFFF : *fresh_place(fresh, key) & 0xFFFF;
}
