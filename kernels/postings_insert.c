#include "internal_change.h"
#include "internal_insert.h"
#include "internal_postings.h"
#include "internal_recency.h"

/* What a new record is called in the plan before it has a place: its window's number among the new ones, in the slot that no
   file has. */
#define PLANNED_SLOT (UINT64_C(0xFFFF) << 24)

/* Decisions, in dir->plan: changes whose `supersedes` is a reference. Those of type segment follow from the new records'
   points; those of type postings go into postings records. */
typedef struct {
    sarp_postings *dir;
    const sarp_query *query;
    key_seed seed;
    uint32_t first_window;
    reading r;
    uint32_t count, growth; /* changes; those of type postings */
    int full;
} planning;

static inline sarp_change *plan_of(const planning *p) { return p->dir->plan; }

static inline int is_planned(uint64_t reference) { return reference >> 24 == PLANNED_SLOT >> 24; }

/* --- lists as they will be */

/* The last decision about an element; 0 if there is none. */
static uint8_t decided(const planning *p, uint64_t key, uint64_t filter, uint64_t reference) {
    for (uint32_t i = p->count; i-- > 0;) {
        const sarp_change *c = plan_of(p) + i;
        if (c->supersedes == reference && c->key == key && c->root_key == filter && reference) return c->operation;
    }
    return 0;
}

static int is_member(const planning *p, uint64_t key, uint64_t filter, uint64_t reference) {
    const uint8_t operation = decided(p, key, filter, reference);
    if (operation) return operation == CHANGE_ADD;
    const place at = {key, filter, reference};
    const sarp_posting_partition *part = partition_ranked(p->dir, rank_of(p->dir, at));
    const uint32_t index = posting_lower(p->dir, part, at);
    return index < part->entries && place_equal(place_of(posting_at(p->dir, part, index)), at);
}

static uint32_t flags_of(const planning *p, const posting_list *list) {
    uint32_t flags = list->flags;
    for (uint32_t i = 0; i < p->count; i++) {
        const sarp_change *c = plan_of(p) + i;
        if (c->supersedes || c->key != list->key) continue;
        if (c->operation == CHANGE_ADD) flags |= (uint32_t)c->root_key;
        else flags &= ~(uint32_t)c->root_key;
    }
    return flags;
}

/* Every change of the plan is one: what is there is not added. */
static uint64_t count_of(const planning *p, const posting_list *list) {
    uint64_t count = list->count;
    for (uint32_t i = 0; i < p->count; i++) {
        const sarp_change *c = plan_of(p) + i;
        if (c->supersedes && c->key == list->key) count += c->operation == CHANGE_ADD ? UINT64_C(1) : UINT64_MAX;
    }
    return count;
}

static void gather_one(const planning *p, const sarp_posting *e, uint32_t *count) {
    const struct sarp_condemned *condemned = p->dir->condemned;
    if (*count == SARP_LIST_GROWN_MAX || posting_is_state(e)) return;
    if (!condemned || !is_condemned(condemned, posting_reference(e))) p->dir->members[(*count)++] = *e;
}

/* Copies the list's postings to dir->members; returns how many. The caller has seen that they are not too many. */
static uint32_t gather(const planning *p, const posting_list *list) {
    uint32_t count = 0;
    for (uint32_t rank = list->begin.rank; list->loaded && rank <= list->end.rank; rank++) {
        const sarp_posting_partition *part = partition_ranked(p->dir, rank);
        const uint32_t end = rank == list->end.rank ? list->end.index : part->entries;
        for (uint32_t i = rank == list->begin.rank ? list->begin.index : 0; i < end; i++) {
            const sarp_posting *e = posting_at(p->dir, part, i);
            if (decided(p, list->key, e->filter, posting_reference(e)) == 0) gather_one(p, e, &count);
        }
    }
    for (uint32_t i = 0; i < p->count; i++) {
        const sarp_change *c = plan_of(p) + i;
        if (c->key != list->key || !c->supersedes || c->operation != CHANGE_ADD) continue;
        uint32_t last = p->count - 1; /* is this the last word on it? */
        while (plan_of(p)[last].key != c->key || plan_of(p)[last].root_key != c->root_key ||
               plan_of(p)[last].supersedes != c->supersedes)
            last--;
        const sarp_posting e = {posting_word0(c->key, c->n, c->d, c->point), c->supersedes << 24, c->root_key};
        if (last == i) gather_one(p, &e, &count);
    }
    return count;
}

