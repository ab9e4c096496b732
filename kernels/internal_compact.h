/* Going through a file's records, whichever the directory. */
#pragma once
#include "compact.h"
#include "internal_insert.h"
#include "internal_removals.h"

typedef struct moving moving;

/* Moves or drops one verified segment record; returns a status, and counts what it did. */
typedef int32_t (*segment_mover)(moving *m, const uint8_t *record, uint64_t reference);

/* Carries on what still counts of a verified postings record. */
typedef int32_t (*postings_carrier)(moving *m, const uint8_t *record);

struct moving {
    const sarp_base *base;
    sarp_commit *commit;
    sarp_compaction *file;
    void *directory;
    segment_mover move;
    postings_carrier carry; /* NULL: the directory has no lists */
};

/* What of a record goes on. */
typedef struct {
    uint64_t supersedes; /* its position */
    uint32_t n, dp;
    uint8_t points; /* postings.md, section 4 */
} kept;

int32_t compact_records(moving *m, uint32_t records);

/* Of the first `n` blocks of a record those that are not removed; 0: it is dead. */
uint32_t compact_cut(const moving *m, const uint8_t *record, uint32_t n);

/* Writes the copy of a record. The caller has checked that there is room. */
const uint8_t *compact_copy(moving *m, const uint8_t *record, const kept *what, uint64_t *position);
