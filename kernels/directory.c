#include "internal_directory.h"
#include "internal_markpass.h"
#include "internal_recency.h"
#include "internal_record.h"

void pages_resize(sarp_directory *dir, sarp_partition *part, uint32_t have, uint32_t entries) {
    arena_resize(&dir->arena, part->pages, have, pages_for(entries));
}

/* --- the sorted sequence of one partition */

void index_rebuild(const sarp_directory *dir, const sarp_partition *part) {
    uint16_t *starts = starts_of(dir, part);
    uint32_t bucket = 0;
    for (uint32_t i = 0; i < part->entries; i++)
        for (const uint32_t b = bucket_of(part, entry_key(entry_at(dir, part, i))); bucket <= b; bucket++)
            starts[bucket] = (uint16_t)i;
    for (; bucket <= BUCKETS; bucket++) starts[bucket] = part->entries;
}

uint32_t lower_bound(const sarp_directory *dir, const sarp_partition *part, uint64_t key) {
    const uint16_t *starts = starts_of(dir, part);
    const uint32_t bucket = bucket_of(part, key);
    uint32_t i = starts[bucket];
    while (i < starts[bucket + 1] && entry_key(entry_at(dir, part, i)) < key) i++;
    return i;
}

static void starts_add(const sarp_directory *dir, const sarp_partition *part, uint64_t key, int delta) {
    uint16_t *starts = starts_of(dir, part);
    for (uint32_t b = bucket_of(part, key) + 1; b <= BUCKETS; b++) starts[b] = (uint16_t)(starts[b] + delta);
}

void count_entry(sarp_directory *dir, sarp_partition *part, const sarp_entry *e, int sign) {
    const uint32_t blocks = introduced(e);
    part->blocks += sign > 0 ? blocks : 0u - blocks;
    dir->blocks += sign > 0 ? blocks : UINT64_C(0) - blocks;
    dir->placeholders += sign > 0 ? (uint64_t)entry_placeholder(e) : UINT64_C(0) - (uint64_t)entry_placeholder(e);
    if (!entry_placeholder(e)) slot_count(dir->base, entry_reference(e), entry_n(e), sign);
}

static void entry_insert(sarp_directory *dir, sarp_partition *part, sarp_entry entry) {
    const uint32_t index = lower_bound(dir, part, entry_key(&entry));
    pages_resize(dir, part, pages_for(part->entries), part->entries + 1u);
    arena_open_slot(&dir->arena, part->pages, sizeof entry, PAGE_ENTRIES, index + INDEX_SLOTS, part->entries + INDEX_SLOTS);
    *entry_at(dir, part, index) = entry;
    part->entries++;
    dir->entries++;
    starts_add(dir, part, entry_key(&entry), 1);
    count_entry(dir, part, &entry, 1);
}

static void entry_erase(sarp_directory *dir, sarp_partition *part, uint32_t index) {
    const sarp_entry entry = *entry_at(dir, part, index);
    arena_close_slot(&dir->arena, part->pages, sizeof entry, PAGE_ENTRIES, index + INDEX_SLOTS, part->entries + INDEX_SLOTS);
    pages_resize(dir, part, pages_for(part->entries), part->entries - 1u);
    part->entries--;
    dir->entries--;
    starts_add(dir, part, entry_key(&entry), -1);
    count_entry(dir, part, &entry, -1);
}

/* --- splitting */

static int table_double(sarp_directory *dir) {
    const uint32_t size = UINT32_C(1) << dir->depth;
    if (dir->depth >= 31 || size * 2 > dir->table_limit) return SARP_FULL;
    for (uint32_t i = size; i-- > 0;) dir->table[2 * i] = dir->table[2 * i + 1] = dir->table[i];
    dir->depth++;
    return SARP_OK;
}

void table_point(sarp_directory *dir, uint32_t number) {
    const sarp_partition *part = dir->partitions + number;
    const uint32_t first = dir->depth ? (uint32_t)(part->prefix >> (48 - dir->depth)) : 0;
    const uint32_t span = UINT32_C(1) << (dir->depth - part->depth);
    for (uint32_t i = 0; i < span; i++) dir->table[first + i] = number;
}

/* The lower half stays where it is; the upper half, which begins at the first entry with the next key bit set, is
   copied to a new partition. */
