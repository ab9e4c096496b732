#include "rope.h"

#include "cpu.h"
#include "internal_rope.h"
#include "types.h"

/* Bytes of cos and sin that a tile of tokens reads again for each layer and head: they stay in the L2 cache. Smaller tiles
   would stay in L1, and jump from plane to plane so often that the memory's order is lost. */
enum { TABLE_BYTES = 65536, TABLE_FLOATS = TABLE_BYTES / 2 / sizeof(float) };
_Static_assert(SARP_ROPE_HEAD_DIM_MAX / 2 <= TABLE_FLOATS, "a token's cos and sin fit a tile");

/* A target of more bytes than this is written past the caches: it would only drive out what they hold, and each of its
   lines would be read before it is written. */
enum { STREAM_BYTES = 4 << 20 };

typedef struct {
    int32_t dtype, style;
    int fast, stream;
    const sarp_rows *source, *target;
    const float *cos, *sin;
    size_t layers, heads, tokens, row_bytes, rotary_bytes, half;
} rope_job;

static void run_scalar(int32_t dtype, int32_t style, const sarp_rope_run *run) {
#define ROWS(dtype, style) \
    for (size_t i = 0; i < run->rows; i++) \
        sarp_rope_pairs(dtype, style, run->source + i * run->source_stride, run->target + i * run->target_stride, \
                        run->cos + i * run->half, run->sin + i * run->half, 0, run->half)
    const int neox = style == SARP_ROPE_NEOX;
    if (dtype == SARP_ROPE_FLOAT32 && neox) ROWS(SARP_ROPE_FLOAT32, SARP_ROPE_NEOX);
    else if (dtype == SARP_ROPE_FLOAT32) ROWS(SARP_ROPE_FLOAT32, SARP_ROPE_INTERLEAVED);
    else if (dtype == SARP_ROPE_FLOAT16 && neox) ROWS(SARP_ROPE_FLOAT16, SARP_ROPE_NEOX);
    else if (dtype == SARP_ROPE_FLOAT16) ROWS(SARP_ROPE_FLOAT16, SARP_ROPE_INTERLEAVED);
    else if (neox) ROWS(SARP_ROPE_BFLOAT16, SARP_ROPE_NEOX);
    else ROWS(SARP_ROPE_BFLOAT16, SARP_ROPE_INTERLEAVED);
#undef ROWS
}

/* Bytes `begin` to `end` of rows, in one piece where rows stand side by side. */
static void copy_rows(const sarp_rope_run *run, size_t begin, size_t end, size_t row_bytes) {
    if (run->source == run->target || begin == end) return;
    if (end - begin == row_bytes && run->source_stride == row_bytes && run->target_stride == row_bytes) {
        memcpy(run->target, run->source, run->rows * row_bytes);
        return;
    }
    for (size_t i = 0; i < run->rows; i++)
        memcpy(run->target + i * run->target_stride + begin, run->source + i * run->source_stride + begin, end - begin);
}

static void do_run(const rope_job *job, const sarp_rope_run *run) {
    copy_rows(run, job->rotary_bytes, job->row_bytes, job->row_bytes);
    if (run->half == 0) return;
#if defined(__x86_64__)
    if (job->fast) {
        sarp_rope_run_avx2(job->dtype, job->style, job->stream, run);
        return;
    }
#endif
    run_scalar(job->dtype, job->style, run);
}

static void do_planes(const rope_job *job, size_t first, sarp_rope_run *run) {
    const sarp_rows *s = job->source, *t = job->target;
    for (size_t layer = 0; layer < job->layers; layer++) {
        for (size_t head = 0; head < job->heads; head++) {
            run->source = s->memory + layer * s->layer + head * s->head + first * s->token;
            run->target = t->memory + layer * t->layer + head * t->head + first * t->token;
            do_run(job, run);
        }
    }
}

/* Tokens `first` and on, `rows` of them, of every layer and head. */
static void do_tile(const rope_job *job, size_t first, size_t rows) {
    sarp_rope_run run = {.source_stride = job->source->token, .target_stride = job->target->token, .rows = rows,
                         .half = job->half};
    if (run.half != 0) {
        run.cos = job->cos + first * job->half;
        run.sin = job->sin + first * job->half;
    }
#if defined(__x86_64__)
    float cos[TABLE_FLOATS], sin[TABLE_FLOATS];
    if (job->fast && sarp_rope_arranges_avx2(job->dtype, job->style)) {
        sarp_rope_arrange_avx2(run.cos, cos, rows, run.half);
        sarp_rope_arrange_avx2(run.sin, sin, rows, run.half);
        run.cos = cos;
        run.sin = sin;
    }
#endif
    do_planes(job, first, &run);
}

