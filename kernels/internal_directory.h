/* The inside of a partition, between the directory's C files. */
#pragma once
#include "internal_arena.h"
#include "internal_bits.h"

enum {
    PAGE_ENTRIES = SARP_ARENA_PAGE / 16,
    INDEX_SLOTS = 17, /* entries' worth of room for 129 bucket starts */
    BUCKETS = 128,
    BUCKET_BITS = 7
};

static inline sarp_entry *page_at(const sarp_directory *dir, uint32_t page) {
    return (sarp_entry *)(void *)arena_page(&dir->arena, page);
}

static inline sarp_entry *entry_at(const sarp_directory *dir, const sarp_partition *part, uint32_t index) {
    const uint32_t slot = index + INDEX_SLOTS;
    return page_at(dir, part->pages[slot / PAGE_ENTRIES]) + slot % PAGE_ENTRIES;
}

static inline uint16_t *starts_of(const sarp_directory *dir, const sarp_partition *part) {
    return (uint16_t *)(void *)page_at(dir, part->pages[0]);
}

static inline uint32_t pages_for(uint32_t entries) { return (entries + INDEX_SLOTS + PAGE_ENTRIES - 1) / PAGE_ENTRIES; }

static inline uint32_t bucket_of(const sarp_partition *part, uint64_t key) {
    return (uint32_t)((key << (16 + part->depth)) >> (64 - BUCKET_BITS));
}

static inline uint32_t partition_index(const sarp_directory *dir, uint64_t key) {
    return dir->table[dir->depth ? key >> (48 - dir->depth) : 0];
}

static inline uint32_t introduced(const sarp_entry *e) { return entry_placeholder(e) ? 0 : entry_n(e) - entry_d(e); }

/* Gives the partition the pages that `entries` need and takes back the others. The caller has checked that there are. */
void pages_resize(sarp_directory *dir, sarp_partition *part, uint32_t have, uint32_t entries);

void index_rebuild(const sarp_directory *dir, const sarp_partition *part);

/* Points the table at a partition, over the whole range of its prefix. */
void table_point(sarp_directory *dir, uint32_t number);

/* Takes a dead entry out of its partition, which is loaded. Nothing happens if it is gone. */
void directory_drop(sarp_directory *dir, uint64_t key, uint64_t reference);

/* The entry under a key with a reference, in a loaded partition; NULL if there is none. */
const sarp_entry *directory_entry(const sarp_directory *dir, uint64_t key, uint64_t reference);

/* Index of the first entry whose key is not below `key`. */
uint32_t lower_bound(const sarp_directory *dir, const sarp_partition *part, uint64_t key);

/* Index behind the entries from `index` on that have the key. */
uint32_t run_end(const sarp_directory *dir, const sarp_partition *part, uint32_t index, uint64_t key);

/* Counts what an entry stands for, once more or once less. How many entries there are is not counted here. */
void count_entry(sarp_directory *dir, sarp_partition *part, const sarp_entry *e, int sign);

/* Whether `changes` changes can be applied without meeting a bound. */
int directory_has_room(const sarp_directory *dir, uint32_t changes);
