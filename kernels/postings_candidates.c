#include "cpu.h"
#include "internal_candidates.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* Bit i of the result says that entries[i] has n blocks or more. count <= 64. */
static uint64_t at_least_scalar(const sarp_posting *entries, uint32_t count, uint32_t n) {
    uint64_t bits = 0;
    for (uint32_t i = 0; i < count; i++) bits |= (uint64_t)(posting_n(entries + i) >= n) << i;
    return bits;
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static uint64_t at_least_avx2(const sarp_posting *entries, uint32_t count, uint32_t n) {
    const __m256i less = _mm256_set1_epi64x((long long)n - 2), field = _mm256_set1_epi64x(63);
    uint64_t bits = 0;
    uint32_t i = 0;
    for (; i + 4 <= count; i += 4) {
        const __m256i *source = (const __m256i *)(const void *)(entries + i);
        const __m256i a = _mm256_loadu_si256(source), b = _mm256_loadu_si256(source + 1), c = _mm256_loadu_si256(source + 2);
        /* word 0 of entries 0, 3, 2, 1, put in order */
        const __m256i mixed = _mm256_blend_epi32(_mm256_blend_epi32(a, b, 0x30), c, 0x0C);
        const __m256i words = _mm256_permute4x64_epi64(mixed, 0x6C);
        const __m256i more = _mm256_cmpgt_epi64(_mm256_and_si256(_mm256_srli_epi64(words, 10), field), less);
        bits |= (uint64_t)(uint32_t)_mm256_movemask_pd(_mm256_castsi256_pd(more)) << i;
    }
    return i < count ? bits | at_least_scalar(entries + i, count - i, n) << i : bits;
}
#endif

static uint64_t at_least(const sarp_postings *dir, const sarp_posting *entries, uint32_t count, uint32_t n) {
#if defined(__x86_64__)
    if (dir->base->features & SARP_CPU_AVX2) return at_least_avx2(entries, count, n);
#endif
    (void)dir;
    return at_least_scalar(entries, count, n);
}

/* Longer first, then newer. */
static int better(const sarp_base *base, const sarp_posting *a, const sarp_posting *b) {
    if (posting_n(a) != posting_n(b)) return posting_n(a) > posting_n(b);
    return position_of(base, posting_reference(a)) > position_of(base, posting_reference(b));
}

static void keep(const sarp_base *base, candidate_group *group, const sarp_posting *e) {
    if (group->count == group->limit) {
        if (!better(base, e, group->best + group->count - 1)) return;
        group->count--;
    }
    uint32_t i = group->count++;
    for (; i > 0 && better(base, e, group->best + i - 1); i--) group->best[i] = group->best[i - 1];
    group->best[i] = *e;
}

static void keep_run(const sarp_postings *dir, candidate_group *group, const sarp_posting *entries, uint32_t count) {
    const uint32_t least = group->count == group->limit ? posting_n(group->best + group->count - 1) : 1;
    for (uint64_t bits = at_least(dir, entries, count, least); bits; bits &= bits - 1) {
        const sarp_posting *e = entries + __builtin_ctzll(bits);
        if (!posting_is_state(e)) keep(dir->base, group, e);
    }
}

/* Looks at `count` elements from a spot on. */
static void keep_span(const sarp_postings *dir, candidate_group *group, spot at, uint64_t count) {
    while (count) {
        const sarp_posting_partition *part = partition_ranked(dir, at.rank);
        if (at.index >= part->entries) {
            at = (spot){at.rank + 1, 0};
            continue;
        }
        const uint32_t in_page = PAGE_POSTINGS - at.index % PAGE_POSTINGS, in_part = part->entries - at.index;
        uint32_t run = in_page < in_part ? in_page : in_part;
        if (run > count) run = (uint32_t)count;
        keep_run(dir, group, posting_at(dir, part, at.index), run);
        at.index += run;
        count -= run;
    }
}

static spot spot_forward(const sarp_postings *dir, spot at, uint64_t count) {
    for (;;) {
        const uint32_t left = partition_ranked(dir, at.rank)->entries - at.index;
        if (count <= left) return (spot){at.rank, at.index + (uint32_t)count};
        count -= left;
        at = (spot){at.rank + 1, 0};
    }
}

candidates candidates_of(const sarp_postings *dir, const posting_list *list, uint64_t filter) {
    const spot at = spot_lower(dir, (place){list->key, filter, 1}); /* behind a state */
    const int32_t equal = (int32_t)filter_length(filter);
    return (candidates){dir, list, filter, equal, equal < FINGERPRINTS, at, at};
}

void candidates_next(candidates *c, candidate_group *group) {
    const sarp_postings *dir = c->dir;
    const uint64_t others = c->equal ? UINT64_MAX >> (8 * c->equal - 1) >> 1 : UINT64_MAX, rest = c->same ? 0 : others;
    const uint64_t first = c->filter & ~rest, last = c->filter | rest;
    const spot low = spot_lower(dir, (place){c->list->key, first, 0});
    const spot high = last == UINT64_MAX ? c->list->end : spot_lower(dir, (place){c->list->key, last + 1, 0});
    const uint64_t before = spots_between(dir, low, c->low), behind = spots_between(dir, c->high, high);
    const uint64_t skipped = before > dir->tie_cap ? before - dir->tie_cap : 0;
    group->count = 0;
    keep_span(dir, group, spot_forward(dir, low, skipped), before - skipped);
    keep_span(dir, group, c->high, behind < dir->tie_cap ? behind : dir->tie_cap);
    c->low = low;
    c->high = high;
    c->equal -= !c->same;
    c->same = 0;
}
