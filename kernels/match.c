#include "match.h"

#include "internal_directory.h"
#include "internal_prove.h"
#include "internal_recency.h"
#include "internal_removals.h"

enum {
    EQUAL_KEYS = 8, /* entries looked at under one key; collisions of 48 bits make two at the very most */
    ROOT_BATCH = 16,
    ANY_OFFSET = SARP_WINDOW,
    LOCATE_WINDOWS = 128 /* whose locations one call copies */
};

typedef struct {
    sarp_directory *dir;
    sarp_query *query;
    key_seed seed;
    barrier removed;
    const uint64_t *before; /* for each window the newest marker in the windows before it; NULL: there is none */
    reading r; /* page_missing: since the walk of the present window began */
    uint32_t at_once; /* windows that may be located before the caller gets its turn */
} matching;

static uint32_t blocks_asked(const sarp_query *q) { return q->asked ? q->asked : q->blocks; }

/* The best proved record of one window. */
typedef struct {
    const uint8_t *record;
    uint64_t reference;
    uint32_t length, n, d, dp;
} proof;

static inline uint64_t key_at(const matching *m, uint32_t block) {
    return key_of(m->seed, m->query->ids + (size_t)block * SARP_ID);
}

static void need_partition_of(matching *m, uint64_t key) {
    uint32_t number;
    sarp_directory_partition_of(m->dir, &key, 1, &number);
    need_partition(&m->r, number);
}

/* Entries under a key, at most EQUAL_KEYS; 0 and a need where its partition is not loaded. */
static uint32_t find(matching *m, uint64_t key, sarp_entry *out) {
    const int32_t found = sarp_directory_find(m->dir, key, out, EQUAL_KEYS);
    if (found >= 0) return found < EQUAL_KEYS ? (uint32_t)found : EQUAL_KEYS;
    need_partition_of(m, key);
    return 0;
}

/* --- one record */

/* Notes, where the holder has markers, what the windows before the first `windows` of the query say. */
static void see_path(matching *m, uint32_t windows) {
    m->before = barrier_path(m->dir->base, &m->removed, m->query->ids, windows);
}

/* What of a proved run has not been removed since: format-spec/removal.md, section 2. 0: the record is dead. */
static uint32_t surviving(const matching *m, const uint8_t *record, uint32_t base, uint32_t run) {
    if (barrier_blocks_path(m->dir->base, &m->removed, m->before, m->query->ids, base / SARP_WINDOW, record)) return 0;
    return barrier_survives(&m->removed, record, m->query->ids + (size_t)base * SARP_ID, run);
}

/* Blocks of window `base / 64` that a record proves for the query, at most `limit`; 0 if it does not. A dead entry goes. */
static uint32_t prove(matching *m, const uint8_t *record, const sarp_entry *entry, uint32_t base, uint32_t limit) {
    if (record[SARP_AT_D] != entry_d(entry)) return 0;
    const uint32_t n = entry_n(entry) < limit ? entry_n(entry) : limit;
    uint32_t run = prove_segment(m->r.pages, record, m->query, base, n);
    if (run <= entry_d(entry)) return 0;
    run = surviving(m, record, base, run);
    if (!run) directory_drop(m->dir, entry_key(entry), entry_reference(entry));
    return run;
}

/* Tries the entries under one key; keeps the longest proof. */
static void try_key(matching *m, uint64_t key, uint32_t base, uint32_t offset, uint32_t limit, proof *best) {
    sarp_entry entries[EQUAL_KEYS];
    const uint32_t count = find(m, key, entries);
    for (uint32_t i = 0; i < count; i++) {
        const sarp_entry *entry = entries + i;
        if (entry_placeholder(entry) || entry_d(entry) != offset) continue;
        const uint8_t *record = read_segment(&m->r, entry_reference(entry));
        const uint32_t length = record ? prove(m, record, entry, base, limit) : 0;
        if (length <= best->length) continue;
        *best = (proof){record, entry_reference(entry), length, entry_n(entry), offset, entry_dp(entry)};
    }
}

