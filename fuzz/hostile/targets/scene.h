/* A hostile store in small: pages of a log file, the entries of a partition image, removals, and what is asked for.

   An input is 16 bytes of options, then pages, entries and markers, each as many as the options say and the input has. Its
   checksums, lengths and counts are mended as the options say, else nothing would get past them. */
#pragma once
#include "memory.h"

enum {
    SCENE_SARP = 1,
    SCENE_SCALAR = 2,
    SCENE_EVICTS = 4,
    SCENE_HALVES = 8,    /* two partitions, which are loaded when they are needed */
    SCENE_FROM_LOG = 16, /* the directory is what the pages say; else that of the entries */
    SCENE_EXPIRY = 32,
    SCENE_EPOCH = 64,
    SCENE_REPLAYED = 128, /* markers of the pages' own removals */

    MEND_CHECKSUMS = 1,
    MEND_LENGTHS = 2,
    MEND_COMMITS = 4,
    MEND_ENTRIES = 8,

    OPTIONS = 16,
    RECORDS_MAX = PAGES_MAX * SARP_PAGE_UNITS
};

typedef struct {
    const uint8_t *data; /* within pages */
    uint64_t position;
    uint32_t page; /* number in the scene */
} scene_record;

typedef struct {
    uint8_t flags, mend, choices[8];
    uint32_t page_count, entry_count, marker_count, location_bytes, features;
    uint32_t half; /* entries of the first partition */
    uint8_t *pages, *entries, *markers; /* of exactly that size */
    scene_record segments[RECORDS_MAX], others[RECORDS_MAX];
    uint32_t segment_count, other_count;
} scene;

static uint8_t *bytes_of(const uint8_t **data, size_t *left, size_t wanted) {
    uint8_t *out = memory(wanted ? wanted : 1);
    const size_t given = wanted < *left ? wanted : *left;
    memcpy(out, *data, given);
    *data += given;
    *left -= given;
    return out;
}

/* --- mending */

/* Bytes of an item of the body; 0 where it has none. */
static uint32_t item_bytes(const scene *s, uint8_t type) {
    switch (type) {
    case SARP_SEGMENT: return SARP_ID + s->location_bytes;
    case SARP_REMOVE: return SARP_ID;
    case SARP_COUNT: return SARP_COUNT_ENTRY;
    case SARP_SUMMARY: return SARP_SUMMARY_ENTRY;
    case SARP_POSTINGS: return SARP_POSTINGS_ENTRY;
    default: return 0;
    }
}

/* Makes header units, n and length agree with the type, so that the record ends within its page. */
static void mend_length(const scene *s, uint8_t *record, uint32_t room) {
    const uint8_t type = record[SARP_AT_TYPE];
    const uint32_t units = type == SARP_SEGMENT ? 2 : 1, item = item_bytes(s, type), header = units * SARP_UNIT;
    uint32_t most = item && room >= header + item ? (room - header) / item : 0, n = record[SARP_AT_N];
    if (type == SARP_SEGMENT && most > SARP_WINDOW) most = SARP_WINDOW;
    if (type == SARP_NAMESPACE || type > SARP_COUNT || (item && !most)) return;
    if (item && (n == 0 || n > most)) n = 1 + n % most;
    record[SARP_AT_N] = (uint8_t)n;
    record[SARP_AT_HEADER_UNITS] = (uint8_t)units;
    if (type == SARP_SEGMENT && record[SARP_AT_D] >= n) record[SARP_AT_D] = (uint8_t)(record[SARP_AT_D] % n);
    store16(record + SARP_AT_LENGTH, (uint16_t)(header + item * n));
}

static uint32_t seed_at(const scene *s, uint32_t file, uint32_t unit) {
    return record_seed(s->features, UUID, file, (uint64_t)unit * SARP_UNIT);
}

/* Mends what stands at a unit of the file, if it can be a record; its units. */
static uint32_t mend_record(const scene *s, uint8_t *record, uint32_t unit, uint64_t commit) {
    const uint32_t room = SARP_PAGE - unit % SARP_PAGE_UNITS * SARP_UNIT;
    if (s->mend & MEND_LENGTHS) mend_length(s, record, room);
    const uint32_t header = record_header_bytes(record), length = load16(record + SARP_AT_LENGTH);
    if (header < SARP_UNIT || header > SARP_SEGMENT_HEADER || length < header || length > room) return 1;
    if (s->mend & MEND_COMMITS) store64(record + SARP_AT_COMMIT, commit);
    record_close(s->features, seed_at(s, FILE_READ, unit), record);
    return record_units(length);
}

