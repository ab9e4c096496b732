#include "commit.h"

#include "crc32c.h"
#include "internal_change.h"
#include "internal_insert.h"

/* Free units below this hold no segment: a page with fewer is not kept open. */
enum { OPEN_UNITS_MIN = 3 };
#define NO_OPEN_PAGE UINT16_MAX

static void page_open(sarp_commit *commit, uint32_t page) {
    const uint32_t free_units = SARP_PAGE_UNITS - commit->used[page];
    if (free_units < OPEN_UNITS_MIN || free_units >= SARP_PAGE_UNITS) return;
    commit->next[page] = commit->open >> free_units & 1 ? commit->heads[free_units] : NO_OPEN_PAGE;
    commit->heads[free_units] = (uint16_t)page;
    commit->open |= UINT64_C(1) << free_units;
}

static uint32_t page_fresh(sarp_commit *commit) {
    const uint32_t page = commit->page_count++;
    memset(commit->pages + (size_t)page * SARP_PAGE, 0, SARP_PAGE);
    commit->used[page] = 0;
    return page;
}

/* Takes a page out of the list of those with as many free units. */
static void page_close(sarp_commit *commit, uint32_t page) {
    const uint32_t free_units = SARP_PAGE_UNITS - commit->used[page];
    uint16_t *link = commit->heads + free_units;
    if (free_units < OPEN_UNITS_MIN || free_units >= SARP_PAGE_UNITS) return;
    while (*link != page) link = commit->next + *link;
    *link = commit->next[page];
    if (commit->heads[free_units] == NO_OPEN_PAGE) commit->open &= ~(UINT64_C(1) << free_units);
}

/* The open page with the least room that is enough; a fresh one if there is none. Behind all records: the last or a fresh
   one. */
static uint32_t page_for(sarp_commit *commit, uint32_t units, int32_t rule) {
    const uint32_t last = commit->page_count - 1; /* no page: never used */
    if (rule == SARP_PLACE_BEHIND && commit->page_count && commit->used[last] + units <= SARP_PAGE_UNITS) {
        page_close(commit, last);
        return last;
    }
    const uint64_t fitting = units < 64 && rule == SARP_PLACE_BEST ? commit->open >> units << units : 0;
    if (!fitting) return page_fresh(commit);
    const uint32_t free_units = (uint32_t)__builtin_ctzll(fitting);
    const uint32_t page = commit->heads[free_units];
    if (commit->next[page] == NO_OPEN_PAGE) commit->open &= ~(UINT64_C(1) << free_units);
    else commit->heads[free_units] = commit->next[page];
    return page;
}

uint8_t *commit_place(sarp_commit *commit, uint32_t length, int32_t rule, uint64_t *position) {
    const uint32_t units = record_units(length), page = page_for(commit, units, rule);
    const uint32_t at = page * SARP_PAGE_UNITS + commit->used[page];
    commit->used[page] = (uint8_t)(commit->used[page] + units);
    page_open(commit, page);
    *position = commit->file_number << 24 | (commit->first_page * UINT64_C(64) + at);
    return commit->pages + (size_t)at * SARP_UNIT;
}

static void close_record(const sarp_commit *commit, uint8_t *record, uint64_t position) {
    const uint64_t offset = (position & 0xFFFFFF) * SARP_UNIT;
    record_close(commit->features, record_seed(commit->features, commit->uuid, commit->file_number, offset), record);
}

void sarp_commit_begin(sarp_commit *commit) {
    commit->open = commit->highest = commit->new_bytes = 0;
    commit->page_count = commit->records = commit->changes = commit->ordered = 0;
}

void sarp_commit_part(sarp_commit *commit) {
    commit->open = 0;
    if (commit->page_count) page_open(commit, commit->page_count - 1);
}