/* --- one window */

static uint64_t window_mask(matching *m, uint64_t root_key) {
    sarp_entry entries[EQUAL_KEYS];
    uint64_t mask = 0;
    const uint32_t count = find(m, root_key, entries);
    for (uint32_t i = 0; i < count; i++)
        if (entry_d(entries + i) == 0) mask |= entry_mask(entries + i);
    return mask;
}

/* The deepest record of the window on the query's path that verifies: method.md, section 2. `limit` blocks of the window
   are asked for. Stops early, with best->length 0, when a page or partition that it depends on is missing. */
static void walk_window(matching *m, uint32_t base, uint32_t limit, proof *best) {
    uint64_t keys[SARP_WINDOW];
    uint8_t offsets[SARP_WINDOW];
    uint32_t count = 0;
    best->length = 0;
    m->r.page_missing = 0;
    const uint64_t mask = window_mask(m, key_at(m, base));
    for (uint32_t j = limit; j-- > 0;) {
        if (j && !(mask >> (j / 4) & 1)) continue;
        keys[count] = key_at(m, base + j);
        directory_prefetch(m->dir, keys[count]);
        offsets[count++] = (uint8_t)j;
    }
    for (uint32_t i = 0; i < count && !best->length; i++) {
        try_key(m, keys[i], base, offsets[i], limit, best);
        /* All partitions of the window are asked for in one go, but of the records only the deepest. */
        if (m->r.page_missing) return;
    }
}

/* --- what is presumed of earlier windows, from memory */

/* Whether an entry with that key holds its window whole; if `d` is not ANY_OFFSET, one of that offset. */
static int holds_whole(matching *m, uint64_t key, uint32_t d) {
    sarp_entry entries[EQUAL_KEYS];
    const uint32_t count = find(m, key, entries);
    for (uint32_t i = 0; i < count; i++)
        if (entry_n(entries + i) == SARP_WINDOW && (d == ANY_OFFSET || entry_d(entries + i) == d)) return 1;
    return m->r.missing; /* then nothing is concluded from it */
}

/* Whether the owner that one of the next window's roots names is there, and whole. It may have been evicted, or lost. */
static int is_whole(matching *m, uint32_t base, const sarp_entry *next, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        if (entry_placeholder(next + i) || entry_d(next + i)) continue;
        if (holds_whole(m, key_at(m, base + entry_dp(next + i)), entry_dp(next + i))) return 1;
    }
    return 0;
}

/* Whether the previous window's owner, which a record names, is still there. */
static int stands(matching *m, const uint8_t *record) {
    return !load32(record + SARP_AT_WINDOW) || holds_whole(m, load64(record + SARP_AT_PARENT_KEY), ANY_OFFSET);
}

/* Whether of a window's root nothing is known but where something diverges: then the record that is read says what it stands on. */
static uint32_t is_unknown(const sarp_entry *roots, uint32_t count) {
    for (uint32_t i = 0; i < count; i++)
        if (!entry_placeholder(roots + i)) return 0;
    return 1;
}

/* Windows that may be held, from the first on: whose roots the directory has, all but the last of them whole, as far as that is
   known without reading. A root whose partition is not loaded counts as there. */
static uint32_t count_roots(matching *m) {
    const uint32_t windows = (blocks_asked(m->query) + SARP_WINDOW - 1) / SARP_WINDOW;
    uint64_t keys[ROOT_BATCH];
    sarp_entry roots[EQUAL_KEYS];
    for (uint32_t first = 0; first < windows; first += ROOT_BATCH) {
        const uint32_t batch = windows - first < ROOT_BATCH ? windows - first : ROOT_BATCH;
        for (uint32_t i = 0; i < batch; i++) {
            keys[i] = key_at(m, (first + i) * SARP_WINDOW);
            directory_prefetch(m->dir, keys[i]);
        }
        for (uint32_t i = 0; i < batch; i++) {
            const uint32_t window = first + i, found = find(m, keys[i], roots);
            if (m->r.missing) continue;
            if (!found) return window;
            if (window && !is_whole(m, (window - 1) * SARP_WINDOW, roots, found)) return window + is_unknown(roots, found);
        }
        if (m->r.missing) return first + batch;
    }
    return windows;
}

