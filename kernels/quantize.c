#include "quantize.h"

#include "cpu.h"
#include "internal_rope.h"
#include "types.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define F16C __attribute__((target("avx,f16c")))
enum { HALVES = 8 };
#endif

enum { ROW_MAX = SARP_ROPE_HEAD_DIM_MAX, INT8_GREATEST = 127, FP8_CODES = 256, FP8_GREATEST = 0x7E };
static const float FP8_GREATEST_VALUE = 448.0f, SCALE_LEAST = 0x1p-126f;
static const uint32_t MAGNITUDE = 0x7FFFFFFF, INFINITE = 0x7F800000;

typedef struct {
    int32_t dtype, kind;
    int f16c;
    size_t layers, heads, tokens, head_dim;
} shape;

/* --- rows as fp32 */

#if defined(__x86_64__)
F16C static void load_halves(const uint8_t *row, float *values, size_t count) {
    size_t i = 0;
    for (; i + HALVES <= count; i += HALVES)
        _mm256_storeu_ps(values + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(row + 2 * i))));
    for (; i < count; i++) values[i] = sarp_rope_load(SARP_ROPE_FLOAT16, row, i);
}

F16C static void store_halves(const float *values, uint8_t *row, size_t count) {
    size_t i = 0;
    for (; i + HALVES <= count; i += HALVES)
        _mm_storeu_si128((__m128i *)(row + 2 * i),
                         _mm256_cvtps_ph(_mm256_loadu_ps(values + i), _MM_FROUND_TO_NEAREST_INT));
    for (; i < count; i++) sarp_rope_store(SARP_ROPE_FLOAT16, row, i, values[i]);
}
#endif

static void load_row(const shape *s, const uint8_t *row, float *values) {
#if defined(__x86_64__)
    if (s->f16c) {
        load_halves(row, values, s->head_dim);
        return;
    }
#endif
#define LOAD(dtype) \
    for (size_t i = 0; i < s->head_dim; i++) values[i] = sarp_rope_load(dtype, row, i)
    if (s->dtype == SARP_ROPE_FLOAT32) LOAD(SARP_ROPE_FLOAT32);
    else if (s->dtype == SARP_ROPE_FLOAT16) LOAD(SARP_ROPE_FLOAT16);
    else LOAD(SARP_ROPE_BFLOAT16);
#undef LOAD
}

static void store_row(const shape *s, const float *values, uint8_t *row) {
#if defined(__x86_64__)
    if (s->f16c) {
        store_halves(values, row, s->head_dim);
        return;
    }
#endif
#define STORE(dtype) \
    for (size_t i = 0; i < s->head_dim; i++) sarp_rope_store(dtype, row, i, values[i])
    if (s->dtype == SARP_ROPE_FLOAT32) STORE(SARP_ROPE_FLOAT32);
    else if (s->dtype == SARP_ROPE_FLOAT16) STORE(SARP_ROPE_FLOAT16);
    else STORE(SARP_ROPE_BFLOAT16);
#undef STORE
}

/* --- codes */

/* To the nearest integer, ties to even, of magnitudes far below 2^22: adding 1.5 * 2^23 rounds where the last bit is 1. */
static inline int32_t nearest(float value) {
    return (int32_t)(sarp_bits_of_float(value + 0x1.8p23f) - sarp_bits_of_float(0x1.8p23f));
}

static inline uint8_t int8_of(float value) {
    int32_t code = nearest(value);
    code = code > INT8_GREATEST ? INT8_GREATEST : code;
    return (uint8_t)(code < -INT8_GREATEST ? -INT8_GREATEST : code);
}

/* E4M3 of a magnitude of about 448 or less. Below 2^-6 its steps are of 2^-9, which adding 2^14 rounds to; above, three
   bits of fraction stay. */
static inline uint8_t fp8_of(float value) {
    const uint32_t bits = sarp_bits_of_float(value), sign = bits >> 24 & 0x80, magnitude = bits & MAGNITUDE;
    const uint32_t small = sarp_bits_of_float(sarp_float_of_bits(magnitude) + 0x1p14f) - sarp_bits_of_float(0x1p14f);
    const uint32_t rounded = (magnitude + 0x7FFFF + (magnitude >> 20 & 1)) >> 20;
    const uint32_t code = sarp_float_of_bits(magnitude) < 0x1p-6f ? small : rounded - ((127 - 7) << 3);
    return (uint8_t)(sign | (code > FP8_GREATEST ? FP8_GREATEST : code));
}

/* What stands in a table of all codes: 0x7F and 0xFF are no numbers. */
static void fill_fp8(float *table) {
    for (uint32_t code = 0; code < FP8_CODES; code++) {
        const uint32_t exponent = code >> 3 & 15, fraction = code & 7;
        float value = exponent == 0 ? (float)fraction * 0x1p-9f
                                    : sarp_float_of_bits((exponent + 127 - 7) << 23 | fraction << 20);
        if ((code & 0x7F) == 0x7F) value = sarp_float_of_bits(INFINITE | 1u << 22);
        table[code] = code & 0x80 ? -value : value;
    }
}

/* So that no code stands for more than the greatest magnitude, which may be the greatest that there is. */
static inline float scale_of(float greatest, float codes) {
    if (greatest == 0) return 0;
    float scale = greatest / codes;
    if (scale * codes > greatest) scale = sarp_float_of_bits(sarp_bits_of_float(scale) - 1);
    return scale < SCALE_LEAST ? SCALE_LEAST : scale;
}

/* --- planes: the rows of one layer and head */

