/* What every target needs of the kernel's caller: its memory, made once with exact sizes, so that the sanitizer sees a step past any
   of it. */
#pragma once
#include <stdio.h>
#include <stdlib.h>

#include "compact.h"
#include "cpu.h"
#include "crc32c.h"
#include "evict.h"
#include "internal_change.h"
#include "internal_points.h"
#include "internal_postings.h"
#include "markplan.h"
#include "removals.h"
#include "scan.h"
#include "slots.h"

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
            abort(); \
        } \
    } while (0)

enum {
    FILE_READ = 1, SLOT_READ = 0,      /* the log file whose bytes are hostile */
    FILE_WRITTEN = 2, SLOT_WRITTEN = 1, /* the one that is written to */
    FIRST_PAGE = 2,
    PAGES_MAX = 12,
    PARTITIONS = 64,
    ARENA_PAGES = 512,
    TABLE = 256,
    CHANGES_MAX = (PAGES_MAX + 1) * SARP_PAGE_CHANGES_MAX,
    COMMIT_PAGES = 24,
    CACHE_FRAMES = 32,
    MARKERS = 256,
    SCOPES = 64
};

/* Those of the stores that the corpus was made from (corpus.py). */
static const uint8_t UUID[16] = "sarpstore uuid !";
static const uint8_t SECRET[16] = "sarpstore secret";

static sarp_base BASE;
static sarp_removals REMOVALS;
static sarp_directory DIRECTORY;
static sarp_postings POSTINGS;
static sarp_commit COMMIT;
static sarp_cache CACHE;
static sarp_change CHANGES[CHANGES_MAX];

static void *memory(size_t bytes) {
    void *made = calloc(1, bytes);
    CHECK(made);
    return made;
}

static void make_marks(sarp_marks *marks) {
    *marks = (sarp_marks){.limit = MARKERS, .index_size = 2 * MARKERS};
    marks->marks = memory(MARKERS * sizeof *marks->marks);
    marks->index = memory(2 * MARKERS * sizeof *marks->index);
}

static void make_base(void) {
    BASE.slot_files = memory(SARP_SLOTS * sizeof *BASE.slot_files);
    BASE.slot_index = memory(SARP_SLOT_INDEX * sizeof *BASE.slot_index);
    BASE.slot_live = memory(SARP_SLOTS * sizeof *BASE.slot_live);
    BASE.slot_entries = memory(SARP_SLOTS * sizeof *BASE.slot_entries);
    memcpy(BASE.secret, SECRET, sizeof SECRET);
    sarp_slot_set(&BASE, SLOT_READ, FILE_READ);
    sarp_slot_set(&BASE, SLOT_WRITTEN, FILE_WRITTEN);
    BASE.removals = &REMOVALS;
    make_marks(&REMOVALS.markers);
    make_marks(&REMOVALS.counts);
    REMOVALS.scopes = memory(SCOPES * sizeof *REMOVALS.scopes);
    REMOVALS.scope_size = SCOPES;
    REMOVALS.newest = memory(2 * sizeof *REMOVALS.newest);
    REMOVALS.newest_limit = 2;
}

static sarp_arena make_arena(void) { return (sarp_arena){.memory = memory(ARENA_PAGES * SARP_ARENA_PAGE), .page_limit = ARENA_PAGES}; }

static void make_directories(void) {
    DIRECTORY = (sarp_directory){.base = &BASE, .partition_limit = PARTITIONS, .table_limit = TABLE};
    DIRECTORY.arena = make_arena();
    DIRECTORY.partitions = memory(PARTITIONS * sizeof *DIRECTORY.partitions);
    DIRECTORY.table = memory(TABLE * sizeof *DIRECTORY.table);
    POSTINGS = (sarp_postings){.base = &BASE, .partition_limit = PARTITIONS, .read_cap = 4, .refine_at = 6, .prune_at = 2, .tie_cap = 8};
    POSTINGS.arena = make_arena();
    POSTINGS.partitions = memory(PARTITIONS * sizeof *POSTINGS.partitions);
    POSTINGS.order = memory(PARTITIONS * sizeof *POSTINGS.order);
    POSTINGS.plan = memory(SARP_PLAN_MAX * sizeof *POSTINGS.plan);
    POSTINGS.members = memory(SARP_LIST_GROWN_MAX * sizeof *POSTINGS.members);
}

static void make_buffers(void) {
    COMMIT = (sarp_commit){.uuid = UUID, .file_number = FILE_WRITTEN, .slot = SLOT_WRITTEN, .page_limit = COMMIT_PAGES, .change_limit = 4096};
    COMMIT.pages = memory(COMMIT_PAGES * SARP_PAGE);
    COMMIT.next = memory(COMMIT_PAGES * sizeof *COMMIT.next);
    COMMIT.used = memory(COMMIT_PAGES);
    CACHE = (sarp_cache){.capacity = CACHE_FRAMES, .table_size = 2 * CACHE_FRAMES};
    CACHE.frames = memory(CACHE_FRAMES * SARP_PAGE);
    CACHE.keys = memory(CACHE_FRAMES * sizeof *CACHE.keys);
    CACHE.referenced = memory(CACHE_FRAMES);
    CACHE.table = memory(CACHE.table_size * sizeof *CACHE.table);
}

static void reset_removals(void) {
    REMOVALS.markers.count = REMOVALS.counts.count = 0;
    sarp_marks_index(&REMOVALS.markers);
    sarp_marks_index(&REMOVALS.counts);
    memset(REMOVALS.scopes, 0, SCOPES * sizeof *REMOVALS.scopes);
    REMOVALS.scopes_used = 0;
    REMOVALS.expiry = REMOVALS.settled = 0;
}

/* As it is when a process begins. */
static void memory_reset(uint32_t routing, uint32_t features, uint32_t location_bytes) {
    if (!BASE.slot_files) {
        make_base();
        make_directories();
        make_buffers();
    }
    memset(BASE.slot_live, 0, BASE.slot_count * sizeof *BASE.slot_live);
    memset(BASE.slot_entries, 0, BASE.slot_count * sizeof *BASE.slot_entries);
    BASE.routing = routing;
    BASE.features = features;
    BASE.location_bytes = location_bytes;
    BASE.evicts = BASE.clock = 0;
    BASE.resting = 16;
    reset_removals();
    POSTINGS.growth_held = 0;
    COMMIT.number = COMMIT.sequence = 1;
    COMMIT.location_bytes = location_bytes;
    COMMIT.features = features;
    COMMIT.first_page = FIRST_PAGE;
    sarp_commit_begin(&COMMIT);
    memset(CACHE.table, 0, CACHE.table_size * sizeof *CACHE.table);
    memset(CACHE.referenced, 0, CACHE_FRAMES);
    CACHE.used = CACHE.hand = 0;
}

/* What the engine enters in a directory of a record's changes. */
static size_t directory_changes(sarp_change *changes, size_t count) {
    size_t kept = 0;
    for (size_t i = 0; i < count; i++)
        if (changes[i].type == SARP_SEGMENT || changes[i].type == SARP_POSTINGS) changes[kept++] = changes[i];
    return kept;
}

static int32_t apply_changes(const sarp_change *changes, size_t count) {
    size_t done;
    const int32_t status = BASE.routing == SARP_ROUTING_SARP ? sarp_postings_apply(&POSTINGS, changes, NULL, count, &done)
                                                             : sarp_directory_apply(&DIRECTORY, changes, NULL, count, &done);
    CHECK(done <= count && (done == count) == (status == SARP_OK));
    return status;
}