/* --- locations of the earlier windows */

static void take_locations(matching *m, uint32_t base, const proof *p) {
    copy_locations(m->r.pages, p->record, m->query, base, p->length);
    m->query->records++;
}

/* The owner of a whole window stands under the block that the next window's root names with its dp. */
static void find_owner(matching *m, uint32_t base, proof *best) {
    sarp_entry roots[EQUAL_KEYS];
    best->length = 0;
    const uint32_t count = find(m, key_at(m, base + SARP_WINDOW), roots);
    for (uint32_t i = 0; i < count; i++) {
        if (entry_placeholder(roots + i) || entry_d(roots + i) != 0) continue;
        const uint32_t dp = entry_dp(roots + i);
        try_key(m, key_at(m, base + dp), base, dp, SARP_WINDOW, best);
        if (best->length == SARP_WINDOW) return;
    }
}

/* Locations of windows `from` to `to` - 1, all of them whole. Returns the window that can't be had, or `to`. Goes on past
   missing pages, so that all reads of a match go out together. */
static uint32_t locate(matching *m, uint32_t from, uint32_t to) {
    for (uint32_t u = to; u-- > from;) {
        proof best;
        const int missing = m->r.missing;
        m->r.missing = 0;
        find_owner(m, u * SARP_WINDOW, &best);
        if (best.length < SARP_WINDOW && !m->r.missing) walk_window(m, u * SARP_WINDOW, SARP_WINDOW, &best);
        if (best.length < SARP_WINDOW && !m->r.missing) return u;
        if (best.length == SARP_WINDOW) take_locations(m, u * SARP_WINDOW, &best);
        m->r.missing |= missing;
    }
    return to;
}

/* Where the windows before `to` begin that a call may still go through, having gone through `gone`. */
static uint32_t locate_from(const matching *m, uint32_t to, uint32_t gone) {
    const uint32_t left = m->at_once > gone ? m->at_once - gone : 0;
    return to > left ? to - left : 0;
}

/* Goes on with the locations of a query whose length is decided. */
static void locate_on(matching *m) {
    sarp_query *q = m->query;
    const uint32_t to = q->located - 1, from = locate_from(m, to, 0);
    see_path(m, to);
    const uint32_t lost = locate(m, from, to);
    if (m->r.missing) return;
    if (lost < to) { /* damage: only what lies before it can be given with its locations, so decide again */
        q->asked = (lost + 1) * SARP_WINDOW;
        q->located = 0;
    } else if (from) {
        q->located = from + 1;
    } else {
        q->located = 0;
        q->status = SARP_OK;
    }
}

/* --- one query */

static void answer(sarp_query *q, uint32_t matched, const proof *p) {
    q->matched = matched;
    q->owner_reference = matched ? p->reference : SARP_REFERENCE_NONE;
    q->owner_n = (uint8_t)(matched ? p->n : 0);
    q->owner_d = (uint8_t)(matched ? p->d : 0);
    q->owner_dp = (uint8_t)(matched ? p->dp : 0);
    q->status = SARP_OK;
}

static void match_one(matching *m) {
    sarp_query *q = m->query;
    uint32_t windows = count_roots(m), blocks = blocks_asked(q), from = 0;
    if (m->r.missing) return;
    see_path(m, windows);
    for (; windows > 0; windows--) {
        const uint32_t window = windows - 1, base = window * SARP_WINDOW;
        const uint32_t limit = blocks - base < SARP_WINDOW ? blocks - base : SARP_WINDOW;
        proof best;
        q->records = 0;
        walk_window(m, base, limit, &best);
        if (best.length && !stands(m, best.record)) best.length = 0;
        if (best.length && q->locations) take_locations(m, base, &best);
        if ((best.length || m->r.missing) && q->locations) {
            from = locate_from(m, window, 1); /* the one that decided the length */
            const uint32_t lost = locate(m, from, window);
            if (!m->r.missing && lost < window) {
                /* Damage below: only what lies before it can be given with its locations. */
                windows = lost + 2;
                blocks = (lost + 1) * SARP_WINDOW;
                continue;
            }
        }
        if (m->r.missing) return;
        if (best.length) {
            if (!q->locations) q->records = 1;
            answer(q, base + best.length, &best);
            if (m->dir->base->evicts) directory_touch(m->dir, m->seed, q);
            if (from) {
                q->located = from + 1;
                q->status = SARP_NEED;
            }
            return;
        }
        blocks = base;
        from = 0;
    }
    answer(q, 0, NULL);
}