static int is_zero(const uint8_t *unit) {
    for (uint32_t i = 0; i < SARP_UNIT; i++)
        if (unit[i]) return 0;
    return 1;
}

typedef struct {
    uint64_t number;
    uint32_t pages, records, checksum;
} open_commit;

static void mend_commit(const scene *s, uint8_t *record, uint32_t unit, const open_commit *open) {
    store32(record + SARP_AT_COMMIT_PAGES, open->pages);
    store32(record + SARP_AT_COMMIT_RECORDS, open->records);
    store32(record + SARP_AT_COMMIT_CHECKSUM, open->checksum);
    record_close(s->features, seed_at(s, FILE_READ, unit), record);
}

static void mend_page(const scene *s, uint32_t number, open_commit *open) {
    uint8_t *page = s->pages + (size_t)number * SARP_PAGE, *commit = NULL;
    uint32_t commit_unit = 0;
    open->pages++;
    for (uint32_t at = 0; at < SARP_PAGE_UNITS;) {
        uint8_t *record = page + at * SARP_UNIT;
        const uint32_t unit = (FIRST_PAGE + number) * SARP_PAGE_UNITS + at;
        if (is_zero(record)) {
            at++;
            continue;
        }
        at += mend_record(s, record, unit, open->number);
        if (!record_header_valid(s->features, seed_at(s, FILE_READ, unit), record, SARP_PAGE - unit % SARP_PAGE_UNITS * SARP_UNIT)) continue;
        if (record[SARP_AT_TYPE] == SARP_COMMIT) {
            commit = record;
            commit_unit = unit;
        } else {
            open->records++;
            open->checksum = sarp_crc32c(s->features, open->checksum, record, 4);
        }
    }
    if (!commit || !(s->mend & MEND_COMMITS)) return;
    mend_commit(s, commit, commit_unit, open);
    *open = (open_commit){.number = open->number + 1};
}

static void mend_pages(const scene *s) {
    open_commit open = {.number = 1};
    for (uint32_t page = 0; s->mend & MEND_CHECKSUMS && page < s->page_count; page++) mend_page(s, page, &open);
}

/* --- what the pages have */

static void note_record(scene *s, uint32_t page, uint32_t at, const uint8_t *record) {
    const uint32_t unit = (FIRST_PAGE + page) * SARP_PAGE_UNITS + at;
    const scene_record found = {record, (uint64_t)FILE_READ << 24 | unit, page};
    if (!record_body_valid(s->features, seed_at(s, FILE_READ, unit), record, s->location_bytes)) return;
    if (record[SARP_AT_TYPE] == SARP_SEGMENT) s->segments[s->segment_count++] = found;
    else s->others[s->other_count++] = found;
}

static void note_records(scene *s) {
    for (uint32_t page = 0; page < s->page_count; page++) {
        for (uint32_t at = 0; at < SARP_PAGE_UNITS;) {
            const uint8_t *record = s->pages + (size_t)page * SARP_PAGE + at * SARP_UNIT;
            const uint32_t seed = seed_at(s, FILE_READ, (FIRST_PAGE + page) * SARP_PAGE_UNITS + at);
            if (!record_header_valid(s->features, seed, record, SARP_PAGE - at * SARP_UNIT)) {
                at++;
                continue;
            }
            note_record(s, page, at, record);
            at += record_units(load16(record + SARP_AT_LENGTH));
        }
    }
}

/* --- entries in the order of an image */

static int compare_entries(const void *a, const void *b) {
    const uint64_t x = load64(a) >> 16, y = load64(b) >> 16;
    return (x > y) - (x < y);
}

