/* The mark pass: rows out of hostile pages and a hostile directory, what is decided from them, and the sweeps. */
#include "mutate.h"

enum { ROWS_MAX = (PAGES_MAX + 1) * SARP_PAGE_UNITS, REMOVED_MAX = MARKERS + SCOPES };

static uint64_t INTACT[SARP_SLOTS];

/* Positions of all markers and epochs. */
static uint64_t positions(uint64_t *out) {
    uint64_t count = 0;
    for (uint32_t i = 0; i < REMOVALS.markers.count; i++) out[count++] = REMOVALS.markers.marks[i].value;
    for (uint32_t i = 0; i < SCOPES; i++)
        if (REMOVALS.scopes[i].epoch) out[count++] = REMOVALS.scopes[i].epoch;
    return count;
}

static void sweep(sarp_mark_plan *plan) {
    if (BASE.routing != SARP_ROUTING_SARP) {
        for (uint32_t i = 0; i < DIRECTORY.partition_count; i++) sarp_directory_sweep(&DIRECTORY, i, plan);
        return;
    }
    for (uint32_t i = 0; i < POSTINGS.partition_count; i++)
        for (uint32_t turn = 0; !sarp_postings_sweep(&POSTINGS, i, plan); turn++) CHECK(turn < 10000);
    for (uint32_t i = 0; i < POSTINGS.partition_count; i++) {
        sarp_change states[16];
        size_t done;
        const uint32_t count = sarp_postings_empty_states(&POSTINGS, i, states, 16);
        CHECK(sarp_postings_apply(&POSTINGS, states, NULL, count, &done) == SARP_OK);
    }
}

static void decide(const sarp_mark_row *rows, uint64_t count, uint64_t position) {
    uint64_t removed[REMOVED_MAX];
    const uint64_t removals = positions(removed);
    sarp_mark_decision d = {.rows = rows, .removals = removed, .row_count = count, .removal_count = removals, .position = position};
    d.scratch = memory(sarp_mark_decide_bytes(count, removals));
    d.verdicts = memory(count * sizeof *d.verdicts + 1);
    d.masks = memory(count * sizeof *d.masks + 1);
    d.intact = INTACT;
    sarp_mark_decide(&d);
    CHECK(d.mask_count <= count);
    for (uint64_t i = 1; i < count; i++) CHECK(d.verdicts[i - 1] <= d.verdicts[i]);
    for (uint64_t i = 1; i < d.mask_count; i++) CHECK(d.masks[i - 1] >> 16 < d.masks[i] >> 16);
    sarp_mark_plan plan = {.verdicts = d.verdicts, .masks = d.masks, .verdict_count = count, .mask_count = d.mask_count, .position = position};
    sweep(&plan);
    free(d.scratch);
    free(d.verdicts);
    free(d.masks);
}

/* Rows speak of records that are there, and of no more blocks than these have. */
static void check_rows(const scene *s, const sarp_mark_row *rows, uint64_t count) {
    uint32_t at = 0;
    for (uint64_t i = 0; i < count; i++) {
        while (at < s->segment_count && (s->segments[at].position & 0xFFFFFF) != (rows[i].reference & 0xFFFFFF)) at++;
        CHECK(at < s->segment_count && rows[i].n <= s->segments[at].data[SARP_AT_N] && rows[i].cut <= rows[i].n);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static sarp_mark_row rows[ROWS_MAX];
    uint64_t roots[64] = {0};
    sarp_fresh_masks fresh = {roots, 64, 0, 0};
    scene *s = scene_make(data, size);
    s->flags &= (uint8_t)~SCENE_HALVES; /* a pass has everything in memory */
    s->half = s->entry_count;
    make_directory(s);
    make_removals(s);
    DIRECTORY.fresh = s->choices[0] & 1 ? &fresh : NULL;
    sarp_mark_scan scan = {.uuid = UUID, .rows = rows, .row_limit = ROWS_MAX, .file_number = FILE_READ, .slot = SLOT_READ};
    scan.location_bytes = s->location_bytes;
    scan.features = s->features;
    scan.next_page = FIRST_PAGE;
    const uint32_t read = BASE.routing == SARP_ROUTING_SARP ? sarp_mark_rows_listed(&scan, &POSTINGS, s->pages, s->page_count)
                                                            : sarp_mark_rows(&scan, &DIRECTORY, s->pages, s->page_count);
    CHECK(read == s->page_count && scan.row_count <= scan.segments && scan.segments == s->segment_count);
    check_rows(s, rows, scan.row_count);
    decide(rows, scan.row_count, (uint64_t)FILE_READ << 24 | (FIRST_PAGE + s->choices[1] % (s->page_count + 1)) * SARP_PAGE_UNITS);
    DIRECTORY.fresh = NULL;
    scene_free(s);
    return 0;
}
