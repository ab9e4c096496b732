#include "cpu.h"
#include "internal_directory.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* The fingerprint filter: bit i of the result says that entries[i] has the key. count <= 64. */
static uint64_t equal_keys_scalar(const sarp_entry *entries, uint32_t count, uint64_t key) {
    uint64_t bits = 0;
    for (uint32_t i = 0; i < count; i++) bits |= (uint64_t)(entry_key(entries + i) == key) << i;
    return bits;
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static uint64_t equal_keys_avx2(const sarp_entry *entries, uint32_t count, uint64_t key) {
    const __m256i wanted = _mm256_set1_epi64x((long long)key);
    uint64_t bits = 0;
    uint32_t i = 0;
    for (; i + 4 <= count; i += 4) {
        const __m256i low = _mm256_loadu_si256((const __m256i *)(const void *)(entries + i));
        const __m256i high = _mm256_loadu_si256((const __m256i *)(const void *)(entries + i + 2));
        /* word 0 of entries 0, 2, 1, 3, put in order */
        const __m256i words = _mm256_permute4x64_epi64(_mm256_unpacklo_epi64(low, high), 0xD8);
        const __m256i equal = _mm256_cmpeq_epi64(_mm256_srli_epi64(words, 16), wanted);
        bits |= (uint64_t)(uint32_t)_mm256_movemask_pd(_mm256_castsi256_pd(equal)) << i;
    }
    return i < count ? bits | equal_keys_scalar(entries + i, count - i, key) << i : bits;
}
#endif

static uint64_t equal_keys(const sarp_directory *dir, const sarp_entry *entries, uint32_t count, uint64_t key) {
#if defined(__x86_64__)
    if (dir->base->features & SARP_CPU_AVX2) return equal_keys_avx2(entries, count, key);
#endif
    (void)dir;
    return equal_keys_scalar(entries, count, key);
}

int32_t sarp_directory_find(const sarp_directory *dir, uint64_t key, sarp_entry *out, int32_t limit) {
    const sarp_partition *part = dir->partitions + partition_index(dir, key);
    if (!(part->flags & SARP_PARTITION_LOADED)) return SARP_INVALID;
    const uint16_t *starts = starts_of(dir, part);
    const uint32_t bucket = bucket_of(part, key), end = starts[bucket + 1];
    int32_t found = 0;
    for (uint32_t i = starts[bucket]; i < end;) {
        const uint32_t to_page_end = PAGE_ENTRIES - (i + INDEX_SLOTS) % PAGE_ENTRIES;
        uint32_t count = end - i < to_page_end ? end - i : to_page_end;
        if (count > 64) count = 64;
        const sarp_entry *span = entry_at(dir, part, i);
        for (uint64_t bits = equal_keys(dir, span, count, key); bits; bits &= bits - 1) {
            if (found < limit) out[found] = span[__builtin_ctzll(bits)];
            found++;
        }
        i += count;
    }
    return found;
}

void directory_prefetch(const sarp_directory *dir, uint64_t key) {
    const sarp_partition *part = dir->partitions + partition_index(dir, key);
    if (!(part->flags & SARP_PARTITION_LOADED)) return;
    const uint32_t bucket = bucket_of(part, key);
    __builtin_prefetch(starts_of(dir, part) + bucket);
    /* Keys are uniform, so the bucket is near its share of the sequence. */
    __builtin_prefetch(entry_at(dir, part, (uint32_t)part->entries * bucket / BUCKETS));
}

void sarp_directory_partition_of(const sarp_directory *dir, const uint64_t *keys, size_t count, uint32_t *out) {
    for (size_t i = 0; i < count; i++) out[i] = partition_index(dir, keys[i]);
}

void sarp_directory_keys(const sarp_base *base, const uint8_t *ids, size_t count, uint32_t holder,
                         uint64_t name_space, uint64_t *out) {
    const key_seed seed = seed_of(base, holder, name_space);
    for (size_t i = 0; i < count; i++) out[i] = key_of(seed, ids + i * SARP_ID);
}
