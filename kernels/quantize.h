/*
 * Keys and values with one byte an element. Each channel, an element's place in the rows of one layer and head, has a
 * scale, and a code stands for its value over that scale: an integer from -127 to 127, or an 8-bit float E4M3 (4 bits of
 * exponent, bias 7, 3 of fraction; no infinities, 448 the greatest: "OCP 8-bit Floating Point Specification", 2023). The
 * scale is the greatest magnitude of the channel over 127 or 448, rounded so that the greatest code stands for no more;
 * at least 2^-126, and 0 where all elements are 0. Codes are rounded to nearest, ties to even. In fp32 without fused
 * operations: all paths give the same bits.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "rope.h"

enum { SARP_CODES_INT8 = 0, SARP_CODES_FP8 = 1 };

/*
 * Encodes layers * heads * tokens rows of `head_dim` elements.
 *   dtype     of the rows: SARP_ROPE_FLOAT32, SARP_ROPE_FLOAT16 or SARP_ROPE_BFLOAT16
 *   kind      SARP_CODES_INT8 or SARP_CODES_FP8
 *   scales    receive (layers, heads, head_dim)
 *   codes     receive (layers, heads, tokens, head_dim)
 *   head_dim  1 to SARP_ROPE_HEAD_DIM_MAX
 *   features  SARP_CPU_F16C selects its instructions for SARP_ROPE_FLOAT16
 * Returns SARP_OK; SARP_INFINITE where an element is infinite or no number, which no code stands for: what was written
 * counts for nothing; or SARP_INVALID (an unknown dtype or kind, a dimension or a row out of its bounds, a pointer
 * missing) with nothing written.
 */
int32_t sarp_quantize(uint32_t features, int32_t dtype, int32_t kind, const sarp_rows *source, size_t layers, size_t heads,
                      size_t tokens, size_t head_dim, float *scales, uint8_t *codes);

/*
 * The rows that such codes stand for, rounded to the dtype. Arguments as above; the strides of `target` are at least a
 * row long. Codes and scales may be any: what no encoder makes gives some elements. Returns SARP_OK, or SARP_INVALID
 * with nothing written.
 */
int32_t sarp_dequantize(uint32_t features, int32_t dtype, int32_t kind, const float *scales, const uint8_t *codes,
                        const sarp_rows *target, size_t layers, size_t heads, size_t tokens, size_t head_dim);
