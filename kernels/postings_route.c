#include "internal_candidates.h"
#include "internal_recency.h"
#include "internal_removals.h"
#include "postings.h"

enum {
    ROOT_BATCH = 16,
    MATCH_WINDOWS = 64 /* that one call goes through */
};

typedef struct {
    sarp_postings *dir;
    sarp_query *query;
    key_seed seed;
    barrier removed;
    const uint64_t *before; /* for each window the newest marker in the windows before it; NULL: there is none */
    reading r;
    uint32_t cuts; /* of dead postings that this call may still make before others have their turn; then `tired` */
    int tired;
} routing;

/* The best proved record of one window. */
typedef struct {
    const uint8_t *record;
    uint64_t reference;
    uint32_t length, n, d;
} proof;

/* The deepest list on a window's path. */
typedef struct {
    posting_list list;
    uint32_t point;
} route;

posting_list list_wanted(const sarp_postings *dir, reading *r, uint64_t key) {
    const posting_list list = list_open(dir, key);
    for (uint32_t rank = list.first_rank; !list.loaded && rank <= list.last_rank; rank++)
        if (!(partition_ranked(dir, rank)->flags & SARP_PARTITION_LOADED)) need_partition(r, dir->order[rank]);
    return list;
}

static inline const uint8_t *ids_at(const routing *t, uint32_t block) { return t->query->ids + (size_t)block * SARP_ID; }

static posting_list list_at(routing *t, uint32_t block) {
    return list_wanted(t->dir, &t->r, key_of(t->seed, ids_at(t, block)));
}

/* Goes along successors from point 0; 0 where a partition is missing. `limit` blocks of the window are asked for. */
static int find_route(routing *t, uint32_t first, uint32_t limit, route *out) {
    *out = (route){list_at(t, first), 0};
    if (!out->list.loaded) return 0;
    while (out->list.flags & STATE_EXPANDED) {
        const uint32_t point = point_successor(out->point, out->list.flags);
        if (point == NO_POINT || point_offset(point) >= limit) break;
        const posting_list next = list_at(t, first + point_offset(point));
        if (!next.loaded) return 0;
        if (!next.count) break; /* whoever gets there is in that list */
        *out = (route){next, point};
    }
    return 1;
}

/* The most that a posting with so many fingerprints in common can agree in. */
static uint32_t bound_of(uint32_t point, int32_t equal, uint32_t limit) {
    const uint32_t bound = point_offset(point) + 2 * (uint32_t)equal + 1;
    return equal == FINGERPRINTS || point == LAST_POINT || bound > limit ? limit : bound;
}

/* A posting that has more blocks than removals have left of it. */
typedef struct {
    uint64_t reference;
    uint32_t n, left; /* left 0: it is dead */
} dead_posting;

enum {
    DEAD_MAX = 16, /* that one round of reading takes out; the next finds the others */
    CUTS_MAX = 16  /* of one call: each goes through the lists at all points of its record */
};

/* Whether a posting of a list stands where its record is posted. One that does not, which no writer makes, is not found there. */
static int stands_right(const routing *t, const uint8_t *record, const sarp_posting *e) {
    const uint8_t *ids = record + SARP_SEGMENT_HEADER;
    const key_seed seed = seed_of(t->dir->base, load32(record + SARP_AT_HOLDER), load64(record + SARP_AT_NAMESPACE));
    return key_of(seed, ids + point_offset(posting_point(e)) * SARP_ID) == posting_key(e) &&
           filter_of(t->dir->base, ids, posting_n(e), posting_point(e)) == e->filter;
}

/* Blocks of a window that a record proves, at most `n`; of a dead one 0, as of one that has fewer than its posting says. A dead or cut one is noted: it stands at points that it does
   not reach any more, where it hides records that reach further than it on another way. */
static uint32_t prove(routing *t, const uint8_t *record, const sarp_posting *e, uint32_t first, uint32_t n, dead_posting *dead,
                      uint32_t *dead_count) {
    const uint32_t run = posting_n(e) <= record[SARP_AT_N] ? prove_segment(t->r.pages, record, t->query, first, n) : 0;
    if (!run) return 0;
    uint32_t length = 0;
    if (!barrier_blocks_path(t->dir->base, &t->removed, t->before, t->query->ids, first / SARP_WINDOW, record))
        length = barrier_survives(&t->removed, record, ids_at(t, first), run);
    if (length < run && *dead_count < DEAD_MAX && stands_right(t, record, e))
        dead[(*dead_count)++] = (dead_posting){posting_reference(e), posting_n(e), length};
    return length;
}

