#include "internal_record.h"
#include "internal_removals.h"

enum { PREFETCH = 16 };

/* --- tables of marks */

static uint64_t mark_hash(const uint8_t *id, uint32_t holder, uint64_t name_space) {
    uint64_t h = load64(id) ^ (load64(id + 8) + name_space) * UINT64_C(0x9E3779B97F4A7C15) ^ holder * UINT64_C(0xC4CEB9FE1A85EC53);
    h = (h ^ (h >> 33)) * UINT64_C(0xFF51AFD7ED558CCD);
    return h ^ (h >> 29);
}

static int mark_is(const sarp_mark *mark, const uint8_t *id, uint32_t holder, uint64_t name_space) {
    return memcmp(mark->id, id, SARP_ID) == 0 && mark->holder == holder && mark->name_space == name_space;
}

static uint32_t slot_of_hash(const sarp_marks *marks, uint64_t hash) { return (uint32_t)hash & (marks->index_size - 1); }

/* The index slot of a mark, or the free one where it would go. */
static uint32_t find_slot(const sarp_marks *marks, const uint8_t *id, uint32_t holder, uint64_t name_space) {
    uint32_t slot = slot_of_hash(marks, mark_hash(id, holder, name_space));
    while (marks->index[slot] && !mark_is(marks->marks + marks->index[slot] - 1, id, holder, name_space))
        slot = (slot + 1) & (marks->index_size - 1);
    return slot;
}

static uint32_t slot_of_mark(const sarp_marks *marks, const sarp_mark *mark) {
    return find_slot(marks, mark->id, mark->holder, mark->name_space);
}

/* Frees an index slot: those behind it that would not be found any more move up. */
static void free_slot(sarp_marks *marks, uint32_t hole) {
    const uint32_t mask = marks->index_size - 1;
    for (uint32_t slot = (hole + 1) & mask; marks->index[slot]; slot = (slot + 1) & mask) {
        const sarp_mark *mark = marks->marks + marks->index[slot] - 1;
        const uint32_t wanted = slot_of_hash(marks, mark_hash(mark->id, mark->holder, mark->name_space));
        if (((slot - wanted) & mask) < ((slot - hole) & mask)) continue;
        marks->index[hole] = marks->index[slot];
        hole = slot;
    }
    marks->index[hole] = 0;
}

/* Takes out the mark at an index slot; the last one takes its place. */
static void drop_mark(sarp_marks *marks, uint32_t slot) {
    const uint32_t number = marks->index[slot] - 1, last = marks->count - 1;
    free_slot(marks, slot);
    if (number != last) {
        marks->index[slot_of_mark(marks, marks->marks + last)] = number + 1;
        marks->marks[number] = marks->marks[last];
    }
    marks->count = last;
}

size_t sarp_marks_set(sarp_marks *marks, const uint8_t *ids, size_t stride, size_t count, uint32_t holder, uint64_t name_space,
                      uint64_t value, int32_t later) {
    for (size_t i = 0; i < count; i++) {
        const uint8_t *id = ids + i * stride;
        const uint32_t slot = find_slot(marks, id, holder, name_space);
        if (marks->index[slot]) {
            sarp_mark *mark = marks->marks + marks->index[slot] - 1;
            if (!later || mark->value < value) mark->value = value;
            continue;
        }
        if (marks->count == marks->limit) return i;
        sarp_mark *mark = marks->marks + marks->count++;
        *mark = (sarp_mark){.name_space = name_space, .value = value, .holder = holder};
        memcpy(mark->id, id, SARP_ID);
        marks->index[slot] = marks->count;
    }
    return count;
}

void sarp_marks_get(const sarp_marks *marks, const uint8_t *ids, size_t stride, size_t count, uint32_t holder,
                    uint64_t name_space, uint64_t *values) {
    for (size_t i = 0; i < count; i++) {
        const uint32_t number = marks->count ? marks->index[find_slot(marks, ids + i * stride, holder, name_space)] : 0;
        values[i] = number ? marks->marks[number - 1].value : 0;
    }
}

size_t sarp_marks_drop(sarp_marks *marks, const uint8_t *ids, size_t stride, size_t count, uint32_t holder,
                       uint64_t name_space) {
    size_t dropped = 0;
    for (size_t i = 0; i < count && marks->count; i++) {
        const uint32_t slot = find_slot(marks, ids + i * stride, holder, name_space);
        if (!marks->index[slot]) continue;
        drop_mark(marks, slot);
        dropped++;
    }
    return dropped;
}

int32_t sarp_marks_index(sarp_marks *marks) {
    memset(marks->index, 0, (size_t)marks->index_size * sizeof *marks->index);
    for (uint32_t i = 0; i < marks->count; i++) {
        const uint32_t slot = slot_of_mark(marks, marks->marks + i);
        if (marks->index[slot]) return 0;
        marks->index[slot] = i + 1;
    }
    return 1;
}

void sarp_marks_forget(sarp_marks *marks, uint32_t count) {
    if (count > marks->count) count = marks->count;
    marks->count -= count;
    memmove(marks->marks, marks->marks + count, marks->count * sizeof *marks->marks);
    sarp_marks_index(marks);
}