static int compare_postings(const void *a, const void *b) {
    const uint64_t x[3] = {load64(a) >> 16, load64((const uint8_t *)a + 16), load64((const uint8_t *)a + 8) >> 24};
    const uint64_t y[3] = {load64(b) >> 16, load64((const uint8_t *)b + 16), load64((const uint8_t *)b + 8) >> 24};
    for (int i = 0; i < 3; i++)
        if (x[i] != y[i]) return x[i] < y[i] ? -1 : 1;
    return 0;
}

/* The nearest that load accepts: what it would refuse tells nothing about what comes after. */
static void mend_entry(uint8_t *entry) {
    uint64_t word0 = load64(entry), word1 = load64(entry + 8);
    const uint32_t n = (uint32_t)(word1 >> 18 & 63) + 1, d = (uint32_t)(word1 >> 12 & 63) % n;
    if (word1 & 1) word1 = ENTRY_PLACEHOLDER;
    else word1 = (word1 & ~(UINT64_C(63) << 12) & ~(UINT64_C(0xFFFE) << 48)) | (uint64_t)d << 12;
    if (!(word1 & 1) && d) word0 &= ~UINT64_C(0xFFFF);
    store64(entry, word0);
    store64(entry + 8, word1);
}

static void mend_posting(uint8_t *entry) {
    uint64_t word0 = load64(entry), word1 = load64(entry + 8), filter = load64(entry + 16);
    const uint32_t point = (uint32_t)(word0 >> 1 & 7), offset = point_offset(point);
    uint32_t n = (uint32_t)(word0 >> 10 & 63) + 1;
    if (n <= offset) n = offset + 1;
    const uint32_t d = (uint32_t)(word0 >> 4 & 63) % n, length = fingerprints_of(n, point);
    word0 = (word0 >> 16 << 16) | (uint64_t)(n - 1) << 10 | d << 4 | point << 1;
    word1 &= UINT64_C(0x0001FFFFFF00003E);
    for (uint32_t i = 0; i < FINGERPRINTS; i++) {
        const uint64_t byte = UINT64_C(0xFF) << (56 - 8 * i);
        if (i >= length) filter &= ~byte;
        else if (!(filter & byte)) filter |= byte;
    }
    if (!(word1 >> 24)) {
        word0 = (word0 >> 16 << 16) | point << 1;
        word1 = (word1 & 3) ? word1 & 3 : STATE_EXPANDED;
        filter = 0;
    }
    store64(entry, word0);
    store64(entry + 8, word1);
    store64(entry + 16, filter);
}

static uint32_t entry_bytes(void) { return BASE.routing == SARP_ROUTING_SARP ? sizeof(sarp_posting) : sizeof(sarp_entry); }

/* Mends entries and puts them in order; of postings at one place one stays. Returns how many are left. */
static uint32_t mend_entries(uint8_t *entries, uint32_t count) {
    const int listed = BASE.routing == SARP_ROUTING_SARP;
    const uint32_t bytes = entry_bytes();
    for (uint32_t i = 0; i < count; i++) (listed ? mend_posting : mend_entry)(entries + (size_t)i * bytes);
    qsort(entries, count, bytes, listed ? compare_postings : compare_entries);
    uint32_t kept = 0;
    for (uint32_t i = 0; i < count; i++) {
        const uint8_t *entry = entries + (size_t)i * bytes;
        if (listed && kept && !compare_postings(entries + (size_t)(kept - 1) * bytes, entry)) continue;
        memmove(entries + (size_t)kept++ * bytes, entry, bytes);
    }
    return kept;
}

static uint32_t blocks_of(const uint8_t *entries, uint32_t count) {
    uint32_t blocks = 0;
    for (uint32_t i = 0; i < count; i++) {
        const uint64_t word0 = load64(entries + (size_t)i * entry_bytes()), word1 = load64(entries + (size_t)i * entry_bytes() + 8);
        if (BASE.routing == SARP_ROUTING_SARP) blocks += word0 >> 1 & 7 || !(word1 >> 24) ? 0 : (word0 >> 10 & 63) + 1 - (word0 >> 4 & 63);
        else if (!(word1 & 1)) blocks += (word1 >> 18 & 63) + 1 - (word1 >> 12 & 63);
    }
    return blocks;
}

/* --- the directory */