static int same_rows(const sarp_rows *a, const sarp_rows *b, size_t layers, size_t heads, size_t tokens) {
    return a->memory == b->memory && (layers == 1 || a->layer == b->layer) && (heads == 1 || a->head == b->head) &&
           (tokens == 1 || a->token == b->token);
}

static int places_are_right(const rope_job *job) {
    const sarp_rows *s = job->source, *t = job->target;
    const size_t source_bytes = sarp_rows_extent(s, job->layers, job->heads, job->tokens, job->row_bytes);
    const size_t target_bytes = sarp_rows_extent(t, job->layers, job->heads, job->tokens, job->row_bytes);
    if (source_bytes == 0 || target_bytes == 0) return 0;
    if (!sarp_rows_apart(t, job->layers, job->heads, job->tokens, job->row_bytes)) return 0;
    if (same_rows(s, t, job->layers, job->heads, job->tokens)) return 1;
    const uintptr_t a = (uintptr_t)s->memory, b = (uintptr_t)t->memory;
    return a < b ? b - a >= source_bytes : a - b >= target_bytes;
}

static int shape_is_right(int32_t dtype, int32_t style, const float *cos, const float *sin, size_t head_dim,
                          size_t rotary_dim) {
    if (dtype < SARP_ROPE_FLOAT32 || dtype > SARP_ROPE_BFLOAT16) return 0;
    if (head_dim == 0 || head_dim > SARP_ROPE_HEAD_DIM_MAX) return 0;
    if (style == SARP_ROPE_NONE) return rotary_dim == 0;
    if (style != SARP_ROPE_NEOX && style != SARP_ROPE_INTERLEAVED) return 0;
    return cos != NULL && sin != NULL && rotary_dim >= 2 && rotary_dim <= head_dim && rotary_dim % 2 == 0;
}

int32_t sarp_rope(uint32_t features, int32_t dtype, int32_t style, const sarp_rows *source, const sarp_rows *target,
                  const float *cos, const float *sin, size_t layers, size_t heads, size_t tokens, size_t head_dim,
                  size_t rotary_dim) {
    if (!shape_is_right(dtype, style, cos, sin, head_dim, rotary_dim)) return SARP_INVALID;
    if (layers == 0 || heads == 0 || tokens == 0) return SARP_OK;
    const uint32_t needed = dtype == SARP_ROPE_FLOAT16 ? SARP_CPU_AVX2 | SARP_CPU_F16C : SARP_CPU_AVX2;
    const size_t item_bytes = sarp_rope_item_bytes(dtype);
    rope_job job = {.dtype = dtype, .style = style, .fast = (features & needed) == needed, .source = source,
                          .target = target, .cos = cos, .sin = sin, .layers = layers, .heads = heads, .tokens = tokens,
                          .row_bytes = head_dim * item_bytes, .rotary_bytes = rotary_dim * item_bytes,
                          .half = rotary_dim / 2};
    if (source == NULL || target == NULL || !places_are_right(&job)) return SARP_INVALID;
    job.stream = source->memory != target->memory && layers * heads * tokens * job.row_bytes > STREAM_BYTES;
    const size_t tile = style == SARP_ROPE_NONE ? tokens : TABLE_FLOATS / job.half;
    for (size_t first = 0; first < tokens; first += tile)
        do_tile(&job, first, tokens - first < tile ? tokens - first : tile);
    return SARP_OK;
}

int32_t sarp_rope_tables(const double *coarse_cos, const double *coarse_sin, size_t coarse_rows, const double *fine_cos,
                         const double *fine_sin, size_t fine_rows, size_t first, size_t tokens, size_t half, float *cos,
                         float *sin) {
    size_t positions;
    if (coarse_cos == NULL || coarse_sin == NULL || fine_cos == NULL || fine_sin == NULL || cos == NULL || sin == NULL)
        return SARP_INVALID;
    if (__builtin_mul_overflow(coarse_rows, fine_rows, &positions)) return SARP_INVALID;
    if (first > positions || tokens > positions - first) return SARP_INVALID;
    for (size_t token = 0; token < tokens; token++, cos += half, sin += half) {
        const size_t coarse = (first + token) / fine_rows * half, fine = (first + token) % fine_rows * half;
        const double *c = coarse_cos + coarse, *s = coarse_sin + coarse, *fc = fine_cos + fine, *fs = fine_sin + fine;
        for (size_t i = 0; i < half; i++) {
            cos[i] = (float)(c[i] * fc[i] - s[i] * fs[i]);
            sin[i] = (float)(s[i] * fc[i] + c[i] * fs[i]);
        }
    }
    return SARP_OK;
}