/* Reads candidates until none that is left can be longer. Stops where a page is missing. */
static void search(routing *t, const route *at, uint32_t first, uint32_t limit, proof *best, uint32_t *records,
                   dead_posting *dead, uint32_t *dead_count) {
    candidate_group group;
    uint32_t left = t->dir->read_cap;
    candidates c = candidates_of(t->dir, &at->list, filter_of(t->dir->base, ids_at(t, first), limit, at->point));
    while (c.equal >= 0 && left) {
        const uint32_t most = bound_of(at->point, c.equal, limit);
        if (most <= best->length) return;
        group.limit = left;
        candidates_next(&c, &group);
        for (uint32_t i = 0; i < group.count; i++, left--) {
            const sarp_posting *e = group.best + i;
            const uint32_t n = posting_n(e) < limit ? posting_n(e) : limit;
            if ((n < most ? n : most) <= best->length) break;
            const uint8_t *record = read_segment(&t->r, posting_reference(e));
            if (t->r.missing) return;
            ++*records;
            const uint32_t length = record ? prove(t, record, e, first, n, dead, dead_count) : 0;
            if (length > best->length) *best = (proof){record, posting_reference(e), length, posting_n(e), posting_d(e)};
        }
    }
}

/* The ids of a record that was just read. */
static const uint8_t *ids_of_read(routing *t, uint64_t reference) {
    const uint8_t *record = read_segment(&t->r, reference);
    return record ? record + SARP_SEGMENT_HEADER : NULL;
}

/* Finds the window's best record. The dead ones that stand in the way leave their lists, those that are cut are shortened there, and
   it is looked for again. Where what a list has was cut before the list's point, the list before may have longer ones. */
static void find_best(routing *t, uint32_t first, uint32_t limit, proof *best, uint32_t *records) {
    for (uint32_t reach = limit;;) {
        route at;
        dead_posting dead[DEAD_MAX];
        uint32_t count = 0;
        *best = (proof){0};
        if (!find_route(t, first, reach, &at)) return;
        search(t, &at, first, limit, best, records, dead, &count);
        for (uint32_t i = 0; i < count; i++) {
            const uint8_t *ids = ids_of_read(t, dead[i].reference);
            if (!ids || !postings_cut(t->dir, &t->r, t->seed, ids, dead[i].n, dead[i].left, dead[i].reference)) return;
        }
        if (t->r.missing) return;
        if (count) {
            t->tired = t->cuts <= count;
            if (t->tired) return;
            t->cuts -= count;
            continue;
        }
        if (!best->length || best->length > point_offset(at.point)) return;
        reach = point_offset(at.point);
    }
}

static uint32_t blocks_of_window(const sarp_query *q, uint32_t first) {
    return q->blocks - first < SARP_WINDOW ? q->blocks - first : SARP_WINDOW;
}

/* Windows that have a list at point 0, from the first on. One whose partition is not loaded counts as there. */
static uint32_t count_lists(routing *t) {
    const uint32_t windows = (t->query->blocks + SARP_WINDOW - 1) / SARP_WINDOW;
    for (uint32_t window = 0; window < windows; window++) {
        if (window % ROOT_BATCH == 0 && t->r.missing) return window;
        const posting_list list = list_at(t, window * SARP_WINDOW);
        if (list.loaded && !list.count) return window;
    }
    return windows;
}

static void answer(sarp_query *q, uint32_t matched, uint32_t records, const proof *last) {
    q->matched = matched;
    q->records = records;
    q->owner_reference = matched ? last->reference : SARP_REFERENCE_NONE;
    q->owner_n = (uint8_t)(matched ? last->n : 0);
    q->owner_d = (uint8_t)(matched ? last->d : 0);
    q->owner_dp = (uint8_t)(matched ? last->record[SARP_AT_DP] : 0);
    q->status = SARP_OK;
}

/* Lifts the record that proved a window. What is said of a record's recency stands at its posting at point 0 alone. */
static void touch(routing *t, const proof *p, uint32_t first) {
    const uint64_t filter = filter_of(t->dir->base, p->record + SARP_SEGMENT_HEADER, p->n, 0);
    postings_touch(t->dir, (place){key_of(t->seed, ids_at(t, first)), filter, p->reference}, level_at_top(first / SARP_WINDOW));
}

/* All windows are presumed whole, so that their reads go out together; the first that is found not to be ends it. Goes
   through `at_once` windows, or as far as its cuts last, and notes where it stands. */
