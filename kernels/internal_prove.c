#include "internal_prove.h"

static void need_page(reading *r, uint64_t key) {
    sarp_needs *needs = r->needs;
    r->missing = r->page_missing = 1;
    if (needs->page_count < needs->page_limit) needs->pages[needs->page_count++] = key;
}

void need_partition(reading *r, uint32_t number) {
    sarp_needs *needs = r->needs;
    r->missing = 1;
    if (needs->partition_count < needs->partition_limit) needs->partitions[needs->partition_count++] = number;
}

static void report_damaged(reading *r, uint64_t reference) {
    sarp_needs *needs = r->needs;
    if (needs->damaged_count < needs->damaged_limit) needs->damaged[needs->damaged_count++] = reference;
}

const uint8_t *read_segment(reading *r, uint64_t reference) {
    const uint8_t *page;
    const uint64_t file = r->base->slot_files[reference >> 24];
    if (!file) return NULL;
    if (!pages_find(r->pages, reference >> 6, &page)) {
        need_page(r, reference >> 6);
        return NULL;
    }
    const uint32_t features = r->pages->features, at = (uint32_t)(reference & 63) * SARP_UNIT;
    if (page) {
        const uint32_t seed = record_seed(features, r->pages->uuid, file, (reference & 0xFFFFFF) * SARP_UNIT);
        const uint8_t *record = page + at;
        if (record_header_valid(features, seed, record, SARP_PAGE - at) && record[SARP_AT_TYPE] == SARP_SEGMENT &&
            record_body_valid(features, seed, record, r->pages->location_bytes))
            return record;
    }
    report_damaged(r, reference);
    return NULL;
}

uint32_t prove_segment(const sarp_pages *pages, const uint8_t *record, const sarp_query *q, uint32_t first, uint32_t limit) {
    static const uint8_t no_prefix[SARP_ID];
    const uint8_t *ids = q->ids + (size_t)first * SARP_ID, *prefix = first ? ids - SARP_ID : no_prefix;
    if (load32(record + SARP_AT_HOLDER) != q->holder || load64(record + SARP_AT_NAMESPACE) != q->name_space) return 0;
    if (load32(record + SARP_AT_WINDOW) != first / SARP_WINDOW) return 0;
    if (memcmp(record + SARP_AT_PREFIX_ID, prefix, SARP_ID) != 0) return 0;
    const uint32_t n = record[SARP_AT_N];
    return sarp_common_run(pages->features, record + SARP_SEGMENT_HEADER, ids, n < limit ? n : limit);
}
