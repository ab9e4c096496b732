/* Matching and inserting over hostile pages under a hostile directory. Whatever they say: a call ends, what is matched is proved by a
   record that is there, and what is inserted is a log that a reader accepts. */
#include "mutate.h"

enum { BLOCKS_MAX = 4 * SARP_WINDOW, NEEDS = 16, TURNS_MAX = 2000, QUERIES = 4 };

typedef struct {
    uint64_t pages[NEEDS], damaged[NEEDS];
    uint32_t partitions[NEEDS];
    sarp_needs list;
} needs_room;

/* --- queries: the path of a record, as far as the pages have it */

static const uint8_t *parent_of(const scene *s, const uint8_t *record) {
    for (uint32_t i = 0; i < s->segment_count; i++) {
        const uint8_t *other = s->segments[i].data, *last = other + SARP_SEGMENT_HEADER + (SARP_WINDOW - 1) * SARP_ID;
        if (other[SARP_AT_N] == SARP_WINDOW && load32(other + SARP_AT_WINDOW) + 1 == load32(record + SARP_AT_WINDOW) &&
            !memcmp(last, record + SARP_AT_PREFIX_ID, SARP_ID))
            return other;
    }
    return NULL;
}

/* Fills in ids up to the end of a record's window; how many blocks that is. */
static uint32_t path_of(const scene *s, const uint8_t *record, uint8_t *ids) {
    const uint32_t window = load32(record + SARP_AT_WINDOW) % (BLOCKS_MAX / SARP_WINDOW), n = record[SARP_AT_N];
    memset(ids, 0, BLOCKS_MAX * SARP_ID);
    memcpy(ids + (size_t)window * SARP_WINDOW * SARP_ID, record + SARP_SEGMENT_HEADER, n * SARP_ID);
    for (uint32_t w = window; w-- > 0 && (record = parent_of(s, record));)
        memcpy(ids + (size_t)w * SARP_WINDOW * SARP_ID, record + SARP_SEGMENT_HEADER, SARP_WINDOW * SARP_ID);
    return window * SARP_WINDOW + n;
}

/* --- bringing what is needed: pages that the scene has not are zeros */

static sarp_page_range RANGES[PAGES_MAX + 1];
static sarp_pages PAGES;

/* Each page by itself, so that a step past one is seen. */
static void show_pages(const scene *s) {
    for (uint32_t i = 0; i < s->page_count; i++) {
        uint8_t *page = memory(SARP_PAGE);
        memcpy(page, s->pages + (size_t)i * SARP_PAGE, SARP_PAGE);
        RANGES[i] = (sarp_page_range){(uint64_t)SLOT_READ << 18 | (FIRST_PAGE + i), page, 1, 0};
    }
    PAGES = (sarp_pages){&CACHE, RANGES, NULL, UUID, s->page_count, s->location_bytes, s->features, 0};
}

static void show_commit(const scene *s) {
    RANGES[s->page_count] = (sarp_page_range){(uint64_t)SLOT_WRITTEN << 18 | COMMIT.first_page, COMMIT.pages, COMMIT.page_count, 0};
    PAGES.range_count = s->page_count + 1;
}

static void hide_pages(const scene *s) {
    for (uint32_t i = 0; i < s->page_count; i++) free((void *)(uintptr_t)RANGES[i].data);
}

static void bring(const scene *s, needs_room *needs) {
    static const uint8_t zeros[SARP_PAGE];
    for (uint32_t i = 0; i < needs->list.page_count; i++) sarp_cache_insert(&CACHE, needs->pages[i], zeros, 1);
    for (uint32_t i = 0; i < needs->list.partition_count; i++) load_partition(s, needs->partitions[i]);
}

static void begin_needs(needs_room *needs) {
    needs->list = (sarp_needs){needs->pages, needs->partitions, needs->damaged, NEEDS, 0, NEEDS, 0, NEEDS, 0};
}

/* --- what must hold */

/* The page of a reference into the scene, or the gathering commit. */
static const uint8_t *record_at(uint64_t reference) {
    for (uint32_t i = 0; i < PAGES.range_count; i++) {
        const uint64_t page = (reference >> 6) - RANGES[i].first_key;
        if (page < RANGES[i].pages) return RANGES[i].data + page * SARP_PAGE + (reference & 63) * SARP_UNIT;
    }
    return NULL;
}

