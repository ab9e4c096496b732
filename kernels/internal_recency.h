/* Recency: how lately an entry was asked for, as a level of 0 to 31 in five bits of it (format-spec/directory.md, section 5).

   An entry comes in on probation, in the middle; a match lifts it, and everything that it stands on, to the top; a tick lowers
   all by one. This is S3-FIFO's idea (Yang, Zhang, Qiu, Yue, Rashmi: FIFO Queues are All You Need for Cache Eviction, SOSP 2023):
   what is asked for once leaves soon, and a hit costs a store of a few bits, no queue. What differs: there, eviction pops
   one object from a queue, here a sweep frees many megabytes at once, so the queues' ends are levels; probation is not a tenth of
   the room but shortens itself as what is asked for again takes more; no ghost queue remembers what went; and the levels
   respect the paths, so that nothing goes before what stands on it. (A posting list does not say what a record stands on within its
   window: there, that is looked for as eviction counts.)

   Entries of deeper windows come in, and are lifted, a little lower: a parent is never colder than its child, and of what is
   equally old the deepest goes first. Bits hold level + clock, so that a tick is one addition for all entries at once. */
#pragma once
#include "internal_bits.h"
#include "match.h"

enum {
    LEVELS = 32,
    LEVEL_FLOOR = 1, /* the lowest that a tick leaves */
    LEVEL_PROBATION = 16,
    LEVEL_TOP = 31,
    LEVEL_DEPTHS = 4 /* a window from the 8th on is so much lower than the first */
};

#define RECENCY_BITS UINT64_C(62)

static inline uint32_t level_of(const sarp_base *base, uint64_t word1) { return ((uint32_t)(word1 >> 1) - base->clock) % LEVELS; }

/* The word with another level. */
static inline uint64_t with_level(const sarp_base *base, uint64_t word1, uint32_t level) {
    return (word1 & ~RECENCY_BITS) | (uint64_t)((level + base->clock) % LEVELS) << 1;
}

static inline uint32_t level_depth(uint32_t window) {
    const uint32_t log = 31 - (uint32_t)__builtin_clz(window | 1) + (window > 0);
    return log < LEVEL_DEPTHS ? log : LEVEL_DEPTHS;
}

static inline uint32_t level_on_probation(uint32_t window) { return LEVEL_PROBATION - level_depth(window); }
static inline uint32_t level_at_top(uint32_t window) { return LEVEL_TOP - level_depth(window); }

/* The word of an entry that comes in; level 0: what entries from images and the log have. */
static inline uint64_t with_level_entering(const sarp_base *base, uint64_t word1, uint32_t level) {
    return base->evicts ? with_level(base, word1, level ? level : base->resting) : word1;
}

/* A query has matched: its last record is lifted, and the records that it stands on. */
void directory_touch(sarp_directory *dir, key_seed seed, const sarp_query *q);
