#include "internal_rope.h"

#if defined(__x86_64__)
#include <immintrin.h>

/* The instructions of F16C stand only where dtype is SARP_ROPE_FLOAT16, and there the caller has found them. */
#define AVX2 __attribute__((target("avx2,f16c")))
#define AVX2_INLINE AVX2 __attribute__((always_inline)) static inline

/* Eight pairs: their first elements and their second ones. */
typedef struct {
    __m256 first, second;
} eight_pairs;

AVX2_INLINE __m128i load_128(const uint8_t *p) { return _mm_loadu_si128((const __m128i *)p); }
AVX2_INLINE __m256i load_256(const uint8_t *p) { return _mm256_loadu_si256((const __m256i *)p); }

/* `stream`: past the caches, to a multiple of 16 bytes, which is what memory allocators keep to. */
AVX2_INLINE void store_128(int stream, uint8_t *p, __m128i v) {
    if (stream) _mm_stream_si128((__m128i *)p, v);
    else _mm_storeu_si128((__m128i *)p, v);
}

AVX2_INLINE void store_256(int stream, uint8_t *p, __m256i v) {
    if (stream) {
        _mm_stream_si128((__m128i *)p, _mm256_castsi256_si128(v));
        _mm_stream_si128((__m128i *)(p + 16), _mm256_extracti128_si256(v, 1));
    } else {
        _mm256_storeu_si256((__m256i *)p, v);
    }
}

AVX2_INLINE eight_pairs turn(eight_pairs x, __m256 cos, __m256 sin) {
    return (eight_pairs){
        _mm256_sub_ps(_mm256_mul_ps(x.first, cos), _mm256_mul_ps(x.second, sin)),
        _mm256_add_ps(_mm256_mul_ps(x.second, cos), _mm256_mul_ps(x.first, sin)),
    };
}

/* Rounded to bfloat16, which stands in the upper half of each word; what the lower half holds is not said. A NaN stays
   one: of those that come of bfloat16 and finite tables, all are quiet, and the lower half of each is zero. */
AVX2_INLINE __m256i to_bfloats(__m256 v) {
    const __m256i bits = _mm256_castps_si256(v), one = _mm256_set1_epi32(1), half = _mm256_set1_epi32(0x7FFF);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), one);
    return _mm256_add_epi32(_mm256_add_epi32(bits, half), odd);
}

/* bfloat16 two by two in words: of each word the element below, and that above. */
AVX2_INLINE __m256 lower(__m256i words) { return _mm256_castsi256_ps(_mm256_slli_epi32(words, 16)); }
AVX2_INLINE __m256 upper(__m256i words) {
    return _mm256_castsi256_ps(_mm256_and_si256(words, _mm256_set1_epi32((int)0xFFFF0000u)));
}

/* Half of a bfloat16's last bit added: all of rounding but for ties, which then have nothing in the lower half. */
AVX2_INLINE __m256i half_up(__m256 v) { return _mm256_add_epi32(_mm256_castps_si256(v), _mm256_set1_epi32(0x8000)); }

AVX2_INLINE int any_tie(__m256i a, __m256i b) {
    const __m256i zero = _mm256_setzero_si256();
    const __m256i found = _mm256_or_si256(_mm256_cmpeq_epi16(a, zero), _mm256_cmpeq_epi16(b, zero));
    return (_mm256_movemask_epi8(found) & 0x33333333) != 0;
}

/* One number in 65,536 is a tie: to look for them and branch is less work than to round every number with its last bit. */
AVX2_INLINE __m256i in_words(__m256 lower, __m256 upper) {
    __m256i a = half_up(lower), b = half_up(upper);
    if (__builtin_expect(any_tie(a, b), 0)) {
        a = to_bfloats(lower);
        b = to_bfloats(upper);
    }
    return _mm256_blend_epi16(_mm256_srli_epi32(a, 16), b, 0xAA);
}

/* Each step below turns eight pairs, or sixteen. `s` and `t` are where the first of them stands in the source's and the
   target's row, `cos` and `sin` what they are turned by, and `half` bytes lie between the elements of a neox pair. */

AVX2_INLINE void float32_neox(int stream, const uint8_t *s, uint8_t *t, const float *cos, const float *sin, size_t half) {
    const eight_pairs x = {_mm256_loadu_ps((const float *)s), _mm256_loadu_ps((const float *)(s + half))};
    const eight_pairs turned = turn(x, _mm256_loadu_ps(cos), _mm256_loadu_ps(sin));
    store_256(stream, t, _mm256_castps_si256(turned.first));
    store_256(stream, t + half, _mm256_castps_si256(turned.second));
}

