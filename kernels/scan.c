#include "scan.h"

#include "crc32c.h"
#include "internal_change.h"

static int all_zero(const uint8_t *unit) {
    uint64_t any = 0;
    for (uint32_t i = 0; i < SARP_UNIT; i += 8) any |= load64(unit + i);
    return any == 0;
}

static void begin_commit(sarp_scan *scan, uint32_t page) {
    scan->begin_page = page;
    scan->checksum = scan->records = scan->flawed = 0;
    scan->number = 0;
}

static uint64_t page_position(const sarp_scan *scan, uint32_t page) {
    return scan->file_number << 24 | (uint64_t)page * SARP_PAGE_UNITS;
}

static void found_commit(sarp_scan *scan, const uint8_t *record, uint32_t page, sarp_found *found) {
    const uint64_t number = load64(record + SARP_AT_COMMIT);
    const int complete = !scan->flawed && load32(record + SARP_AT_COMMIT_PAGES) == page + 1 - scan->begin_page &&
                         load32(record + SARP_AT_COMMIT_RECORDS) == scan->records &&
                         load32(record + SARP_AT_COMMIT_CHECKSUM) == scan->checksum &&
                         (scan->records == 0 || scan->number == number) && number == scan->previous_number + 1;
    found->commits[found->commit_count++] =
        (sarp_found_commit){number,
                            page_position(scan, scan->begin_page),
                            page_position(scan, page + 1),
                            load64(record + SARP_AT_COMMIT_SYNCED),
                            (complete ? SARP_COMMIT_COMPLETE : 0u) | load32(record + SARP_AT_COMMIT_FLAGS) << 8,
                            scan->records};
    scan->previous_number = number;
}

static void damage(sarp_scan *scan, sarp_found *found, uint64_t position) {
    scan->flawed = 1;
    if (found->damaged_count < found->damaged_limit) found->damaged[found->damaged_count++] = position;
}

static void take_record(sarp_scan *scan, const sarp_base *base, const uint8_t *record, uint64_t position, sarp_found *found) {
    const uint64_t number = load64(record + SARP_AT_COMMIT);
    scan->checksum = sarp_crc32c(scan->features, scan->checksum, record + SARP_AT_HEADER_CRC, 4);
    if (scan->records++ && number != scan->number) scan->flawed = 1;
    scan->number = number;
    const uint8_t type = record[SARP_AT_TYPE];
    const int known = type <= SARP_COUNT && (type != SARP_POSTINGS || base->routing == SARP_ROUTING_SARP);
    if (!known && !(record[SARP_AT_FLAGS] & SARP_FLAG_IGNORABLE)) found->unknown_at = position;
    found->change_count += changes_of(base, record, position, found->changes + found->change_count);
}

static int body_valid(const sarp_scan *scan, const sarp_base *base, uint32_t seed, const uint8_t *record) {
    if (!record_body_valid(scan->features, seed, record, scan->location_bytes)) return 0;
    return base->routing != SARP_ROUTING_SARP || record_listed_valid(record);
}

/* Walks one page unit by unit. After damage, units are passed over until a valid record header stands at one. */
static void scan_page(sarp_scan *scan, const sarp_base *base, const uint8_t *page, uint32_t number, sarp_found *found) {
    const uint8_t *commit = NULL;
    int in_damage = 0;
    for (uint32_t unit = 0; unit < SARP_PAGE_UNITS;) {
        const uint8_t *record = page + unit * SARP_UNIT;
        if (all_zero(record)) {
            in_damage = 0;
            unit++;
            continue;
        }
        const uint64_t position = page_position(scan, number) + unit;
        const uint32_t seed = record_seed(scan->features, scan->uuid, scan->file_number, (position & 0xFFFFFF) * SARP_UNIT);
        if (!record_header_valid(scan->features, seed, record, SARP_PAGE - unit * SARP_UNIT)) {
            if (!in_damage) damage(scan, found, position);
            in_damage = 1;
            unit++;
            continue;
        }
        in_damage = 0;
        if (load64(record + SARP_AT_SEQUENCE) > scan->sequence) scan->sequence = load64(record + SARP_AT_SEQUENCE);
        unit += record_units(load16(record + SARP_AT_LENGTH));
        if (!body_valid(scan, base, seed, record)) damage(scan, found, position);
        else if (record[SARP_AT_TYPE] != SARP_COMMIT) take_record(scan, base, record, position, found);
        else if (!commit) commit = record;
        else damage(scan, found, position);
    }
    if (!commit) return;
    /* Only now: what stands behind the commit record on its page counts, too. */
    found_commit(scan, commit, number, found);
    begin_commit(scan, number + 1);
}

