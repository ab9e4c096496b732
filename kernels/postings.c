#include "postings.h"

#include "internal_change.h"
#include "internal_postings.h"
#include "internal_recency.h"

/* --- finding */

uint32_t rank_of(const sarp_postings *dir, place at) {
    uint32_t low = 0, high = dir->partition_count;
    while (high - low > 1) {
        const uint32_t middle = low + (high - low) / 2;
        if (place_before(at, place_of(&partition_ranked(dir, middle)->low))) high = middle;
        else low = middle;
    }
    return low;
}

uint32_t posting_lower(const sarp_postings *dir, const sarp_posting_partition *part, place at) {
    uint32_t low = 0, high = part->entries;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (place_before(place_of(posting_at(dir, part, middle)), at)) low = middle + 1;
        else high = middle;
    }
    return low;
}

spot spot_lower(const sarp_postings *dir, place at) {
    const uint32_t rank = rank_of(dir, at);
    return (spot){rank, posting_lower(dir, partition_ranked(dir, rank), at)};
}

uint64_t spots_between(const sarp_postings *dir, spot begin, spot end) {
    uint64_t count = 0;
    for (uint32_t rank = begin.rank; rank < end.rank; rank++) count += partition_ranked(dir, rank)->entries;
    return count + end.index - begin.index;
}

static int is_loaded(const sarp_postings *dir, uint32_t first_rank, uint32_t last_rank) {
    for (uint32_t rank = first_rank; rank <= last_rank; rank++)
        if (!(partition_ranked(dir, rank)->flags & SARP_PARTITION_LOADED)) return 0;
    return 1;
}

posting_list list_open(const sarp_postings *dir, uint64_t key) {
    const place first = {key, 0, 0}, last = {key, UINT64_MAX, SARP_REFERENCE_NONE};
    posting_list list = {.key = key, .first_rank = rank_of(dir, first)};
    list.last_rank = list.first_rank;
    while (list.last_rank + 1 < dir->partition_count &&
           !place_before(last, place_of(&partition_ranked(dir, list.last_rank + 1)->low)))
        list.last_rank++;
    if (!is_loaded(dir, list.first_rank, list.last_rank)) return list;
    list.loaded = 1;
    list.begin = (spot){list.first_rank, posting_lower(dir, partition_ranked(dir, list.first_rank), first)};
    /* `last` itself is no element: no record has the reference "none". */
    list.end = (spot){list.last_rank, posting_lower(dir, partition_ranked(dir, list.last_rank), last)};
    list.count = spots_between(dir, list.begin, list.end);
    if (list.count == 0) return list;
    while (list.begin.index == partition_ranked(dir, list.begin.rank)->entries) list.begin = (spot){list.begin.rank + 1, 0};
    const sarp_posting *e = posting_at(dir, partition_ranked(dir, list.begin.rank), list.begin.index);
    if (posting_is_state(e)) {
        list.flags = (uint32_t)e->word1;
        list.count--;
    }
    return list;
}

int64_t sarp_postings_find(const sarp_postings *dir, uint64_t key, sarp_posting *out, int64_t limit) {
    const posting_list list = list_open(dir, key);
    if (!list.loaded) return SARP_INVALID;
    int64_t found = 0;
    for (uint32_t rank = list.begin.rank; rank <= list.end.rank; rank++) {
        const sarp_posting_partition *part = partition_ranked(dir, rank);
        const uint32_t end = rank == list.end.rank ? list.end.index : part->entries;
        for (uint32_t i = rank == list.begin.rank ? list.begin.index : 0; i < end; i++, found++)
            if (found < limit) out[found] = *posting_at(dir, part, i);
    }
    return found;
}

uint32_t sarp_postings_partition_at(const sarp_postings *dir, uint64_t key, uint64_t filter, uint64_t reference) {
    return dir->order[rank_of(dir, (place){key, filter, reference})];
}

uint32_t sarp_postings_rank_of(const sarp_postings *dir, uint32_t partition) {
    return rank_of(dir, place_of(&dir->partitions[partition].low));
}

