/* The mark pass (format-spec/removal.md, section 3): one row for each record that an entry names, out of the log's pages; and
   sweeps that apply to the directory, a partition at a time, what was decided from the rows. */
#pragma once
#include "postings.h"

/* What deciding needs of one entry and its record. Tags are keyed 64-bit digests of a block id, its holder and namespace. */
typedef struct {
    uint64_t reference;
    uint64_t born;
    uint64_t prefix;   /* tag of the block before the window */
    uint64_t last;     /* tag of the window's last block, 0 where the record does not reach it */
    uint64_t root_key; /* of the window's first block */
    uint32_t window;
    uint8_t n, d;      /* the entry's */
    uint8_t cut;       /* the first of its n blocks with a marker newer than born, n if none has; 0: dead by epoch or expiry */
    uint8_t whole;     /* 1: the entry has all blocks of its record */
} sarp_mark_row;

/* One log file that is read. The caller sets the first part; the rest is counted up from zero. */
typedef struct {
    const uint8_t *uuid;
    sarp_mark_row *rows;
    uint64_t row_limit;
    uint64_t file_number;
    uint32_t slot;
    uint32_t location_bytes, features;
    uint32_t next_page;
    uint64_t row_count;
    uint64_t segments; /* valid segment records, named by an entry or not */
    uint64_t damaged;  /* runs of units that are no record and not free, and records whose body is bad */
} sarp_mark_scan;

/* What the sweeps go by. */
typedef struct {
    const uint64_t *verdicts; /* ascending: reference << 8 | blocks that stay, 0: none. An entry keeps the lower of these and its n */
    const uint64_t *masks;    /* ascending, one a key: root key << 16 | bits of all entries that stay */
    uint64_t verdict_count, mask_count;
    uint64_t position;        /* of the pass: entries of records up to here that have no verdict could not be read, and go */
    uint64_t dropped, cut;    /* out: records' entries; those that could not be read are among the dropped */
    uint64_t unreadable;
} sarp_mark_plan;

/* Reads `count` pages from scan->next_page on and adds rows; stops before a page that row_limit might not hold. Returns how many
   pages were read. Everything in the directory is loaded. */
uint32_t sarp_mark_rows(sarp_mark_scan *scan, const sarp_directory *directory, const uint8_t *pages, uint32_t count);
uint32_t sarp_mark_rows_listed(sarp_mark_scan *scan, const sarp_postings *postings, const uint8_t *pages, uint32_t count);

/* Applies verdicts to a partition's entries. Masks lose the bits that are neither in plan->masks nor in directory->fresh, which must
   have noted all since before the first row was made; placeholders without a bit go. */
void sarp_directory_sweep(sarp_directory *directory, uint32_t partition, sarp_mark_plan *plan);

/* The same. A posting whose filter becomes shorter moves ahead in its list, perhaps to another partition. Few do so in one call:
   returns 0 where some are left to the next. Where the memory bound keeps one from its new place, its list loses it. */
int32_t sarp_postings_sweep(sarp_postings *postings, uint32_t partition, sarp_mark_plan *plan);

/* The changes that take out states of a partition whose lists have no posting left, at most `limit`. They are made by a postings record:
   what is inserted later is posted as if the lists had none, and replay has to know. */
uint32_t sarp_postings_empty_states(const sarp_postings *postings, uint32_t partition, sarp_change *out, uint32_t limit);
