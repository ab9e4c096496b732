#pragma once
#include "internal_record.h"

enum {
    CHANGE_ADD = 1,
    CHANGE_DROP = 2,
    RECORD_CHANGES_MAX = SARP_POSTINGS_ENTRIES_MAX
};

/* What a verified record at `position` does to the directory: at most RECORD_CHANGES_MAX changes. Returns how many. */
uint32_t changes_of(const sarp_base *base, const uint8_t *record, uint64_t position, sarp_change *out);

/* How many those are. */
uint32_t changes_count(const uint8_t *record);

/* Whether a change is one that a writer of posting lists makes (postings.md, sections 2 and 4). */
int change_listed_valid(const sarp_change *change);

/* Whether a segment's or a postings record's own fields are such: section 4. */
int record_listed_valid(const uint8_t *record);
