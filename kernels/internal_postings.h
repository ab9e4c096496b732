/* The inside of the directory of posting lists, between its C files. */
#pragma once
#include "internal_arena.h"
#include "internal_points.h"
#include "internal_prove.h"
#include "postings.h"

enum { PAGE_POSTINGS = SARP_ARENA_PAGE / 24 };

static inline uint64_t posting_key(const sarp_posting *e) { return e->word0 >> 16; }
static inline uint32_t posting_n(const sarp_posting *e) { return (uint32_t)(e->word0 >> 10 & 63) + 1; }
static inline uint32_t posting_d(const sarp_posting *e) { return (uint32_t)(e->word0 >> 4 & 63); }
static inline uint32_t posting_point(const sarp_posting *e) { return (uint32_t)(e->word0 >> 1 & 7); }
static inline uint64_t posting_reference(const sarp_posting *e) { return e->word1 >> 24; }
static inline int posting_is_state(const sarp_posting *e) { return posting_reference(e) == 0; }
static inline uint64_t posting_word0(uint64_t key, uint32_t n, uint32_t d, uint32_t point) {
    return key << 16 | (uint64_t)(n - 1) << 10 | (uint64_t)d << 4 | (uint64_t)point << 1;
}

/* Where an element stands in the order of all. */
typedef struct {
    uint64_t key, filter, reference;
} place;

static inline place place_of(const sarp_posting *e) { return (place){posting_key(e), e->filter, posting_reference(e)}; }

static inline int place_before(place a, place b) {
    if (a.key != b.key) return a.key < b.key;
    if (a.filter != b.filter) return a.filter < b.filter;
    return a.reference < b.reference;
}

static inline int place_equal(place a, place b) { return a.key == b.key && a.filter == b.filter && a.reference == b.reference; }

static inline sarp_posting *posting_at(const sarp_postings *dir, const sarp_posting_partition *part, uint32_t index) {
    return (sarp_posting *)(void *)arena_page(&dir->arena, part->pages[index / PAGE_POSTINGS]) + index % PAGE_POSTINGS;
}

static inline uint32_t posting_pages(uint32_t entries) { return (entries + PAGE_POSTINGS - 1) / PAGE_POSTINGS; }

static inline uint32_t posting_blocks(const sarp_posting *e) {
    return posting_point(e) || posting_is_state(e) ? 0 : posting_n(e) - posting_d(e);
}

/* A place in the whole sequence: an index in the partition of that rank in the order, at most its entries. */
typedef struct {
    uint32_t rank, index;
} spot;

static inline const sarp_posting_partition *partition_ranked(const sarp_postings *dir, uint32_t rank) {
    return dir->partitions + dir->order[rank];
}

static inline int spot_equal(spot a, spot b) { return a.rank == b.rank && a.index == b.index; }

/* Rank of the partition whose range has the place. */
uint32_t rank_of(const sarp_postings *dir, place at);

/* Index of the first element of a partition that is not before the place. */
uint32_t posting_lower(const sarp_postings *dir, const sarp_posting_partition *part, place at);

/* The first element that is not before the place, if its partition is loaded. */
spot spot_lower(const sarp_postings *dir, place at);

/* The run of one key. `loaded`: everything that may have some of it is in memory, else the rest says nothing. */
typedef struct {
    uint64_t key;
    uint32_t first_rank, last_rank; /* partitions that may have some of it */
    spot begin, end;
    uint64_t count; /* postings */
    uint32_t flags; /* of its state */
    int loaded;
} posting_list;

posting_list list_open(const sarp_postings *dir, uint64_t key);

/* The same; asks for the partitions that are not in memory. */
posting_list list_wanted(const sarp_postings *dir, reading *r, uint64_t key);

/* Elements between two spots. */
uint64_t spots_between(const sarp_postings *dir, spot begin, spot end);

/* The partition and index of a posting; 0 if it is not there, or not in memory. */
int posting_find(const sarp_postings *dir, place at, sarp_posting_partition **part, uint32_t *index);

/* Leaves `left` of the `n` blocks of a record's postings: those at points behind it go, the filters of the others end where it
   does; with 0 it leaves all its lists, as it does where there is no room for that. `ids` are its window's. 0: partitions are not in
   memory, and are asked for. */
int postings_cut(sarp_postings *dir, reading *r, key_seed seed, const uint8_t *ids, uint32_t n, uint32_t left,
                 uint64_t reference);

/* A point's posting at a place, in a loaded partition; NULL if there is none. */
const sarp_posting *postings_at(const sarp_postings *dir, place at, uint32_t point);

/* Enters a posting unless there is one at its place. SARP_FULL: the bound is reached. */
int postings_enter(sarp_postings *dir, sarp_posting e);

void posting_erase(sarp_postings *dir, sarp_posting_partition *part, uint32_t index);

/* Counts an element, once more or once less, but not in its partition's `entries`. */
void count_posting(sarp_postings *dir, sarp_posting_partition *part, const sarp_posting *e, int sign);

/* Lifts a record's posting to a level, if it is lower. */
void postings_touch(sarp_postings *dir, place at, uint32_t level);

/* Whether a record is about to be evicted. */
int is_condemned(const struct sarp_condemned *set, uint64_t reference);

/* Whether `changes` changes can be applied without meeting a bound. */
int postings_has_room(const sarp_postings *dir, uint32_t changes);

/* sarp_postings_match of one query, all its windows at once: what an insertion decides by. Its status; SARP_NEED with nothing
   needed where dead candidates stood in the way: the next call begins anew, when others have had their turn. */
int32_t postings_match_whole(sarp_postings *dir, const sarp_pages *pages, sarp_query *query, sarp_needs *needs);