static void plan_push(planning *p, sarp_change change) {
    const int growth = change.type == SARP_POSTINGS;
    if (p->count == SARP_PLAN_MAX || (growth && p->growth == SARP_GROWTH_MAX)) {
        p->full = 1;
        return;
    }
    plan_of(p)[p->count++] = change;
    p->growth += (uint32_t)growth;
}

static void plan_posting(planning *p, uint8_t type, uint8_t operation, const sarp_posting *e) {
    const uint64_t key = posting_key(e), reference = posting_reference(e);
    if (is_member(p, key, e->filter, reference) == (operation == CHANGE_ADD)) return;
    plan_push(p, (sarp_change){.key = key,
                               .root_key = e->filter,
                               .supersedes = reference,
                               .n = (uint8_t)posting_n(e),
                               .d = (uint8_t)posting_d(e),
                               .type = type,
                               .point = (uint8_t)posting_point(e),
                               .operation = operation});
}

static void plan_state(planning *p, const posting_list *list, uint32_t point, uint8_t operation, uint32_t flags) {
    const uint32_t now = flags_of(p, list), wanted = operation == CHANGE_ADD ? flags & ~now : flags & now;
    if (!wanted) return;
    plan_push(p, (sarp_change){.key = list->key,
                               .root_key = wanted,
                               .n = 1,
                               .type = SARP_POSTINGS,
                               .point = (uint8_t)point,
                               .operation = operation});
}

/* --- other records' postings */

/* A posting's record: the ids of its window, and what its keys are made with. NULL where it can't be read. */
static const uint8_t *ids_of(planning *p, const sarp_posting *e, key_seed *seed) {
    const uint64_t reference = posting_reference(e);
    if (is_planned(reference)) {
        *seed = p->seed;
        return p->query->ids + (size_t)(p->first_window + (uint32_t)(reference & 0xFFFFFF)) * SARP_WINDOW * SARP_ID;
    }
    const uint8_t *record = read_segment(&p->r, reference);
    if (!record || record[SARP_AT_N] < posting_n(e)) return NULL;
    *seed = seed_of(p->dir->base, load32(record + SARP_AT_HOLDER), load64(record + SARP_AT_NAMESPACE));
    return record + SARP_SEGMENT_HEADER;
}

/* The same record's posting at another point, and that point's list; 0 where it has none or a partition is missing. */
static int posting_elsewhere(planning *p, const sarp_posting *e, const uint8_t *ids, key_seed seed, uint32_t point,
                             sarp_posting *out, posting_list *list) {
    const uint32_t n = posting_n(e);
    if (n <= point_offset(point)) return 0;
    const uint64_t key = key_of(seed, ids + point_offset(point) * SARP_ID);
    *out = (sarp_posting){posting_word0(key, n, posting_d(e), point), posting_reference(e) << 24,
                          filter_of(p->dir->base, ids, n, point)};
    *list = list_wanted(p->dir, &p->r, key);
    return list->loaded;
}

/* Posts a list's records at a point, as far as they reach it. */
static void post_all(planning *p, const posting_list *list, uint32_t point) {
    const uint32_t count = gather(p, list);
    for (uint32_t i = 0; i < count; i++) {
        const sarp_posting *e = p->dir->members + i;
        sarp_posting there;
        posting_list into;
        key_seed seed;
        const uint8_t *ids = posting_n(e) > point_offset(point) ? ids_of(p, e, &seed) : NULL;
        if (ids && posting_elsewhere(p, e, ids, seed, point, &there, &into)) plan_posting(p, SARP_POSTINGS, CHANGE_ADD, &there);
    }
}