static void check_match(const sarp_query *q, const uint8_t *ids, uint32_t location_bytes) {
    CHECK(q->matched <= q->blocks);
    if (!q->matched) return;
    const uint8_t *record = record_at(q->owner_reference);
    CHECK(record);
    const uint32_t window = (q->matched - 1) / SARP_WINDOW, held = q->matched - window * SARP_WINDOW, n = record[SARP_AT_N];
    CHECK(load32(record + SARP_AT_WINDOW) == window && held <= n && load32(record + SARP_AT_HOLDER) == q->holder);
    CHECK(load64(record + SARP_AT_NAMESPACE) == q->name_space);
    CHECK(!memcmp(record + SARP_SEGMENT_HEADER, ids + (size_t)window * SARP_WINDOW * SARP_ID, held * SARP_ID));
    const uint8_t *last = record + SARP_SEGMENT_HEADER + n * SARP_ID + (held - 1) * location_bytes;
    if (q->locations) CHECK(!memcmp(q->locations + (size_t)(q->matched - 1) * location_bytes, last, location_bytes));
}

static void match(const scene *s, const uint8_t *ids, uint32_t blocks, const uint8_t *record, int located) {
    needs_room needs;
    sarp_query q;
    uint32_t at_least, at_most;
    uint8_t *locations = located ? memory((size_t)blocks * s->location_bytes + 1) : NULL;
    begin_needs(&needs);
    sarp_query_begin(&q, &needs.list, ids, blocks, locations, load64(record + SARP_AT_NAMESPACE), load32(record + SARP_AT_HOLDER));
    if (BASE.routing == SARP_ROUTING_SARP) sarp_postings_estimate(&POSTINGS, &q, &at_least, &at_most);
    else sarp_estimate(&DIRECTORY, &q, &at_least, &at_most);
    CHECK(at_least <= at_most && at_most <= blocks);
    for (uint32_t turn = 0; q.status == SARP_NEED; turn++) {
        CHECK(turn < TURNS_MAX);
        begin_needs(&needs);
        if (BASE.routing == SARP_ROUTING_SARP) sarp_postings_match(&POSTINGS, &PAGES, &q, 1, &needs.list);
        else sarp_match(&DIRECTORY, &PAGES, &q, 1, &needs.list);
        bring(s, &needs);
    }
    check_match(&q, ids, s->location_bytes);
    free(locations);
}

static void insert(const scene *s, const uint8_t *ids, uint32_t blocks, const uint8_t *record) {
    needs_room needs;
    sarp_query q;
    int32_t status = SARP_NEED;
    uint8_t *locations = memory((size_t)blocks * s->location_bytes + 1);
    begin_needs(&needs);
    sarp_query_begin(&q, &needs.list, ids, blocks, NULL, load64(record + SARP_AT_NAMESPACE), load32(record + SARP_AT_HOLDER));
    for (uint32_t turn = 0; status == SARP_NEED; turn++) {
        CHECK(turn < TURNS_MAX);
        begin_needs(&needs);
        show_commit(s);
        if (BASE.routing == SARP_ROUTING_SARP) status = sarp_postings_insert(&POSTINGS, &PAGES, &q, locations, &COMMIT, &needs.list);
        else status = sarp_insert(&DIRECTORY, &PAGES, &q, locations, &COMMIT, &needs.list);
        bring(s, &needs);
    }
    CHECK(status == SARP_OK || status == SARP_FULL || status == SARP_NO_ROOM);
    show_commit(s);
    if (status == SARP_OK) check_match(&q, ids, s->location_bytes);
    free(locations);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    scene *s = scene_make(data, size);
    uint8_t *ids = memory(BLOCKS_MAX * SARP_ID);
    make_directory(s);
    make_removals(s);
    show_pages(s);
    show_commit(s);
    for (uint32_t i = 0; i < QUERIES && s->segment_count; i++) {
        const uint8_t *record = s->segments[s->choices[2 * i] % s->segment_count].data;
        const uint32_t path = path_of(s, record, ids), choice = s->choices[2 * i + 1], changed = choice * 7 % path;
        match(s, ids, 1 + (path - 1) * (choice | 15) / 255, record, 1);
        if (choice & 1) ids[(size_t)changed * SARP_ID + 9] ^= 0x55;
        match(s, ids, choice & 2 ? BLOCKS_MAX : path, record, choice & 4);
        if (choice & 8) insert(s, ids, choice & 2 ? BLOCKS_MAX : path, record);
    }
    check_commit();
    hide_pages(s);
    free(ids);
    scene_free(s);
    return 0;
}
