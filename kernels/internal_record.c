#include "internal_record.h"

#include "crc32c.h"

uint32_t record_seed(uint32_t features, const uint8_t *uuid, uint64_t file_number, uint64_t offset) {
    uint8_t place[32];
    memcpy(place, uuid, 16);
    store64(place + 16, file_number);
    store64(place + 24, offset);
    return sarp_crc32c(features, 0, place, sizeof place);
}

uint32_t record_header_valid(uint32_t features, uint32_t seed, const uint8_t *record, uint32_t room) {
    const uint32_t bytes = record_header_bytes(record), length = load16(record + SARP_AT_LENGTH);
    if (bytes < SARP_UNIT || bytes > SARP_SEGMENT_HEADER || bytes > room || length < bytes || length > room) return 0;
    if (record[SARP_AT_TYPE] == 0) return 0;
    const uint32_t crc = sarp_crc32c(features, seed, record + SARP_AT_BODY_CRC, bytes - SARP_AT_BODY_CRC);
    return crc == load32(record + SARP_AT_HEADER_CRC) ? bytes : 0;
}

/* The length that a record of this type and n must have; 0 where the type leaves it open. */
static uint32_t expected_length(const uint8_t *record, uint32_t location_bytes) {
    const uint32_t n = record[SARP_AT_N];
    switch (record[SARP_AT_TYPE]) {
    case SARP_SEGMENT: return segment_bytes(n, location_bytes);
    case SARP_REMOVE: return SARP_REMOVE_HEADER + n * SARP_ID;
    case SARP_COUNT: return SARP_COUNT_HEADER + n * SARP_COUNT_ENTRY;
    case SARP_SUMMARY: return SARP_SUMMARY_HEADER + n * SARP_SUMMARY_ENTRY;
    case SARP_POSTINGS: return SARP_POSTINGS_HEADER + n * SARP_POSTINGS_ENTRY;
    case SARP_NAMESPACE: return SARP_UNIT + (uint32_t)load16(record + 36) + load16(record + 38);
    case SARP_CLEAR_HOLDER:
    case SARP_COMMIT:
    case SARP_RETIRE_FILE:
    case SARP_SEAL: return SARP_UNIT;
    default: return 0;
    }
}

static int fields_valid(const uint8_t *record) {
    const uint32_t n = record[SARP_AT_N], units = record[SARP_AT_HEADER_UNITS];
    switch (record[SARP_AT_TYPE]) {
    case SARP_SEGMENT:
        return units == 2 && n >= 1 && n <= SARP_WINDOW && record[SARP_AT_D] < n && record[SARP_AT_DP] < SARP_WINDOW;
    case SARP_REMOVE: return units == 1 && n >= 1 && n <= SARP_REMOVE_IDS_MAX;
    case SARP_COUNT: return units == 1 && n >= 1 && n <= SARP_COUNT_ENTRIES_MAX;
    case SARP_SUMMARY: return units == 1 && n >= 1 && n <= SARP_SUMMARY_ENTRIES_MAX;
    case SARP_POSTINGS: return units == 1 && n >= 1 && n <= SARP_POSTINGS_ENTRIES_MAX;
    default: return units == 1 || record[SARP_AT_TYPE] > SARP_COUNT;
    }
}

int record_body_valid(uint32_t features, uint32_t seed, const uint8_t *record, uint32_t location_bytes) {
    const uint32_t header = record_header_bytes(record), length = load16(record + SARP_AT_LENGTH);
    const uint32_t expected = expected_length(record, location_bytes);
    if (!fields_valid(record) || (expected && expected != length)) return 0;
    return sarp_crc32c(features, seed, record + header, length - header) == load32(record + SARP_AT_BODY_CRC);
}

void record_close(uint32_t features, uint32_t seed, uint8_t *record) {
    const uint32_t header = record_header_bytes(record), length = load16(record + SARP_AT_LENGTH);
    store32(record + SARP_AT_BODY_CRC, sarp_crc32c(features, seed, record + header, length - header));
    const uint32_t crc = sarp_crc32c(features, seed, record + SARP_AT_BODY_CRC, header - SARP_AT_BODY_CRC);
    store32(record + SARP_AT_HEADER_CRC, crc);
}
