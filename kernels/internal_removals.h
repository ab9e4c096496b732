/* What removals say of one holder's records in one namespace. */
#pragma once
#include "internal_bits.h"
#include "removals.h"

typedef struct {
    const sarp_marks *markers; /* NULL: the holder has none */
    uint64_t epoch, expiry, name_space;
    uint32_t holder;
} barrier;

barrier barrier_of(const sarp_base *base, uint32_t holder, uint64_t name_space);

/* Whether a record is dead whatever its ids are: by epoch or expiry. */
static inline int barrier_buries(const barrier *b, const uint8_t *record) {
    const uint64_t born = load64(record + SARP_AT_BORN), root = load64(record + SARP_AT_ROOT_BORN);
    return born < b->epoch || (b->expiry && (root ? root : born) < b->expiry);
}

/* The newest marker of `count` consecutive ids; 0: none. */
uint64_t barrier_newest(const barrier *b, const uint8_t *ids, uint32_t count);

/* The first of `count` ids that has a marker newer than `born`; `count` if none. */
uint32_t barrier_cut(const barrier *b, const uint8_t *ids, uint32_t count, uint64_t born);

/* removal.md, section 2, but for earlier windows: blocks of its window that a record still proves, at most `length`; 0: it is
   dead. `ids` are the window's. */
static inline uint32_t barrier_survives(const barrier *b, const uint8_t *record, const uint8_t *ids, uint32_t length) {
    if (barrier_buries(b, record)) return 0;
    const uint32_t cut = b->markers ? barrier_cut(b, ids, length, load64(record + SARP_AT_BORN)) : length;
    return cut == length || cut > record[SARP_AT_D] ? cut : 0;
}

/* For each of `windows` windows of a sequence the newest marker of all windows before it, in removals->newest, as far as there
   is room. NULL where the holder has no marker. */
const uint64_t *barrier_path(const sarp_base *base, const barrier *b, const uint8_t *ids, uint32_t windows);

/* Whether a removal in the windows before this one of a sequence is newer than the record. `before`: barrier_path's answer. */
static inline int barrier_blocks_path(const sarp_base *base, const barrier *b, const uint64_t *before, const uint8_t *ids,
                                      uint32_t window, const uint8_t *record) {
    if (!before) return 0;
    const uint64_t newest = window < base->removals->newest_limit ? before[window] : barrier_newest(b, ids, window * SARP_WINDOW);
    return newest > load64(record + SARP_AT_BORN);
}

/* What of `at_least` blocks that entries claim is sure. Entries do not say when they were born, so where something of the holder may
   be dead that is only what no removal concerns. */
uint32_t barrier_surely(const sarp_base *base, const barrier *b, const uint8_t *ids, uint32_t at_least);