static int split(sarp_directory *dir, uint32_t number) {
    sarp_partition *low = dir->partitions + number;
    if (low->depth >= SARP_DEPTH_MAX || dir->partition_count >= dir->partition_limit) return SARP_FULL;
    if (arena_available(&dir->arena) < SARP_PARTITION_PAGES) return SARP_FULL;
    if (low->depth == dir->depth && table_double(dir) != SARP_OK) return SARP_FULL;
    const uint32_t total = low->entries;
    const uint64_t half = low->prefix | UINT64_C(1) << (47 - low->depth);
    const uint32_t kept = lower_bound(dir, low, half);
    const uint32_t high_number = dir->partition_count++;
    sarp_partition *high = dir->partitions + high_number;
    *high = (sarp_partition){.prefix = half, .depth = (uint8_t)(low->depth + 1), .flags = low->flags | SARP_PARTITION_DIRTY};
    pages_resize(dir, high, 0, total - kept);
    high->entries = (uint16_t)(total - kept);
    for (uint32_t i = kept; i < total; i++) {
        const sarp_entry entry = *entry_at(dir, low, i);
        *entry_at(dir, high, i - kept) = entry;
        high->blocks += introduced(&entry);
    }
    low->blocks -= high->blocks;
    low->entries = (uint16_t)kept;
    low->depth++;
    low->flags |= SARP_PARTITION_DIRTY;
    pages_resize(dir, low, pages_for(total), kept);
    index_rebuild(dir, low);
    index_rebuild(dir, high);
    table_point(dir, high_number);
    return SARP_OK;
}

/* The loaded partition of a key, with room for one more entry. */
static int writable(sarp_directory *dir, uint64_t key, sarp_partition **out) {
    for (;;) {
        const uint32_t number = partition_index(dir, key);
        sarp_partition *part = dir->partitions + number;
        if (!(part->flags & SARP_PARTITION_LOADED)) return SARP_INVALID;
        if (part->entries < SARP_PARTITION_ENTRIES_MAX) {
            if (arena_available(&dir->arena) == 0) return SARP_FULL;
            *out = part;
            return SARP_OK;
        }
        const int status = split(dir, number);
        if (status != SARP_OK) return status;
    }
}

/* --- applying changes */

uint32_t run_end(const sarp_directory *dir, const sarp_partition *part, uint32_t index, uint64_t key) {
    while (index < part->entries && entry_key(entry_at(dir, part, index)) == key) index++;
    return index;
}

static int find_reference(const sarp_directory *dir, const sarp_partition *part, uint32_t first, uint32_t end,
                          uint64_t reference, uint32_t *index) {
    for (uint32_t i = first; reference != SARP_REFERENCE_NONE && i < end; i++) {
        if (entry_reference(entry_at(dir, part, i)) != reference) continue;
        *index = i;
        return 1;
    }
    return 0;
}

/* A removed root's mask stays: with another root of the key, or in a placeholder (directory.md, section 3). */
static void entry_remove(sarp_directory *dir, sarp_partition *part, uint32_t index, uint32_t first, uint32_t end) {
    sarp_entry *entry = entry_at(dir, part, index);
    const uint64_t mask = entry_mask(entry);
    for (uint32_t i = first; mask && i < end; i++) {
        if (i == index || entry_d(entry_at(dir, part, i)) != 0) continue;
        entry_at(dir, part, i)->word0 |= mask;
        entry_erase(dir, part, index);
        return;
    }
    if (!mask) {
        entry_erase(dir, part, index);
        return;
    }
    count_entry(dir, part, entry, -1);
    entry->word1 = ENTRY_PLACEHOLDER | (entry->word1 & RECENCY_BITS);
    count_entry(dir, part, entry, 1);
}

const sarp_entry *directory_entry(const sarp_directory *dir, uint64_t key, uint64_t reference) {
    const sarp_partition *part = dir->partitions + partition_index(dir, key);
    const uint32_t first = lower_bound(dir, part, key);
    uint32_t index;
    return find_reference(dir, part, first, run_end(dir, part, first, key), reference, &index) ? entry_at(dir, part, index) : NULL;
}

void directory_drop(sarp_directory *dir, uint64_t key, uint64_t reference) {
    sarp_partition *part = dir->partitions + partition_index(dir, key);
    const uint32_t first = lower_bound(dir, part, key), end = run_end(dir, part, first, key);
    uint32_t index;
    if (!find_reference(dir, part, first, end, reference, &index)) return;
    part->flags |= SARP_PARTITION_DIRTY;
    entry_remove(dir, part, index, first, end);
}

/* The masks of all roots of a key, whose placeholders go: every root of a key has the same mask. */
static uint64_t take_masks(sarp_directory *dir, sarp_partition *part, uint64_t key) {
    uint64_t mask = 0;
    for (uint32_t i = lower_bound(dir, part, key); i < part->entries && entry_key(entry_at(dir, part, i)) == key;) {
        const sarp_entry *entry = entry_at(dir, part, i);
        if (entry_d(entry) == 0) mask |= entry_mask(entry);
        if (entry_placeholder(entry)) entry_erase(dir, part, i);
        else i++;
    }
    return mask;
}