/* Takes a list's records out of all lists behind it, and those lists' states with them. */
static void prune(planning *p, const posting_list *list, uint32_t point) {
    const uint32_t count = gather(p, list);
    for (uint32_t i = 0; i < count; i++) {
        const sarp_posting *e = p->dir->members + i;
        key_seed seed;
        const uint8_t *ids = ids_of(p, e, &seed);
        for (uint32_t behind = point + 1; ids && behind < POINTS; behind++) {
            sarp_posting there;
            posting_list from;
            if (!posting_elsewhere(p, e, ids, seed, behind, &there, &from)) continue;
            plan_posting(p, SARP_POSTINGS, CHANGE_DROP, &there);
            plan_state(p, &from, behind, CHANGE_DROP, STATE_EXPANDED | STATE_REFINED);
        }
    }
}

/* --- growth: postings.md, section 3 */

static void expand(planning *p, const posting_list *list, uint32_t point, uint32_t successor) {
    post_all(p, list, successor);
    plan_state(p, list, point, CHANGE_ADD, STATE_EXPANDED);
}

static void refine(planning *p, const posting_list *list, uint32_t point) {
    const uint32_t refined = point + 1, begin = p->count;
    post_all(p, list, refined);
    const uint32_t end = p->count;
    plan_state(p, list, point, CHANGE_ADD, STATE_EXPANDED | STATE_REFINED);
    if (refined == LAST_POINT || p->r.missing) return;
    for (uint32_t i = begin; i < end; i++) {
        const uint64_t key = plan_of(p)[i].key;
        uint32_t first = begin;
        while (plan_of(p)[first].key != key) first++;
        if (first < i) continue; /* seen */
        const posting_list made = list_wanted(p->dir, &p->r, key);
        const uint64_t count = count_of(p, &made);
        if (count > p->dir->prune_at) plan_state(p, &made, refined, CHANGE_ADD, STATE_EXPANDED);
        else prune(p, &made, refined);
    }
}

/* What does not fit in the plan is not done. */
static void undo_if_full(planning *p, uint32_t count, uint32_t growth) {
    if (!p->full) return;
    p->count = count;
    p->growth = growth;
    p->full = 0;
}

static void grow(planning *p, const sarp_change *entered) {
    const posting_list list = list_wanted(p->dir, &p->r, entered->key);
    const uint32_t point = entered->point;
    uint64_t count = list.loaded ? count_of(p, &list) : 0;
    if (count > SARP_LIST_GROWN_MAX) count = 0;
    uint32_t flags = flags_of(p, &list), changes = p->count, growth = p->growth;
    const uint32_t successor = point_successor(point, flags);
    if (!(flags & STATE_EXPANDED) && successor != NO_POINT && count > p->dir->prune_at) {
        expand(p, &list, point, successor);
        undo_if_full(p, changes, growth);
        flags = flags_of(p, &list);
    }
    const int refinable = point % 2 == 0 && !(flags & STATE_REFINED) && ((flags & STATE_EXPANDED) || point == LAST_FIXED_POINT);
    if (!refinable || count <= p->dir->refine_at) return;
    changes = p->count;
    growth = p->growth;
    refine(p, &list, point);
    undo_if_full(p, changes, growth);
}

/* --- an insertion */

