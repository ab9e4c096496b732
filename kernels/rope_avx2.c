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

/* Rounded to bfloat16, which stands in the upper half of each word; what the lower half holds is not said. */
AVX2_INLINE __m256i round_bfloats(__m256 v) {
    const __m256i bits = _mm256_castps_si256(v), one = _mm256_set1_epi32(1), half = _mm256_set1_epi32(0x7FFF);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), one);
    return _mm256_add_epi32(_mm256_add_epi32(bits, half), odd);
}

/* Rounding would carry a NaN over into infinity, or into zero. */
AVX2_INLINE __m256i keep_nans(__m256i rounded, __m256 v) {
    const __m256i quiet = _mm256_or_si256(_mm256_castps_si256(v), _mm256_set1_epi32(0x400000));
    const __m256 nan = _mm256_cmp_ps(v, v, _CMP_UNORD_Q);
    return _mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(nan));
}

/* NaNs are so rare that one look for two vectors is worth its branch. */
AVX2_INLINE void to_bfloats(eight_pairs p, __m256i *first, __m256i *second) {
    *first = round_bfloats(p.first);
    *second = round_bfloats(p.second);
    if (__builtin_expect(_mm256_movemask_ps(_mm256_cmp_ps(p.first, p.second, _CMP_UNORD_Q)) != 0, 0)) {
        *first = keep_nans(*first, p.first);
        *second = keep_nans(*second, p.second);
    }
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

/* Elements 0 to 3 and 8 to 11 of sixteen: what unpacking the lower half of each 128-bit lane gives of 16-bit elements. */
AVX2_INLINE __m256 every_other_four(const float *p) {
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(p)), _mm_loadu_ps(p + 8), 1);
}

AVX2_INLINE void bfloat16_neox(int stream, const uint8_t *s, uint8_t *t, const float *cos, const float *sin, size_t half) {
    const __m256i zero = _mm256_setzero_si256(), first = load_256(s), second = load_256(s + half);
    const eight_pairs x = {_mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, first)),
                           _mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, second))};
    const eight_pairs y = {_mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, first)),
                           _mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, second))};
    __m256i a, b, c, d;
    to_bfloats(turn(x, every_other_four(cos), every_other_four(sin)), &a, &b);
    to_bfloats(turn(y, every_other_four(cos + 4), every_other_four(sin + 4)), &c, &d);
    store_256(stream, t, _mm256_packus_epi32(_mm256_srli_epi32(a, 16), _mm256_srli_epi32(c, 16)));
    store_256(stream, t + half, _mm256_packus_epi32(_mm256_srli_epi32(b, 16), _mm256_srli_epi32(d, 16)));
}

/* A pair is a word, its second element above. */
AVX2_INLINE void bfloat16_interleaved(int stream, const uint8_t *s, uint8_t *t, const float *cos, const float *sin) {
    const __m256i words = load_256(s), second = _mm256_and_si256(words, _mm256_set1_epi32((int)0xFFFF0000u));
    const eight_pairs x = {_mm256_castsi256_ps(_mm256_slli_epi32(words, 16)), _mm256_castsi256_ps(second)};
    __m256i a, b;
    to_bfloats(turn(x, _mm256_loadu_ps(cos), _mm256_loadu_ps(sin)), &a, &b);
    store_256(stream, t, _mm256_blend_epi16(_mm256_srli_epi32(a, 16), b, 0xAA));
}

AVX2_INLINE size_t step_pairs(int32_t dtype, int32_t style) {
    return dtype == SARP_ROPE_BFLOAT16 && style == SARP_ROPE_NEOX ? 16 : 8;
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

/* The rows of a run, with everything that a step depends on constant. */
AVX2_INLINE void rotate_rows(int32_t dtype, int32_t style, int stream, const sarp_rope_run *run) {
    const size_t item = dtype == SARP_ROPE_FLOAT32 ? 4 : 2, pairs = step_pairs(dtype, style), half = run->half;
    const size_t pair_bytes = style == SARP_ROPE_NEOX ? item : 2 * item;
    for (size_t row = 0; row < run->rows; row++) {
        const uint8_t *s = run->source + row * run->source_stride;
        uint8_t *t = run->target + row * run->target_stride;
        const float *cos = run->cos + row * half, *sin = run->sin + row * half;
        size_t i = 0;
        for (; i + pairs <= half; i += pairs)
            step(dtype, style, stream, s + i * pair_bytes, t + i * pair_bytes, cos + i, sin + i, half * item);
        sarp_rope_pairs(dtype, style, s, t, cos, sin, i, half);
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
