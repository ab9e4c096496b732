/*
 * Rotary position encoding (Su et al., "RoFormer", 2021) of rows of attention keys: the two elements of a pair are
 * turned by the angle that the row's position gives them,
 *     first' = first * cos - second * sin,    second' = second * cos + first * sin,
 * in fp32 without fused operations, which is also what a model computes in fp32. Results are rounded to nearest, ties
 * to even; overflow is infinity, denormals are kept, and a NaN stays a NaN, which one is not said. The scalar path and
 * the others give the same bits for everything else.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

enum { SARP_ROPE_FLOAT32 = 0, SARP_ROPE_FLOAT16 = 1, SARP_ROPE_BFLOAT16 = 2 };
enum { SARP_ROPE_HEAD_DIM_MAX = 4096 };

/* How the first rotary_dim elements of a row pair up. NEOX: element i with i + rotary_dim / 2; INTERLEAVED: 2i with
   2i + 1; NONE: not at all, the row is copied (keys of a model without rotary encoding, and values). */
enum { SARP_ROPE_NONE = 0, SARP_ROPE_NEOX = 1, SARP_ROPE_INTERLEAVED = 2 };

/* Where rows stand: that of layer l, head h and token t at memory + l * layer + h * head + t * token, in bytes. Rows
   need no alignment. `bytes` is what the memory has, and no row may end behind it. */
typedef struct {
    uint8_t *memory;
    size_t bytes;
    size_t layer, head, token;
} sarp_rows;

/*
 * Rotates layers * heads * tokens rows of `head_dim` elements from `source` to `target`, the rest of each row behind
 * `rotary_dim` elements copied as it is.
 *   target       the very rows of `source`, or memory of which no byte lies between the source's first and last. Its
 *                strides are at least a row long
 *   cos, sin     (tokens, rotary_dim / 2) each, token for token those of the rows, all finite; NULL with SARP_ROPE_NONE
 *   head_dim     1 to SARP_ROPE_HEAD_DIM_MAX
 *   rotary_dim   even, 2 to head_dim; 0 with SARP_ROPE_NONE
 *   features     SARP_CPU_AVX2 selects AVX2, for SARP_ROPE_FLOAT16 together with SARP_CPU_F16C
 * Returns SARP_OK, or SARP_INVALID (an unknown dtype or style, a dimension or a row out of its bounds, a pointer
 * missing, an overlap) with nothing written.
 */
int32_t sarp_rope(uint32_t features, int32_t dtype, int32_t style, const sarp_rows *source, const sarp_rows *target,
                  const float *cos, const float *sin, size_t layers, size_t heads, size_t tokens, size_t head_dim,
                  size_t rotary_dim);

/*
 * The tables of `tokens` positions, by adding angles: position first + i is turned as far as coarse row
 * (first + i) / fine_rows and fine row (first + i) % fine_rows together. A cosine and a sine of each position would take
 * longer than rotating its keys.
 *   coarse_cos, coarse_sin   (coarse_rows, half)
 *   fine_cos, fine_sin       (fine_rows, half)
 *   cos, sin                 receive (tokens, half) each, computed in double and rounded once
 * Returns SARP_OK, or SARP_INVALID (a pointer missing, more positions than the rows have) with nothing written.
 */
int32_t sarp_rope_tables(const double *coarse_cos, const double *coarse_sin, size_t coarse_rows, const double *fine_cos,
                         const double *fine_sin, size_t fine_rows, size_t first, size_t tokens, size_t half, float *cos,
                         float *sin);