void commit_add(sarp_commit *commit, uint8_t *record, uint64_t position) {
    store64(record + SARP_AT_SEQUENCE, commit->sequence++);
    store64(record + SARP_AT_COMMIT, commit->number);
    close_record(commit, record, position);
    commit->records++;
    if (position > commit->highest) commit->highest = position;
    commit->changes += changes_count(record);
    commit->ordered |= record[SARP_AT_TYPE] == SARP_POSTINGS;
}

int commit_has_room(const sarp_commit *commit, uint32_t pages, uint32_t changes) {
    /* One page stays free for the commit record. */
    return commit->page_count + pages + 1 <= commit->page_limit && commit->changes + changes <= commit->change_limit;
}

uint64_t sarp_commit_append(sarp_commit *commit, const uint8_t *source, int32_t rule) {
    uint64_t position;
    const uint32_t length = load16(source + SARP_AT_LENGTH);
    if (length < SARP_UNIT || length > SARP_PAGE || !commit_has_room(commit, 1, changes_count(source))) return 0;
    uint8_t *record = commit_place(commit, length, rule, &position);
    memcpy(record, source, length);
    commit_add(commit, record, position);
    return position;
}

uint64_t sarp_commit_append_removal(sarp_commit *commit, const uint8_t *source) {
    uint64_t position;
    const uint32_t length = load16(source + SARP_AT_LENGTH);
    if (length < SARP_UNIT || length > SARP_PAGE || !commit_has_room(commit, 1, 1)) return 0;
    uint8_t *record = commit_place(commit, length, SARP_PLACE_BEHIND, &position);
    memcpy(record, source, length);
    if (load64(record + SARP_AT_EFFECT) == UINT64_MAX) store64(record + SARP_AT_EFFECT, position);
    commit_add(commit, record, position);
    return position;
}

int32_t sarp_commit_finish(sarp_commit *commit, const sarp_base *base, uint64_t synced, uint32_t flags,
                           sarp_change *changes, size_t limit) {
    if (limit < commit->changes) return SARP_INVALID;
    uint32_t checksum = 0;
    int32_t count = 0;
    for (uint32_t page = 0; page < commit->page_count; page++) {
        for (uint32_t unit = 0; unit < commit->used[page];) {
            const uint32_t at = page * SARP_PAGE_UNITS + unit;
            const uint8_t *record = commit->pages + (size_t)at * SARP_UNIT;
            checksum = sarp_crc32c(commit->features, checksum, record + SARP_AT_HEADER_CRC, 4);
            const uint64_t position = commit->file_number << 24 | (commit->first_page * UINT64_C(64) + at);
            if ((size_t)count + changes_count(record) > limit) return SARP_INVALID; /* finished twice */
            count += (int32_t)changes_of(base, record, position, changes + count);
            unit += record_units(load16(record + SARP_AT_LENGTH));
        }
    }
    uint32_t last = commit->page_count ? commit->page_count - 1 : 0;
    if (commit->page_count == 0 || commit->used[last] == SARP_PAGE_UNITS) last = page_fresh(commit);
    const uint32_t at = last * SARP_PAGE_UNITS + commit->used[last]++;
    uint8_t *record = commit->pages + (size_t)at * SARP_UNIT;
    memset(record, 0, SARP_UNIT);
    store16(record + SARP_AT_LENGTH, SARP_UNIT);
    record[SARP_AT_TYPE] = SARP_COMMIT;
    record[SARP_AT_HEADER_UNITS] = 1;
    store64(record + SARP_AT_SEQUENCE, commit->sequence++);
    store64(record + SARP_AT_COMMIT, commit->number);
    store32(record + SARP_AT_COMMIT_PAGES, commit->page_count);
    store32(record + SARP_AT_COMMIT_RECORDS, commit->records);
    store32(record + SARP_AT_COMMIT_CHECKSUM, checksum);
    store32(record + SARP_AT_COMMIT_FLAGS, flags);
    store64(record + SARP_AT_COMMIT_SYNCED, synced);
    close_record(commit, record, commit->first_page * UINT64_C(64) + at);
    return count;
}