static int apply_entry(sarp_directory *dir, const sarp_change *change) {
    sarp_partition *part;
    const int status = writable(dir, change->key, &part);
    if (status != SARP_OK) return status;
    const uint64_t reference = reference_of(dir->base, change->position);
    if (reference == SARP_REFERENCE_NONE) return SARP_INVALID;
    const uint64_t superseded = reference_of(dir->base, change->supersedes);
    const uint32_t first = lower_bound(dir, part, change->key), end = run_end(dir, part, first, change->key);
    uint32_t same, old;
    const int has_same = find_reference(dir, part, first, end, reference, &same);
    const int has_old = find_reference(dir, part, first, end, superseded, &old);
    part->flags |= SARP_PARTITION_DIRTY;
    if (has_same) {
        if (has_old) entry_remove(dir, part, old, first, end);
    } else if (has_old) {
        sarp_entry *entry = entry_at(dir, part, old);
        count_entry(dir, part, entry, -1);
        entry->word1 = entry_word1(reference, change->n, change->d, change->dp, (entry->word1 >> 1) & 31);
        count_entry(dir, part, entry, 1);
    } else {
        const uint64_t mask = change->d == 0 ? take_masks(dir, part, change->key) : 0;
        const uint64_t word1 = entry_word1(reference, change->n, change->d, change->dp, 0);
        entry_insert(dir, part, (sarp_entry){change->key << 16 | mask, with_level_entering(dir->base, word1, change->level)});
    }
    return SARP_OK;
}

static int apply_mask(sarp_directory *dir, const sarp_change *change) {
    if (change->d == 0) return SARP_OK;
    sarp_partition *part;
    const int status = writable(dir, change->root_key, &part);
    if (status != SARP_OK) return status;
    const uint64_t bit = UINT64_C(1) << (change->d / 4);
    fresh_note(dir->fresh, change->root_key, bit);
    int found = 0;
    for (uint32_t i = lower_bound(dir, part, change->root_key); i < part->entries; i++) {
        sarp_entry *entry = entry_at(dir, part, i);
        if (entry_key(entry) != change->root_key) break;
        if (entry_d(entry) != 0) continue;
        found = 1;
        if (entry_mask(entry) & bit) continue;
        entry->word0 |= bit;
        part->flags |= SARP_PARTITION_DIRTY;
    }
    if (!found) {
        const uint64_t word1 = with_level_entering(dir->base, ENTRY_PLACEHOLDER, LEVEL_TOP); /* not colder than what diverges */
        entry_insert(dir, part, (sarp_entry){change->root_key << 16 | bit, word1});
        part->flags |= SARP_PARTITION_DIRTY;
    }
    return SARP_OK;
}

int32_t sarp_directory_apply(sarp_directory *dir, const sarp_change *changes, const uint32_t *order, size_t count,
                             size_t *done) {
    for (*done = 0; *done < count; ++*done) {
        const sarp_change *change = changes + (order ? order[*done] / 2 : *done);
        int status = SARP_OK;
        if (!order || order[*done] % 2 == 0) status = apply_entry(dir, change);
        if (status == SARP_OK && (!order || order[*done] % 2 == 1)) status = apply_mask(dir, change);
        if (status != SARP_OK) return status;
    }
    return SARP_OK;
}

uint32_t sarp_directory_forget(sarp_directory *dir, uint32_t first_partition, uint32_t count, uint32_t slot) {
    uint32_t dropped = 0;
    for (uint32_t number = first_partition; number < dir->partition_count && number - first_partition < count; number++) {
        sarp_partition *part = dir->partitions + number;
        for (uint32_t i = 0; part->flags & SARP_PARTITION_LOADED && i < part->entries;) {
            const sarp_entry *entry = entry_at(dir, part, i);
            if (entry_placeholder(entry) || entry_reference(entry) >> 24 != slot) {
                i++;
                continue;
            }
            const uint64_t key = entry_key(entry);
            const uint32_t first = lower_bound(dir, part, key);
            entry_remove(dir, part, i, first, run_end(dir, part, first, key));
            part->flags |= SARP_PARTITION_DIRTY;
            dropped++;
        }
    }
    return dropped;
}

/* A change adds at most one entry under each of its two keys: a page each, and perhaps a split. */
int directory_has_room(const sarp_directory *dir, uint32_t changes) {
    return arena_available(&dir->arena) >= 2 * changes + 2 * SARP_PARTITION_PAGES &&
           dir->partition_limit - dir->partition_count >= 2 * changes && dir->partition_count * 4 <= dir->table_limit;
}
