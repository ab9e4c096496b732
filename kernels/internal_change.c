#include "internal_change.h"

#include "internal_points.h"

static sarp_change change_bare(const uint8_t *record, uint64_t position) {
    return (sarp_change){.position = position, .commit = load64(record + SARP_AT_COMMIT), .type = record[SARP_AT_TYPE]};
}

static key_seed seed_of_record(const sarp_base *base, const uint8_t *record) {
    return seed_of(base, load32(record + SARP_AT_HOLDER), load64(record + SARP_AT_NAMESPACE));
}

static sarp_change change_of_segment(const sarp_base *base, const uint8_t *record, uint64_t position) {
    const key_seed seed = seed_of_record(base, record);
    const uint8_t *ids = record + SARP_SEGMENT_HEADER;
    sarp_change change = change_bare(record, position);
    change.n = record[SARP_AT_N];
    change.d = record[SARP_AT_D];
    change.dp = record[SARP_AT_DP];
    change.key = key_of(seed, ids + change.d * SARP_ID);
    change.root_key = key_of(seed, ids);
    change.supersedes = load64(record + SARP_AT_SUPERSEDES);
    return change;
}

/* At each of its points what it supersedes goes and it comes. */
static uint32_t changes_of_posted(const sarp_base *base, const uint8_t *record, uint64_t position, sarp_change *out) {
    const key_seed seed = seed_of_record(base, record);
    const uint8_t *ids = record + SARP_SEGMENT_HEADER;
    const uint8_t n = record[SARP_AT_N], old_n = record[SARP_AT_OLD_N];
    uint32_t count = 0;
    for (uint32_t point = 0; point < POINTS; point++) {
        if (!(record[SARP_AT_POINTS] >> point & 1)) continue;
        sarp_change change = change_bare(record, position);
        change.key = key_of(seed, ids + point_offset(point) * SARP_ID);
        change.d = record[SARP_AT_D];
        change.point = (uint8_t)point;
        if (point_offset(point) < old_n) {
            change.operation = CHANGE_DROP;
            change.root_key = filter_of(base, ids, old_n, point);
            change.supersedes = load64(record + SARP_AT_SUPERSEDES);
            change.n = old_n;
            out[count++] = change;
        }
        change.operation = CHANGE_ADD;
        change.root_key = filter_of(base, ids, n, point);
        change.supersedes = position;
        change.n = n;
        out[count++] = change;
    }
    return count;
}

static uint32_t changes_of_postings(const uint8_t *record, uint64_t position, sarp_change *out) {
    const uint32_t count = record[SARP_AT_N];
    for (uint32_t i = 0; i < count; i++) {
        const uint8_t *entry = record + SARP_POSTINGS_HEADER + i * SARP_POSTINGS_ENTRY;
        const uint64_t word0 = load64(entry);
        out[i] = change_bare(record, position);
        out[i].key = word0 >> 16;
        out[i].n = (uint8_t)((word0 >> 10 & 63) + 1);
        out[i].d = word0 >> 4 & 63;
        out[i].point = word0 >> 1 & 7;
        out[i].supersedes = load64(entry + 8);
        out[i].root_key = load64(entry + 16);
        out[i].operation = entry[SARP_AT_OPERATION];
    }
    return count;
}

uint32_t changes_of(const sarp_base *base, const uint8_t *record, uint64_t position, sarp_change *out) {
    const uint8_t type = record[SARP_AT_TYPE];
    if (type == SARP_SEGMENT && base->routing == SARP_ROUTING_SARP) return changes_of_posted(base, record, position, out);
    if (type == SARP_POSTINGS && base->routing == SARP_ROUTING_SARP) return changes_of_postings(record, position, out);
    *out = type == SARP_SEGMENT ? change_of_segment(base, record, position) : change_bare(record, position);
    return 1;
}

uint32_t changes_count(const uint8_t *record) {
    if (record[SARP_AT_TYPE] == SARP_POSTINGS) return record[SARP_AT_N];
    if (record[SARP_AT_TYPE] != SARP_SEGMENT || !record[SARP_AT_POINTS]) return 1;
    uint32_t count = 0;
    for (uint32_t point = 0; point < POINTS; point++)
        if (record[SARP_AT_POINTS] >> point & 1) count += point_offset(point) < record[SARP_AT_OLD_N] ? 2 : 1;
    return count;
}

int change_listed_valid(const sarp_change *change) {
    if (change->operation != CHANGE_ADD && change->operation != CHANGE_DROP) return 0;
    if (change->point >= POINTS || change->n < 1 || change->n > SARP_WINDOW || change->d >= change->n) return 0;
    if (change->supersedes == 0) {
        const uint64_t flags = change->root_key;
        return change->n == 1 && change->d == 0 && flags && flags <= (STATE_EXPANDED | STATE_REFINED);
    }
    const uint32_t length = fingerprints_of(change->n, change->point);
    if (change->n <= point_offset(change->point) || filter_length(change->root_key) != length) return 0;
    return length == FINGERPRINTS || change->root_key << 8 * length == 0;
}

int record_listed_valid(const uint8_t *record) {
    if (record[SARP_AT_TYPE] == SARP_SEGMENT) {
        const uint32_t points = record[SARP_AT_POINTS], n = record[SARP_AT_N], old_n = record[SARP_AT_OLD_N];
        const uint32_t last = points ? 31 - (uint32_t)__builtin_clz(points) : 0;
        const int grown = record[SARP_AT_FLAGS] & SARP_FLAG_COPY ? old_n == n : old_n < n;
        const int replaces = old_n ? old_n > record[SARP_AT_D] : 1; /* d is that of what it supersedes */
        return (points & 1) && point_offset(last) < n && grown && replaces && !old_n == !load64(record + SARP_AT_SUPERSEDES);
    }
    sarp_change changes[RECORD_CHANGES_MAX];
    if (record[SARP_AT_TYPE] != SARP_POSTINGS) return 1;
    const uint32_t count = changes_of_postings(record, 0, changes);
    for (uint32_t i = 0; i < count; i++)
        if (!change_listed_valid(changes + i) || (record[SARP_POSTINGS_HEADER + i * SARP_POSTINGS_ENTRY] & 1)) return 0;
    return 1;
}
