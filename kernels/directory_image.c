#include "internal_directory.h"
#include "internal_recency.h"
#include "internal_record.h"

static void reset(sarp_directory *dir) {
    arena_reset(&dir->arena);
    dir->entries = dir->blocks = dir->placeholders = 0;
    dir->depth = 0;
}

int32_t sarp_directory_init(sarp_directory *dir) {
    reset(dir);
    if (dir->partition_limit < 1 || dir->table_limit < 1 || dir->arena.page_limit < 1) return SARP_FULL;
    dir->partitions[0] = (sarp_partition){.prefix = 0};
    dir->partition_count = 1;
    dir->table[0] = 0;
    return sarp_directory_load_empty(dir, 0);
}

int32_t sarp_directory_init_unloaded(sarp_directory *dir, uint32_t count) {
    reset(dir);
    if (count > dir->partition_limit) return SARP_FULL;
    uint64_t next = 0; /* the prefix that must come next for the partitions to be disjoint and to cover all keys */
    for (uint32_t i = 0; i < count; i++) {
        sarp_partition *part = dir->partitions + i;
        if (part->depth > SARP_DEPTH_MAX || part->prefix != next || next > SARP_KEY_MASK) return SARP_INVALID;
        if (part->prefix & ((UINT64_C(1) << (48 - part->depth)) - 1)) return SARP_INVALID;
        if (part->entries > SARP_PARTITION_ENTRIES_MAX) return SARP_INVALID;
        next = part->prefix + (UINT64_C(1) << (48 - part->depth));
        part->flags = 0;
        dir->entries += part->entries;
        dir->blocks += part->blocks;
        if (part->depth > dir->depth) dir->depth = part->depth;
    }
    if (next != SARP_KEY_MASK + 1) return SARP_INVALID;
    if (dir->depth > 31 || (UINT64_C(1) << dir->depth) > dir->table_limit) return SARP_FULL;
    dir->partition_count = count;
    for (uint32_t i = 0; i < count; i++) table_point(dir, i);
    return SARP_OK;
}

static int entry_valid(const sarp_directory *dir, const sarp_partition *part, const sarp_entry *entry) {
    const uint64_t low = (UINT64_C(1) << (48 - part->depth)) - 1;
    if ((entry_key(entry) & ~low) != part->prefix) return 0;
    if (entry_placeholder(entry)) return (entry->word1 >> 6) == (ENTRY_PLACEHOLDER >> 6);
    const uint64_t slot = entry_reference(entry) >> 24;
    return entry_d(entry) < entry_n(entry) && slot < dir->base->slot_count && (entry_d(entry) == 0 || entry_mask(entry) == 0);
}

int32_t sarp_directory_load(sarp_directory *dir, uint32_t number, const sarp_entry *entries, uint32_t count) {
    sarp_partition *part = dir->partitions + number;
    if (number >= dir->partition_count || (part->flags & SARP_PARTITION_LOADED) || count != part->entries) return SARP_INVALID;
    uint32_t blocks = 0, placeholders = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (!entry_valid(dir, part, entries + i)) return SARP_INVALID;
        if (i && entry_key(entries + i) < entry_key(entries + i - 1)) return SARP_INVALID;
        blocks += introduced(entries + i);
        placeholders += (uint32_t)entry_placeholder(entries + i);
    }
    if (blocks != part->blocks) return SARP_INVALID;
    if (arena_available(&dir->arena) < SARP_PARTITION_PAGES) return SARP_FULL;
    pages_resize(dir, part, 0, count);
    for (uint32_t i = 0; i < count; i++) {
        *entry_at(dir, part, i) = (sarp_entry){entries[i].word0, with_level_entering(dir->base, entries[i].word1, 0)};
        if (!entry_placeholder(entries + i)) slot_count(dir->base, entry_reference(entries + i), entry_n(entries + i), 1);
    }
    index_rebuild(dir, part);
    dir->placeholders += placeholders;
    part->flags |= SARP_PARTITION_LOADED;
    return SARP_OK;
}

int32_t sarp_directory_load_empty(sarp_directory *dir, uint32_t number) {
    sarp_partition *part = dir->partitions + number;
    if (number >= dir->partition_count || (part->flags & SARP_PARTITION_LOADED)) return SARP_INVALID;
    if (arena_available(&dir->arena) == 0) return SARP_FULL;
    dir->entries -= part->entries;
    dir->blocks -= part->blocks;
    part->entries = 0;
    part->blocks = 0;
    pages_resize(dir, part, 0, 0);
    index_rebuild(dir, part);
    part->flags |= SARP_PARTITION_LOADED | SARP_PARTITION_DIRTY;
    return SARP_OK;
}

int32_t sarp_directory_image(const sarp_directory *dir, uint32_t number, sarp_entry *out) {
    const sarp_partition *part = dir->partitions + number;
    if (number >= dir->partition_count || !(part->flags & SARP_PARTITION_LOADED)) return SARP_INVALID;
    for (uint32_t i = 0; i < part->entries; i++) out[i] = *entry_at(dir, part, i);
    return part->entries;
}

uint64_t sarp_directory_bytes(const sarp_directory *dir) {
    return (uint64_t)arena_used(&dir->arena) * SARP_ARENA_PAGE + (uint64_t)dir->partition_count * sizeof(sarp_partition) +
           ((uint64_t)sizeof(uint32_t) << dir->depth);
}
