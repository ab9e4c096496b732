/* Partition images of the divergence directory: several, in whatever ranges their rows say, and everything that goes over loaded
   entries afterwards. */
#include "scene.h"

enum { ROW = 16, ROWS_MAX = 16 };

/* A row is prefix u64, blocks u32, entries u16, depth u8, reserved u8. Mended, the rows cover all keys once. */
static void take_rows(const uint8_t *rows, uint32_t count, int mended) {
    const uint32_t depth = count ? (uint32_t)__builtin_ctz(count) : 0;
    for (uint32_t i = 0; i < count; i++) {
        const uint8_t *row = rows + i * ROW;
        sarp_partition *part = DIRECTORY.partitions + i;
        *part = (sarp_partition){load64(row), {0}, load32(row + 8), load16(row + 12), row[14], row[15]};
        if (!mended) continue;
        part->prefix = depth ? (uint64_t)i << (48 - depth) : 0;
        part->depth = (uint8_t)depth;
        part->entries %= 256;
    }
}

/* Brings a partition's share of the entries into its range, and its row into agreement with them. */
static void mend_part(uint8_t *entries, sarp_partition *part) {
    const uint64_t high = part->depth ? UINT64_MAX << (64 - part->depth) : 0;
    for (uint32_t i = 0; i < part->entries; i++) {
        uint8_t *entry = entries + (size_t)i * sizeof(sarp_entry);
        store64(entry, (load64(entry) & ~high) | part->prefix << 16);
    }
    mend_entries(entries, part->entries);
    part->blocks = blocks_of(entries, part->entries);
}

static void check_image(uint32_t number, const sarp_entry *entries, uint32_t count) {
    static sarp_entry image[SARP_PARTITION_ENTRIES_MAX];
    CHECK(sarp_directory_image(&DIRECTORY, number, image) == (int32_t)count);
    for (uint32_t i = 0; i < count; i++) {
        CHECK(image[i].word0 == entries[i].word0 && image[i].word1 >> 6 == entries[i].word1 >> 6);
        sarp_entry found[4];
        CHECK(sarp_directory_find(&DIRECTORY, entries[i].word0 >> 16, found, 4) >= 1);
    }
}

/* The directory's counts are the sums of its partitions'. */
static void check_counts(void) {
    uint64_t entries = 0, blocks = 0;
    for (uint32_t i = 0; i < DIRECTORY.partition_count; i++) {
        entries += DIRECTORY.partitions[i].entries;
        blocks += DIRECTORY.partitions[i].blocks;
    }
    CHECK(DIRECTORY.entries == entries && DIRECTORY.blocks == blocks);
}

static void load_all(uint8_t *entries, size_t entry_count, int mended) {
    for (uint32_t number = 0; number < DIRECTORY.partition_count; number++) {
        sarp_partition *part = DIRECTORY.partitions + number;
        const uint32_t count = part->entries;
        if (count > entry_count) break;
        sarp_entry *image = memory(count * sizeof *image + 1);
        memcpy(image, entries, count * sizeof *image);
        if (sarp_directory_load(&DIRECTORY, number, image, count) == SARP_OK) check_image(number, image, count);
        else if (mended) CHECK(!count || arena_available(&DIRECTORY.arena) < SARP_PARTITION_PAGES);
        free(image);
        entries += count * sizeof *image;
        entry_count -= count;
    }
}

static void go_over(const uint8_t *choices) {
    static sarp_recency recency;
    sarp_evicted evicted = {0};
    const uint32_t all = DIRECTORY.partition_count;
    BASE.clock = choices[0] % 32;
    sarp_directory_age(&DIRECTORY, 0, all);
    recency = (sarp_recency){.level = choices[1] % 32};
    sarp_directory_recency(&DIRECTORY, 0, all, &recency);
    const sarp_threshold threshold = {choices[2], choices[1] % 32, 0};
    sarp_directory_evict(&DIRECTORY, 0, all, &threshold, &evicted);
    check_counts();
    sarp_directory_forget(&DIRECTORY, 0, all, choices[3] % 2);
    check_counts();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    uint8_t options[8] = {0};
    if (size < sizeof options) return 0;
    memcpy(options, data, sizeof options);
    size_t left = size - sizeof options;
    const uint8_t *rest = data + sizeof options;
    const int mended = options[0] & 1;
    const uint32_t rows = mended ? 1u << options[1] % 5 : options[1] % (ROWS_MAX + 1u);
    memory_reset(SARP_ROUTING_DIVERGENCE, sarp_cpu_features(), 14);
    BASE.evicts = options[0] & 2 ? 1 : 0;
    uint8_t *table = bytes_of(&rest, &left, rows * ROW);
    const size_t entry_count = left / sizeof(sarp_entry);
    uint8_t *entries = bytes_of(&rest, &left, entry_count * sizeof(sarp_entry));
    take_rows(table, rows, mended);
    size_t at = 0;
    for (uint32_t i = 0; mended && i < rows; i++) {
        sarp_partition *part = DIRECTORY.partitions + i;
        if (part->entries > entry_count - at) part->entries = (uint16_t)(entry_count - at);
        mend_part(entries + at * sizeof(sarp_entry), part);
        at += part->entries;
    }
    const int32_t status = sarp_directory_init_unloaded(&DIRECTORY, rows);
    CHECK(!mended || status == SARP_OK);
    if (status == SARP_OK) {
        load_all(entries, entry_count, mended);
        check_counts();
        go_over(options + 2);
    }
    free(table);
    free(entries);
    return 0;
}
