/* The entries of a sealed file's summary, of either routing, and the directory that is made from them. */
#include "scene.h"

enum { ENTRIES_MAX = 512 };

/* Ascending places, and numbers that a writer makes: else the first entry decides. */
static void mend_summary(uint8_t *entries, uint32_t count) {
    uint32_t units = FIRST_PAGE * SARP_PAGE_UNITS;
    for (uint32_t i = 0; i < count; i++) {
        uint8_t *e = entries + (size_t)i * SARP_SUMMARY_ENTRY;
        units += BASE.routing == SARP_ROUTING_SARP ? e[24] % 4 : 1 + e[24] % 4;
        const uint32_t n = 1 + (e[6] + 63u) % 64;
        e[6] = (uint8_t)n;
        e[7] = (uint8_t)(e[7] % n);
        e[14] &= BASE.routing == SARP_ROUTING_SARP ? 0xFF : 63;
        store32(e + 24, units | (BASE.routing == SARP_ROUTING_SARP ? (uint32_t)e[27] << 24 : 0));
        if (BASE.routing != SARP_ROUTING_SARP || !e[27] || !load64(e + 16)) continue;
        const uint32_t length = fingerprints_of(n, e[28] & 7);
        uint64_t filter = load64(e + 8) | UINT64_C(0x0101010101010101);
        store64(e + 8, length == FINGERPRINTS ? filter : length ? filter >> (64 - 8 * length) << (64 - 8 * length) : 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static sarp_change changes[ENTRIES_MAX];
    if (size < 2) return 0;
    memory_reset(data[0] & 1 ? SARP_ROUTING_SARP : SARP_ROUTING_DIVERGENCE, sarp_cpu_features(), 14);
    size_t left = size - 2;
    const uint8_t *rest = data + 2;
    const uint32_t count = (uint32_t)(left / SARP_SUMMARY_ENTRY < ENTRIES_MAX ? left / SARP_SUMMARY_ENTRY : ENTRIES_MAX);
    uint8_t *entries = bytes_of(&rest, &left, (size_t)count * SARP_SUMMARY_ENTRY);
    if (data[1] & 1) mend_summary(entries, count);
    if (sarp_summary_changes(&BASE, FILE_READ, entries, count, changes) == SARP_OK) {
        CHECK((BASE.routing == SARP_ROUTING_SARP ? sarp_postings_init(&POSTINGS) : sarp_directory_init(&DIRECTORY)) == SARP_OK);
        for (uint32_t i = 1; i < count; i++) CHECK(changes[i - 1].position <= changes[i].position);
        const int32_t status = apply_changes(changes, directory_changes(changes, count));
        CHECK(status == SARP_OK || status == SARP_FULL);
    }
    free(entries);
    return 0;
}
