/* The divergence directory: entries of 16 bytes in partitions (format-spec/directory.md).

   A partition keeps its entries in one sorted sequence over up to 32 pages of 1 KiB of the caller's arena, the first of
   which begins with an index of 128 buckets. There are no empty slots to pay for: the slack is the unused end of the last
   page. A full partition splits in two, so the directory grows one partition, and within it one page, at a time; a table
   of partition numbers, indexed by the key's top bits, finds them (extendible hashing: Fagin et al., 1979). */
#pragma once
#include "types.h"

enum {
    SARP_PARTITION_ENTRIES_MAX = 2031, /* 32 pages of 64 entries, less 17 for the bucket index */
    SARP_DEPTH_MAX = 40
};

typedef struct {
    uint64_t word0, word1;
} sarp_entry;

typedef struct {
    uint64_t prefix; /* 48 bits */
    uint32_t pages[32];
    uint32_t blocks; /* sum of n - d */
    uint16_t entries;
    uint8_t depth;
    uint8_t flags;
} sarp_partition;

/* Mask bits that were set since the table was hung on a directory: what a mark pass must not clear. Open-addressed, at most half
   full; past that it is `full`, and no mask can be cleared by it any more. */
typedef struct {
    uint64_t *roots; /* size, a power of two: root key << 16 | bits; 0: free */
    uint32_t size, used;
    int32_t full;
} sarp_fresh_masks;

typedef struct {
    sarp_arena arena;
    sarp_partition *partitions;
    uint32_t *table;
    const sarp_base *base;
    sarp_fresh_masks *fresh; /* NULL: no mark pass goes on */
    uint64_t entries, blocks, placeholders;
    uint32_t partition_limit, partition_count;
    uint32_t table_limit, depth;
} sarp_directory;

/* Makes an empty directory of one loaded partition. The pointers and limits are set by the caller. */
int32_t sarp_directory_init(sarp_directory *directory);

/* Makes a directory of `count` partitions that are not loaded (prefix, depth, entries and blocks are set by the caller in
   directory->partitions, in order of prefix). SARP_INVALID if they do not cover all keys once, SARP_FULL past a bound. */
int32_t sarp_directory_init_unloaded(sarp_directory *directory, uint32_t count);

/* Loads a partition from the entries of its image. SARP_INVALID if they break directory.md's rules or do not agree with
   the counts; the partition is then still not loaded. */
int32_t sarp_directory_load(sarp_directory *directory, uint32_t partition, const sarp_entry *entries, uint32_t count);

/* Marks a partition as loaded and empty: for a rebuild from the log. */
int32_t sarp_directory_load_empty(sarp_directory *directory, uint32_t partition);

/* Copies a loaded partition's entries, in order of key, to `out` (room for SARP_PARTITION_ENTRIES_MAX). Returns how many. */
int32_t sarp_directory_image(const sarp_directory *directory, uint32_t partition, sarp_entry *out);

/* Applies steps of changes. order[i] = index of the change * 2 + step; step 0 enters the record's key, step 1 sets the
   mask bit at its window's root (a no-op when d = 0). With order NULL: both steps of changes 0 to count - 1, in order.
   All partitions concerned must be loaded (SARP_INVALID otherwise). SARP_FULL: the bound is reached; *done steps (or
   changes) were applied. */
int32_t sarp_directory_apply(sarp_directory *directory, const sarp_change *changes, const uint32_t *order, size_t count,
                             size_t *done);

/* Number of the partition of each key. */
void sarp_directory_partition_of(const sarp_directory *directory, const uint64_t *keys, size_t count, uint32_t *out);

/* The directory keys of `count` block ids (16 bytes each). */
void sarp_directory_keys(const sarp_base *base, const uint8_t *ids, size_t count, uint32_t holder, uint64_t name_space,
                         uint64_t *out);

/* Entries with this key: copies at most `limit`, returns how many there are; SARP_INVALID where it is not loaded. */
int32_t sarp_directory_find(const sarp_directory *directory, uint64_t key, sarp_entry *out, int32_t limit);

/* Drops what names a slot from `count` partitions from `first_partition` on, those that are loaded. Returns how many entries. */
uint32_t sarp_directory_forget(sarp_directory *directory, uint32_t first_partition, uint32_t count, uint32_t slot);

/* Bytes of memory in use: pages, partition records and the table. */
uint64_t sarp_directory_bytes(const sarp_directory *directory);
