/* Eviction (format-spec/directory.md, section 5): sweeps over a directory's partitions, some of them a call.

   A sweep goes in the order of the partitions' ranges, by a cursor, so that what splits meanwhile is met once. Partitions that are
   not loaded are passed over. */
#pragma once
#include "postings.h"

enum { SARP_LEVELS = 32 };

/* What goes: entries below `level`, and of those at it the ones that left their window at a higher offset than `d`, or at that one if
   their record is in a file with that number or a higher one. What left an entry's record stands at a higher offset than it. */
typedef struct {
    uint64_t file_number;
    uint32_t level;
    uint32_t d; /* 64: nothing at the level goes by its offset */
} sarp_threshold;

/* What went. */
typedef struct {
    uint64_t records, blocks, bytes; /* entries that named one; blocks that they introduced; their records' whole units */
} sarp_evicted;

/* Bytes of records by the level of the entries that name them; of those at `level`, by d too, and where that is 0, by slot. */
typedef struct {
    uint64_t levels[32]; /* SARP_LEVELS */
    uint64_t offsets[64];
    uint64_t *slots; /* 65,536; NULL: not wanted, nor `offsets` */
    uint32_t level;
    uint32_t reserved;
} sarp_recency;

/* References of records that are about to go, a set. */
typedef struct sarp_condemned {
    uint64_t *references; /* size, a power of two; 0: free */
    uint32_t size;
    uint32_t count; /* at most half of it */
} sarp_condemned;

/* --- the divergence directory; a cursor is a prefix, behind the last partition 1 << 48 */

/* Before a tick: keeps what is at the floor from falling through it. */
uint64_t sarp_directory_age(sarp_directory *directory, uint64_t cursor, uint32_t partitions);

uint64_t sarp_directory_recency(const sarp_directory *directory, uint64_t cursor, uint32_t partitions, sarp_recency *out);

/* Takes entries out; adds to what went. */
uint64_t sarp_directory_evict(sarp_directory *directory, uint64_t cursor, uint32_t partitions, const sarp_threshold *threshold,
                              sarp_evicted *evicted);

/* --- the directory of posting lists; a cursor is a low. What is said of a record is its posting's at point 0. These return
   whether there is more. Counting and condemning lift what is colder than what stands on it. */

int32_t sarp_postings_age(sarp_postings *postings, sarp_posting *cursor, uint32_t partitions);

int32_t sarp_postings_recency(sarp_postings *postings, sarp_posting *cursor, uint32_t partitions, sarp_recency *out);

/* Notes the records that are to go, until the set is full: the cursor then stands where it is gone on with. */
int32_t sarp_postings_condemn(sarp_postings *postings, sarp_posting *cursor, uint32_t partitions,
                              const sarp_threshold *threshold, sarp_condemned *condemned);

/* Takes all postings of condemned records out. */
int32_t sarp_postings_evict(sarp_postings *postings, sarp_posting *cursor, uint32_t partitions, const sarp_condemned *condemned,
                            sarp_evicted *evicted);

/* Empties a set. */
void sarp_condemned_clear(sarp_condemned *condemned);