/* The lists that a new record enters as they are now; what it supersedes leaves them. */
static void plan_lists(planning *p, const planned *segment) {
    const sarp_query *q = p->query;
    const uint8_t *ids = q->ids + (size_t)segment->window * SARP_WINDOW * SARP_ID;
    const uint64_t reference = PLANNED_SLOT | (segment->window - p->first_window);
    for (uint32_t point = 0; point != NO_POINT && point_offset(point) < segment->n;) {
        const uint64_t key = key_of(p->seed, ids + point_offset(point) * SARP_ID);
        const posting_list list = list_wanted(p->dir, &p->r, key);
        if (!list.loaded) return;
        if (point_offset(point) < segment->old_n) {
            const sarp_posting old = {posting_word0(key, segment->old_n, segment->d, point), q->owner_reference << 24,
                                      filter_of(p->dir->base, ids, segment->old_n, point)};
            plan_posting(p, SARP_SEGMENT, CHANGE_DROP, &old);
        }
        const sarp_posting own = {posting_word0(key, segment->n, segment->d, point), reference << 24,
                                  filter_of(p->dir->base, ids, segment->n, point)};
        plan_posting(p, SARP_SEGMENT, CHANGE_ADD, &own);
        const uint32_t flags = flags_of(p, &list);
        point = flags & STATE_EXPANDED ? point_successor(point, flags) : NO_POINT;
    }
}

static planned plan_window_first(const planning *p, const uint8_t *owner) {
    planned segment = plan_first(p->dir->base, p->query, p->seed, owner);
    segment.old_n = segment.supersedes ? p->query->owner_n : 0;
    return segment;
}

/* Whether all of it is decided. */
static int plan_all(planning *p, const planned *first) {
    for (planned s = *first; s.n; s = plan_next(p->query, p->seed, &s)) plan_lists(p, &s);
    if (p->full) return 0;
    for (uint32_t i = 0; i < p->count; i++) {
        const sarp_change entered = plan_of(p)[i];
        if (entered.operation != CHANGE_ADD || !entered.supersedes) continue;
        if (decided(p, entered.key, entered.root_key, entered.supersedes) != CHANGE_ADD) continue;
        if (!p->dir->growth_held) grow(p, &entered); /* the next record that enters is the next occasion */
    }
    return !p->r.missing;
}

static uint8_t points_of(const planning *p, uint64_t reference) {
    uint8_t points = 0;
    for (uint32_t i = 0; i < p->count; i++) {
        const sarp_change *c = plan_of(p) + i;
        if (c->type == SARP_SEGMENT && c->operation == CHANGE_ADD && c->supersedes == reference && !c->reserved)
            points = (uint8_t)(points | 1 << c->point);
    }
    return points;
}

/* `level`: of a new segment. */
static int32_t apply_record(planning *p, const uint8_t *record, uint64_t position, uint32_t level) {
    sarp_change changes[RECORD_CHANGES_MAX];
    size_t done;
    const uint32_t count = changes_of(p->dir->base, record, position, changes);
    for (uint32_t i = 0; i < count; i++) changes[i].level = (uint8_t)level;
    return sarp_postings_apply(p->dir, changes, NULL, count, &done);
}

static void write_postings(sarp_commit *commit, const sarp_change *changes, uint32_t count, const uint8_t **record,
                           uint64_t *position) {
    const uint32_t length = SARP_POSTINGS_HEADER + count * SARP_POSTINGS_ENTRY;
    uint8_t *out = commit_place(commit, length, SARP_PLACE_BEHIND, position);
    memset(out, 0, length);
    store16(out + SARP_AT_LENGTH, (uint16_t)length);
    out[SARP_AT_TYPE] = SARP_POSTINGS;
    out[SARP_AT_N] = (uint8_t)count;
    out[SARP_AT_HEADER_UNITS] = 1;
    for (uint32_t i = 0; i < count; i++) {
        const sarp_change *c = changes + i;
        uint8_t *entry = out + SARP_POSTINGS_HEADER + i * SARP_POSTINGS_ENTRY;
        store64(entry, posting_word0(c->key, c->n, c->d, c->point));
        store64(entry + 8, c->supersedes);
        store64(entry + 16, c->root_key);
        entry[SARP_AT_OPERATION] = c->operation;
    }
    commit_add(commit, out, *position);
    *record = out;
}