/* --- changing */

void count_posting(sarp_postings *dir, sarp_posting_partition *part, const sarp_posting *e, int sign) {
    const uint32_t blocks = posting_blocks(e), state = (uint32_t)posting_is_state(e);
    part->blocks += sign > 0 ? blocks : 0u - blocks;
    dir->blocks += sign > 0 ? blocks : UINT64_C(0) - blocks;
    dir->states += sign > 0 ? state : UINT64_C(0) - state;
    dir->entries += sign > 0 ? UINT64_C(1) : UINT64_MAX;
    if (!state) slot_count(dir->base, posting_reference(e), posting_point(e) ? 0 : posting_n(e), sign);
}

static void posting_insert(sarp_postings *dir, sarp_posting_partition *part, uint32_t index, sarp_posting e) {
    arena_resize(&dir->arena, part->pages, posting_pages(part->entries), posting_pages(part->entries + 1u));
    arena_open_slot(&dir->arena, part->pages, sizeof e, PAGE_POSTINGS, index, part->entries);
    *posting_at(dir, part, index) = e;
    part->entries++;
    count_posting(dir, part, &e, 1);
}

void posting_erase(sarp_postings *dir, sarp_posting_partition *part, uint32_t index) {
    const sarp_posting e = *posting_at(dir, part, index);
    arena_close_slot(&dir->arena, part->pages, sizeof e, PAGE_POSTINGS, index, part->entries);
    arena_resize(&dir->arena, part->pages, posting_pages(part->entries), posting_pages(part->entries - 1u));
    part->entries--;
    count_posting(dir, part, &e, -1);
}

/* The upper half goes to a new partition, which begins at its first element. */
static int split(sarp_postings *dir, uint32_t rank) {
    if (dir->partition_count >= dir->partition_limit || arena_available(&dir->arena) < SARP_PARTITION_PAGES) return SARP_FULL;
    sarp_posting_partition *low = dir->partitions + dir->order[rank];
    const uint32_t total = low->entries, kept = total / 2, number = dir->partition_count++;
    const place begin = place_of(posting_at(dir, low, kept));
    sarp_posting_partition *high = dir->partitions + number;
    *high = (sarp_posting_partition){.low = {begin.key << 16, begin.reference << 24, begin.filter},
                                     .flags = low->flags | SARP_PARTITION_DIRTY};
    arena_resize(&dir->arena, high->pages, 0, posting_pages(total - kept));
    high->entries = (uint16_t)(total - kept);
    for (uint32_t i = kept; i < total; i++) {
        const sarp_posting *e = posting_at(dir, low, i);
        *posting_at(dir, high, i - kept) = *e;
        high->blocks += posting_blocks(e);
    }
    low->blocks -= high->blocks;
    low->entries = (uint16_t)kept;
    low->flags |= SARP_PARTITION_DIRTY;
    arena_resize(&dir->arena, low->pages, posting_pages(total), posting_pages(kept));
    memmove(dir->order + rank + 2, dir->order + rank + 1, (number - rank - 1) * sizeof *dir->order);
    dir->order[rank + 1] = number;
    return SARP_OK;
}

/* The loaded partition of a place, with room for one more element. */
static int writable(sarp_postings *dir, place at, sarp_posting_partition **out) {
    for (;;) {
        const uint32_t rank = rank_of(dir, at);
        sarp_posting_partition *part = dir->partitions + dir->order[rank];
        if (!(part->flags & SARP_PARTITION_LOADED)) return SARP_INVALID;
        if (part->entries < SARP_PARTITION_POSTINGS_MAX) {
            if (arena_available(&dir->arena) == 0) return SARP_FULL;
            *out = part;
            return SARP_OK;
        }
        const int status = split(dir, rank);
        if (status != SARP_OK) return status;
    }
}

static place place_of_change(const sarp_base *base, const sarp_change *change) {
    if (!change->supersedes) return (place){change->key, 0, 0};
    return (place){change->key, change->root_key, reference_of(base, change->supersedes)};
}