static void match_one(routing *t, uint32_t at_once) {
    sarp_query *q = t->query;
    const uint32_t windows = count_lists(t), begin = q->located <= windows ? q->located : 0;
    const uint32_t end = windows - begin < at_once ? windows : begin + at_once;
    uint32_t matched = begin ? q->matched : 0, records = begin ? q->records : 0, window = begin;
    int missing = t->r.missing, ended = 0; /* of the windows so far */
    proof last = {0};
    if (missing) return;
    t->before = barrier_path(t->dir->base, &t->removed, q->ids, windows);
    for (; window < end && !ended; window++) {
        const uint32_t first = window * SARP_WINDOW, limit = blocks_of_window(q, first);
        proof best = {0};
        t->r.missing = 0;
        find_best(t, first, limit, &best, &records);
        if (t->tired) break;
        if (t->r.missing) {
            missing = 1;
            continue;
        }
        if (best.length && q->locations) copy_locations(t->r.pages, best.record, q, first, best.length);
        if (best.length) {
            if (t->dir->base->evicts) touch(t, &best, first);
            last = best;
            matched = first + best.length;
        }
        ended = best.length < SARP_WINDOW;
    }
    if (missing) return;
    if (last.length || !begin) answer(q, matched, records, &last);
    q->records = records;
    q->located = ended || window == windows ? 0 : window;
    q->status = q->located || t->tired ? SARP_NEED : SARP_OK;
}

static routing routing_of(sarp_postings *dir, const sarp_pages *pages, sarp_query *q, sarp_needs *needs) {
    return (routing){.dir = dir,
                     .query = q,
                     .seed = seed_of(dir->base, q->holder, q->name_space),
                     .removed = barrier_of(dir->base, q->holder, q->name_space),
                     .r = {.base = dir->base, .pages = pages, .needs = needs},
                     .cuts = CUTS_MAX};
}

int32_t postings_match_whole(sarp_postings *dir, const sarp_pages *pages, sarp_query *query, sarp_needs *needs) {
    routing t = routing_of(dir, pages, query, needs);
    query->located = 0; /* what was found before others had their turn may have been removed in it */
    match_one(&t, UINT32_MAX);
    return query->status;
}

int32_t sarp_postings_match(sarp_postings *dir, const sarp_pages *pages, sarp_query *queries, size_t count,
                            sarp_needs *needs) {
    int32_t open = 0;
    for (size_t i = 0; i < count; i++) {
        if (queries[i].status != SARP_NEED) continue;
        routing t = routing_of(dir, pages, queries + i, needs);
        match_one(&t, MATCH_WINDOWS);
        open += queries[i].status == SARP_NEED;
    }
    return open;
}

/* Blocks that are held for sure, as far as lists say: what stands in one has its point's block, and those before. The lists of a
   later window do not say that an earlier one is whole: its records may have been evicted, have expired, or be lost. */
static uint32_t surely_listed(routing *t, uint32_t windows) {
    uint32_t least = 0;
    for (uint32_t first = 0; first < windows * SARP_WINDOW && least == first; first += SARP_WINDOW) {
        route at;
        if (!find_route(t, first, blocks_of_window(t->query, first), &at)) break;
        least = first + point_offset(at.point) + 1;
    }
    return least;
}

void sarp_postings_estimate(sarp_postings *dir, const sarp_query *query, uint32_t *at_least, uint32_t *at_most) {
    sarp_needs none = {0};
    sarp_query copy = *query;
    routing t = routing_of(dir, NULL, &copy, &none);
    const uint32_t windows = count_lists(&t);
    const uint32_t first = windows ? (windows - 1) * SARP_WINDOW : 0, limit = blocks_of_window(query, first);
    route at;
    *at_least = barrier_surely(dir->base, &t.removed, query->ids, surely_listed(&t, windows));
    *at_most = windows || t.r.missing ? query->blocks : 0;
    if (!windows || t.r.missing || !find_route(&t, first, limit, &at)) return;
    candidates c = candidates_of(dir, &at.list, filter_of(dir->base, ids_at(&t, first), limit, at.point));
    /* The longest of each group comes first. One that a removal has shortened may reach less far than one of a group with fewer
       fingerprints in common. */
    candidate_group group = {.limit = 1};
    uint32_t n = 0;
    while (c.equal >= 0) {
        const uint32_t most = bound_of(at.point, c.equal, limit);
        if (most <= n) break;
        candidates_next(&c, &group);
        const uint32_t reach = !group.count ? 0 : posting_n(group.best) < most ? posting_n(group.best) : most;
        if (reach > n) n = reach;
    }
    if (first + n >= *at_least) *at_most = first + n;
}
