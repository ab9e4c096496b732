/* Compaction of hostile pages under a hostile directory: whatever is there, what it writes is a log that a reader accepts. */
#include "mutate.h"

enum { OTHERS = 8, TURNS_MAX = 10000 };

static int32_t compact(sarp_compaction *file, uint32_t records) {
    return BASE.routing == SARP_ROUTING_SARP ? sarp_postings_compact(&POSTINGS, &COMMIT, file, records)
                                             : sarp_compact(&DIRECTORY, &COMMIT, file, records);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    scene *s = scene_make(data, size);
    sarp_other_record others[OTHERS];
    make_directory(s);
    make_removals(s);
    COMMIT.page_limit = 3 + s->choices[0] % (COMMIT_PAGES - 2);
    sarp_compaction file = {.pages = s->pages, .file_number = FILE_READ, .slot = SLOT_READ, .first_page = FIRST_PAGE, .page_count = s->page_count};
    file.unit = FIRST_PAGE * SARP_PAGE_UNITS;
    file.others = others;
    file.other_limit = OTHERS;
    const uint32_t end = file.unit + s->page_count * SARP_PAGE_UNITS;
    for (uint32_t turn = 0; file.unit < end; turn++) {
        CHECK(turn < TURNS_MAX);
        const int32_t status = compact(&file, 1 + s->choices[1] % 16);
        CHECK(file.other_count <= OTHERS && file.unit <= end);
        if (status == SARP_FULL) break;
        CHECK(status == SARP_OK || status == SARP_NEED || status == SARP_NO_ROOM);
        if (status == SARP_NEED) load_partition(s, file.partition);
        if (status == SARP_NO_ROOM) check_commit();
    }
    check_commit();
    COMMIT.page_limit = COMMIT_PAGES;
    scene_free(s);
    return 0;
}