uint32_t sarp_scan_pages(sarp_scan *scan, const sarp_base *base, const uint8_t *pages, uint32_t count, sarp_found *found) {
    uint32_t done = 0;
    const uint32_t room = base->routing == SARP_ROUTING_SARP ? SARP_PAGE_CHANGES_MAX : SARP_PAGE_UNITS;
    for (; done < count; done++) {
        if (found->change_limit - found->change_count < room || found->commit_limit - found->commit_count < 1 ||
            found->damaged_limit - found->damaged_count < SARP_PAGE_UNITS)
            break;
        scan_page(scan, base, pages + (size_t)done * SARP_PAGE, scan->next_page, found);
        scan->next_page++;
    }
    return done;
}

static sarp_change summary_change(const uint8_t *entry) {
    const uint64_t word0 = load64(entry), word1 = load64(entry + 8);
    sarp_change change = {.type = (uint8_t)(word1 >> 56)};
    if (change.type != SARP_SEGMENT) return change;
    change.key = word0 & SARP_KEY_MASK;
    change.n = (uint8_t)(word0 >> 48);
    change.d = (uint8_t)(word0 >> 56);
    change.root_key = word1 & SARP_KEY_MASK;
    change.dp = (uint8_t)(word1 >> 48);
    change.supersedes = load64(entry + 16);
    return change;
}

/* Under `sarp`: format-spec/postings.md, section 4. */
static sarp_change summary_change_listed(const uint8_t *entry) {
    const uint64_t word0 = load64(entry), word1 = load64(entry + 8);
    if (!entry[27]) return (sarp_change){.type = (uint8_t)(word1 >> 56)};
    return (sarp_change){.key = word0 & SARP_KEY_MASK,
                         .root_key = word1,
                         .supersedes = load64(entry + 16),
                         .n = (uint8_t)(word0 >> 48),
                         .d = (uint8_t)(word0 >> 56),
                         .type = entry[27],
                         .point = entry[28],
                         .operation = entry[29]};
}

static int summary_change_valid(const sarp_change *change, int listed) {
    const int posted = change->type == SARP_SEGMENT || (listed && change->type == SARP_POSTINGS);
    if (!posted) return !change->operation;
    if (listed) return change_listed_valid(change);
    return change->n >= 1 && change->n <= SARP_WINDOW && change->d < change->n && change->dp < SARP_WINDOW;
}

int32_t sarp_summary_changes(const sarp_base *base, uint64_t file_number, const uint8_t *entries, uint32_t count,
                             sarp_change *changes) {
    const int listed = base->routing == SARP_ROUTING_SARP;
    for (uint32_t i = 0; i < count; i++) {
        const uint8_t *entry = entries + (size_t)i * SARP_SUMMARY_ENTRY;
        const uint32_t units = listed ? load32(entry + 24) & 0xFFFFFF : load32(entry + 24);
        sarp_change *change = changes + i;
        *change = listed ? summary_change_listed(entry) : summary_change(entry);
        change->position = file_number << 24 | units;
        if (units >> 24 || !summary_change_valid(change, listed)) return SARP_INVALID;
        /* One entry a record, or one a change. */
        if (i && change->position < change[-1].position + !listed) return SARP_INVALID;
    }
    return SARP_OK;
}
