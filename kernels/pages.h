/* Where log pages are in memory: the bounded page cache, the commits that are still in their buffers, and the pages that
   were read and are still held (reads.h). A page's key is `slot << 18 | page number in the file`: a reference's upper part. */
#pragma once
#include "types.h"

/* CLOCK (second chance) over `capacity` frames of 4 KiB. `table` is an open-addressed index of frame number + 1, its size
   a power of two and at least twice the capacity; all zero at the start. */
typedef struct {
    uint8_t *frames;
    uint64_t *keys;      /* capacity */
    uint8_t *referenced; /* capacity */
    uint32_t *table;
    uint32_t table_size, capacity, used, hand;
    uint64_t hits, misses;
} sarp_cache;

typedef struct {
    uint64_t first_key;
    const uint8_t *data;
    uint32_t pages;
    uint32_t reserved;
} sarp_page_range;

struct sarp_reads;

typedef struct {
    sarp_cache *cache;
    const sarp_page_range *ranges;
    const struct sarp_reads *reads; /* pages that are held, or NULL */
    const uint8_t *uuid;            /* 16 bytes */
    uint32_t range_count;
    uint32_t location_bytes;
    uint32_t features;
    uint32_t reserved;
} sarp_pages;

/* Copies neighbouring pages into the cache, evicting others where it is full. A key that is there already is left as it
   is. */
void sarp_cache_insert(sarp_cache *cache, uint64_t first_key, const uint8_t *data, uint32_t pages);

/* Drops the pages of a log file's slot from `count` frames from `first` on; the caller goes through all of them in steps. */
void sarp_cache_forget(sarp_cache *cache, uint32_t slot, uint32_t first, uint32_t count);

/* The cached page, or NULL. */
const uint8_t *sarp_cache_find(sarp_cache *cache, uint64_t key);

/* Number of leading block ids (16 bytes each) that are equal, at most `count`. */
uint32_t sarp_common_run(uint32_t features, const uint8_t *a, const uint8_t *b, uint32_t count);