/* Loads a partition of the scene's entries, or, where they do not hold, begins it empty, as a rebuild would. */
static void load_partition(const scene *s, uint32_t number) {
    const uint32_t bytes = entry_bytes();
    const uint32_t first = number ? s->half : 0, count = number ? s->entry_count - s->half : s->half;
    uint8_t *image = memory((size_t)count * bytes + 1);
    memcpy(image, s->entries + (size_t)first * bytes, (size_t)count * bytes);
    if (BASE.routing == SARP_ROUTING_SARP) {
        if (sarp_postings_load(&POSTINGS, number, (const sarp_posting *)(void *)image, count)) sarp_postings_load_empty(&POSTINGS, number);
    } else if (sarp_directory_load(&DIRECTORY, number, (const sarp_entry *)(void *)image, count)) {
        sarp_directory_load_empty(&DIRECTORY, number);
    }
    free(image);
}

static uint32_t first_half(const scene *s) {
    uint32_t count = 0;
    while (count < s->entry_count && !(load64(s->entries + (size_t)count * entry_bytes()) >> 63)) count++;
    return count;
}

static void unload_directory(const scene *s) {
    const uint32_t parts = s->flags & SCENE_HALVES ? 2 : 1;
    for (uint32_t i = 0; i < parts; i++) {
        const uint32_t first = i ? s->half : 0, count = i ? s->entry_count - s->half : s->half;
        const uint32_t blocks = blocks_of(s->entries + (size_t)first * entry_bytes(), count);
        DIRECTORY.partitions[i] = (sarp_partition){.prefix = (uint64_t)i << 47, .depth = (uint8_t)(parts - 1), .entries = (uint16_t)count, .blocks = blocks};
        POSTINGS.partitions[i] = (sarp_posting_partition){.low = {(uint64_t)i << 63, 0, 0}, .entries = (uint16_t)count, .blocks = blocks};
    }
    CHECK((BASE.routing == SARP_ROUTING_SARP ? sarp_postings_init_unloaded(&POSTINGS, parts) : sarp_directory_init_unloaded(&DIRECTORY, parts)) == SARP_OK);
    if (!(s->flags & SCENE_HALVES)) load_partition(s, 0);
}

/* The pages' changes, in CHANGES. */
static size_t scene_changes(const scene *s) {
    static sarp_found_commit commits[PAGES_MAX];
    static uint64_t damaged[(PAGES_MAX + 1) * SARP_PAGE_UNITS];
    sarp_scan scan = {.uuid = UUID, .file_number = FILE_READ, .location_bytes = s->location_bytes, .features = s->features};
    sarp_found found = {CHANGES, commits, damaged, CHANGES_MAX, 0, PAGES_MAX, 0, (PAGES_MAX + 1) * SARP_PAGE_UNITS, 0, 0};
    scan.begin_page = scan.next_page = FIRST_PAGE;
    CHECK(sarp_scan_pages(&scan, &BASE, s->pages, s->page_count, &found) == s->page_count);
    return directory_changes(CHANGES, found.change_count);
}

static void make_directory(const scene *s) {
    if (!(s->flags & SCENE_FROM_LOG)) {
        unload_directory(s);
        return;
    }
    CHECK((BASE.routing == SARP_ROUTING_SARP ? sarp_postings_init(&POSTINGS) : sarp_directory_init(&DIRECTORY)) == SARP_OK);
    apply_changes(CHANGES, scene_changes(s));
}

/* --- removals */

/* A marker is two bytes: the number of a segment, and one of its blocks. The odd ones are of the time of the record itself. */
static void make_removals(const scene *s) {
    for (uint32_t i = 0; i < s->marker_count && s->segment_count; i++) {
        const uint8_t *record = s->segments[s->markers[2 * i] % s->segment_count].data;
        const uint8_t *id = record + SARP_SEGMENT_HEADER + s->markers[2 * i + 1] % record[SARP_AT_N] * SARP_ID;
        const uint64_t position = i % 2 ? load64(record + SARP_AT_BORN) + 1 : (uint64_t)FILE_WRITTEN << 24;
        sarp_removals_mark(&REMOVALS, id, SARP_ID, 1, load32(record + SARP_AT_HOLDER), load64(record + SARP_AT_NAMESPACE), position);
    }
    const uint64_t middle = (uint64_t)FILE_READ << 24 | (FIRST_PAGE + s->page_count / 2) * SARP_PAGE_UNITS;
    if (s->flags & SCENE_EXPIRY) REMOVALS.expiry = middle;
    if (s->flags & SCENE_EPOCH) sarp_scope_of(&REMOVALS, SARP_SCOPE_HOLDER, 0, 1)->epoch = middle;
    for (uint32_t i = 0; s->flags & SCENE_REPLAYED && i < s->other_count; i++) {
        const sarp_place place = {s->others[i].position, s->others[i].page, 0};
        int32_t full;
        sarp_removals_replay(&REMOVALS, UUID, s->features, s->pages, &place, 1, &full);
    }
}

