#include "pages.h"

#include "cpu.h"
#include "internal_record.h"
#include "reads.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* Of a frame whose page was dropped: no page has this key. */
#define NO_KEY UINT64_MAX
enum { KEY_SLOT_SHIFT = 18 };

static inline uint32_t home_of(const sarp_cache *cache, uint64_t key) {
    return (uint32_t)((key * UINT64_C(0x9E3779B97F4A7C15)) >> 32) & (cache->table_size - 1);
}

/* The table index that holds the key, or the free one where it would go. */
static uint32_t probe(const sarp_cache *cache, uint64_t key) {
    uint32_t i = home_of(cache, key);
    while (cache->table[i] && cache->keys[cache->table[i] - 1] != key) i = (i + 1) & (cache->table_size - 1);
    return i;
}

/* Linear probing without tombstones: what was pushed past the hole moves back into it (Knuth 6.4, algorithm R). */
static void table_remove(sarp_cache *cache, uint64_t key) {
    const uint32_t mask = cache->table_size - 1;
    uint32_t hole = probe(cache, key);
    for (uint32_t i = (hole + 1) & mask; cache->table[i]; i = (i + 1) & mask) {
        const uint32_t home = home_of(cache, cache->keys[cache->table[i] - 1]);
        if (((i - home) & mask) < ((i - hole) & mask)) continue;
        cache->table[hole] = cache->table[i];
        hole = i;
    }
    cache->table[hole] = 0;
}

static uint32_t frame_take(sarp_cache *cache) {
    if (cache->used < cache->capacity) return cache->used++;
    while (cache->referenced[cache->hand]) {
        cache->referenced[cache->hand] = 0;
        cache->hand = cache->hand + 1 == cache->capacity ? 0 : cache->hand + 1;
    }
    const uint32_t frame = cache->hand;
    cache->hand = frame + 1 == cache->capacity ? 0 : frame + 1;
    if (cache->keys[frame] != NO_KEY) table_remove(cache, cache->keys[frame]);
    return frame;
}

static void insert_page(sarp_cache *cache, uint64_t key, const uint8_t *page) {
    if (cache->capacity == 0 || cache->table[probe(cache, key)]) return;
    const uint32_t frame = frame_take(cache);
    cache->keys[frame] = key;
    cache->referenced[frame] = 0;
    memcpy(cache->frames + (size_t)frame * SARP_PAGE, page, SARP_PAGE);
    cache->table[probe(cache, key)] = frame + 1;
}

void sarp_cache_insert(sarp_cache *cache, uint64_t first_key, const uint8_t *data, uint32_t pages) {
    for (uint32_t i = 0; i < pages; i++) insert_page(cache, first_key + i, data + (size_t)i * SARP_PAGE);
}

void sarp_cache_forget(sarp_cache *cache, uint32_t slot, uint32_t first, uint32_t count) {
    const uint32_t end = first < cache->used && count < cache->used - first ? first + count : cache->used;
    for (uint32_t frame = first; frame < end; frame++) {
        if (cache->keys[frame] >> KEY_SLOT_SHIFT != slot) continue;
        table_remove(cache, cache->keys[frame]);
        cache->keys[frame] = NO_KEY;
        cache->referenced[frame] = 0;
    }
}

const uint8_t *sarp_cache_find(sarp_cache *cache, uint64_t key) {
    if (cache->capacity == 0) return NULL;
    const uint32_t frame = cache->table[probe(cache, key)];
    if (!frame) {
        cache->misses++;
        return NULL;
    }
    cache->hits++;
    cache->referenced[frame - 1] = 1;
    return cache->frames + (size_t)(frame - 1) * SARP_PAGE;
}

int pages_find(const sarp_pages *pages, uint64_t key, const uint8_t **data) {
    for (uint32_t i = 0; i < pages->range_count; i++) {
        const sarp_page_range *range = pages->ranges + i;
        if (key - range->first_key >= range->pages) continue;
        *data = range->data + (size_t)(key - range->first_key) * SARP_PAGE;
        return 1;
    }
    if (pages->reads && sarp_reads_find(pages->reads, key, data)) return 1;
    *data = sarp_cache_find(pages->cache, key);
    return *data != NULL;
}

static uint32_t common_run_scalar(const uint8_t *a, const uint8_t *b, uint32_t count) {
    uint32_t i = 0;
    while (i < count && memcmp(a + (size_t)i * SARP_ID, b + (size_t)i * SARP_ID, SARP_ID) == 0) i++;
    return i;
}

#if defined(__x86_64__)
/* Two ids a step: all 32 bytes equal, or the first differing byte says which of the two it was. */
__attribute__((target("avx2"))) static uint32_t common_run_avx2(const uint8_t *a, const uint8_t *b, uint32_t count) {
    uint32_t i = 0;
    for (; i + 2 <= count; i += 2) {
        const __m256i x = _mm256_loadu_si256((const __m256i *)(const void *)(a + (size_t)i * SARP_ID));
        const __m256i y = _mm256_loadu_si256((const __m256i *)(const void *)(b + (size_t)i * SARP_ID));
        const uint32_t differ = ~(uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(x, y));
        if (differ) return i + (uint32_t)(__builtin_ctz(differ) / SARP_ID);
    }
    return i + common_run_scalar(a + (size_t)i * SARP_ID, b + (size_t)i * SARP_ID, count - i);
}
#endif

uint32_t sarp_common_run(uint32_t features, const uint8_t *a, const uint8_t *b, uint32_t count) {
#if defined(__x86_64__)
    if (features & SARP_CPU_AVX2) return common_run_avx2(a, b, count);
#endif
    (void)features;
    return common_run_scalar(a, b, count);
}