static int scales_of_plane(const shape *s, const uint8_t *rows, size_t stride, float *scales) {
    uint32_t greatest[ROW_MAX] = {0}, most = 0;
    float values[ROW_MAX];
    for (size_t token = 0; token < s->tokens; token++) {
        load_row(s, rows + token * stride, values);
        for (size_t i = 0; i < s->head_dim; i++) {
            const uint32_t magnitude = sarp_bits_of_float(values[i]) & MAGNITUDE;
            greatest[i] = magnitude > greatest[i] ? magnitude : greatest[i];
        }
    }
    const float codes = s->kind == SARP_CODES_INT8 ? (float)INT8_GREATEST : FP8_GREATEST_VALUE;
    for (size_t i = 0; i < s->head_dim; i++) {
        most = greatest[i] > most ? greatest[i] : most;
        scales[i] = scale_of(sarp_float_of_bits(greatest[i]), codes);
    }
    return most < INFINITE;
}

static void encode_plane(const shape *s, const uint8_t *rows, size_t stride, const float *scales, uint8_t *codes) {
    float values[ROW_MAX], divisors[ROW_MAX];
    for (size_t i = 0; i < s->head_dim; i++) divisors[i] = scales[i] == 0 ? 1.0f : scales[i];
    for (size_t token = 0; token < s->tokens; token++, codes += s->head_dim) {
        load_row(s, rows + token * stride, values);
        for (size_t i = 0; i < s->head_dim; i++) values[i] /= divisors[i];
        if (s->kind == SARP_CODES_INT8) {
            for (size_t i = 0; i < s->head_dim; i++) codes[i] = int8_of(values[i]);
        } else {
            for (size_t i = 0; i < s->head_dim; i++) codes[i] = fp8_of(values[i]);
        }
    }
}

static void decode_plane(const shape *s, const float *table, const float *scales, const uint8_t *codes, uint8_t *rows,
                         size_t stride) {
    float values[ROW_MAX];
    for (size_t token = 0; token < s->tokens; token++, codes += s->head_dim) {
        if (s->kind == SARP_CODES_INT8) {
            for (size_t i = 0; i < s->head_dim; i++) values[i] = (float)(int8_t)codes[i] * scales[i];
        } else {
            for (size_t i = 0; i < s->head_dim; i++) values[i] = table[codes[i]] * scales[i];
        }
        store_row(s, values, rows + token * stride);
    }
}

/* --- all of them */

/* Whether the shape is one, and these are rows of it. */
static int fits(const shape *s, const sarp_rows *rows, const void *scales, const void *codes) {
    if (s->dtype < SARP_ROPE_FLOAT32 || s->dtype > SARP_ROPE_BFLOAT16) return 0;
    if (s->kind != SARP_CODES_INT8 && s->kind != SARP_CODES_FP8) return 0;
    if (s->head_dim == 0 || s->head_dim > SARP_ROPE_HEAD_DIM_MAX) return 0;
    if (s->layers == 0 || s->heads == 0 || s->tokens == 0) return 1;
    if (rows == NULL || scales == NULL || codes == NULL) return 0;
    const size_t row_bytes = s->head_dim * sarp_rope_item_bytes(s->dtype);
    return sarp_rows_extent(rows, s->layers, s->heads, s->tokens, row_bytes) != 0;
}

static shape shape_of(uint32_t features, int32_t dtype, int32_t kind, size_t layers, size_t heads, size_t tokens,
                      size_t head_dim) {
    const int f16c = dtype == SARP_ROPE_FLOAT16 && (features & SARP_CPU_F16C) && (features & SARP_CPU_AVX2);
    return (shape){dtype, kind, f16c, layers, heads, tokens, head_dim};
}

int32_t sarp_quantize(uint32_t features, int32_t dtype, int32_t kind, const sarp_rows *source, size_t layers, size_t heads,
                      size_t tokens, size_t head_dim, float *scales, uint8_t *codes) {
    const shape s = shape_of(features, dtype, kind, layers, heads, tokens, head_dim);
    if (!fits(&s, source, scales, codes)) return SARP_INVALID;
    if (tokens == 0) return SARP_OK;
    for (size_t layer = 0; layer < layers; layer++) {
        for (size_t head = 0; head < heads; head++) {
            const uint8_t *rows = source->memory + layer * source->layer + head * source->head;
            if (!scales_of_plane(&s, rows, source->token, scales)) return SARP_INFINITE;
            encode_plane(&s, rows, source->token, scales, codes);
            scales += head_dim;
            codes += tokens * head_dim;
        }
    }
    return SARP_OK;
}

int32_t sarp_dequantize(uint32_t features, int32_t dtype, int32_t kind, const float *scales, const uint8_t *codes,
                        const sarp_rows *target, size_t layers, size_t heads, size_t tokens, size_t head_dim) {
    const shape s = shape_of(features, dtype, kind, layers, heads, tokens, head_dim);
    if (!fits(&s, target, scales, codes)) return SARP_INVALID;
    if (layers == 0 || heads == 0 || tokens == 0) return SARP_OK;
    if (!sarp_rows_apart(target, layers, heads, tokens, head_dim * sarp_rope_item_bytes(dtype))) return SARP_INVALID;
    float table[FP8_CODES];
    fill_fp8(table);
    for (size_t layer = 0; layer < layers; layer++) {
        for (size_t head = 0; head < heads; head++) {
            uint8_t *rows = target->memory + layer * target->layer + head * target->head;
            decode_plane(&s, table, scales, codes, rows, target->token);
            scales += head_dim;
            codes += tokens * head_dim;
        }
    }
    return SARP_OK;
}