static matching matching_of(sarp_directory *dir, const sarp_pages *pages, sarp_query *q, sarp_needs *needs,
                            uint32_t at_once) {
    const key_seed seed = seed_of(dir->base, q->holder, q->name_space);
    return (matching){dir,  q, seed, barrier_of(dir->base, q->holder, q->name_space), NULL, {.base = dir->base, .pages = pages, .needs = needs}, at_once};
}

void sarp_query_begin(sarp_query *query, sarp_needs *needs, const uint8_t *ids, uint32_t blocks, uint8_t *locations,
                      uint64_t name_space, uint32_t holder) {
    *query = (sarp_query){.ids = ids,
                          .locations = locations,
                          .name_space = name_space,
                          .blocks = blocks,
                          .holder = holder,
                          .status = SARP_NEED};
    needs->page_count = needs->partition_count = needs->damaged_count = 0;
}

int32_t match_whole(sarp_directory *dir, const sarp_pages *pages, sarp_query *query, sarp_needs *needs) {
    matching m = matching_of(dir, pages, query, needs, UINT32_MAX);
    match_one(&m);
    return query->status;
}

int32_t sarp_match(sarp_directory *dir, const sarp_pages *pages, sarp_query *queries, size_t count, sarp_needs *needs) {
    int32_t open = 0;
    for (size_t i = 0; i < count; i++) {
        if (queries[i].status != SARP_NEED) continue;
        matching m = matching_of(dir, pages, queries + i, needs, LOCATE_WINDOWS);
        if (m.query->located) locate_on(&m);
        else match_one(&m);
        open += queries[i].status == SARP_NEED;
    }
    return open;
}

/* The window's deepest entry on the query's path, and the longest n at its offset. */
static void estimate_window(matching *m, uint32_t base, uint32_t *at_least, uint32_t *at_most) {
    const uint32_t blocks = m->query->blocks, limit = blocks - base < SARP_WINDOW ? blocks - base : SARP_WINDOW;
    const uint64_t mask = window_mask(m, key_at(m, base));
    for (uint32_t j = limit; j-- > 0 && !*at_least;) {
        sarp_entry entries[EQUAL_KEYS];
        if (j && !(mask >> (j / 4) & 1)) continue;
        const uint32_t count = find(m, key_at(m, base + j), entries);
        for (uint32_t i = 0; i < count; i++) {
            if (entry_placeholder(entries + i) || entry_d(entries + i) != j) continue;
            const uint32_t n = entry_n(entries + i) < limit ? entry_n(entries + i) : limit;
            *at_least = base + j + 1;
            if (base + n > *at_most) *at_most = base + n;
        }
    }
}

void sarp_estimate(sarp_directory *dir, const sarp_query *query, uint32_t *at_least, uint32_t *at_most) {
    sarp_needs none = {0};
    sarp_query copy = *query;
    matching m = matching_of(dir, NULL, &copy, &none, 0);
    uint32_t windows = count_roots(&m);
    *at_least = *at_most = 0;
    /* A window that has placeholders alone claims nothing. */
    while (windows > 0 && !m.r.missing && !*at_least) estimate_window(&m, --windows * SARP_WINDOW, at_least, at_most);
    if (m.r.missing) {
        *at_least = 0;
        *at_most = query->blocks;
    }
    *at_least = barrier_surely(dir->base, &m.removed, query->ids, *at_least);
}
