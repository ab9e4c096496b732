#include "commit.h"

#include "crc32c.h"
#include "internal_change.h"
#include "internal_directory.h"

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

/* The open page with the least room that is enough; a fresh one if there is none. */
static uint32_t page_for(sarp_commit *commit, uint32_t units, int fresh) {
    const uint64_t fitting = units < 64 && !fresh ? commit->open >> units << units : 0;
    if (!fitting) return page_fresh(commit);
    const uint32_t free_units = (uint32_t)__builtin_ctzll(fitting);
    const uint32_t page = commit->heads[free_units];
    if (commit->next[page] == NO_OPEN_PAGE) commit->open &= ~(UINT64_C(1) << free_units);
    else commit->heads[free_units] = commit->next[page];
    return page;
}

/* Room for a record of `length` bytes. The caller has checked that a page is left. */
static uint8_t *place(sarp_commit *commit, uint32_t length, int fresh, uint64_t *position) {
    const uint32_t units = record_units(length), page = page_for(commit, units, fresh);
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
    commit->open = commit->dead_bytes = 0;
    commit->page_count = commit->records = 0;
}

uint64_t sarp_commit_append(sarp_commit *commit, const uint8_t *source, int32_t fresh) {
    uint64_t position;
    const uint32_t length = load16(source + SARP_AT_LENGTH);
    /* One page stays free for the commit record. */
    if (length < SARP_UNIT || length > SARP_PAGE || commit->page_count + 2 > commit->page_limit) return 0;
    uint8_t *record = place(commit, length, fresh, &position);
    memcpy(record, source, length);
    store64(record + SARP_AT_SEQUENCE, commit->sequence++);
    store64(record + SARP_AT_COMMIT, commit->number);
    close_record(commit, record, position);
    commit->records++;
    return position;
}

