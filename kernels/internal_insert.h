/* What an insertion writes, whichever the directory (format-spec/method.md, section 3). */
#pragma once
#include "commit.h"
#include "internal_record.h"

/* One window's record, decided but not yet written. */
typedef struct {
    uint32_t window, n, d, dp, held; /* held: blocks whose locations come from the owner's record */
    uint64_t parent_key, supersedes;
    uint8_t points, old_n; /* postings.md, section 4 */
} planned;

/* The record of the matched record that proved the last block of an unfinished window, which has been read; NULL where the
   match ends with a window. */
int owner_record(const sarp_pages *pages, const sarp_query *q, const uint8_t **owner);

/* The first window's record; the later ones open their windows. Behind the last window there is none to be written. */
planned plan_first(const sarp_base *base, const sarp_query *q, key_seed seed, const uint8_t *owner);
planned plan_next(const sarp_query *q, key_seed seed, const planned *previous);

/* Places, writes and counts a segment record; commit_has_room was asked. */
const uint8_t *write_segment(sarp_commit *commit, const sarp_query *q, const planned *p, const uint8_t *owner,
                             const uint8_t *locations, uint64_t *position);

typedef enum { PLACE_BEST, PLACE_BEHIND, PLACE_FRESH } commit_place_rule; /* where it fits; behind all; a page of its own */

/* Room for a record of `length` bytes. The caller has checked that there is. */
uint8_t *commit_place(sarp_commit *commit, uint32_t length, commit_place_rule rule, uint64_t *position);

/* Ends a placed record: sequence, commit number, checksums. */
void commit_add(sarp_commit *commit, uint8_t *record, uint64_t position);

/* Whether so many more pages and changes fit. */
int commit_has_room(const sarp_commit *commit, uint32_t pages, uint32_t changes);
