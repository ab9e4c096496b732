/* Deciding a mark pass (format-spec/removal.md, section 3): out of the rows of all entries what the sweeps apply. */
#pragma once
#include "markpass.h"

/* One pass. The caller sets the first part. */
typedef struct {
    const sarp_mark_row *rows; /* in any order; of slots below SARP_SLOTS */
    uint64_t *removals;  /* positions of all markers and epochs, in any order; afterwards they ascend */
    void *scratch;       /* sarp_mark_decide_bytes, aligned for uint64_t */
    uint64_t *verdicts;  /* row_count of them: sarp_mark_plan's */
    uint64_t *masks;     /* room for row_count: sarp_mark_plan's */
    uint64_t *intact;    /* SARP_SLOTS, zero: by slot, counts records of which every block stays */
    uint64_t row_count;  /* at most UINT32_MAX */
    uint64_t removal_count;
    uint64_t position;   /* of the pass */
    uint64_t mask_count; /* out */
} sarp_mark_decision;

/* Scratch for so many rows and removals. Most of it is touched only where one window has most of the rows (see plan.py). */
size_t sarp_mark_decide_bytes(uint64_t row_count, uint64_t removal_count);

/* Decides all rows, in time that grows little faster than their number, whatever they say. */
void sarp_mark_decide(sarp_mark_decision *decision);
