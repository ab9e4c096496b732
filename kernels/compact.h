/* Compaction (format-spec/removal.md, section 5): goes through the records of a sealed log file, moves those that are live to the
   gathering commit, and drops the entries of those that are not. */
#pragma once
#include "postings.h"

/* A record of another type than segment, whose liveness is the caller's to know. */
typedef struct {
    uint32_t unit; /* of the file */
    uint32_t type;
} sarp_other_record;

/* One file. The caller sets all fields but the counters, which begin at 0. */
typedef struct {
    const uint8_t *pages; /* page_count pages of the file, from first_page on */
    uint64_t file_number;
    uint32_t slot;
    uint32_t first_page, page_count;
    uint32_t unit;      /* of the file: what is before it has been gone through */
    uint64_t oldest;    /* the lowest number of the log files that will be left */
    uint32_t partition; /* after SARP_NEED: the one that is not in memory */
    uint32_t other_limit, other_count; /* of one call */
    sarp_other_record *others;
    uint64_t live, dead;  /* segment records */
    uint64_t live_bytes;  /* of copies, whole units */
    uint64_t carried_bytes; /* of postings records, whole units */
    uint64_t damaged;     /* records whose checksums or fields do not hold, and runs of bytes that are none */
} sarp_compaction;

/* Goes on from compaction->unit through at most `records` records, or until there are other_limit others. A record's liveness, its
   copy and its entry's move are one step. SARP_NEED, SARP_NO_ROOM, SARP_FULL: the record at compaction->unit is still to be done. */
int32_t sarp_compact(sarp_directory *directory, sarp_commit *commit, sarp_compaction *compaction, uint32_t records);
int32_t sarp_postings_compact(sarp_postings *postings, sarp_commit *commit, sarp_compaction *compaction, uint32_t records);
