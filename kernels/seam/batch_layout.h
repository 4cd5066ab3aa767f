/* Generated from blink/engine/seam/batch.py by `make generate`. Do not edit. */
#ifndef BLINK_BATCH_LAYOUT_H
#define BLINK_BATCH_LAYOUT_H
#ifndef __CUDACC_RTC__
#include <cstdint>
#endif
#include "ring/layout.h"
namespace blink {

constexpr uint32_t KIND_IDLE = 0x0;
constexpr uint32_t KIND_PREFILL = 0x1;
constexpr uint32_t KIND_DECODE = 0x2;
constexpr uint32_t KIND_RELAUNCH = 0x3;
constexpr uint32_t KIND_STOP = 0x4;

constexpr uint32_t GRAPHS_FIRST = 0x2;

constexpr uint32_t CONTROL_RUN = 0x0;
constexpr uint32_t CONTROL_DRAIN = 0x1;
constexpr uint32_t CONTROL_STOP = 0x2;

constexpr uint32_t BATCH_MAX_BUCKETS = 0x200;
constexpr uint32_t BATCH_MAX_EOS = 0x8;
constexpr uint32_t BATCH_MAX_STOP = 0x40;
constexpr uint32_t BATCH_MAX_BIAS = 0x400;
constexpr uint32_t BATCH_MAX_REQUEST_STOP = 0x38;
constexpr uint32_t BATCH_MAX_LANES = 0x400;
constexpr uint32_t BATCH_MAX_RECORDS = 0x100000;
constexpr uint32_t BATCH_MAX_CONTEXT = 0x1000000;
constexpr uint32_t BATCH_MAX_TOKENS = 0x100000;
constexpr uint32_t BATCH_MAX_PAGE_TOKENS = 0x400;

/* control block of a step */
struct StepControl {
    uint32_t kind;  /* see Kind */
    uint32_t graph;  /* index into the decode or prefill buckets */
    uint32_t rows;
    uint32_t tokens;  /* packed tokens of all rows */
    uint32_t step;  /* number of this batch, from 1, wrapping past 0 */
    uint32_t done;  /* written by the engine, last: the step it finished */
    uint32_t error;  /* written by the engine: not 0 fails every row of the step */
    uint8_t reserved0[36];
};
static_assert(sizeof(StepControl) == 64, "StepControl");
static_assert(__builtin_offsetof(StepControl, kind) == 0, "StepControl.kind");
static_assert(__builtin_offsetof(StepControl, graph) == 4, "StepControl.graph");
static_assert(__builtin_offsetof(StepControl, rows) == 8, "StepControl.rows");
static_assert(__builtin_offsetof(StepControl, tokens) == 12, "StepControl.tokens");
static_assert(__builtin_offsetof(StepControl, step) == 16, "StepControl.step");
static_assert(__builtin_offsetof(StepControl, done) == 20, "StepControl.done");
static_assert(__builtin_offsetof(StepControl, error) == 24, "StepControl.error");

/* validated sampling parameters of a lane, written when a request is admitted */
struct LaneParams {
    float temperature;
    float top_p;
    float min_p;
    float frequency;
    float presence;
    float repetition;
    uint32_t top_k;
    uint32_t flags;  /* see ring Flag */
    uint64_t seed;
    uint32_t prompt_len;  /* tokens at positions below it are prompt, the others are answer */
    uint32_t min_tokens;
    uint32_t lp_n;
    uint32_t n_stop;  /* entries of lane_stop: all ids that end the lane, EOS first unless IGNORE_EOS */
    uint32_t n_bias;  /* entries of lane_bias_ids and lane_bias_values */
    uint8_t reserved0[4];
};
static_assert(sizeof(LaneParams) == 64, "LaneParams");
static_assert(__builtin_offsetof(LaneParams, temperature) == 0, "LaneParams.temperature");
static_assert(__builtin_offsetof(LaneParams, top_p) == 4, "LaneParams.top_p");
static_assert(__builtin_offsetof(LaneParams, min_p) == 8, "LaneParams.min_p");
static_assert(__builtin_offsetof(LaneParams, frequency) == 12, "LaneParams.frequency");
static_assert(__builtin_offsetof(LaneParams, presence) == 16, "LaneParams.presence");
static_assert(__builtin_offsetof(LaneParams, repetition) == 20, "LaneParams.repetition");
static_assert(__builtin_offsetof(LaneParams, top_k) == 24, "LaneParams.top_k");
static_assert(__builtin_offsetof(LaneParams, flags) == 28, "LaneParams.flags");
static_assert(__builtin_offsetof(LaneParams, seed) == 32, "LaneParams.seed");
static_assert(__builtin_offsetof(LaneParams, prompt_len) == 40, "LaneParams.prompt_len");
static_assert(__builtin_offsetof(LaneParams, min_tokens) == 44, "LaneParams.min_tokens");
static_assert(__builtin_offsetof(LaneParams, lp_n) == 48, "LaneParams.lp_n");
static_assert(__builtin_offsetof(LaneParams, n_stop) == 52, "LaneParams.n_stop");
static_assert(__builtin_offsetof(LaneParams, n_bias) == 56, "LaneParams.n_bias");

/* fixed buffers of a step; dimensions: lanes, lanes1 = lanes + 1, tokens = largest step, lane_pages */
struct Batch {
    StepControl *control;  /* [1]  */
    int32_t *row_lane;  /* [lanes]  */
    int32_t *row_start;  /* [lanes1] exclusive prefix sum of the rows' token counts */
    int32_t *row_kv_len;  /* [lanes] context of the row after this step's tokens */
    int32_t *row_sample;  /* [lanes]  */
    int32_t *token_ids;  /* [tokens]  */
    int32_t *positions;  /* [tokens]  */
    int32_t *kv_index;  /* [tokens]  */
    int32_t *block_table;  /* [lanes][lane_pages]  */
    LaneParams *lane_params;  /* [lanes]  */
    uint32_t *lane_stop;  /* [lanes][64]  */
    uint32_t *lane_bias_ids;  /* [lanes][1024]  */
    float *lane_bias_values;  /* [lanes][1024]  */
    int32_t *out_token;  /* [lanes] output: by row */
    RingLogprob *out_logprob;  /* [lanes] output: by row, only where the lane asks for it */
};
static_assert(sizeof(Batch) == 120, "Batch");

/* configuration of the scheduler */
struct SchedConfig {
    uint32_t lanes;  /* rows of the largest decode step */
    uint32_t records;  /* requests held at once: running, paused and waiting for a lane */
    uint32_t page_tokens;
    uint32_t pages;  /* in the KV pool */
    uint32_t lane_pages;  /* columns of the block table */
    uint32_t max_context;
    uint32_t vocab;
    uint32_t batch_tokens;  /* packed tokens of the largest step; >= lanes */
    uint32_t ext_words;  /* longest request extension */
    uint32_t launch_window;  /* graph launches per execution of the driver; 0 is unlimited */
    uint32_t claims_per_step;  /* requests copied and validated per step */
    uint32_t torn_ms;  /* how long a record may stay inconsistent */
    uint32_t alive_ms;  /* how long a partition may stay silent before its requests end; 0 is forever */
    uint32_t step_budget_ms;  /* published as budget_ms before a batch runs */
    uint32_t n_decode;  /* decode buckets, ascending, the last is lanes */
    uint32_t n_prefill;  /* prefill buckets in packed tokens, ascending, the last is batch_tokens */
    uint32_t decode_bucket[512];
    uint32_t prefill_bucket[512];
    uint32_t n_eos;
    uint32_t eos[8];
    uint32_t mixed;  /* whether lanes that decode may have rows in prefill steps */
    uint8_t reserved0[24];
};
static_assert(sizeof(SchedConfig) == 4224, "SchedConfig");
static_assert(__builtin_offsetof(SchedConfig, lanes) == 0, "SchedConfig.lanes");
static_assert(__builtin_offsetof(SchedConfig, records) == 4, "SchedConfig.records");
static_assert(__builtin_offsetof(SchedConfig, page_tokens) == 8, "SchedConfig.page_tokens");
static_assert(__builtin_offsetof(SchedConfig, pages) == 12, "SchedConfig.pages");
static_assert(__builtin_offsetof(SchedConfig, lane_pages) == 16, "SchedConfig.lane_pages");
static_assert(__builtin_offsetof(SchedConfig, max_context) == 20, "SchedConfig.max_context");
static_assert(__builtin_offsetof(SchedConfig, vocab) == 24, "SchedConfig.vocab");
static_assert(__builtin_offsetof(SchedConfig, batch_tokens) == 28, "SchedConfig.batch_tokens");
static_assert(__builtin_offsetof(SchedConfig, ext_words) == 32, "SchedConfig.ext_words");
static_assert(__builtin_offsetof(SchedConfig, launch_window) == 36, "SchedConfig.launch_window");
static_assert(__builtin_offsetof(SchedConfig, claims_per_step) == 40, "SchedConfig.claims_per_step");
static_assert(__builtin_offsetof(SchedConfig, torn_ms) == 44, "SchedConfig.torn_ms");
static_assert(__builtin_offsetof(SchedConfig, alive_ms) == 48, "SchedConfig.alive_ms");
static_assert(__builtin_offsetof(SchedConfig, step_budget_ms) == 52, "SchedConfig.step_budget_ms");
static_assert(__builtin_offsetof(SchedConfig, n_decode) == 56, "SchedConfig.n_decode");
static_assert(__builtin_offsetof(SchedConfig, n_prefill) == 60, "SchedConfig.n_prefill");
static_assert(__builtin_offsetof(SchedConfig, decode_bucket) == 64, "SchedConfig.decode_bucket");
static_assert(__builtin_offsetof(SchedConfig, prefill_bucket) == 2112, "SchedConfig.prefill_bucket");
static_assert(__builtin_offsetof(SchedConfig, n_eos) == 4160, "SchedConfig.n_eos");
static_assert(__builtin_offsetof(SchedConfig, eos) == 4164, "SchedConfig.eos");
static_assert(__builtin_offsetof(SchedConfig, mixed) == 4196, "SchedConfig.mixed");

/* what the driver does next */
struct Decision {
    uint32_t kind;  /* see Kind */
    uint32_t graph;
    uint32_t rows;
    uint32_t tokens;
};
static_assert(sizeof(Decision) == 16, "Decision");
static_assert(__builtin_offsetof(Decision, kind) == 0, "Decision.kind");
static_assert(__builtin_offsetof(Decision, graph) == 4, "Decision.graph");
static_assert(__builtin_offsetof(Decision, rows) == 8, "Decision.rows");
static_assert(__builtin_offsetof(Decision, tokens) == 12, "Decision.tokens");

}  // namespace blink
#endif  // BLINK_BATCH_LAYOUT_H