/* Writes the new records and applies them; `positions` of the plan's changes come to be known by this. */
static int32_t write_segments(planning *p, planned segment, const uint8_t *owner, const uint8_t *locations,
                              sarp_commit *commit) {
    for (; segment.n; segment = plan_next(p->query, p->seed, &segment)) {
        const uint64_t reference = PLANNED_SLOT | (segment.window - p->first_window);
        uint64_t position;
        segment.points = points_of(p, reference);
        const uint8_t *record = write_segment(commit, p->query, &segment, owner, locations, &position);
        /* From here on by its position, which is marked as one. */
        for (uint32_t i = 0; i < p->count; i++) {
            if (plan_of(p)[i].supersedes != reference || plan_of(p)[i].reserved) continue;
            plan_of(p)[i].supersedes = position;
            plan_of(p)[i].reserved = 1;
        }
        /* What it supersedes has just been matched. */
        const uint32_t level = segment.supersedes ? level_at_top(segment.window) : level_on_probation(segment.window);
        const int32_t status = apply_record(p, record, position, level);
        if (status != SARP_OK) return status; /* only if postings_has_room were wrong */
    }
    return SARP_OK;
}

static int32_t write_growth(planning *p, sarp_commit *commit) {
    sarp_change *changes = plan_of(p);
    uint32_t growth = 0;
    for (uint32_t i = 0; i < p->count; i++) {
        sarp_change *c = changes + i;
        if (c->type != SARP_POSTINGS) continue;
        if (c->supersedes && !c->reserved) c->supersedes = position_of(p->dir->base, c->supersedes);
        changes[growth++] = *c;
    }
    for (uint32_t i = 0; i < growth; i += SARP_POSTINGS_ENTRIES_MAX) {
        const uint32_t count = growth - i < SARP_POSTINGS_ENTRIES_MAX ? growth - i : SARP_POSTINGS_ENTRIES_MAX;
        const uint8_t *record;
        uint64_t position;
        write_postings(commit, changes + i, count, &record, &position);
        const int32_t status = apply_record(p, record, position, 0);
        if (status != SARP_OK) return status;
    }
    return SARP_OK;
}

/* Changes that the new records stand for. */
static uint32_t segment_changes(const planning *p, const planned *first) {
    uint32_t count = 0;
    for (planned s = *first; s.n; s = plan_next(p->query, p->seed, &s)) {
        const uint8_t points = points_of(p, PLANNED_SLOT | (s.window - p->first_window));
        for (uint32_t point = 0; point < POINTS; point++)
            if (points >> point & 1) count += point_offset(point) < s.old_n ? 2 : 1;
    }
    return count;
}

int32_t sarp_postings_insert(sarp_postings *dir, const sarp_pages *pages, sarp_query *q, const uint8_t *locations,
                             sarp_commit *commit, sarp_needs *needs) {
    q->status = SARP_NEED;
    if (postings_match_whole(dir, pages, q, needs) != SARP_OK) return SARP_NEED;
    if (q->matched == q->blocks) return SARP_OK;
    const uint8_t *owner;
    if (!owner_record(pages, q, &owner)) return SARP_INVALID; /* the match has just read it */
    planning p = {.dir = dir, .query = q, .seed = seed_of(dir->base, q->holder, q->name_space)};
    p.first_window = q->matched / SARP_WINDOW;
    p.r = (reading){.base = dir->base, .pages = pages, .needs = needs};
    const planned first = plan_window_first(&p, owner);
    if (!plan_all(&p, &first)) return p.r.missing ? SARP_NEED : SARP_INVALID;
    const uint32_t windows = (q->blocks + SARP_WINDOW - 1) / SARP_WINDOW - p.first_window;
    const uint32_t changes = segment_changes(&p, &first) + p.growth;
    if (!postings_has_room(dir, changes)) return SARP_FULL;
    const uint32_t records = (p.growth + SARP_POSTINGS_ENTRIES_MAX - 1) / SARP_POSTINGS_ENTRIES_MAX;
    if (!commit_has_room(commit, windows + records, changes)) return SARP_NO_ROOM;
    const int32_t status = write_segments(&p, first, owner, locations, commit);
    return status == SARP_OK ? write_growth(&p, commit) : status;
}
