#include "internal_directory.h"
#include "internal_markpass.h"
#include "internal_postings.h"
#include "internal_record.h"
#include "internal_removals.h"

/* --- rows: what the log says of what the directory names */

/* Of a segment record the n of the entry that names it; 0: none does. */
typedef uint32_t entry_blocks(const void *directory, const uint8_t *record, key_seed seed, uint64_t reference);

static uint32_t blocks_entered(const void *directory, const uint8_t *record, key_seed seed, uint64_t reference) {
    const uint8_t *id = record + SARP_SEGMENT_HEADER + record[SARP_AT_D] * SARP_ID;
    const sarp_entry *entry = directory_entry(directory, key_of(seed, id), reference);
    return entry ? entry_n(entry) : 0;
}

/* A posting that was cut has a shorter filter than the record's ids make. */
static uint32_t blocks_posted(const void *directory, const uint8_t *record, key_seed seed, uint64_t reference) {
    const sarp_postings *dir = directory;
    const uint8_t *ids = record + SARP_SEGMENT_HEADER;
    place at = {key_of(seed, ids), filter_of(dir->base, ids, record[SARP_AT_N], 0), reference};
    for (uint32_t length = fingerprints_of(record[SARP_AT_N], 0);; length--) {
        const sarp_posting *posting = postings_at(dir, at, 0);
        if (posting) return posting_n(posting);
        if (length == 0) return 0;
        at.filter &= ~(UINT64_C(0xFF) << 8 * (FINGERPRINTS - length));
    }
}

typedef struct {
    sarp_mark_scan *scan;
    const sarp_base *base;
    const void *directory;
    entry_blocks *blocks_of;
} reader;

static void add_row(reader *r, const uint8_t *record, uint64_t units) {
    const uint32_t holder = load32(record + SARP_AT_HOLDER);
    const uint64_t name_space = load64(record + SARP_AT_NAMESPACE), reference = (uint64_t)r->scan->slot << 24 | units;
    const key_seed seed = seed_of(r->base, holder, name_space);
    const uint8_t *ids = record + SARP_SEGMENT_HEADER;
    const uint32_t n = r->blocks_of(r->directory, record, seed, reference);
    /* No writer names more blocks than there are: then it is as if the record could not be read. */
    if (n == 0 || n > record[SARP_AT_N]) return;
    const barrier b = barrier_of(r->base, holder, name_space);
    const uint64_t born = load64(record + SARP_AT_BORN);
    const uint32_t cut = barrier_buries(&b, record) ? 0 : b.markers ? barrier_cut(&b, ids, n, born) : n;
    r->scan->rows[r->scan->row_count++] =
        (sarp_mark_row){reference,
                        born,
                        tag_of(seed, record + SARP_AT_PREFIX_ID),
                        record[SARP_AT_N] == SARP_WINDOW ? tag_of(seed, ids + (SARP_WINDOW - 1) * SARP_ID) : 0,
                        key_of(seed, ids),
                        load32(record + SARP_AT_WINDOW),
                        (uint8_t)n,
                        record[SARP_AT_D],
                        (uint8_t)cut,
                        n == record[SARP_AT_N]};
}

static int unit_is_free(const uint8_t *unit) {
    uint64_t any = 0;
    for (uint32_t i = 0; i < SARP_UNIT; i += 8) any |= load64(unit + i);
    return any == 0;
}

/* Walks one page unit by unit, as recovery does (scan.c). */
static void read_page(reader *r, const uint8_t *page, uint32_t number) {
    sarp_mark_scan *scan = r->scan;
    int in_damage = 0;
    for (uint32_t unit = 0; unit < SARP_PAGE_UNITS;) {
        const uint8_t *record = page + unit * SARP_UNIT;
        const uint64_t units = (uint64_t)number * SARP_PAGE_UNITS + unit;
        const uint32_t seed = record_seed(scan->features, scan->uuid, scan->file_number, units * SARP_UNIT);
        const int free = unit_is_free(record);
        if (free || !record_header_valid(scan->features, seed, record, SARP_PAGE - unit * SARP_UNIT)) {
            if (!free && !in_damage) scan->damaged++;
            in_damage = !free;
            unit++;
            continue;
        }
        in_damage = 0;
        unit += record_units(load16(record + SARP_AT_LENGTH));
        if (!record_body_valid(scan->features, seed, record, scan->location_bytes)) {
            scan->damaged++;
        } else if (record[SARP_AT_TYPE] == SARP_SEGMENT) {
            scan->segments++;
            add_row(r, record, units);
        }
    }
}

enum { PAGE_SEGMENTS_MAX = SARP_PAGE_UNITS * SARP_UNIT / (SARP_SEGMENT_HEADER + SARP_ID) };

static uint32_t read_pages(reader *r, const uint8_t *pages, uint32_t count) {
    uint32_t done = 0;
    for (; done < count && r->scan->row_limit - r->scan->row_count >= PAGE_SEGMENTS_MAX; done++)
        read_page(r, pages + (size_t)done * SARP_PAGE, r->scan->next_page++);
    return done;
}

uint32_t sarp_mark_rows(sarp_mark_scan *scan, const sarp_directory *dir, const uint8_t *pages, uint32_t count) {
    reader r = {scan, dir->base, dir, blocks_entered};
    return read_pages(&r, pages, count);
}

uint32_t sarp_mark_rows_listed(sarp_mark_scan *scan, const sarp_postings *dir, const uint8_t *pages, uint32_t count) {
    reader r = {scan, dir->base, dir, blocks_posted};
    return read_pages(&r, pages, count);
}

/* --- verdicts */

enum { TOGETHER = 16 };

/* For each reference the last verdict that is not behind it, or the first of all. The searches take their steps together, so that
   their cache misses overlap. */
static void search(const sarp_mark_plan *plan, const uint64_t *references, uint32_t count, const uint64_t **found) {
    for (uint32_t i = 0; i < count; i++) found[i] = plan->verdicts;
    for (uint64_t left = plan->verdict_count; left > 1; left -= left / 2)
        for (uint32_t i = 0; i < count; i++)
            found[i] = found[i][left / 2] >> 8 <= references[i] ? found[i] + left / 2 : found[i];
}

void verdicts_of(const sarp_mark_plan *plan, const sarp_base *base, const uint64_t *references, uint32_t count, uint8_t *blocks) {
    const uint64_t *found[TOGETHER];
    for (uint32_t first = 0; first < count; first += TOGETHER) {
        const uint32_t batch = count - first < TOGETHER ? count - first : TOGETHER;
        search(plan, references + first, batch, found);
        for (uint32_t i = 0; i < batch; i++) {
            const uint64_t reference = references[first + i];
            if (plan->verdict_count && *found[i] >> 8 == reference) blocks[first + i] = *found[i] & 0xFF;
            else blocks[first + i] = position_of(base, reference) <= plan->position ? VERDICT_MISSING : SARP_WINDOW;
        }
    }
}
