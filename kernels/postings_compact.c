#include "internal_compact.h"
#include "internal_postings.h"

/* Where a record is posted now. */
typedef struct {
    const uint8_t *ids;
    key_seed seed;
    uint64_t reference;
    uint32_t n;                /* of its postings; 0: it has none */
    uint8_t points;            /* bit i: it is posted at point i */
    uint64_t recency[POINTS];  /* word 1 without the reference */
} posted;

static place place_at(const moving *m, const posted *p, uint32_t n, uint32_t point) {
    return (place){key_of(p->seed, p->ids + point_offset(point) * SARP_ID), filter_of(m->base, p->ids, n, point), p->reference};
}

static int is_loaded(moving *m, place at) {
    const sarp_postings *dir = m->directory;
    m->file->partition = dir->order[rank_of(dir, at)];
    return dir->partitions[m->file->partition].flags & SARP_PARTITION_LOADED;
}

/* Finds n by the posting at point 0: the record's, or fewer if it was cut, but more than d. That changes its filter only where
   fingerprints go. */
static int find_n(moving *m, posted *p, uint32_t n, uint32_t d) {
    for (uint32_t fingerprints = fingerprints_of(n, 0) + 1; !p->n && fingerprints-- > 0;) {
        const place at = place_at(m, p, 2 * fingerprints, 0);
        if (!is_loaded(m, at)) return 0;
        const sarp_posting *posting = postings_at(m->directory, at, 0);
        if (posting) p->n = posting_n(posting);
    }
    if (p->n > n || p->n <= d) p->n = 0; /* no writer makes that */
    return 1;
}

/* Its postings at points that `left` blocks reach; 0 if a partition that one of its postings may be in, or will be in, is not in memory. */
static int find_points(moving *m, posted *p, uint32_t left) {
    for (uint32_t point = 0; point < POINTS && point_offset(point) < p->n; point++) {
        const place at = place_at(m, p, p->n, point);
        if (!is_loaded(m, at)) return 0;
        if (point_offset(point) >= left) continue;
        if (!is_loaded(m, place_at(m, p, left, point))) return 0;
        const sarp_posting *posting = postings_at(m->directory, at, point);
        if (!posting) continue;
        p->points = (uint8_t)(p->points | 1 << point);
        p->recency[point] = posting->word1 & 0xFFFFFF;
    }
    return 1;
}

/* Takes a record out of all its lists. Their partitions are in memory. */
static void leave_lists(moving *m, const posted *p) {
    sarp_needs none = {0};
    reading r = {.base = m->base, .needs = &none};
    postings_cut(m->directory, &r, p->seed, p->ids, p->n, 0, p->reference);
}

/* Enters the copy where the record was, as far as it reaches: what its own changes say, but that recency stays. */
static int32_t enter_lists(moving *m, posted *p, const uint8_t *record, uint64_t position) {
    int status = SARP_OK;
    p->reference = reference_of(m->base, position);
    for (uint32_t point = 0; point < POINTS && status == SARP_OK; point++) {
        if (!(p->points >> point & 1)) continue;
        const place at = place_at(m, p, record[SARP_AT_N], point);
        const uint64_t word0 = posting_word0(at.key, record[SARP_AT_N], record[SARP_AT_D], point);
        status = postings_enter(m->directory, (sarp_posting){word0, at.reference << 24 | p->recency[point], at.filter});
    }
    return status;
}

static int32_t move_postings(moving *m, const uint8_t *source, uint64_t reference) {
    posted p = {.ids = source + SARP_SEGMENT_HEADER, .reference = reference};
    p.seed = seed_of(m->base, load32(source + SARP_AT_HOLDER), load64(source + SARP_AT_NAMESPACE));
    if (!find_n(m, &p, source[SARP_AT_N], source[SARP_AT_D])) return SARP_NEED;
    const uint32_t n = p.n ? compact_cut(m, source, p.n) : 0;
    if (!find_points(m, &p, n)) return SARP_NEED;
    if (!n) {
        leave_lists(m, &p);
        m->file->dead++;
        return SARP_OK;
    }
    const uint32_t changes = 2 * (uint32_t)__builtin_popcount(p.points);
    if (!postings_has_room(m->directory, changes)) return SARP_FULL;
    if (!commit_has_room(m->commit, 1, changes)) return SARP_NO_ROOM;
    const kept what = {.supersedes = position_of(m->base, reference), .n = n, .dp = source[SARP_AT_DP], .points = p.points};
    uint64_t position;
    const uint8_t *record = compact_copy(m, source, &what, &position);
    leave_lists(m, &p);
    return enter_lists(m, &p, record, position);
}

int32_t sarp_postings_compact(sarp_postings *dir, sarp_commit *commit, sarp_compaction *compaction, uint32_t records) {
    moving m = {.base = dir->base, .commit = commit, .file = compaction, .directory = dir, .move = move_postings};
    return compact_records(&m, records);
}
