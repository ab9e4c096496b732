#include "internal_change.h"
#include "internal_compact.h"
#include "internal_directory.h"

/* --- what every directory's compaction does */

uint32_t compact_cut(const moving *m, const uint8_t *record, uint32_t n) {
    const barrier removed = barrier_of(m->base, load32(record + SARP_AT_HOLDER), load64(record + SARP_AT_NAMESPACE));
    return barrier_survives(&removed, record, record + SARP_SEGMENT_HEADER, n);
}

const uint8_t *compact_copy(moving *m, const uint8_t *source, const kept *what, uint64_t *position) {
    sarp_commit *commit = m->commit;
    const uint32_t bytes = commit->location_bytes, length = segment_bytes(what->n, bytes);
    /* Postings records speak of the records before them. */
    uint8_t *record = commit_place(commit, length, commit->ordered ? SARP_PLACE_BEHIND : SARP_PLACE_BEST, position);
    memcpy(record, source, SARP_SEGMENT_HEADER);
    store16(record + SARP_AT_LENGTH, (uint16_t)length);
    record[SARP_AT_FLAGS] = source[SARP_AT_FLAGS] | SARP_FLAG_COPY;
    record[SARP_AT_N] = (uint8_t)what->n;
    record[SARP_AT_DP] = (uint8_t)what->dp;
    record[SARP_AT_POINTS] = what->points;
    record[SARP_AT_OLD_N] = what->points ? (uint8_t)what->n : 0;
    store64(record + SARP_AT_SUPERSEDES, what->supersedes);
    if (!load64(record + SARP_AT_ROOT_BORN)) store64(record + SARP_AT_ROOT_BORN, load64(source + SARP_AT_BORN));
    uint8_t *body = record + SARP_SEGMENT_HEADER;
    const uint8_t *ids = source + SARP_SEGMENT_HEADER, *locations = ids + source[SARP_AT_N] * SARP_ID;
    memcpy(body, ids, what->n * SARP_ID);
    memcpy(body + what->n * SARP_ID, locations, (size_t)what->n * bytes);
    commit_add(commit, record, *position);
    m->file->live++;
    m->file->live_bytes += record_units(length) * (uint64_t)SARP_UNIT;
    return record;
}

static int is_free(const uint8_t *unit) {
    uint64_t any = 0;
    for (uint32_t i = 0; i < SARP_UNIT; i += 8) any |= load64(unit + i);
    return any == 0;
}

static int is_noted(uint8_t type) {
    return type == SARP_REMOVE || type == SARP_CLEAR_HOLDER || type == SARP_NAMESPACE || type == SARP_RETIRE_FILE || type == SARP_COUNT;
}

/* What is to be done about the verified record of a unit. */
static int32_t take_record(moving *m, const uint8_t *record, uint32_t unit) {
    sarp_compaction *file = m->file;
    const uint8_t type = record[SARP_AT_TYPE];
    if (type == SARP_SEGMENT) return m->move(m, record, (uint64_t)file->slot << 24 | unit);
    if (type == SARP_POSTINGS && m->carry) return m->carry(m, record);
    if (is_noted(type)) file->others[file->other_count++] = (sarp_other_record){unit, type};
    return SARP_OK;
}

/* Skips what is free, and bytes that are no record; a damaged run counts once. NULL at the end. */
static const uint8_t *next_record(moving *m, uint32_t end, uint32_t *seed) {
    sarp_compaction *file = m->file;
    int in_damage = 0;
    for (; file->unit < end; file->unit++) {
        const uint8_t *record = file->pages + (size_t)(file->unit - file->first_page * SARP_PAGE_UNITS) * SARP_UNIT;
        const uint32_t room = SARP_PAGE - file->unit % SARP_PAGE_UNITS * SARP_UNIT;
        if (is_free(record)) {
            in_damage = 0;
            continue;
        }
        *seed = record_seed(m->commit->features, m->commit->uuid, file->file_number, (uint64_t)file->unit * SARP_UNIT);
        if (record_header_valid(m->commit->features, *seed, record, room)) return record;
        file->damaged += !in_damage;
        in_damage = 1;
    }
    return NULL;
}

int32_t compact_records(moving *m, uint32_t records) {
    sarp_compaction *file = m->file;
    const uint32_t end = (file->first_page + file->page_count) * SARP_PAGE_UNITS;
    file->other_count = 0;
    while (records-- && file->other_count < file->other_limit) {
        uint32_t seed;
        const uint8_t *record = next_record(m, end, &seed);
        if (!record) break;
        if (!record_body_valid(m->commit->features, seed, record, m->commit->location_bytes)) {
            file->damaged++;
        } else {
            const int32_t status = take_record(m, record, file->unit);
            if (status != SARP_OK) return status;
        }
        file->unit += record_units(load16(record + SARP_AT_LENGTH));
    }
    return SARP_OK;
}

/* --- the divergence directory's */

static int is_loaded(const sarp_directory *dir, sarp_compaction *file, uint64_t key) {
    file->partition = partition_index(dir, key);
    return dir->partitions[file->partition].flags & SARP_PARTITION_LOADED;
}

/* Whether an entry can be that of the record that it names: what no writer makes is not carried on. */
static int is_of(const sarp_entry *entry, const uint8_t *record) {
    return entry_d(entry) == record[SARP_AT_D] && entry_n(entry) <= record[SARP_AT_N];
}

static int32_t move_entry(moving *m, const uint8_t *source, uint64_t reference) {
    sarp_directory *dir = m->directory;
    const key_seed seed = seed_of(m->base, load32(source + SARP_AT_HOLDER), load64(source + SARP_AT_NAMESPACE));
    const uint8_t *ids = source + SARP_SEGMENT_HEADER;
    const uint64_t key = key_of(seed, ids + source[SARP_AT_D] * SARP_ID);
    if (!is_loaded(dir, m->file, key) || !is_loaded(dir, m->file, key_of(seed, ids))) return SARP_NEED;
    const sarp_entry *entry = directory_entry(dir, key, reference);
    const uint32_t held = entry && is_of(entry, source) ? entry_n(entry) : 0;
    const uint32_t n = held ? compact_cut(m, source, held) : 0;
    if (!n) {
        if (entry) directory_drop(dir, key, reference);
        m->file->dead++;
        return SARP_OK;
    }
    if (!directory_has_room(dir, 1)) return SARP_FULL;
    if (!commit_has_room(m->commit, 1, 1)) return SARP_NO_ROOM;
    const kept what = {.supersedes = position_of(m->base, reference), .n = n, .dp = entry_dp(entry)};
    uint64_t position;
    size_t done;
    sarp_change change;
    const uint8_t *record = compact_copy(m, source, &what, &position);
    changes_of(m->base, record, position, &change);
    return sarp_directory_apply(dir, &change, NULL, 1, &done);
}

int32_t sarp_compact(sarp_directory *dir, sarp_commit *commit, sarp_compaction *compaction, uint32_t records) {
    moving m = {.base = dir->base, .commit = commit, .file = compaction, .directory = dir, .move = move_entry};
    return compact_records(&m, records);
}
