/* What an insertion writes, whichever the directory (format-spec/method.md, section 3). */
#pragma once
#include "commit.h"
#include "internal_record.h"

/* One window's record, decided but not yet written. */
typedef struct {
    uint32_t window, n, d, dp, held; /* held: blocks whose locations come from the owner's record */
    uint64_t parent_key, supersedes;
    uint64_t root_born; /* 0: as born; known once the record is written */
    uint8_t points, old_n; /* postings.md, section 4 */
} planned;

/* The record that proved the last matched block, which has been read; NULL where nothing matched. */
int owner_record(const sarp_pages *pages, const sarp_query *q, const uint8_t **owner);

/* The first window's record; the later ones open their windows. Behind the last window there is none to be written. */
planned plan_first(const sarp_base *base, const sarp_query *q, key_seed seed, const uint8_t *owner);
planned plan_next(const sarp_query *q, key_seed seed, const planned *previous);

/* Places, writes and counts a segment record; commit_has_room was asked. */
const uint8_t *write_segment(sarp_commit *commit, const sarp_query *q, planned *p, const uint8_t *owner,
                             const uint8_t *locations, uint64_t *position);

/* Room for a record of `length` bytes, by a SARP_PLACE_ rule. The caller has checked that there is. */
uint8_t *commit_place(sarp_commit *commit, uint32_t length, int32_t rule, uint64_t *position);

/* Ends a placed record: sequence, commit number, checksums. */
void commit_add(sarp_commit *commit, uint8_t *record, uint64_t position);

/* Whether so many more pages and changes fit. */
int commit_has_room(const sarp_commit *commit, uint32_t pages, uint32_t changes);
