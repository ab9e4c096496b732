/* Reading the log for recovery: pages in, changes and commits out. What is accepted is decided by the caller
   (format-spec/recovery.md): the kernel only says what it found. */
#pragma once
#include "directory.h"

enum {
    SARP_COMMIT_COMPLETE = 1, /* sarp_found_commit.flags; the commit record's own flags stand above it, << 8 */
    SARP_PAGE_CHANGES_MAX = 352 /* of a page under `sarp`: 21 segments of 16 changes each, and a record of one unit */
};

typedef struct {
    uint64_t number; /* as its commit record says; 0: pages behind the last one of the file */
    uint64_t begin, end; /* positions of its pages */
    uint64_t synced;
    uint32_t flags;
    uint32_t records;
} sarp_found_commit;

/* One file. The caller sets the first part; the rest is the state between calls, zero at the start. */
typedef struct {
    const uint8_t *uuid;
    uint64_t file_number;
    uint64_t previous_number; /* of the commit before the first page */
    uint32_t location_bytes, features;
    uint32_t begin_page;      /* of the commit that is being read */
    uint32_t next_page;
    uint32_t checksum, records;
    uint32_t flawed;          /* damage, or a record of another commit, in it */
    uint32_t reserved;
    uint64_t number;          /* of its records */
    uint64_t sequence;        /* the highest that was seen */
} sarp_scan;

typedef struct {
    sarp_change *changes;     /* of all valid records but commit records, in order */
    sarp_found_commit *commits;
    uint64_t *damaged;        /* positions of units that are no record and not free, or of records whose body is bad */
    uint32_t change_limit, change_count;
    uint32_t commit_limit, commit_count;
    uint32_t damaged_limit, damaged_count;
    uint64_t unknown_at;      /* position of a record of unknown type that must not be passed over; 0: none */
} sarp_found;

/* Reads `count` pages from scan->next_page on; stops before a page that the limits might not hold, so that the caller can
   make room and go on. Returns how many pages were read. A damaged run is reported by its first unit. */
uint32_t sarp_scan_pages(sarp_scan *scan, const sarp_base *base, const uint8_t *pages, uint32_t count,
                         sarp_found *found);

/* What a summary's entries stand for. Entries are 32 bytes (format-spec/log.md, 2.5; postings.md, 4). Returns SARP_INVALID on
   values that no writer makes. */
int32_t sarp_summary_changes(const sarp_base *base, uint64_t file_number, const uint8_t *entries, uint32_t count,
                             sarp_change *changes);
