/* Replay of remove and count records, a head's tables of markers, and their retirement. */
#include "mutate.h"

/* Every unit of the pages as a place, and then those of records that are not segments. */
static void replay(const scene *s) {
    static sarp_place places[RECORDS_MAX];
    int32_t full;
    for (uint32_t page = 0; page < s->page_count; page++) {
        for (uint32_t at = 0; at < SARP_PAGE_UNITS; at++) {
            const uint64_t position = (uint64_t)FILE_READ << 24 | ((FIRST_PAGE + page) * SARP_PAGE_UNITS + at);
            const uint32_t length = sarp_record_at(UUID, s->features, position, s->pages + (size_t)page * SARP_PAGE);
            CHECK(length <= SARP_PAGE - at * SARP_UNIT);
        }
    }
    for (uint32_t i = 0; i < s->other_count; i++) places[i] = (sarp_place){s->others[i].position, s->others[i].page, 0};
    for (size_t done = 0; done < s->other_count;) {
        done += sarp_removals_replay(&REMOVALS, UUID, s->features, s->pages, places + done, s->other_count - done, &full);
        CHECK(done <= s->other_count);
        if (full) sarp_marks_forget(&REMOVALS.counts, MARKERS);
        if (full && REMOVALS.markers.count == MARKERS) sarp_marks_clear(&REMOVALS.markers, REMOVALS.markers.marks[0].holder);
        done++; /* what did not verify, or found no room, is passed over */
    }
}

/* Every mark is found under its own id, and none twice. */
static void check_marks(const sarp_marks *marks) {
    CHECK(marks->count <= marks->limit);
    for (uint32_t i = 0; i < marks->count; i++) {
        const sarp_mark *mark = marks->marks + i;
        uint64_t value;
        sarp_marks_get(marks, mark->id, SARP_ID, 1, mark->holder, mark->name_space, &value);
        CHECK(value == mark->value);
    }
}

/* Rows of a head's table: put into the dense array as they are, and merged. */
static void take_rows(const scene *s) {
    const uint32_t count = (uint32_t)(s->entry_count * entry_bytes() / sizeof(sarp_mark));
    sarp_mark *rows = memory(count * sizeof *rows + 1);
    memcpy(rows, s->entries, count * sizeof *rows);
    sarp_removals_merge(&REMOVALS, rows, count);
    check_marks(&REMOVALS.markers);
    REMOVALS.counts.count = count < MARKERS ? count : MARKERS;
    memcpy(REMOVALS.counts.marks, rows, REMOVALS.counts.count * sizeof *rows);
    if (sarp_marks_index(&REMOVALS.counts)) check_marks(&REMOVALS.counts);
    free(rows);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    scene *s = scene_make(data, size);
    make_removals(s);
    replay(s);
    check_marks(&REMOVALS.markers);
    check_marks(&REMOVALS.counts);
    take_rows(s);
    uint32_t next = REMOVALS.markers.count;
    for (uint32_t turn = 0; next; turn++) {
        CHECK(turn < MARKERS);
        sarp_removals_retire(&REMOVALS, (uint64_t)FILE_READ << 24 | s->choices[0] * 4u, &next, 1 + s->choices[1]);
    }
    check_marks(&REMOVALS.markers);
    sarp_removals_recount(&REMOVALS);
    sarp_removals_concern(&REMOVALS, s->choices[2], 0);
    scene_free(s);
    return 0;
}
