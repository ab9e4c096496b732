#include "internal_change.h"
#include "internal_postings.h"
#include "internal_recency.h"

static void reset(sarp_postings *dir) {
    arena_reset(&dir->arena);
    dir->entries = dir->blocks = dir->states = 0;
}

int32_t sarp_postings_init(sarp_postings *dir) {
    reset(dir);
    if (dir->partition_limit < 1 || dir->arena.page_limit < 1) return SARP_FULL;
    dir->partitions[0] = (sarp_posting_partition){.entries = 0};
    dir->partition_count = 1;
    dir->order[0] = 0;
    return sarp_postings_load_empty(dir, 0);
}

static int low_valid(const sarp_posting *low) {
    return (low->word0 & 0xFFFF) == 0 && (low->word1 & 0xFFFFFF) == 0 && posting_reference(low) < SARP_REFERENCE_NONE;
}

int32_t sarp_postings_init_unloaded(sarp_postings *dir, uint32_t count) {
    reset(dir);
    if (count > dir->partition_limit) return SARP_FULL;
    const place first = {0, 0, 0};
    if (count == 0 || !place_equal(place_of(&dir->partitions[0].low), first)) return SARP_INVALID;
    for (uint32_t i = 0; i < count; i++) {
        sarp_posting_partition *part = dir->partitions + i;
        if (!low_valid(&part->low) || part->entries > SARP_PARTITION_POSTINGS_MAX) return SARP_INVALID;
        if (i && !place_before(place_of(&part[-1].low), place_of(&part->low))) return SARP_INVALID;
        part->flags = 0;
        dir->entries += part->entries;
        dir->blocks += part->blocks;
        dir->order[i] = i;
    }
    dir->partition_count = count;
    return SARP_OK;
}

static int posting_valid(const sarp_postings *dir, const sarp_posting *e) {
    const int state = posting_is_state(e);
    const sarp_change change = {.root_key = state ? e->word1 : e->filter,
                                .supersedes = posting_reference(e),
                                .n = (uint8_t)posting_n(e),
                                .d = (uint8_t)posting_d(e),
                                .point = (uint8_t)posting_point(e),
                                .operation = CHANGE_ADD};
    if ((e->word0 & 1) || !change_listed_valid(&change)) return 0;
    if (state) return e->filter == 0;
    return posting_reference(e) >> 24 < dir->base->slot_count && (e->word1 & 0xFFFFC1) == 0;
}

/* Where the range of the partition of that rank ends; behind everything for the last. */
static place range_end(const sarp_postings *dir, uint32_t rank) {
    if (rank + 1 == dir->partition_count) return (place){SARP_KEY_MASK + 1, 0, 0};
    return place_of(&partition_ranked(dir, rank + 1)->low);
}

int32_t sarp_postings_load(sarp_postings *dir, uint32_t number, const sarp_posting *entries, uint32_t count) {
    sarp_posting_partition *part = dir->partitions + number;
    if (number >= dir->partition_count || (part->flags & SARP_PARTITION_LOADED) || count != part->entries) return SARP_INVALID;
    const place end = range_end(dir, rank_of(dir, place_of(&part->low)));
    uint32_t blocks = 0, states = 0;
    for (uint32_t i = 0; i < count; i++) {
        const place at = place_of(entries + i);
        if (!posting_valid(dir, entries + i) || !place_before(at, end)) return SARP_INVALID;
        if (i ? !place_before(place_of(entries + i - 1), at) : place_before(at, place_of(&part->low))) return SARP_INVALID;
        blocks += posting_blocks(entries + i);
        states += (uint32_t)posting_is_state(entries + i);
    }
    if (blocks != part->blocks) return SARP_INVALID;
    if (arena_available(&dir->arena) < SARP_PARTITION_PAGES) return SARP_FULL;
    arena_resize(&dir->arena, part->pages, 0, posting_pages(count));
    for (uint32_t i = 0; i < count; i++) {
        sarp_posting *e = posting_at(dir, part, i);
        *e = entries[i];
        if (!posting_point(e) && !posting_is_state(e)) e->word1 = with_level_entering(dir->base, e->word1, 0);
        if (!posting_is_state(e)) slot_count(dir->base, posting_reference(e), posting_point(e) ? 0 : posting_n(e), 1);
    }
    dir->states += states;
    part->flags |= SARP_PARTITION_LOADED;
    return SARP_OK;
}

int32_t sarp_postings_load_empty(sarp_postings *dir, uint32_t number) {
    sarp_posting_partition *part = dir->partitions + number;
    if (number >= dir->partition_count || (part->flags & SARP_PARTITION_LOADED)) return SARP_INVALID;
    dir->entries -= part->entries;
    dir->blocks -= part->blocks;
    part->entries = 0;
    part->blocks = 0;
    part->flags |= SARP_PARTITION_LOADED | SARP_PARTITION_DIRTY;
    return SARP_OK;
}

int32_t sarp_postings_image(const sarp_postings *dir, uint32_t number, sarp_posting *out) {
    const sarp_posting_partition *part = dir->partitions + number;
    if (number >= dir->partition_count || !(part->flags & SARP_PARTITION_LOADED)) return SARP_INVALID;
    for (uint32_t i = 0; i < part->entries; i++) out[i] = *posting_at(dir, part, i);
    return part->entries;
}

uint64_t sarp_postings_bytes(const sarp_postings *dir) {
    return (uint64_t)arena_used(&dir->arena) * SARP_ARENA_PAGE +
           (uint64_t)dir->partition_count * (sizeof(sarp_posting_partition) + sizeof(uint32_t));
}