size_t sarp_marks_clear(sarp_marks *marks, uint32_t holder) {
    const uint32_t before = marks->count;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < before; i++) {
        const sarp_mark mark = marks->marks[i];
        if (mark.holder == holder) continue;
        marks->marks[kept++] = mark;
    }
    if (kept == before) return 0;
    marks->count = kept;
    sarp_marks_index(marks);
    return before - kept;
}

/* --- scopes */

static sarp_scope *find_scope(const sarp_removals *removals, uint32_t kind, uint64_t key) {
    if (!removals->scope_size) return NULL;
    const uint32_t mask = removals->scope_size - 1;
    uint64_t h = (key + kind) * UINT64_C(0x9E3779B97F4A7C15);
    for (uint32_t slot = (uint32_t)(h >> 32) & mask;; slot = (slot + 1) & mask) {
        sarp_scope *scope = removals->scopes + slot;
        if (scope->kind == SARP_SCOPE_FREE || (scope->kind == kind && scope->key == key)) return scope;
    }
}

sarp_scope *sarp_scope_of(sarp_removals *removals, uint32_t kind, uint64_t key, int32_t make) {
    sarp_scope *scope = find_scope(removals, kind, key);
    if (!scope || scope->kind != SARP_SCOPE_FREE) return scope;
    if (!make || removals->scopes_used >= removals->scope_size / 2) return NULL;
    removals->scopes_used++;
    *scope = (sarp_scope){.key = key, .kind = (uint8_t)kind};
    return scope;
}

size_t sarp_removals_mark(sarp_removals *removals, const uint8_t *ids, size_t stride, size_t count, uint32_t holder,
                          uint64_t name_space, uint64_t position) {
    sarp_scope *scope = sarp_scope_of(removals, SARP_SCOPE_HOLDER, holder, 1);
    if (!scope) return 0;
    const uint32_t before = removals->markers.count;
    const size_t done = sarp_marks_set(&removals->markers, ids, stride, count, holder, name_space, position, 1);
    scope->markers += removals->markers.count - before;
    return done;
}

int32_t sarp_removals_recount(sarp_removals *removals) {
    /* Pages of the table that nobody has written to stay untouched. */
    for (uint32_t i = 0; removals->scopes_used && i < removals->scope_size; i++)
        if (removals->scopes[i].markers) removals->scopes[i].markers = 0;
    for (uint32_t i = 0; i < removals->markers.count; i++) {
        sarp_scope *scope = sarp_scope_of(removals, SARP_SCOPE_HOLDER, removals->markers.marks[i].holder, 1);
        if (!scope) return 0;
        scope->markers++;
    }
    return 1;
}

size_t sarp_removals_merge(sarp_removals *removals, const sarp_mark *marks, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (!sarp_removals_mark(removals, marks[i].id, SARP_ID, 1, marks[i].holder, marks[i].name_space, marks[i].value)) return i;
    return count;
}

size_t sarp_removals_retire(sarp_removals *removals, uint64_t position, uint32_t *next, uint32_t count) {
    sarp_marks *markers = &removals->markers;
    size_t retired = 0;
    if (*next > markers->count) *next = markers->count;
    for (; count && *next; count--) {
        /* The last one takes the place of one that goes: it is newer than the pass, or was looked at. */
        const sarp_mark *mark = markers->marks + --*next;
        if (mark->value > position) continue;
        find_scope(removals, SARP_SCOPE_HOLDER, mark->holder)->markers--;
        drop_mark(markers, slot_of_mark(markers, mark));
        retired++;
    }
    return retired;
}

/* --- replay */

uint32_t sarp_record_at(const uint8_t *uuid, uint32_t features, uint64_t position, const uint8_t *page) {
    const uint32_t at = (uint32_t)(position & 63) * SARP_UNIT;
    const uint32_t seed = record_seed(features, uuid, position >> 24, (position & 0xFFFFFF) * SARP_UNIT);
    const uint8_t *record = page + at;
    if (!record_header_valid(features, seed, record, SARP_PAGE - at) || record[SARP_AT_TYPE] == SARP_SEGMENT) return 0;
    return record_body_valid(features, seed, record, 0) ? load16(record + SARP_AT_LENGTH) : 0;
}

/* 0: a table is full. */
static int take_removed(sarp_removals *removals, const uint8_t *record) {
    const uint32_t n = record[SARP_AT_N], holder = load32(record + SARP_AT_HOLDER);
    return sarp_removals_mark(removals, record + SARP_REMOVE_HEADER, SARP_ID, n, holder, load64(record + SARP_AT_NAMESPACE),
                              load64(record + SARP_AT_EFFECT)) == n;
}

