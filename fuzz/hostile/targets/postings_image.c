/* Partition images of the directory of posting lists, and everything that goes over loaded lists afterwards. */
#include "scene.h"

enum { ROW = 32, ROWS_MAX = 8 };

/* A row is the low's three words, blocks u32, entries u16, reserved u16. Mended, only the number of entries is taken from it. */
static void take_rows(const uint8_t *rows, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        const uint8_t *row = rows + i * ROW;
        POSTINGS.partitions[i] = (sarp_posting_partition){.low = {load64(row), load64(row + 8), load64(row + 16)},
                                                          .blocks = load32(row + 24),
                                                          .entries = load16(row + 28)};
    }
}

/* Cuts the entries, which are in order, into the rows. Returns how many rows there are. */
static uint32_t mend_rows(const uint8_t *entries, uint32_t entry_count, uint32_t rows) {
    uint32_t at = 0, made = 0;
    for (uint32_t i = 0; i < rows && (i == 0 || at < entry_count); i++, made++) {
        sarp_posting_partition *part = POSTINGS.partitions + i;
        const uint8_t *first = entries + (size_t)at * sizeof(sarp_posting);
        uint32_t count = i + 1 == rows ? entry_count - at : part->entries % 128u;
        if (count > entry_count - at) count = entry_count - at;
        *part = (sarp_posting_partition){.entries = (uint16_t)count, .blocks = blocks_of(first, count)};
        if (i) part->low = (sarp_posting){load64(first) >> 16 << 16, load64(first + 8) >> 24 << 24, load64(first + 16)};
        if (i && !(load64(first + 8) >> 24)) part->low.word1 = 0;
        at += count;
    }
    return made;
}

static void check_image(uint32_t number, const sarp_posting *entries, uint32_t count) {
    static sarp_posting image[SARP_PARTITION_POSTINGS_MAX];
    CHECK(sarp_postings_image(&POSTINGS, number, image) == (int32_t)count);
    for (uint32_t i = 0; i < count; i++) {
        CHECK(image[i].word0 == entries[i].word0 && image[i].word1 >> 24 == entries[i].word1 >> 24);
        CHECK(image[i].filter == entries[i].filter);
    }
}

static void check_counts(void) {
    uint64_t entries = 0, blocks = 0;
    for (uint32_t i = 0; i < POSTINGS.partition_count; i++) {
        entries += POSTINGS.partitions[i].entries;
        blocks += POSTINGS.partitions[i].blocks;
    }
    CHECK(POSTINGS.entries == entries && POSTINGS.blocks == blocks);
}

static void load_all(const uint8_t *entries, size_t entry_count) {
    for (uint32_t number = 0; number < POSTINGS.partition_count; number++) {
        const uint32_t count = POSTINGS.partitions[number].entries;
        if (count > entry_count) break;
        sarp_posting *image = memory(count * sizeof *image + 1);
        memcpy(image, entries, count * sizeof *image);
        if (sarp_postings_load(&POSTINGS, number, image, count) == SARP_OK) check_image(number, image, count);
        free(image);
        entries += count * sizeof *image;
        entry_count -= count;
    }
}

static void find_all(const uint8_t *entries, size_t entry_count) {
    sarp_posting out[8];
    for (size_t i = 0; i < entry_count; i++) sarp_postings_find(&POSTINGS, load64(entries + i * sizeof *out) >> 16, out, 8);
}

static void evict_all(const uint8_t *choices) {
    enum { SET = 64 };
    uint64_t references[SET] = {0};
    sarp_condemned condemned = {references, SET, 0};
    sarp_evicted evicted = {0};
    const sarp_threshold threshold = {choices[2], choices[1] % 32, 0};
    sarp_posting cursor = {0};
    sarp_postings_condemn(&POSTINGS, &cursor, POSTINGS.partition_count, &threshold, &condemned);
    cursor = (sarp_posting){0};
    sarp_postings_evict(&POSTINGS, &cursor, POSTINGS.partition_count, &condemned, &evicted);
}

static void go_over(const uint8_t *choices) {
    static sarp_recency recency;
    sarp_posting cursor = {0};
    const uint32_t all = POSTINGS.partition_count;
    BASE.clock = choices[0] % 32;
    sarp_postings_age(&POSTINGS, &cursor, all);
    recency = (sarp_recency){.level = choices[1] % 32};
    cursor = (sarp_posting){0};
    sarp_postings_recency(&POSTINGS, &cursor, all, &recency);
    evict_all(choices);
    check_counts();
    for (uint32_t i = 0; i < all; i++) {
        sarp_change states[16];
        size_t done;
        const uint32_t count = sarp_postings_empty_states(&POSTINGS, i, states, 16);
        CHECK(sarp_postings_apply(&POSTINGS, states, NULL, count, &done) == SARP_OK);
    }
    check_counts();
    sarp_postings_forget(&POSTINGS, 0, all, choices[3] % 2);
    check_counts();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    uint8_t options[8] = {0};
    if (size < sizeof options) return 0;
    memcpy(options, data, sizeof options);
    size_t left = size - sizeof options;
    const uint8_t *rest = data + sizeof options;
    const int mended = options[0] & 1;
    uint32_t rows = 1 + options[1] % ROWS_MAX;
    memory_reset(SARP_ROUTING_SARP, options[0] & 4 ? 0 : sarp_cpu_features(), 14);
    BASE.evicts = options[0] & 2 ? 1 : 0;
    uint8_t *table = bytes_of(&rest, &left, rows * ROW);
    size_t entry_count = left / sizeof(sarp_posting);
    uint8_t *entries = bytes_of(&rest, &left, entry_count * sizeof(sarp_posting));
    take_rows(table, rows);
    if (mended) {
        entry_count = mend_entries(entries, (uint32_t)(entry_count < 1024 ? entry_count : 1024));
        rows = mend_rows(entries, (uint32_t)entry_count, rows);
    }
    if (sarp_postings_init_unloaded(&POSTINGS, rows) == SARP_OK) {
        load_all(entries, entry_count);
        check_counts();
        find_all(entries, entry_count);
        go_over(options + 2);
    }
    free(table);
    free(entries);
    return 0;
}
