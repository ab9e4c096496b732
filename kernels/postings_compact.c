#include "internal_change.h"
#include "internal_compact.h"
#include "internal_postings.h"

/* Where a record is posted now. */
typedef struct {
    const uint8_t *ids;
    key_seed seed;
    uint64_t reference;
    uint32_t whole;            /* blocks that it holds */
    uint32_t n;                /* of its posting at point 0; 0: it has none */
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

/* A filter that ends with its `length`th fingerprint. */
static uint64_t shortened(uint64_t filter, uint32_t length) {
    return length ? filter >> (64 - 8 * length) << (64 - 8 * length) : 0;
}

/* A record's posting at a point, cut or not: replay has it whole where a segment record says so, and cut where a postings record of
   after the cut does. 0: a partition is not in memory. */
static int find_posting(moving *m, place at, uint32_t point, const sarp_posting **found) {
    const uint64_t filter = at.filter;
    *found = NULL;
    for (uint32_t length = filter_length(filter) + 1; !*found && length-- > 0;) {
        at.filter = shortened(filter, length);
        if (!is_loaded(m, at)) return 0;
        *found = postings_at(m->directory, at, point);
    }
    return 1;
}

/* Its postings at points that `left` blocks reach; 0 if a partition that one of its postings may be in, or will be in, is not in memory. */
static int find_points(moving *m, posted *p, uint32_t left) {
    for (uint32_t point = 0; point < POINTS && point_offset(point) < p->whole; point++) {
        const sarp_posting *posting;
        if (!find_posting(m, place_at(m, p, p->whole, point), point, &posting)) return 0;
        if (point_offset(point) >= left) continue;
        if (!is_loaded(m, place_at(m, p, left, point))) return 0;
        if (!posting) continue;
        p->points = (uint8_t)(p->points | 1 << point);
        p->recency[point] = posting->word1 & 0xFFFFFF;
    }
    return 1;
}

/* Takes a record out of all its lists, cut or not. Their partitions are in memory. */
static void leave_lists(moving *m, const posted *p) {
    for (uint32_t point = 0; point < POINTS && point_offset(point) < p->whole; point++) {
        place at = place_at(m, p, p->whole, point);
        const uint64_t filter = at.filter;
        for (uint32_t length = 0; length <= filter_length(filter); length++) {
            sarp_posting_partition *part;
            uint32_t index;
            at.filter = shortened(filter, length);
            if (!posting_find(m->directory, at, &part, &index)) continue;
            part->flags |= SARP_PARTITION_DIRTY;
            posting_erase(m->directory, part, index);
        }
    }
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
    posted p = {.ids = source + SARP_SEGMENT_HEADER, .reference = reference, .whole = source[SARP_AT_N]};
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

/* --- what a postings record says of records and lists that stay */

enum { CARRY_NO = 0, CARRY_YES = 1, CARRY_NEED = -1 };

/* Of a record in another file: that it is in a list, where it still is; that it is not, where it did not come back. Copies say so
   by themselves. */
static int carries_posting(moving *m, const uint8_t *entry) {
    const uint64_t word0 = load64(entry), position = load64(entry + 8);
    const uint64_t reference = reference_of(m->base, position);
    if (reference == SARP_REFERENCE_NONE || position >> 24 == m->file->file_number) return CARRY_NO;
    const sarp_posting *posting;
    if (!find_posting(m, (place){word0 >> 16, load64(entry + 16), reference}, word0 >> 1 & 7, &posting)) return CARRY_NEED;
    return !posting == (entry[SARP_AT_OPERATION] != CHANGE_ADD) ? CARRY_YES : CARRY_NO;
}

/* Of a list its flags, as far as they are what the record says. That it lost some counts while a file is there in which it may
   have got them. */
static int carries_state(moving *m, uint8_t *entry) {
    const sarp_postings *dir = m->directory;
    const place at = {load64(entry) >> 16, 0, 0};
    if (!is_loaded(m, at)) return CARRY_NEED;
    sarp_posting_partition *part;
    uint32_t index;
    const uint64_t flags = posting_find(dir, at, &part, &index) ? posting_at(dir, part, index)->word1 : 0;
    const int added = entry[SARP_AT_OPERATION] == CHANGE_ADD;
    const uint64_t said = load64(entry + 16) & (added ? flags : ~flags);
    store64(entry + 16, said);
    if (added || !said) return said ? CARRY_YES : CARRY_NO;
    uint64_t dropped = load64(entry + SARP_AT_OPERATION) >> 16;
    if (!dropped) dropped = m->file->file_number;
    store16(entry + SARP_AT_DROPPED, (uint16_t)dropped);
    store32(entry + SARP_AT_DROPPED + 2, (uint32_t)(dropped >> 16));
    return dropped >= m->file->oldest ? CARRY_YES : CARRY_NO;
}

static int32_t carry_postings(moving *m, const uint8_t *source) {
    uint8_t record[SARP_PAGE];
    uint32_t count = 0;
    if (!record_listed_valid(source)) {
        m->file->damaged++; /* what no writer makes is not carried on */
        return SARP_OK;
    }
    memcpy(record, source, SARP_POSTINGS_HEADER);
    for (uint32_t i = 0; i < source[SARP_AT_N]; i++) {
        uint8_t *entry = record + SARP_POSTINGS_HEADER + count * SARP_POSTINGS_ENTRY;
        memcpy(entry, source + SARP_POSTINGS_HEADER + i * SARP_POSTINGS_ENTRY, SARP_POSTINGS_ENTRY);
        const int carries = load64(entry + 8) ? carries_posting(m, entry) : carries_state(m, entry);
        if (carries == CARRY_NEED) return SARP_NEED;
        count += (uint32_t)carries;
    }
    if (!count) return SARP_OK;
    if (!commit_has_room(m->commit, 1, count)) return SARP_NO_ROOM;
    const uint32_t length = SARP_POSTINGS_HEADER + count * SARP_POSTINGS_ENTRY;
    store16(record + SARP_AT_LENGTH, (uint16_t)length);
    record[SARP_AT_N] = (uint8_t)count;
    sarp_commit_append(m->commit, record, SARP_PLACE_BEHIND);
    m->file->carried_bytes += record_units(length) * (uint64_t)SARP_UNIT;
    return SARP_OK;
}

int32_t sarp_postings_compact(sarp_postings *dir, sarp_commit *commit, sarp_compaction *compaction, uint32_t records) {
    moving m = {.base = dir->base, .commit = commit, .file = compaction, .directory = dir, .move = move_postings,
                .carry = carry_postings};
    return compact_records(&m, records);
}