/* What was said of a holder before it was cleared is over. */
static int take_counts(sarp_removals *removals, const uint8_t *record, uint64_t position) {
    const uint32_t holder = load32(record + SARP_AT_HOLDER);
    const uint64_t name_space = load64(record + SARP_AT_NAMESPACE);
    const sarp_scope *scope = sarp_scope_of(removals, SARP_SCOPE_HOLDER, holder, 0);
    if (scope && scope->kind != SARP_SCOPE_FREE && position < scope->epoch) return 1;
    for (uint32_t i = 0; i < record[SARP_AT_N]; i++) {
        const uint8_t *entry = record + SARP_COUNT_HEADER + i * SARP_COUNT_ENTRY;
        const uint32_t count = load32(entry + SARP_ID);
        if (count <= 1) sarp_marks_drop(&removals->counts, entry, SARP_ID, 1, holder, name_space);
        else if (!sarp_marks_set(&removals->counts, entry, SARP_ID, 1, holder, name_space, count, 0)) return 0;
    }
    return 1;
}

size_t sarp_removals_replay(sarp_removals *removals, const uint8_t *uuid, uint32_t features, const uint8_t *pages,
                            const sarp_place *places, size_t count, int32_t *full) {
    *full = 0;
    for (size_t i = 0; i < count; i++) {
        const uint8_t *page = pages + (size_t)places[i].page * SARP_PAGE;
        if (!sarp_record_at(uuid, features, places[i].position, page)) return i;
        const uint8_t *record = page + (places[i].position & 63) * SARP_UNIT;
        if (record[SARP_AT_TYPE] == SARP_REMOVE) *full = !take_removed(removals, record);
        else if (record[SARP_AT_TYPE] == SARP_COUNT) *full = !take_counts(removals, record, places[i].position);
        else return i;
        if (*full) return i;
    }
    return count;
}

/* --- barriers */

static barrier removals_barrier(const sarp_removals *removals, uint32_t holder, uint64_t name_space) {
    barrier b = {.name_space = name_space, .holder = holder};
    if (!removals) return b;
    b.expiry = removals->expiry;
    if (!removals->scopes_used) return b;
    const sarp_scope *of_holder = find_scope(removals, SARP_SCOPE_HOLDER, holder);
    if (of_holder->kind != SARP_SCOPE_FREE) {
        b.epoch = of_holder->epoch;
        if (of_holder->expiry > b.expiry) b.expiry = of_holder->expiry;
        if (of_holder->markers) b.markers = &removals->markers;
    }
    const sarp_scope *of_space = find_scope(removals, SARP_SCOPE_NAMESPACE, name_space);
    if (of_space->kind != SARP_SCOPE_FREE && of_space->expiry > b.expiry) b.expiry = of_space->expiry;
    return b;
}

barrier barrier_of(const sarp_base *base, uint32_t holder, uint64_t name_space) {
    return removals_barrier(base->removals, holder, name_space);
}

int32_t sarp_removals_concern(const sarp_removals *removals, uint32_t holder, uint64_t name_space) {
    const barrier b = removals_barrier(removals, holder, name_space);
    return b.markers || b.epoch > removals->settled || b.expiry;
}

uint32_t barrier_cut(const barrier *b, const uint8_t *ids, uint32_t count, uint64_t born) {
    for (uint32_t first = 0; first < count; first += PREFETCH) {
        const uint32_t batch = count - first < PREFETCH ? count - first : PREFETCH;
        for (uint32_t i = 0; i < batch; i++)
            __builtin_prefetch(b->markers->index +
                               slot_of_hash(b->markers, mark_hash(ids + (first + i) * SARP_ID, b->holder, b->name_space)));
        for (uint32_t i = first; i < first + batch; i++) {
            const uint32_t number = b->markers->index[find_slot(b->markers, ids + (size_t)i * SARP_ID, b->holder, b->name_space)];
            if (number && b->markers->marks[number - 1].value > born) return i;
        }
    }
    return count;
}

uint64_t barrier_newest(const barrier *b, const uint8_t *ids, uint32_t count) {
    uint64_t newest = 0;
    for (uint32_t i = 0; i < count;) {
        i += barrier_cut(b, ids + (size_t)i * SARP_ID, count - i, newest);
        if (i == count) break;
        const uint32_t slot = find_slot(b->markers, ids + (size_t)i * SARP_ID, b->holder, b->name_space);
        newest = b->markers->marks[b->markers->index[slot] - 1].value;
        i++;
    }
    return newest;
}

const uint64_t *barrier_path(const sarp_base *base, const barrier *b, const uint8_t *ids, uint32_t windows) {
    if (!b->markers) return NULL;
    uint64_t *before = base->removals->newest, newest = 0;
    for (uint32_t window = 0; window < windows && window < base->removals->newest_limit; window++) {
        before[window] = newest;
        if (window + 1 == windows) break;
        const uint64_t own = barrier_newest(b, ids + (size_t)window * SARP_WINDOW * SARP_ID, SARP_WINDOW);
        if (own > newest) newest = own;
    }
    return before;
}

uint32_t barrier_surely(const sarp_base *base, const barrier *b, const uint8_t *ids, uint32_t at_least) {
    if (b->expiry || (b->epoch && b->epoch > base->removals->settled)) return 0;
    return b->markers ? barrier_cut(b, ids, at_least, 0) : at_least;
}