static sarp_posting posting_entering(const sarp_base *base, const sarp_change *change, place at) {
    const uint64_t word0 = posting_word0(change->key, change->n, change->d, change->point);
    if (!change->supersedes) return (sarp_posting){word0, change->root_key, at.filter};
    const uint64_t word1 = at.reference << 24;
    return (sarp_posting){word0, change->point ? word1 : with_level_entering(base, word1, change->level), at.filter};
}

static int apply_add(sarp_postings *dir, const sarp_change *change, place at) {
    sarp_posting_partition *part;
    const int status = writable(dir, at, &part);
    if (status != SARP_OK) return status;
    const uint32_t index = posting_lower(dir, part, at);
    sarp_posting *found = index < part->entries ? posting_at(dir, part, index) : NULL;
    if (found && !place_equal(place_of(found), at)) found = NULL;
    const uint64_t flags = change->supersedes ? 0 : change->root_key;
    if (found && (found->word1 | flags) == found->word1) return SARP_OK;
    part->flags |= SARP_PARTITION_DIRTY;
    if (found) found->word1 |= flags;
    else posting_insert(dir, part, index, posting_entering(dir->base, change, at));
    return SARP_OK;
}

static int apply_drop(sarp_postings *dir, const sarp_change *change, place at) {
    sarp_posting_partition *part = dir->partitions + dir->order[rank_of(dir, at)];
    if (!(part->flags & SARP_PARTITION_LOADED)) return SARP_INVALID;
    const uint32_t index = posting_lower(dir, part, at);
    sarp_posting *found = index < part->entries ? posting_at(dir, part, index) : NULL;
    if (!found || !place_equal(place_of(found), at)) return SARP_OK;
    if (!change->supersedes) {
        if (!(found->word1 & change->root_key)) return SARP_OK;
        found->word1 &= ~change->root_key;
    }
    part->flags |= SARP_PARTITION_DIRTY;
    if (change->supersedes || !found->word1) posting_erase(dir, part, index);
    return SARP_OK;
}

int32_t sarp_postings_apply(sarp_postings *dir, const sarp_change *changes, const uint32_t *order, size_t count, size_t *done) {
    for (*done = 0; *done < count; ++*done) {
        const sarp_change *change = changes + (order ? order[*done] : *done);
        if (!change->operation) continue;
        if (!change_listed_valid(change)) return SARP_INVALID;
        const place at = place_of_change(dir->base, change);
        /* What a file that is gone had is a miss. */
        if (at.reference == SARP_REFERENCE_NONE) continue;
        const int status = change->operation == CHANGE_ADD ? apply_add(dir, change, at) : apply_drop(dir, change, at);
        if (status != SARP_OK) return status;
    }
    return SARP_OK;
}

int posting_find(const sarp_postings *dir, place at, sarp_posting_partition **part, uint32_t *index) {
    *part = dir->partitions + dir->order[rank_of(dir, at)];
    if (!((*part)->flags & SARP_PARTITION_LOADED)) return 0;
    *index = posting_lower(dir, *part, at);
    return *index < (*part)->entries && place_equal(place_of(posting_at(dir, *part, *index)), at);
}

const sarp_posting *postings_at(const sarp_postings *dir, place at, uint32_t point) {
    sarp_posting_partition *part;
    uint32_t index;
    if (!posting_find(dir, at, &part, &index)) return NULL;
    const sarp_posting *posting = posting_at(dir, part, index);
    return posting_point(posting) == point ? posting : NULL;
}

int postings_enter(sarp_postings *dir, sarp_posting e) {
    sarp_posting_partition *part;
    const int status = writable(dir, place_of(&e), &part);
    if (status != SARP_OK) return status;
    const uint32_t index = posting_lower(dir, part, place_of(&e));
    if (index < part->entries && place_equal(place_of(posting_at(dir, part, index)), place_of(&e))) return SARP_OK;
    part->flags |= SARP_PARTITION_DIRTY;
    posting_insert(dir, part, index, e);
    return SARP_OK;
}

