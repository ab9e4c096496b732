/* The gathering commit: records are placed, encoded and checksummed in a buffer of pages (format-spec/log.md).

   A record goes into the open page where it fits best; open pages are kept in lists by their free units, with a bitmap of
   the lists that are not empty, so placing costs the same however many pages are open. */
#pragma once
#include "match.h"

typedef struct {
    uint8_t *pages;         /* page_limit * 4,096 bytes */
    uint16_t *next;         /* page_limit: the list links */
    uint8_t *used;          /* page_limit: units in use */
    const uint8_t *uuid;    /* 16 bytes */
    uint64_t file_number;
    uint64_t number;        /* of this commit */
    uint64_t sequence;      /* of the next record */
    uint64_t new_bytes;     /* of the records that insertions wrote, copies not counted */
    uint64_t open;          /* bit f: heads[f] is a page with f free units */
    uint64_t highest;       /* position of its records; 0: it has none */
    uint32_t slot;
    uint32_t first_page;    /* in the file */
    uint32_t page_limit, page_count, records;
    uint32_t change_limit, changes; /* that the records stand for: a summary has room for so many */
    uint32_t ordered;               /* it has a postings record (format-spec/postings.md, section 4) */
    uint32_t location_bytes, features;
    uint16_t heads[64];
} sarp_commit;

/* Begins an empty commit; the caller has set all fields but those that count from here on: open, highest,
   new_bytes, page_count, records, changes, ordered. */
void sarp_commit_begin(sarp_commit *commit);

/* What is added from now on stands behind all that is there: only the last page stays open. So it is born behind it, too. */
void sarp_commit_part(sarp_commit *commit);

enum { SARP_PLACE_BEST = 0, SARP_PLACE_BEHIND = 1, SARP_PLACE_FRESH = 2 }; /* where it fits; behind all; a page of its own */

/* Adds a finished record body and header; sequence, commit number and checksums are filled in here. `rule` says where. Returns its
   position, or 0 where there is no room. */
uint64_t sarp_commit_append(sarp_commit *commit, const uint8_t *record, int32_t rule);

/* The same behind all records, for one of type remove or clear-holder: with an effect of UINT64_MAX it takes effect there. */
uint64_t sarp_commit_append_removal(sarp_commit *commit, const uint8_t *record);

/* Adds the commit record and, for each other record in ascending order of place, its changes (room for `limit`, at least
   commit->changes). Returns how many, SARP_INVALID if `limit` is too small. `synced` and `flags` are the commit record's. */
int32_t sarp_commit_finish(sarp_commit *commit, const sarp_base *base, uint64_t synced, uint32_t flags,
                           sarp_change *changes, size_t limit);

/* Matches the query and inserts what is not held: decided, encoded and entered in the directory in one step
   (format-spec/method.md, section 3). `locations` are those of all query->blocks. Held blocks keep theirs. SARP_NEED: bring what
   `needs` says; SARP_NO_ROOM: nothing was done, the commit must be written first; SARP_FULL: nothing was done, the
   directory's bound is reached. query->matched is what was held before. */
int32_t sarp_insert(sarp_directory *directory, const sarp_pages *pages, sarp_query *query, const uint8_t *locations,
                    sarp_commit *commit, sarp_needs *needs);
