/* Records in a page: their checksums and bounds (format-spec/log.md, section 2). */
#pragma once
#include "internal_bits.h"
#include "pages.h"

/* The CRC that every record of a place starts from. */
uint32_t record_seed(uint32_t features, const uint8_t *uuid, uint64_t file_number, uint64_t offset);

/* Bytes of the valid record header at `record`, `room` bytes before its page's end; 0 if there is none. Nothing is read
   past `room`. */
uint32_t record_header_valid(uint32_t features, uint32_t seed, const uint8_t *record, uint32_t room);

/* Whether the body's checksum holds and the length follows from the type and n. The header has been verified. */
int record_body_valid(uint32_t features, uint32_t seed, const uint8_t *record, uint32_t location_bytes);

/* Writes both checksums of a record that is otherwise finished. */
void record_close(uint32_t features, uint32_t seed, uint8_t *record);

static inline uint32_t record_header_bytes(const uint8_t *record) {
    return record[SARP_AT_HEADER_UNITS] * (uint32_t)SARP_UNIT;
}
static inline uint32_t record_units(uint32_t length) { return (length + SARP_UNIT - 1) / SARP_UNIT; }
static inline uint32_t segment_bytes(uint32_t n, uint32_t location_bytes) {
    return SARP_SEGMENT_HEADER + n * (SARP_ID + location_bytes);
}

/* Counts an entry of a file's slot, and `n` blocks of its record (0: another entry counts them), once more or once less. */
static inline void slot_count(const sarp_base *base, uint64_t reference, uint32_t n, int sign) {
    if (!base->slot_live) return;
    const uint64_t bytes = n ? record_units(segment_bytes(n, base->location_bytes)) * (uint64_t)SARP_UNIT : 0;
    base->slot_entries[reference >> 24] += sign > 0 ? 1u : UINT32_MAX;
    base->slot_live[reference >> 24] += sign > 0 ? bytes : UINT64_C(0) - bytes;
}

/* 1 and the page's bytes (NULL where it cannot be read), or 0 where the page is not in memory. */
int pages_find(const sarp_pages *pages, uint64_t key, const uint8_t **data);