/* Shuffles work on each 128-bit lane: they take the pairs apart as 0 1 4 5 and 2 3 6 7. */
AVX2_INLINE void float32_interleaved(int stream, const uint8_t *s, uint8_t *t, const float *cos, const float *sin) {
    const __m256 low = _mm256_loadu_ps((const float *)s), high = _mm256_loadu_ps((const float *)(s + 32));
    const eight_pairs x = {_mm256_shuffle_ps(low, high, 0x88), _mm256_shuffle_ps(low, high, 0xDD)};
    const __m256d c = _mm256_castps_pd(_mm256_loadu_ps(cos)), n = _mm256_castps_pd(_mm256_loadu_ps(sin));
    const eight_pairs turned = turn(x, _mm256_castpd_ps(_mm256_permute4x64_pd(c, 0xD8)),
                                    _mm256_castpd_ps(_mm256_permute4x64_pd(n, 0xD8)));
    store_256(stream, t, _mm256_castps_si256(_mm256_unpacklo_ps(turned.first, turned.second)));
    store_256(stream, t + 32, _mm256_castps_si256(_mm256_unpackhi_ps(turned.first, turned.second)));
}

AVX2_INLINE void float16_neox(int stream, const uint8_t *s, uint8_t *t, const float *cos, const float *sin, size_t half) {
    const eight_pairs x = {_mm256_cvtph_ps(load_128(s)), _mm256_cvtph_ps(load_128(s + half))};
    const eight_pairs turned = turn(x, _mm256_loadu_ps(cos), _mm256_loadu_ps(sin));
    store_128(stream, t, _mm256_cvtps_ph(turned.first, _MM_FROUND_TO_NEAREST_INT));
    store_128(stream, t + half, _mm256_cvtps_ph(turned.second, _MM_FROUND_TO_NEAREST_INT));
}

AVX2_INLINE void float16_interleaved(int stream, const uint8_t *s, uint8_t *t, const float *cos, const float *sin) {
    /* Four first elements, then four second ones. */
    const __m128i apart = _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
    const __m128i low = _mm_shuffle_epi8(load_128(s), apart), high = _mm_shuffle_epi8(load_128(s + 16), apart);
    const eight_pairs x = {_mm256_cvtph_ps(_mm_unpacklo_epi64(low, high)), _mm256_cvtph_ps(_mm_unpackhi_epi64(low, high))};
    const eight_pairs turned = turn(x, _mm256_loadu_ps(cos), _mm256_loadu_ps(sin));
    const __m128i first = _mm256_cvtps_ph(turned.first, _MM_FROUND_TO_NEAREST_INT);
    const __m128i second = _mm256_cvtps_ph(turned.second, _MM_FROUND_TO_NEAREST_INT);
    store_128(stream, t, _mm_unpacklo_epi16(first, second));
    store_128(stream, t + 16, _mm_unpackhi_epi16(first, second));
}

/* Sixteen pairs: eight of even number and eight of odd number, as the tables have been arranged for. */
AVX2_INLINE void bfloat16_neox(int stream, const uint8_t *s, uint8_t *t, const float *cos, const float *sin, size_t half) {
    const __m256i first = load_256(s), second = load_256(s + half);
    const eight_pairs even = {lower(first), lower(second)}, odd = {upper(first), upper(second)};
    const eight_pairs turned_even = turn(even, _mm256_loadu_ps(cos), _mm256_loadu_ps(sin));
    const eight_pairs turned_odd = turn(odd, _mm256_loadu_ps(cos + 8), _mm256_loadu_ps(sin + 8));
    store_256(stream, t, in_words(turned_even.first, turned_odd.first));
    store_256(stream, t + half, in_words(turned_even.second, turned_odd.second));
}

AVX2_INLINE void bfloat16_interleaved(int stream, const uint8_t *s, uint8_t *t, const float *cos, const float *sin) {
    const __m256i words = load_256(s);
    const eight_pairs x = {lower(words), upper(words)};
    const eight_pairs turned = turn(x, _mm256_loadu_ps(cos), _mm256_loadu_ps(sin));
    store_256(stream, t, in_words(turned.first, turned.second));
}

enum { BFLOAT16_NEOX_PAIRS = 16, PAIRS = 8, PREFETCH_BYTES = 2048, CACHE_LINE = 64 };

AVX2_INLINE size_t step_pairs(int32_t dtype, int32_t style) {
    return dtype == SARP_ROPE_BFLOAT16 && style == SARP_ROPE_NEOX ? BFLOAT16_NEOX_PAIRS : PAIRS;
}

int sarp_rope_arranges_avx2(int32_t dtype, int32_t style) {
    return dtype == SARP_ROPE_BFLOAT16 && style == SARP_ROPE_NEOX;
}

void sarp_rope_arrange_avx2(const float *table, float *arranged, size_t rows, size_t half) {
    for (size_t row = 0; row < rows; row++, table += half, arranged += half) {
        size_t i = 0;
        for (; i + BFLOAT16_NEOX_PAIRS <= half; i += BFLOAT16_NEOX_PAIRS) {
            for (size_t k = 0; k < BFLOAT16_NEOX_PAIRS; k++)
                arranged[i + k / 2 + k % 2 * (BFLOAT16_NEOX_PAIRS / 2)] = table[i + k];
        }
        memcpy(arranged + i, table + i, (half - i) * sizeof *table);
    }
}

