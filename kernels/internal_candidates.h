/* The postings of a list in the order in which they are worth reading (format-spec/postings.md, section 6). */
#pragma once
#include "internal_postings.h"

/* Groups by the number of fingerprints in common with the query, from the highest down; before all others stand the postings
   that have the very same filter, which ends where the query's does. */
typedef struct {
    const sarp_postings *dir;
    const posting_list *list;
    uint64_t filter;
    int32_t equal;  /* of the next group; below 0 there is none */
    int32_t same;   /* the next group is that of the same filter */
    spot low, high; /* what the groups before it cover */
} candidates;

/* The best of a group: longer first, then newer. */
typedef struct {
    sarp_posting best[SARP_READ_CAP_MAX];
    uint32_t count, limit;
} candidate_group;

candidates candidates_of(const sarp_postings *dir, const posting_list *list, uint64_t filter);

/* The next group's best, at most group->limit (1 or more). */
void candidates_next(candidates *c, candidate_group *group);
