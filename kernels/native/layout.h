/* Generated from blink/engine/native/layout.py by `make generate`. Do not edit. */
#ifndef BLINK_NATIVE_LAYOUT_H
#define BLINK_NATIVE_LAYOUT_H
#ifndef __CUDACC_RTC__
#include <cstdint>
#endif
#include "native/types.cuh"
#include "seam/batch_layout.h"
namespace blink {

constexpr uint32_t MAX_HEAD_DIM = 0x80;

constexpr uint32_t ROW_THREADS = 0x100;
constexpr uint32_t ROW_HEADS = 0x8;
constexpr uint32_t ROW_EACH = 0x8;

constexpr uint32_t CHECK_THREADS = 0x80;

constexpr uint32_t DECODE_WARPS = 0x4;
constexpr uint32_t DECODE_THREADS = 0x80;
constexpr uint32_t DECODE_SPLIT = 0x80;
constexpr uint32_t DECODE_HEADS = 0x8;
constexpr uint32_t DECODE_RECORD = 0x4;
constexpr uint32_t DECODE_SPREAD = 0x8;

constexpr uint32_t PREFILL_COMPUTING = 0x100;
constexpr uint32_t PREFILL_COPYING = 0x80;
constexpr uint32_t PREFILL_THREADS = 0x180;
constexpr uint32_t PREFILL_PAIRS = 0x80;
constexpr uint32_t PREFILL_POSITIONS = 0x80;

constexpr uint32_t SWIZZLED_NUMBERS = 0x40;
constexpr uint32_t SWIZZLED_ROW = 0x80;

constexpr uint32_t TILE_ALIGN = 0x400;

constexpr uint32_t SAMPLE_CLUSTER = 0x8;
constexpr uint32_t SAMPLE_WARPS = 0x10;
constexpr uint32_t SAMPLE_THREADS = 0x200;

constexpr uint32_t LINEAR_SPLITS = 0x8;
constexpr uint32_t LINEAR_OUTPUTS = 0x10;
constexpr uint32_t LINEAR_CHUNK = 0x20;
constexpr uint32_t LINEAR_ROWS = 0x8;
constexpr uint32_t LINEAR_NORMED = 0x2;
constexpr uint32_t LINEAR_SUMS = 0x2;

/* what the check of a step leaves for the other kernels and for the next step; zero at first */
struct StepState {
    StepControl checked;
    uint32_t bad;  /* while blocks still check */
    uint32_t ticket;  /* blocks that have checked */
    uint32_t error;  /* of this step */
    uint8_t reserved0[4];
};
static_assert(sizeof(StepState) == 80, "StepState");
static_assert(__builtin_offsetof(StepState, checked) == 0, "StepState.checked");
static_assert(__builtin_offsetof(StepState, bad) == 64, "StepState.bad");
static_assert(__builtin_offsetof(StepState, ticket) == 68, "StepState.ticket");
static_assert(__builtin_offsetof(StepState, error) == 72, "StepState.error");

/* what a step may have */
struct StepLimits {
    uint32_t rows;  /* of this graph */
    uint32_t tokens;
    uint32_t decode;  /* every row has one token */
    uint32_t vocab;
    uint32_t context;
    uint32_t page_tokens;
    uint32_t pages;
    uint32_t lanes;
    uint32_t lane_pages;
};
static_assert(sizeof(StepLimits) == 36, "StepLimits");
static_assert(__builtin_offsetof(StepLimits, rows) == 0, "StepLimits.rows");
static_assert(__builtin_offsetof(StepLimits, tokens) == 4, "StepLimits.tokens");
static_assert(__builtin_offsetof(StepLimits, decode) == 8, "StepLimits.decode");
static_assert(__builtin_offsetof(StepLimits, vocab) == 12, "StepLimits.vocab");
static_assert(__builtin_offsetof(StepLimits, context) == 16, "StepLimits.context");
static_assert(__builtin_offsetof(StepLimits, page_tokens) == 20, "StepLimits.page_tokens");
static_assert(__builtin_offsetof(StepLimits, pages) == 24, "StepLimits.pages");
static_assert(__builtin_offsetof(StepLimits, lanes) == 28, "StepLimits.lanes");
static_assert(__builtin_offsetof(StepLimits, lane_pages) == 32, "StepLimits.lane_pages");

/* of native_check */
struct CheckArguments {
    Batch batch;
    StepLimits limits;
    uint8_t reserved0[4];
    StepState *state;
};
static_assert(sizeof(CheckArguments) == 168, "CheckArguments");
static_assert(__builtin_offsetof(CheckArguments, batch) == 0, "CheckArguments.batch");
static_assert(__builtin_offsetof(CheckArguments, limits) == 120, "CheckArguments.limits");
static_assert(__builtin_offsetof(CheckArguments, state) == 160, "CheckArguments.state");

/* of native_done */
struct DoneArguments {
    StepControl *control;
    const StepState *state;
};
static_assert(sizeof(DoneArguments) == 16, "DoneArguments");
static_assert(__builtin_offsetof(DoneArguments, control) == 0, "DoneArguments.control");
static_assert(__builtin_offsetof(DoneArguments, state) == 8, "DoneArguments.state");

/* of native_embed */
struct EmbedArguments {
    const real *table;
    uint32_t stride;
    uint8_t reserved0[4];
    const int32_t *ids;
    const uint32_t *count;  /* how many tokens, or rows, there are */
    float *x;
    uint32_t width;
    uint8_t reserved1[4];
};
static_assert(sizeof(EmbedArguments) == 48, "EmbedArguments");
static_assert(__builtin_offsetof(EmbedArguments, table) == 0, "EmbedArguments.table");
static_assert(__builtin_offsetof(EmbedArguments, stride) == 8, "EmbedArguments.stride");
static_assert(__builtin_offsetof(EmbedArguments, ids) == 16, "EmbedArguments.ids");
static_assert(__builtin_offsetof(EmbedArguments, count) == 24, "EmbedArguments.count");
static_assert(__builtin_offsetof(EmbedArguments, x) == 32, "EmbedArguments.x");
static_assert(__builtin_offsetof(EmbedArguments, width) == 40, "EmbedArguments.width");

/* of native_norm */
struct NormArguments {
    const float *x;
    const float *weight;
    float eps;
    uint8_t reserved0[4];
    real *y;
    uint32_t width;
    uint32_t stride;
    const uint32_t *count;  /* how many tokens, or rows, there are */
    const int32_t *ends;  /* row_start, or null: of every token */
};
static_assert(sizeof(NormArguments) == 56, "NormArguments");
static_assert(__builtin_offsetof(NormArguments, x) == 0, "NormArguments.x");
static_assert(__builtin_offsetof(NormArguments, weight) == 8, "NormArguments.weight");
static_assert(__builtin_offsetof(NormArguments, eps) == 16, "NormArguments.eps");
static_assert(__builtin_offsetof(NormArguments, y) == 24, "NormArguments.y");
static_assert(__builtin_offsetof(NormArguments, width) == 32, "NormArguments.width");
static_assert(__builtin_offsetof(NormArguments, stride) == 36, "NormArguments.stride");
static_assert(__builtin_offsetof(NormArguments, count) == 40, "NormArguments.count");
static_assert(__builtin_offsetof(NormArguments, ends) == 48, "NormArguments.ends");

/* how queries and keys of one layer are rotated, and where its cache is */
struct Rotary {
    const float *cos;  /* [context][dim / 2], sin too */
    const float *sin;
    const float *q_norm;  /* [head_dim], or null */
    const float *k_norm;
    const int32_t *positions;  /* of each token */
    const int32_t *kv_index;  /* of each token */
    real *keys;  /* [pages][kv_heads][page_tokens][head_dim], values too */
    real *values;
    float eps;
    uint32_t dim;
    uint32_t heads;
    uint32_t kv_heads;
    uint32_t head_dim;
    uint32_t page_tokens;
};
static_assert(sizeof(Rotary) == 88, "Rotary");
static_assert(__builtin_offsetof(Rotary, cos) == 0, "Rotary.cos");
static_assert(__builtin_offsetof(Rotary, sin) == 8, "Rotary.sin");
static_assert(__builtin_offsetof(Rotary, q_norm) == 16, "Rotary.q_norm");
static_assert(__builtin_offsetof(Rotary, k_norm) == 24, "Rotary.k_norm");
static_assert(__builtin_offsetof(Rotary, positions) == 32, "Rotary.positions");
static_assert(__builtin_offsetof(Rotary, kv_index) == 40, "Rotary.kv_index");
static_assert(__builtin_offsetof(Rotary, keys) == 48, "Rotary.keys");
static_assert(__builtin_offsetof(Rotary, values) == 56, "Rotary.values");
static_assert(__builtin_offsetof(Rotary, eps) == 64, "Rotary.eps");
static_assert(__builtin_offsetof(Rotary, dim) == 68, "Rotary.dim");
static_assert(__builtin_offsetof(Rotary, heads) == 72, "Rotary.heads");
static_assert(__builtin_offsetof(Rotary, kv_heads) == 76, "Rotary.kv_heads");
static_assert(__builtin_offsetof(Rotary, head_dim) == 80, "Rotary.head_dim");
static_assert(__builtin_offsetof(Rotary, page_tokens) == 84, "Rotary.page_tokens");

/* of native_rotate */
struct RotateArguments {
    Rotary rotary;
    real *qkv;
    uint32_t stride;
    uint8_t reserved0[4];
    const uint32_t *count;  /* how many tokens, or rows, there are */
};
static_assert(sizeof(RotateArguments) == 112, "RotateArguments");
static_assert(__builtin_offsetof(RotateArguments, rotary) == 0, "RotateArguments.rotary");
static_assert(__builtin_offsetof(RotateArguments, qkv) == 88, "RotateArguments.qkv");
static_assert(__builtin_offsetof(RotateArguments, stride) == 96, "RotateArguments.stride");
static_assert(__builtin_offsetof(RotateArguments, count) == 104, "RotateArguments.count");

/* of native_swiglu */
struct SwigluArguments {
    const real *both;  /* [tokens][gate, then up] */
    real *y;
    uint32_t width;
    uint32_t both_stride;
    uint32_t stride;
    uint8_t reserved0[4];
    const uint32_t *count;  /* how many tokens, or rows, there are */
};
static_assert(sizeof(SwigluArguments) == 40, "SwigluArguments");
static_assert(__builtin_offsetof(SwigluArguments, both) == 0, "SwigluArguments.both");
static_assert(__builtin_offsetof(SwigluArguments, y) == 8, "SwigluArguments.y");
static_assert(__builtin_offsetof(SwigluArguments, width) == 16, "SwigluArguments.width");
static_assert(__builtin_offsetof(SwigluArguments, both_stride) == 20, "SwigluArguments.both_stride");
static_assert(__builtin_offsetof(SwigluArguments, stride) == 24, "SwigluArguments.stride");
static_assert(__builtin_offsetof(SwigluArguments, count) == 32, "SwigluArguments.count");

/* of native_bias: y is 16 bits, or float32 where `wide` is given instead */
struct BiasArguments {
    real *y;
    float *wide;
    const float *bias;
    uint32_t width;
    uint32_t stride;
    const uint32_t *count;  /* how many tokens, or rows, there are */
};
static_assert(sizeof(BiasArguments) == 40, "BiasArguments");
static_assert(__builtin_offsetof(BiasArguments, y) == 0, "BiasArguments.y");
static_assert(__builtin_offsetof(BiasArguments, wide) == 8, "BiasArguments.wide");
static_assert(__builtin_offsetof(BiasArguments, bias) == 16, "BiasArguments.bias");
static_assert(__builtin_offsetof(BiasArguments, width) == 24, "BiasArguments.width");
static_assert(__builtin_offsetof(BiasArguments, stride) == 28, "BiasArguments.stride");
static_assert(__builtin_offsetof(BiasArguments, count) == 32, "BiasArguments.count");

/* of native_random: fills w, or `wide` where that is given instead */
struct RandomArguments {
    real *w;
    float *wide;
    uint64_t rows;
    uint32_t width;
    uint32_t stride;
    uint64_t seed;
    float bound;
    float middle;
};
static_assert(sizeof(RandomArguments) == 48, "RandomArguments");
static_assert(__builtin_offsetof(RandomArguments, w) == 0, "RandomArguments.w");
static_assert(__builtin_offsetof(RandomArguments, wide) == 8, "RandomArguments.wide");
static_assert(__builtin_offsetof(RandomArguments, rows) == 16, "RandomArguments.rows");
static_assert(__builtin_offsetof(RandomArguments, width) == 24, "RandomArguments.width");
static_assert(__builtin_offsetof(RandomArguments, stride) == 28, "RandomArguments.stride");
static_assert(__builtin_offsetof(RandomArguments, seed) == 32, "RandomArguments.seed");
static_assert(__builtin_offsetof(RandomArguments, bound) == 40, "RandomArguments.bound");
static_assert(__builtin_offsetof(RandomArguments, middle) == 44, "RandomArguments.middle");

/* of linear layers for few rows; null is what a kernel does not take */
struct LinearArguments {
    const real *w;
    const real *x;
    void *y;  /* STORE, SILU, ROTATE: real; RESIDUAL, LOGITS: float */
    const float *bias;  /* [outputs], or null */
    uint32_t outputs;  /* rows of W; SILU: of gate, and as many of up follow; ROTATE: pairs of rows */
    uint32_t k;
    uint32_t x_stride;
    uint32_t y_stride;
    const uint32_t *rows;  /* of x, on the device */
    uint32_t share;  /* outputs of a block, a multiple of 8 */
    uint32_t width;  /* of a row that x is the norm of; these are `width` apart */
    const float *normed;  /* those rows */
    const float *weight;
    float eps;
    uint8_t reserved0[4];
    Rotary rotary;  /* for ROTATE; it rotates whole heads, which have no norms */
};
static_assert(sizeof(LinearArguments) == 176, "LinearArguments");
static_assert(__builtin_offsetof(LinearArguments, w) == 0, "LinearArguments.w");
static_assert(__builtin_offsetof(LinearArguments, x) == 8, "LinearArguments.x");
static_assert(__builtin_offsetof(LinearArguments, y) == 16, "LinearArguments.y");
static_assert(__builtin_offsetof(LinearArguments, bias) == 24, "LinearArguments.bias");
static_assert(__builtin_offsetof(LinearArguments, outputs) == 32, "LinearArguments.outputs");
static_assert(__builtin_offsetof(LinearArguments, k) == 36, "LinearArguments.k");
static_assert(__builtin_offsetof(LinearArguments, x_stride) == 40, "LinearArguments.x_stride");
static_assert(__builtin_offsetof(LinearArguments, y_stride) == 44, "LinearArguments.y_stride");
static_assert(__builtin_offsetof(LinearArguments, rows) == 48, "LinearArguments.rows");
static_assert(__builtin_offsetof(LinearArguments, share) == 56, "LinearArguments.share");
static_assert(__builtin_offsetof(LinearArguments, width) == 60, "LinearArguments.width");
static_assert(__builtin_offsetof(LinearArguments, normed) == 64, "LinearArguments.normed");
static_assert(__builtin_offsetof(LinearArguments, weight) == 72, "LinearArguments.weight");
static_assert(__builtin_offsetof(LinearArguments, eps) == 80, "LinearArguments.eps");
static_assert(__builtin_offsetof(LinearArguments, rotary) == 88, "LinearArguments.rotary");

/* of attention */
struct AttentionArguments {
    Batch batch;
    const real *q;  /* [tokens][q_stride], from the first query head on */
    uint64_t q_stride;
    const real *keys;  /* [pages][kv_heads][page_tokens][head_dim], values too */
    const real *values;
    real *out;  /* [tokens][out_stride] */
    uint64_t out_stride;
    float *partial;  /* decode: what splits leave for the last of their row to combine */
    uint32_t *finished;  /* decode: [lanes][units], 0 between steps */
    uint32_t heads;
    uint32_t kv_heads;
    uint32_t page_bits;
    uint32_t lane_pages;
    uint32_t window;  /* a query sees that many positions up to its own; 0: all */
    float scale_log2;  /* of the dot products, by log2(e) since powers of 2 are taken */
};
static_assert(sizeof(AttentionArguments) == 208, "AttentionArguments");
static_assert(__builtin_offsetof(AttentionArguments, batch) == 0, "AttentionArguments.batch");
static_assert(__builtin_offsetof(AttentionArguments, q) == 120, "AttentionArguments.q");
static_assert(__builtin_offsetof(AttentionArguments, q_stride) == 128, "AttentionArguments.q_stride");
static_assert(__builtin_offsetof(AttentionArguments, keys) == 136, "AttentionArguments.keys");
static_assert(__builtin_offsetof(AttentionArguments, values) == 144, "AttentionArguments.values");
static_assert(__builtin_offsetof(AttentionArguments, out) == 152, "AttentionArguments.out");
static_assert(__builtin_offsetof(AttentionArguments, out_stride) == 160, "AttentionArguments.out_stride");
static_assert(__builtin_offsetof(AttentionArguments, partial) == 168, "AttentionArguments.partial");
static_assert(__builtin_offsetof(AttentionArguments, finished) == 176, "AttentionArguments.finished");
static_assert(__builtin_offsetof(AttentionArguments, heads) == 184, "AttentionArguments.heads");
static_assert(__builtin_offsetof(AttentionArguments, kv_heads) == 188, "AttentionArguments.kv_heads");
static_assert(__builtin_offsetof(AttentionArguments, page_bits) == 192, "AttentionArguments.page_bits");
static_assert(__builtin_offsetof(AttentionArguments, lane_pages) == 196, "AttentionArguments.lane_pages");
static_assert(__builtin_offsetof(AttentionArguments, window) == 200, "AttentionArguments.window");
static_assert(__builtin_offsetof(AttentionArguments, scale_log2) == 204, "AttentionArguments.scale_log2");

/* of native_sample */
struct SampleArguments {
    Batch batch;
    const float *logits;  /* [rows][vocab] */
    int32_t *fed;  /* [lanes][context], the token fed at each position of each lane */
    float *spill;  /* [rows][ids of a cluster], or null: shared memory has room */
    uint32_t context;
    uint32_t vocab;
    uint32_t range;  /* consecutive ids of each warp */
    uint8_t reserved0[4];
};
static_assert(sizeof(SampleArguments) == 160, "SampleArguments");
static_assert(__builtin_offsetof(SampleArguments, batch) == 0, "SampleArguments.batch");
static_assert(__builtin_offsetof(SampleArguments, logits) == 120, "SampleArguments.logits");
static_assert(__builtin_offsetof(SampleArguments, fed) == 128, "SampleArguments.fed");
static_assert(__builtin_offsetof(SampleArguments, spill) == 136, "SampleArguments.spill");
static_assert(__builtin_offsetof(SampleArguments, context) == 144, "SampleArguments.context");
static_assert(__builtin_offsetof(SampleArguments, vocab) == 148, "SampleArguments.vocab");
static_assert(__builtin_offsetof(SampleArguments, range) == 152, "SampleArguments.range");

/* name, epilogue, whether x is a norm, step, ahead, resident, bytes of Storage */
#define BLINK_LINEAR_KERNELS(KERNEL) \
    KERNEL(linear_2_store, STORE, true, 4, 3, 2, 100352) \
    KERNEL(linear_2_rotate, ROTATE, true, 4, 2, 3, 67584) \
    KERNEL(linear_2_silu, SILU, true, 4, 3, 2, 100352) \
    KERNEL(linear_8_store, STORE, false, 4, 3, 2, 106496) \
    KERNEL(linear_8_rotate, ROTATE, false, 4, 2, 3, 73728) \
    KERNEL(linear_8_residual, RESIDUAL, false, 4, 3, 2, 106496) \
    KERNEL(linear_8_silu, SILU, false, 4, 3, 2, 106496) \
    KERNEL(linear_8_logits, LOGITS, false, 4, 3, 2, 106496)

}  // namespace blink
#endif  // BLINK_NATIVE_LAYOUT_H