int32_t sarp_commit_finish(sarp_commit *commit, const sarp_base *base, uint64_t synced, uint32_t flags,
                           sarp_change *changes, size_t limit) {
    if (limit < commit->records) return SARP_INVALID;
    uint32_t checksum = 0;
    int32_t count = 0;
    for (uint32_t page = 0; page < commit->page_count; page++) {
        for (uint32_t unit = 0; unit < commit->used[page];) {
            const uint32_t at = page * SARP_PAGE_UNITS + unit;
            const uint8_t *record = commit->pages + (size_t)at * SARP_UNIT;
            checksum = sarp_crc32c(commit->features, checksum, record + SARP_AT_HEADER_CRC, 4);
            const uint64_t position = commit->file_number << 24 | (commit->first_page * UINT64_C(64) + at);
            if ((size_t)count == limit) return SARP_INVALID; /* finished twice */
            changes[count++] = change_of(base, record, position);
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

/* --- inserting */

/* One window's record, decided but not yet written. */
typedef struct {
    uint32_t window, n, d, dp, held; /* held: blocks whose locations come from the owner's record */
    uint64_t parent_key, supersedes;
} planned;

/* The first window's record; the later ones open their windows. */
static planned plan_first(const sarp_directory *dir, const sarp_query *q, key_seed seed, const uint8_t *owner) {
    const uint32_t window = q->matched / SARP_WINDOW, held = q->matched % SARP_WINDOW;
    planned p = {.window = window, .held = held};
    if (held == 0) {
        if (window == 0) return p;
        p.dp = q->owner_d;
        p.parent_key = key_of(seed, q->ids + ((size_t)(window - 1) * SARP_WINDOW + q->owner_d) * SARP_ID);
        return p;
    }
    p.parent_key = load64(owner + SARP_AT_PARENT_KEY);
    if (held == q->owner_n) {
        p.d = q->owner_d;
        p.dp = q->owner_dp;
        p.supersedes = position_of(dir->base, q->owner_reference);
    } else {
        p.d = held;
        p.dp = q->owner_d;
    }
    return p;
}

static planned plan_next(const sarp_query *q, key_seed seed, const planned *previous) {
    const size_t owner_block = (size_t)previous->window * SARP_WINDOW + previous->d;
    return (planned){.window = previous->window + 1, .dp = previous->d, .parent_key = key_of(seed, q->ids + owner_block * SARP_ID)};
}

static uint32_t blocks_in_window(const sarp_query *q, uint32_t window) {
    const uint32_t rest = q->blocks - window * SARP_WINDOW;
    return rest < SARP_WINDOW ? rest : SARP_WINDOW;
}

static uint64_t write_segment(sarp_commit *commit, const sarp_query *q, const planned *p, const uint8_t *owner,
                              const uint8_t *locations) {
    const uint32_t bytes = commit->location_bytes, length = segment_bytes(p->n, bytes);
    const size_t base = (size_t)p->window * SARP_WINDOW;
    /* What overrides a record stands after it: in the same commit, on a page of its own at the end. */
    const uint64_t first = commit->file_number << 24 | commit->first_page * UINT64_C(64);
    uint64_t position;
    uint8_t *record = place(commit, length, p->supersedes >= first, &position);
    memset(record, 0, SARP_SEGMENT_HEADER);
    store16(record + SARP_AT_LENGTH, (uint16_t)length);
    record[SARP_AT_TYPE] = SARP_SEGMENT;
    record[SARP_AT_N] = (uint8_t)p->n;
    record[SARP_AT_D] = (uint8_t)p->d;
    record[SARP_AT_DP] = (uint8_t)p->dp;
    record[SARP_AT_HEADER_UNITS] = 2;
    store64(record + SARP_AT_SEQUENCE, commit->sequence++);
    store64(record + SARP_AT_COMMIT, commit->number);
    store32(record + SARP_AT_HOLDER, q->holder);
    store32(record + SARP_AT_WINDOW, p->window);
    store64(record + SARP_AT_NAMESPACE, q->name_space);
    if (base) memcpy(record + SARP_AT_PREFIX_ID, q->ids + (base - 1) * SARP_ID, SARP_ID);
    store64(record + SARP_AT_BORN, position);
    store64(record + SARP_AT_PARENT_KEY, p->parent_key);
    store64(record + SARP_AT_SUPERSEDES, p->supersedes);
    uint8_t *body = record + SARP_SEGMENT_HEADER;
    memcpy(body, q->ids + base * SARP_ID, (size_t)p->n * SARP_ID);
    body += p->n * SARP_ID;
    if (p->held) memcpy(body, owner + SARP_SEGMENT_HEADER + owner[SARP_AT_N] * SARP_ID, (size_t)p->held * bytes);
    memcpy(body + (size_t)p->held * bytes, locations + (base + p->held) * bytes, (size_t)(p->n - p->held) * bytes);
    close_record(commit, record, position);
    commit->records++;
    return position;
}

/* Asks for the partitions of the keys that an insertion will enter. */
static int partitions_ready(const sarp_directory *dir, const sarp_query *q, key_seed seed, planned first, sarp_needs *needs) {
    int ready = 1;
    for (planned p = first; p.window * SARP_WINDOW < q->blocks; p = plan_next(q, seed, &p)) {
        for (uint32_t step = 0; step < (p.d ? 2 : 1); step++) {
            const size_t block = (size_t)p.window * SARP_WINDOW + (step ? 0 : p.d);
            const uint64_t key = key_of(seed, q->ids + block * SARP_ID);
            uint32_t number;
            sarp_directory_partition_of(dir, &key, 1, &number);
            if (dir->partitions[number].flags & SARP_PARTITION_LOADED) continue;
            ready = 0;
            if (needs->partition_count < needs->partition_limit) needs->partitions[needs->partition_count++] = number;
        }
    }
    return ready;
}

int32_t sarp_insert(sarp_directory *dir, const sarp_pages *pages, sarp_query *q, const uint8_t *locations, sarp_commit *commit,
                    sarp_needs *needs) {
    q->status = SARP_NEED;
    if (sarp_match(dir, pages, q, 1, needs)) return SARP_NEED;
    if (q->matched == q->blocks) return SARP_OK;
    const key_seed seed = seed_of(dir->base, q->holder, q->name_space);
    const uint8_t *owner = NULL;
    if (q->matched % SARP_WINDOW) {
        if (!pages_find(pages, q->owner_reference >> 6, &owner)) return SARP_INVALID; /* the match has just read it */
        owner += (q->owner_reference & 63) * SARP_UNIT;
    }
    planned p = plan_first(dir, q, seed, owner);
    if (!partitions_ready(dir, q, seed, p, needs)) return SARP_NEED;
    const uint32_t windows = (q->blocks + SARP_WINDOW - 1) / SARP_WINDOW - p.window;
    if (!directory_has_room(dir, windows)) return SARP_FULL;
    if (commit->page_count + windows + 1 > commit->page_limit) return SARP_NO_ROOM;
    for (; p.window * SARP_WINDOW < q->blocks; p = plan_next(q, seed, &p)) {
        size_t done;
        p.n = blocks_in_window(q, p.window);
        if (p.supersedes) commit->dead_bytes += record_units(load16(owner + SARP_AT_LENGTH)) * (uint64_t)SARP_UNIT;
        const uint64_t position = write_segment(commit, q, &p, owner, locations);
        const uint8_t *record = commit->pages + ((position & 0xFFFFFF) - commit->first_page * UINT64_C(64)) * SARP_UNIT;
        const sarp_change change = change_of(dir->base, record, position);
        const int32_t status = sarp_directory_apply(dir, &change, NULL, 1, &done);
        if (status != SARP_OK) return status; /* only if directory_has_room were wrong */
    }
    return SARP_OK;
}
