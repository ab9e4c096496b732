/* The directory of posting lists (format-spec/postings.md): postings of 24 bytes in partitions.

   A partition keeps a part of the one sequence, sorted by (key, filter, reference), over up to 32 pages of the arena; the
   slack is the unused end of the last. A full partition splits in the middle, so a list may span many. Nothing is ever
   shifted but within a partition. */
#pragma once
#include "commit.h"

enum {
    SARP_PARTITION_POSTINGS_MAX = 1344, /* 32 pages of 42 */
    SARP_READ_CAP_MAX = 64,
    SARP_LIST_GROWN_MAX = 256, /* a list with more postings is neither expanded nor refined */
    SARP_GROWTH_MAX = 2016,    /* changes of other records that one insertion may make: 16 postings records */
    SARP_PLAN_MAX = 4064       /* and its own: of 128 windows, 8 points each, one going and one coming */
};

typedef struct {
    uint64_t word0, word1, filter;
} sarp_posting;

typedef struct {
    sarp_posting low; /* where the range begins: word 0 a key << 16, word 1 a reference << 24 */
    uint32_t pages[32];
    uint32_t blocks; /* sum of n - d over the postings with point 0 */
    uint16_t entries;
    uint8_t reserved;
    uint8_t flags;
} sarp_posting_partition;

struct sarp_condemned;

typedef struct {
    const sarp_base *base;
    sarp_arena arena;
    sarp_posting_partition *partitions;
    uint32_t *order;       /* numbers of the partitions in ascending order of low */
    sarp_change *plan;     /* room for SARP_PLAN_MAX: what an insertion has decided and not done yet */
    sarp_posting *members; /* room for SARP_LIST_GROWN_MAX: the list that it looks at */
    uint64_t entries, blocks, states; /* entries: postings and states */
    uint32_t partition_limit, partition_count;
    uint32_t read_cap;            /* records that matching reads in a window: 1 to SARP_READ_CAP_MAX */
    uint32_t refine_at, prune_at; /* at most SARP_LIST_GROWN_MAX - 1 */
    uint32_t tie_cap;             /* of postings that tie, so many on either side of the query's place are looked at */
    const struct sarp_condemned *condemned; /* records that are being evicted are posted nowhere any more; NULL: none is */
    uint32_t growth_held;         /* 1: a sweep goes on. What it has not come to yet must not be posted where it was */
} sarp_postings;

/* Makes an empty directory of one loaded partition. The pointers, limits and options are set by the caller. */
int32_t sarp_postings_init(sarp_postings *postings);

/* Makes a directory of `count` partitions that are not loaded (low, entries and blocks are set by the caller in
   postings->partitions, in order). SARP_INVALID if they do not ascend from (0, 0, 0), SARP_FULL past a bound. */
int32_t sarp_postings_init_unloaded(sarp_postings *postings, uint32_t count);

/* Loads a partition from its image. SARP_INVALID if it breaks postings.md's rules or does not agree with the counts; the
   partition is then still not loaded. */
int32_t sarp_postings_load(sarp_postings *postings, uint32_t partition, const sarp_posting *entries, uint32_t count);

/* Marks a partition as loaded and empty: for a rebuild from the log. */
int32_t sarp_postings_load_empty(sarp_postings *postings, uint32_t partition);

/* Copies a loaded partition's entries, in order, to `out` (room for SARP_PARTITION_POSTINGS_MAX). Returns how many. */
int32_t sarp_postings_image(const sarp_postings *postings, uint32_t partition, sarp_posting *out);

/* Applies changes 0 to count - 1, or those that `order` names. All partitions concerned must be loaded (SARP_INVALID
   otherwise, or where a change is none that a writer makes). SARP_FULL: the bound is reached; *done were applied. */
int32_t sarp_postings_apply(sarp_postings *postings, const sarp_change *changes, const uint32_t *order, size_t count,
                            size_t *done);

/* Number of the partition that each change concerns. */
void sarp_postings_partition_of(const sarp_postings *postings, const sarp_change *changes, size_t count, uint32_t *out);

/* Number of the partition whose range has this place. */
uint32_t sarp_postings_partition_at(const sarp_postings *postings, uint64_t key, uint64_t filter, uint64_t reference);

/* How many partitions stand before this one in the order. */
uint32_t sarp_postings_rank_of(const sarp_postings *postings, uint32_t partition);

/* The list of a key, its state included: copies at most `limit`, returns how many there are; SARP_INVALID where a partition
   that may have some of it is not loaded. */
int64_t sarp_postings_find(const sarp_postings *postings, uint64_t key, sarp_posting *out, int64_t limit);

/* Drops what names a slot from `count` partitions from number `first_partition` on, those that are loaded. Returns how many
   postings. */
uint32_t sarp_postings_forget(sarp_postings *postings, uint32_t first_partition, uint32_t count, uint32_t slot);

/* Bytes of memory in use: pages, partition records and their order. */
uint64_t sarp_postings_bytes(const sarp_postings *postings);

/* Fills `filters[p]` with the filter of point p of a window that has these ids, 0 where it has no block there. */
void sarp_postings_filters(const sarp_base *base, const uint8_t *ids, uint32_t n, uint64_t *filters);

/* sarp_match, sarp_estimate and sarp_insert (match.h, commit.h) for this directory (postings.md, sections 6 and 7). An insertion
   has at most 128 new windows. */
int32_t sarp_postings_match(sarp_postings *postings, const sarp_pages *pages, sarp_query *queries, size_t count,
                            sarp_needs *needs);
void sarp_postings_estimate(sarp_postings *postings, const sarp_query *query, uint32_t *at_least, uint32_t *at_most);
int32_t sarp_postings_insert(sarp_postings *postings, const sarp_pages *pages, sarp_query *query, const uint8_t *locations,
                             sarp_commit *commit, sarp_needs *needs);