/* Where a record that has `n` blocks may be posted; 0 if one of these partitions is not in memory, which is asked for. */
static int places_of(const sarp_postings *dir, reading *r, key_seed seed, const uint8_t *ids, uint32_t n, uint64_t reference,
                     place *places) {
    int loaded = 1;
    for (uint32_t point = 0; point < POINTS && point_offset(point) < n; point++) {
        places[point] =
            (place){key_of(seed, ids + point_offset(point) * SARP_ID), filter_of(dir->base, ids, n, point), reference};
        const uint32_t number = dir->order[rank_of(dir, places[point])];
        if (dir->partitions[number].flags & SARP_PARTITION_LOADED) continue;
        need_partition(r, number);
        loaded = 0;
    }
    return loaded;
}

int postings_cut(sarp_postings *dir, reading *r, key_seed seed, const uint8_t *ids, uint32_t n, uint32_t left,
                 uint64_t reference) {
    place before[POINTS], after[POINTS];
    if (!places_of(dir, r, seed, ids, n, reference, before) || !places_of(dir, r, seed, ids, left, reference, after)) return 0;
    if (!postings_has_room(dir, POINTS)) left = 0;
    for (uint32_t point = 0; point < POINTS && point_offset(point) < n; point++) {
        sarp_posting_partition *part;
        uint32_t index;
        if (!posting_find(dir, before[point], &part, &index)) continue;
        const sarp_posting e = *posting_at(dir, part, index);
        part->flags |= SARP_PARTITION_DIRTY;
        posting_erase(dir, part, index);
        /* What no writer makes, another point's posting or one of blocks behind the end, only goes. */
        if (point_offset(point) >= left || posting_point(&e) != point || posting_d(&e) >= left) continue;
        const sarp_posting shorter = {posting_word0(posting_key(&e), left, posting_d(&e), point), e.word1, after[point].filter};
        postings_enter(dir, shorter);
    }
    return 1;
}

uint32_t sarp_postings_forget(sarp_postings *dir, uint32_t first_partition, uint32_t count, uint32_t slot) {
    uint32_t dropped = 0;
    for (uint32_t number = first_partition; number < dir->partition_count && number - first_partition < count; number++) {
        sarp_posting_partition *part = dir->partitions + number;
        for (uint32_t i = 0; part->flags & SARP_PARTITION_LOADED && i < part->entries;) {
            const sarp_posting *e = posting_at(dir, part, i);
            if (posting_is_state(e) || posting_reference(e) >> 24 != slot) {
                i++;
                continue;
            }
            posting_erase(dir, part, i);
            part->flags |= SARP_PARTITION_DIRTY;
            dropped++;
        }
    }
    return dropped;
}

void postings_touch(sarp_postings *dir, place at, uint32_t level) {
    sarp_posting_partition *part;
    uint32_t index;
    if (!posting_find(dir, at, &part, &index)) return;
    sarp_posting *e = posting_at(dir, part, index);
    if (level_of(dir->base, e->word1) < level) e->word1 = with_level(dir->base, e->word1, level);
}

void sarp_postings_partition_of(const sarp_postings *dir, const sarp_change *changes, size_t count, uint32_t *out) {
    for (size_t i = 0; i < count; i++) out[i] = dir->order[rank_of(dir, place_of_change(dir->base, changes + i))];
}

/* A change adds at most one element: a page, and perhaps a split. */
int postings_has_room(const sarp_postings *dir, uint32_t changes) {
    return arena_available(&dir->arena) >= changes + 2 * SARP_PARTITION_PAGES &&
           dir->partition_limit - dir->partition_count >= changes;
}

void sarp_postings_filters(const sarp_base *base, const uint8_t *ids, uint32_t n, uint64_t *filters) {
    for (uint32_t point = 0; point < POINTS; point++)
        filters[point] = point_offset(point) < n ? filter_of(base, ids, n, point) : 0;
}
