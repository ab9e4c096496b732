/* The log scan: pages in one go and a few at a time must give the same, and what they say is entered in the directory. */
#include "mutate.h"

static sarp_found_commit COMMITS[2][PAGES_MAX];
static uint64_t DAMAGED[2][(PAGES_MAX + 1) * SARP_PAGE_UNITS];
static sarp_change OTHER_CHANGES[CHANGES_MAX];

static sarp_found found_in(int which, sarp_change *changes) {
    return (sarp_found){changes, COMMITS[which], DAMAGED[which], CHANGES_MAX, 0, PAGES_MAX, 0, (PAGES_MAX + 1) * SARP_PAGE_UNITS, 0, 0};
}

static sarp_scan scan_of(const scene *s) {
    sarp_scan scan = {.uuid = UUID, .file_number = FILE_READ, .location_bytes = s->location_bytes, .features = s->features};
    scan.begin_page = scan.next_page = FIRST_PAGE;
    return scan;
}

static void check_piecewise(const scene *s, const sarp_found *whole) {
    sarp_found parts = found_in(1, OTHER_CHANGES);
    sarp_scan scan = scan_of(s);
    for (uint32_t page = 0; page < s->page_count; page++)
        CHECK(sarp_scan_pages(&scan, &BASE, s->pages + (size_t)page * SARP_PAGE, 1, &parts) == 1);
    CHECK(parts.change_count == whole->change_count && parts.commit_count == whole->commit_count);
    CHECK(parts.damaged_count == whole->damaged_count && parts.unknown_at == whole->unknown_at);
    CHECK(!memcmp(OTHER_CHANGES, CHANGES, whole->change_count * sizeof *CHANGES));
    CHECK(!memcmp(COMMITS[0], COMMITS[1], whole->commit_count * sizeof **COMMITS));
    CHECK(!memcmp(DAMAGED[0], DAMAGED[1], whole->damaged_count * sizeof **DAMAGED));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    scene *s = scene_make(data, size);
    sarp_found found = found_in(0, CHANGES);
    sarp_scan scan = scan_of(s);
    CHECK(sarp_scan_pages(&scan, &BASE, s->pages, s->page_count, &found) == s->page_count);
    CHECK(found.change_count <= CHANGES_MAX && found.commit_count <= s->page_count);
    check_piecewise(s, &found);
    CHECK((BASE.routing == SARP_ROUTING_SARP ? sarp_postings_init(&POSTINGS) : sarp_directory_init(&DIRECTORY)) == SARP_OK);
    const size_t count = directory_changes(CHANGES, found.change_count);
    /* What the scan lets through can be entered, and again. */
    for (int turn = 0; turn < 2; turn++) {
        const int32_t status = apply_changes(CHANGES, count);
        CHECK(status == SARP_OK || status == SARP_FULL);
    }
    scene_free(s);
    return 0;
}
