/* Mutations of a scene that keep its parts where they are: of its options, of one record's header, of its entries and markers.
   Most of an input are ids, of which one is as good as another. */
#pragma once
#include "scene.h"

size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed);

/* What becomes shorter keeps its end. */
static size_t mutate_part(uint8_t *data, size_t size, size_t at, size_t length) {
    if (at >= size) return size;
    LLVMFuzzerMutate(data + at, length < size - at ? length : size - at, length < size - at ? length : size - at);
    return size;
}

/* A place that may be a record's: the first unit that is not free, from one on. */
static size_t record_place(const uint8_t *data, size_t pages, unsigned int seed) {
    const size_t units = pages * SARP_PAGE_UNITS;
    for (size_t i = 0; i < units; i++) {
        const size_t at = OPTIONS + (seed + i) % units * SARP_UNIT;
        if (data[at + SARP_AT_TYPE] && data[at + SARP_AT_TYPE] <= SARP_COUNT && data[at + SARP_AT_HEADER_UNITS] - 1u < 2) return at;
    }
    return OPTIONS;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed) {
    const size_t pages = size < OPTIONS ? 0 : data[3] % (PAGES_MAX + 1u), tail = OPTIONS + pages * SARP_PAGE;
    const unsigned int kind = seed % 8;
    if (kind == 0 || size < tail || !pages) return LLVMFuzzerMutate(data, size, max_size);
    if (kind <= 2) return mutate_part(data, size, 0, OPTIONS);
    if (kind <= 5 || size == tail) return mutate_part(data, size, record_place(data, pages, seed / 8), kind == 3 ? 32 : 128);
    return tail + LLVMFuzzerMutate(data + tail, size - tail, max_size - tail);
}
