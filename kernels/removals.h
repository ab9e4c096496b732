/* Removal by time (format-spec/removal.md): markers, epochs, expiries, counts. Memory is the caller's; nothing here grows.

   A table of marks is dense, so that it can be saved as it is (a head's marker rows), with an open-addressed index over it. */
#pragma once
#include "types.h"

typedef struct {
    uint8_t id[16];
    uint64_t name_space;
    uint64_t value; /* of a marker its position; of a count the count */
    uint32_t holder;
    uint32_t reserved;
} sarp_mark;

typedef struct {
    sarp_mark *marks;     /* limit */
    uint32_t *index;      /* index_size, a power of two and at least twice the limit: number of the mark + 1; 0: free */
    uint32_t index_size;
    uint32_t limit, count;
    uint32_t reserved;
} sarp_marks;

/* What concerns all of a holder's, or of a namespace's, records. */
typedef struct {
    uint64_t key;     /* holder or namespace */
    uint64_t epoch;   /* of a holder: position, 0: never cleared */
    uint64_t expiry;  /* position; what was born below has outlived its time */
    uint32_t markers; /* of a holder: how many there are */
    uint8_t kind;     /* SARP_SCOPE_FREE, ... */
    uint8_t reserved[3];
} sarp_scope;

enum { SARP_SCOPE_FREE = 0, SARP_SCOPE_HOLDER = 1, SARP_SCOPE_NAMESPACE = 2 };

typedef struct sarp_removals {
    sarp_marks markers, counts;
    sarp_scope *scopes;  /* scope_size, a power of two; open-addressed, never more than half full */
    uint64_t *newest;    /* newest_limit: scratch, one for each window of a query */
    uint64_t expiry;     /* of all holders and namespaces */
    uint64_t settled;    /* what a mark pass up to here has found dead is no longer in the directory */
    uint32_t scope_size, scopes_used;
    uint32_t newest_limit;
    uint32_t reserved;
} sarp_removals;

/* Sets the value of `count` marks of one holder and namespace, whose ids stand `stride` bytes apart. `later`: a mark that is
   there keeps the larger of the two values. Returns how many were done: fewer than `count` where the table is full. */
size_t sarp_marks_set(sarp_marks *marks, const uint8_t *ids, size_t stride, size_t count, uint32_t holder, uint64_t name_space,
                      uint64_t value, int32_t later);

/* The values of `count` marks, 0 where there is none. */
void sarp_marks_get(const sarp_marks *marks, const uint8_t *ids, size_t stride, size_t count, uint32_t holder,
                    uint64_t name_space, uint64_t *values);

/* Takes out the marks of these ids that are there. Returns how many. */
size_t sarp_marks_drop(sarp_marks *marks, const uint8_t *ids, size_t stride, size_t count, uint32_t holder, uint64_t name_space);

/* Makes the index of the dense marks anew: after rows were put there. Returns 0 if one of them stands there twice. */
int32_t sarp_marks_index(sarp_marks *marks);

/* Takes out the `count` marks that have mostly been there longest. */
void sarp_marks_forget(sarp_marks *marks, uint32_t count);

/* Takes out all marks of one holder. Returns how many. */
size_t sarp_marks_clear(sarp_marks *marks, uint32_t holder);

/* The scope of a holder or namespace, made if `make`; NULL where there is none, or no room. */
sarp_scope *sarp_scope_of(sarp_removals *removals, uint32_t kind, uint64_t key, int32_t make);

/* Sets markers; counts them with their holder. Returns how many were done. */
size_t sarp_removals_mark(sarp_removals *removals, const uint8_t *ids, size_t stride, size_t count, uint32_t holder,
                          uint64_t name_space, uint64_t position);

/* Counts the markers with their holders anew; 0 where there is no room for a holder. */
int32_t sarp_removals_recount(sarp_removals *removals);

/* A record's place, for replay. */
typedef struct {
    uint64_t position;
    uint32_t page; /* number of its page among those that are given */
    uint32_t reserved;
} sarp_place;

/* Takes the remove and count records at these places, in order: markers, and what is remembered of announcements. Epochs are those
   of the end: they are taken before. Returns how many
   were taken; the next one did not verify or is of another type (*full is 0), or a table is full (*full is 1: make room, go on). */
size_t sarp_removals_replay(sarp_removals *removals, const uint8_t *uuid, uint32_t features, const uint8_t *pages,
                            const sarp_place *places, size_t count, int32_t *full);

/* The verified record at a place, in bytes from its page's start: its length, 0 if it is damaged. */
uint32_t sarp_record_at(const uint8_t *uuid, uint32_t features, uint64_t position, const uint8_t *page);

/* Adds markers that another table has, as far as there is room; of two for one block the later holds. Returns how many were taken. */
size_t sarp_removals_merge(sarp_removals *removals, const sarp_mark *marks, size_t count);

/* Looks at `count` markers from number `*next` downwards, and retires those up to a position; `*next` is then where to go
   on, 0 at the end. Markers may be added between two calls. Returns how many it retired. */
size_t sarp_removals_retire(sarp_removals *removals, uint64_t position, uint32_t *next, uint32_t count);

/* Whether anything of a holder and namespace may be dead by a marker, epoch or expiry. */
int32_t sarp_removals_concern(const sarp_removals *removals, uint32_t holder, uint64_t name_space);
