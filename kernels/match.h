/* Matching (format-spec/method.md, section 2): how far a sequence of block ids is held, and where.

   A call is a pure function of the directory and of the pages in memory. Where one of those is missing it says which;
   the caller brings them and calls again from the start, so nothing that happened meanwhile can be overlooked, and a
   query is decided in one step. A length is claimed only through a record that was read and verified. Of a long query a call
   goes through some windows alone and is made again without any need, so that none takes longer than a millisecond: its
   length is decided by then, and its locations, which nothing changes, follow. */
#pragma once
#include "directory.h"
#include "pages.h"

typedef struct {
    const uint8_t *ids;       /* blocks * 16 bytes */
    uint8_t *locations;       /* room for blocks * location_bytes, or NULL for the length alone */
    uint64_t name_space;
    uint32_t blocks;
    uint32_t holder;
    /* the answer */
    uint64_t owner_reference; /* record that holds the last matched block; none if matched is 0 */
    uint32_t matched;         /* blocks */
    uint32_t records;         /* that it rests on; under sarp also candidates that were not the best */
    uint8_t owner_n, owner_d, owner_dp;
    int8_t status;            /* SARP_OK or SARP_NEED */
    /* the state between calls, zero at the start */
    uint32_t located;         /* how far a long query has come; 0: nothing is decided yet */
    uint32_t asked;           /* blocks that may be answered at most, after damage; 0: all */
} sarp_query;

/* What is missing, and what was found damaged. Past a limit the rest is found by the next call. May name a thing twice. */
typedef struct {
    uint64_t *pages;      /* page keys */
    uint32_t *partitions;
    uint64_t *damaged;    /* references of records that did not verify */
    uint32_t page_limit, page_count;
    uint32_t partition_limit, partition_count;
    uint32_t damaged_limit, damaged_count;
} sarp_needs;

/* Fills in a query at its start, and empties the needs: one call where a caller would make many. */
void sarp_query_begin(sarp_query *query, sarp_needs *needs, const uint8_t *ids, uint32_t blocks, uint8_t *locations,
                      uint64_t name_space, uint32_t holder);

/* Answers those of the queries whose status is SARP_NEED. Returns how many still are. Entries of records that are found to be
   removed (format-spec/removal.md) are taken out of the directory. */
int32_t sarp_match(sarp_directory *directory, const sarp_pages *pages, sarp_query *queries, size_t count,
                   sarp_needs *needs);

/* Bounds from memory alone: at least and at most this many blocks match, if what the directory names can be read and nothing that
   is asked for has been evicted. */
void sarp_estimate(sarp_directory *directory, const sarp_query *query, uint32_t *at_least, uint32_t *at_most);
