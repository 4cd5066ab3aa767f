/* Generated from blink/engine/synthetic/layout.py by `make generate`. Do not edit. */
#ifndef BLINK_SYNTHETIC_LAYOUT_H
#define BLINK_SYNTHETIC_LAYOUT_H
#ifndef __CUDACC_RTC__
#include <cstdint>
#endif
#include "seam/batch_layout.h"
namespace blink {

constexpr uint32_t ROW_THREADS = 0x80;

constexpr uint32_t FILL_THREADS = 0x400;
constexpr uint32_t FILL_BLOCKS = 0x2;

/* which requests began to run, and when: what a test of the order of service reads */
struct TraceEntry {
    uint64_t seed;
    uint64_t step;
};
static_assert(sizeof(TraceEntry) == 16, "TraceEntry");
static_assert(__builtin_offsetof(TraceEntry, seed) == 0, "TraceEntry.seed");
static_assert(__builtin_offsetof(TraceEntry, step) == 8, "TraceEntry.step");

/* of synthetic_hash */
struct HashArguments {
    Batch batch;
    uint32_t *kv;  /* [pages][page_tokens], token ids */
    uint32_t page_tokens;
    uint32_t lane_pages;
    uint32_t vocab;
    uint8_t reserved0[4];
    uint32_t *traced;  /* how many began */
    TraceEntry *trace;
    uint32_t trace_size;
    uint8_t reserved1[4];
};
static_assert(sizeof(HashArguments) == 168, "HashArguments");
static_assert(__builtin_offsetof(HashArguments, batch) == 0, "HashArguments.batch");
static_assert(__builtin_offsetof(HashArguments, kv) == 120, "HashArguments.kv");
static_assert(__builtin_offsetof(HashArguments, page_tokens) == 128, "HashArguments.page_tokens");
static_assert(__builtin_offsetof(HashArguments, lane_pages) == 132, "HashArguments.lane_pages");
static_assert(__builtin_offsetof(HashArguments, vocab) == 136, "HashArguments.vocab");
static_assert(__builtin_offsetof(HashArguments, traced) == 144, "HashArguments.traced");
static_assert(__builtin_offsetof(HashArguments, trace) == 152, "HashArguments.trace");
static_assert(__builtin_offsetof(HashArguments, trace_size) == 160, "HashArguments.trace_size");

/* of synthetic_fill */
struct FillArguments {
    uint32_t rounds;
    uint8_t reserved0[4];
    float *never;  /* written by nobody */
};
static_assert(sizeof(FillArguments) == 16, "FillArguments");
static_assert(__builtin_offsetof(FillArguments, rounds) == 0, "FillArguments.rounds");
static_assert(__builtin_offsetof(FillArguments, never) == 8, "FillArguments.never");

/* of synthetic_hold */
struct HoldArguments {
    const uint32_t *held;  /* the host's word */
};
static_assert(sizeof(HoldArguments) == 8, "HoldArguments");
static_assert(__builtin_offsetof(HoldArguments, held) == 0, "HoldArguments.held");

/* of synthetic_done */
struct EndArguments {
    StepControl *control;
};
static_assert(sizeof(EndArguments) == 8, "EndArguments");
static_assert(__builtin_offsetof(EndArguments, control) == 0, "EndArguments.control");

}  // namespace blink
#endif  // BLINK_SYNTHETIC_LAYOUT_H
