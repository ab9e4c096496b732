/* Little-endian loads and stores, key mixing, entry fields. */
#pragma once
#include <stdint.h>
#include <string.h>

#include "directory.h"
#include "format.h"

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the format is little-endian and the kernel reads it in place"
#endif

static inline uint16_t load16(const uint8_t *p) { uint16_t v; memcpy(&v, p, 2); return v; }
static inline uint32_t load32(const uint8_t *p) { uint32_t v; memcpy(&v, p, 4); return v; }
static inline uint64_t load64(const uint8_t *p) { uint64_t v; memcpy(&v, p, 8); return v; }
static inline void store16(uint8_t *p, uint16_t v) { memcpy(p, &v, 2); }
static inline void store32(uint8_t *p, uint32_t v) { memcpy(p, &v, 4); }
static inline void store64(uint8_t *p, uint64_t v) { memcpy(p, &v, 8); }

/* The two operands' share of a directory key that one query's ids have in common. */
typedef struct {
    uint64_t a, b;
} key_seed;

static inline key_seed seed_of(const sarp_base *base, uint32_t holder, uint64_t name_space) {
    return (key_seed){base->secret[0] ^ name_space, base->secret[1] ^ (holder * UINT64_C(0x9E3779B97F4A7C15))};
}

/* 64 bits that tell a block of one holder and namespace from all others. */
static inline uint64_t tag_of(key_seed seed, const uint8_t *id) {
    const unsigned __int128 product = (unsigned __int128)(load64(id) ^ seed.a) * (load64(id + 8) ^ seed.b);
    uint64_t h = (uint64_t)product ^ (uint64_t)(product >> 64);
    h = (h ^ (h >> 33)) * UINT64_C(0xFF51AFD7ED558CCD);
    h = (h ^ (h >> 33)) * UINT64_C(0xC4CEB9FE1A85EC53);
    return h ^ (h >> 33);
}

static inline uint64_t key_of(key_seed seed, const uint8_t *id) { return tag_of(seed, id) >> 16; }

/* Where a file's slot stands in base->slot_index, or the free place where it would go. File numbers ascend, so the lowest bits
   of those that are there seldom meet. */
static inline uint32_t slot_place(const sarp_base *base, uint64_t file) {
    uint32_t place = (uint32_t)file & (SARP_SLOT_INDEX - 1);
    while (base->slot_index[place] && base->slot_files[base->slot_index[place] - 1] != file)
        place = (place + 1) & (SARP_SLOT_INDEX - 1);
    return place;
}

/* "None" for a file that is gone. */
static inline uint64_t reference_of(const sarp_base *base, uint64_t position) {
    const uint64_t file = position >> 24;
    const uint32_t slot = file ? base->slot_index[slot_place(base, file)] : 0;
    return slot ? (uint64_t)(slot - 1) << 24 | (position & 0xFFFFFF) : SARP_REFERENCE_NONE;
}

static inline uint64_t position_of(const sarp_base *base, uint64_t reference) {
    return base->slot_files[reference >> 24] << 24 | (reference & 0xFFFFFF);
}

static inline uint64_t entry_key(const sarp_entry *e) { return e->word0 >> 16; }
static inline uint64_t entry_mask(const sarp_entry *e) { return e->word0 & 0xFFFF; }
static inline uint64_t entry_reference(const sarp_entry *e) { return e->word1 >> 24; }
static inline uint32_t entry_n(const sarp_entry *e) { return (uint32_t)((e->word1 >> 18) & 63) + 1; }
static inline uint32_t entry_d(const sarp_entry *e) { return (uint32_t)((e->word1 >> 12) & 63); }
static inline uint32_t entry_dp(const sarp_entry *e) { return (uint32_t)((e->word1 >> 6) & 63); }
static inline int entry_placeholder(const sarp_entry *e) { return (int)(e->word1 & 1); }
/* Recency keeps its place; a new entry's is 0. */
static inline uint64_t entry_word1(uint64_t reference, uint32_t n, uint32_t d, uint32_t dp, uint64_t recency) {
    return reference << 24 | (uint64_t)(n - 1) << 18 | (uint64_t)d << 12 | (uint64_t)dp << 6 | recency << 1;
}
#define ENTRY_PLACEHOLDER (SARP_REFERENCE_NONE << 24 | 1)

/* Where a batch of keys will be looked up: asked for early, so that the cache misses overlap. */
void directory_prefetch(const sarp_directory *dir, uint64_t key);