/* --- from an input and back */

static scene *scene_make(const uint8_t *data, size_t size) {
    static scene S;
    uint8_t options[OPTIONS] = {0};
    memcpy(options, data, size < OPTIONS ? size : OPTIONS);
    data += size < OPTIONS ? size : OPTIONS;
    size -= size < OPTIONS ? size : OPTIONS;
    memset(&S, 0, offsetof(scene, segments));
    S.segment_count = S.other_count = 0;
    S.flags = options[0];
    S.mend = options[1];
    S.location_bytes = 1 + (options[2] + 45u) % 46;
    S.features = S.flags & SCENE_SCALAR ? 0 : sarp_cpu_features();
    memory_reset(S.flags & SCENE_SARP ? SARP_ROUTING_SARP : SARP_ROUTING_DIVERGENCE, S.features, S.location_bytes);
    BASE.evicts = S.flags & SCENE_EVICTS ? 1 : 0;
    S.page_count = options[3] % (PAGES_MAX + 1);
    S.entry_count = load16(options + 4) % 512;
    S.marker_count = options[6] % 32;
    memcpy(S.choices, options + 8, sizeof S.choices);
    S.pages = bytes_of(&data, &size, (size_t)S.page_count * SARP_PAGE);
    S.entries = bytes_of(&data, &size, (size_t)S.entry_count * entry_bytes());
    S.markers = bytes_of(&data, &size, (size_t)S.marker_count * 2);
    mend_pages(&S);
    if (S.mend & MEND_ENTRIES) S.entry_count = mend_entries(S.entries, S.entry_count);
    S.half = S.flags & SCENE_HALVES ? first_half(&S) : S.entry_count;
    note_records(&S);
    return &S;
}

static void scene_free(scene *s) {
    free(s->pages);
    free(s->entries);
    free(s->markers);
}

/* --- what the kernel has written */

/* Ends the gathering commit and reads it: whatever the kernel was given, what it writes is what a reader accepts. */
static void check_commit(void) {
    static sarp_change changes[4096 + SARP_PAGE_CHANGES_MAX];
    uint64_t damaged[2 * COMMIT_PAGES * SARP_PAGE_UNITS];
    sarp_found_commit commits[COMMIT_PAGES];
    if (!COMMIT.records) return;
    const uint32_t records = COMMIT.records;
    const int32_t count = sarp_commit_finish(&COMMIT, &BASE, 0, 0, changes, 4096);
    CHECK(count >= 0 && (uint32_t)count == COMMIT.changes);
    sarp_scan scan = {.uuid = UUID, .file_number = FILE_WRITTEN, .previous_number = COMMIT.number - 1};
    scan.location_bytes = COMMIT.location_bytes;
    scan.features = COMMIT.features;
    scan.begin_page = scan.next_page = COMMIT.first_page;
    sarp_found found = {changes, commits, damaged, 4096 + SARP_PAGE_CHANGES_MAX, 0, COMMIT_PAGES, 0, 2 * COMMIT_PAGES * SARP_PAGE_UNITS, 0, 0};
    CHECK(sarp_scan_pages(&scan, &BASE, COMMIT.pages, COMMIT.page_count, &found) == COMMIT.page_count);
    CHECK(found.damaged_count == 0 && found.unknown_at == 0 && found.commit_count == 1 && found.change_count == (uint32_t)count);
    CHECK((found.commits[0].flags & SARP_COMMIT_COMPLETE) && found.commits[0].records == records);
    COMMIT.first_page += COMMIT.page_count;
    COMMIT.number++;
    sarp_commit_begin(&COMMIT);
}
