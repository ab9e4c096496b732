/* Reading and proving records: what every directory's matching rests on. */
#pragma once
#include "internal_record.h"
#include "match.h"

/* What a pass over the directory has met so far. */
typedef struct {
    const sarp_base *base;
    const sarp_pages *pages;
    sarp_needs *needs;
    int missing;      /* something was asked for: this pass can't conclude */
    int page_missing; /* a page was; reset by who looks at it */
} reading;

void need_partition(reading *r, uint32_t number);

/* sarp_match and sarp_postings_match of one query, in one step however long it is: what an insertion decides by. Its status. */
int32_t match_whole(sarp_directory *dir, const sarp_pages *pages, sarp_query *query, sarp_needs *needs);

/* The verified segment record that a reference names; NULL if it is damaged, retired with its file, or missing (then it is asked
   for). */
const uint8_t *read_segment(reading *r, uint64_t reference);

/* Blocks of window `first / 64` that a record proves for the query, at most `limit`. */
uint32_t prove_segment(const sarp_pages *pages, const uint8_t *record, const sarp_query *q, uint32_t first, uint32_t limit);

/* Copies the locations of the `length` blocks of the window that a record has proved. */
static inline void copy_locations(const sarp_pages *pages, const uint8_t *record, sarp_query *q, uint32_t first,
                                  uint32_t length) {
    const size_t bytes = pages->location_bytes;
    memcpy(q->locations + first * bytes, record + SARP_SEGMENT_HEADER + record[SARP_AT_N] * SARP_ID, length * bytes);
}