AVX2_INLINE void step(int32_t dtype, int32_t style, int stream, const uint8_t *s, uint8_t *t, const float *cos,
                      const float *sin, size_t half) {
    if (style == SARP_ROPE_NEOX) {
        if (dtype == SARP_ROPE_FLOAT32) float32_neox(stream, s, t, cos, sin, half);
        else if (dtype == SARP_ROPE_FLOAT16) float16_neox(stream, s, t, cos, sin, half);
        else bfloat16_neox(stream, s, t, cos, sin, half);
    } else {
        if (dtype == SARP_ROPE_FLOAT32) float32_interleaved(stream, s, t, cos, sin);
        else if (dtype == SARP_ROPE_FLOAT16) float16_interleaved(stream, s, t, cos, sin);
        else bfloat16_interleaved(stream, s, t, cos, sin);
    }
}

/* The CPU's own prefetching ends at each page's end and begins anew with each plane. Nothing is read: the address may lie
   behind the source. */
AVX2_INLINE void prefetch_row(const uint8_t *s, size_t bytes) {
    const uintptr_t ahead = (uintptr_t)s + PREFETCH_BYTES;
    for (size_t i = 0; i < bytes; i += CACHE_LINE) _mm_prefetch((const char *)(ahead + i), _MM_HINT_T0);
}

/* The rows of a run, with everything that a step depends on constant, and nothing read again that a store might change. */
AVX2_INLINE void rotate_rows(int32_t dtype, int32_t style, int stream, const sarp_rope_run *run) {
    const size_t item = dtype == SARP_ROPE_FLOAT32 ? 4 : 2, pairs = step_pairs(dtype, style), half = run->half;
    const size_t pair_bytes = style == SARP_ROPE_NEOX ? item : 2 * item, stepped = half - half % pairs;
    const size_t source_stride = run->source_stride, target_stride = run->target_stride;
    const uint8_t *s = run->source;
    uint8_t *t = run->target;
    const float *cos = run->cos, *sin = run->sin;
    for (size_t rows = run->rows; rows != 0; rows--) {
        prefetch_row(s, 2 * half * item);
        for (size_t i = 0; i < stepped; i += pairs)
            step(dtype, style, stream, s + i * pair_bytes, t + i * pair_bytes, cos + i, sin + i, half * item);
        if (stepped != half) sarp_rope_pairs(dtype, style, s, t, cos, sin, stepped, half);
        s += source_stride, t += target_stride, cos += half, sin += half;
    }
    if (stream) _mm_sfence();
}

#define ROTATE_ROWS(name, dtype, style) \
    AVX2 static void name##_rows(const sarp_rope_run *run) { rotate_rows(dtype, style, 0, run); } \
    AVX2 static void name##_stream(const sarp_rope_run *run) { rotate_rows(dtype, style, 1, run); }
ROTATE_ROWS(float32_neox, SARP_ROPE_FLOAT32, SARP_ROPE_NEOX)
ROTATE_ROWS(float32_interleaved, SARP_ROPE_FLOAT32, SARP_ROPE_INTERLEAVED)
ROTATE_ROWS(float16_neox, SARP_ROPE_FLOAT16, SARP_ROPE_NEOX)
ROTATE_ROWS(float16_interleaved, SARP_ROPE_FLOAT16, SARP_ROPE_INTERLEAVED)
ROTATE_ROWS(bfloat16_neox, SARP_ROPE_BFLOAT16, SARP_ROPE_NEOX)
ROTATE_ROWS(bfloat16_interleaved, SARP_ROPE_BFLOAT16, SARP_ROPE_INTERLEAVED)

typedef void (*rotate_function)(const sarp_rope_run *);

/* By dtype, style (neox first) and whether to stream. */
static const rotate_function ROTATE[3][2][2] = {
    {{float32_neox_rows, float32_neox_stream}, {float32_interleaved_rows, float32_interleaved_stream}},
    {{float16_neox_rows, float16_neox_stream}, {float16_interleaved_rows, float16_interleaved_stream}},
    {{bfloat16_neox_rows, bfloat16_neox_stream}, {bfloat16_interleaved_rows, bfloat16_interleaved_stream}},
};

static int aligned(const sarp_rope_run *run, size_t half_bytes) {
    const uintptr_t places = (uintptr_t)run->target | run->target_stride | half_bytes;
    return places % sizeof(__m128i) == 0;
}

void sarp_rope_run_avx2(int32_t dtype, int32_t style, int stream, const sarp_rope_run *run) {
    const int streams = stream && aligned(run, run->half * sarp_rope_item_bytes(dtype));
    ROTATE[dtype][style != SARP_ROPE_NEOX][streams](run);
}
#endif
