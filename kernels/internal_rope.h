/* What the paths of the rotary kernel share: a run of rows that stand at a fixed stride, and single elements. */
#pragma once
#include <string.h>

#include "rope.h"

/* The rows of one layer and head, for as many tokens as a tile has. */
typedef struct {
    const uint8_t *source;
    uint8_t *target;
    size_t source_stride, target_stride; /* bytes from row to row */
    const float *cos, *sin;
    size_t rows, half; /* half: rotary_dim / 2 */
} sarp_rope_run;

/* Adds what `count` items at this stride reach beyond the first one; 0 where that is no number of bytes. */
static inline int sarp_reach(size_t *bytes, size_t stride, size_t count) {
    size_t span;
    return !__builtin_mul_overflow(stride, count - 1, &span) && !__builtin_add_overflow(*bytes, span, bytes);
}

/* Bytes from the first row's begin to the last one's end; 0 where a row ends behind the memory. */
static inline size_t sarp_rows_extent(const sarp_rows *rows, size_t layers, size_t heads, size_t tokens,
                                      size_t row_bytes) {
    size_t bytes = row_bytes;
    if (rows->memory == NULL || !sarp_reach(&bytes, rows->layer, layers) || !sarp_reach(&bytes, rows->head, heads) ||
        !sarp_reach(&bytes, rows->token, tokens))
        return 0;
    return bytes <= rows->bytes ? bytes : 0;
}

/* Two rows of a target that share bytes would be wrong whichever is written last. */
static inline int sarp_rows_apart(const sarp_rows *t, size_t layers, size_t heads, size_t tokens, size_t row_bytes) {
    return (layers == 1 || t->layer >= row_bytes) && (heads == 1 || t->head >= row_bytes) &&
           (tokens == 1 || t->token >= row_bytes);
}

#define SARP_INLINE static inline __attribute__((always_inline))

static inline size_t sarp_rope_item_bytes(int32_t dtype) { return dtype == SARP_ROPE_FLOAT32 ? 4 : 2; }

static inline float sarp_float_of_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t sarp_bits_of_float(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* IEEE binary16 to binary32, exact. */
static inline float sarp_float_of_half(uint16_t half) {
    const uint32_t sign = (uint32_t)(half & 0x8000) << 16, exponent = half >> 10 & 31, fraction = half & 0x3FF;
    if (exponent == 31) return sarp_float_of_bits(sign | 0x7F800000u | fraction << 13);
    if (exponent == 0) { /* zero and denormals: fraction * 2^-24, which binary32 holds as a normal number */
        const float value = (float)fraction * 0x1p-24f;
        return sign ? -value : value;
    }
    return sarp_float_of_bits(sign | (exponent + 112) << 23 | fraction << 13);
}

/* IEEE binary32 to binary16, to nearest, ties to even. */
static inline uint16_t sarp_half_of_float(float value) {
    const uint32_t bits = sarp_bits_of_float(value), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7FFFFFFF;
    if (magnitude > 0x7F800000u) return (uint16_t)(sign | 0x7E00 | (magnitude >> 13 & 0x3FF));
    if (magnitude >= 0x477FF000u) return (uint16_t)(sign | 0x7C00); /* 65,520 and more, halfway past the greatest */
    if (magnitude < 0x38800000u) { /* below 2^-14: adding 1/2 rounds where a denormal's last bit is, 2^-24 */
        const float rounded = sarp_float_of_bits(magnitude) + 0.5f;
        return (uint16_t)(sign | (sarp_bits_of_float(rounded) - 0x3F000000u));
    }
    return (uint16_t)(sign | (magnitude - (112u << 23) + 0xFFF + (magnitude >> 13 & 1)) >> 13);
}

/* To bfloat16, the upper half of binary32, to nearest, ties to even. A NaN stays one where it is quiet and its lower half
   zero: so are all that come of bfloat16 and finite tables. */
static inline uint16_t sarp_bfloat_of_float(float value) {
    const uint32_t bits = sarp_bits_of_float(value);
    return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

SARP_INLINE float sarp_rope_load(int32_t dtype, const uint8_t *row, size_t i) {
    if (dtype == SARP_ROPE_FLOAT32) {
        float value;
        memcpy(&value, row + 4 * i, sizeof value);
        return value;
    }
    uint16_t value;
    memcpy(&value, row + 2 * i, sizeof value);
    return dtype == SARP_ROPE_FLOAT16 ? sarp_float_of_half(value) : sarp_float_of_bits((uint32_t)value << 16);
}

SARP_INLINE void sarp_rope_store(int32_t dtype, uint8_t *row, size_t i, float value) {
    if (dtype == SARP_ROPE_FLOAT32) {
        memcpy(row + 4 * i, &value, sizeof value);
        return;
    }
    const uint16_t narrow = dtype == SARP_ROPE_FLOAT16 ? sarp_half_of_float(value) : sarp_bfloat_of_float(value);
    memcpy(row + 2 * i, &narrow, sizeof narrow);
}

/* Pairs `begin` to `half` of one row. With constant dtype and style it compiles to what these need. */
SARP_INLINE void sarp_rope_pairs(int32_t dtype, int32_t style, const uint8_t *source, uint8_t *target, const float *cos,
                                 const float *sin, size_t begin, size_t half) {
    for (size_t i = begin; i < half; i++) {
        const size_t first = style == SARP_ROPE_NEOX ? i : 2 * i, second = style == SARP_ROPE_NEOX ? half + i : 2 * i + 1;
        const float x = sarp_rope_load(dtype, source, first), y = sarp_rope_load(dtype, source, second);
        sarp_rope_store(dtype, target, first, x * cos[i] - y * sin[i]);
        sarp_rope_store(dtype, target, second, y * cos[i] + x * sin[i]);
    }
}

#if defined(__x86_64__)
/* Whether this path wants the tables of a tile arranged, and how: row for row, the same number of elements. */
int sarp_rope_arranges_avx2(int32_t dtype, int32_t style);
void sarp_rope_arrange_avx2(const float *table, float *arranged, size_t rows, size_t half);

/* `stream`: what is written is not read soon, and is more than the caches hold. */
void sarp_rope_run_avx2(int32_t dtype, int32_t style, int stream, const sarp_rope_run *run);
#endif
