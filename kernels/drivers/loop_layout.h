/* Generated from blink/backend/gpu/loop_layout.py by `make generate`. Do not edit. */
#ifndef BLINK_LOOP_LAYOUT_H
#define BLINK_LOOP_LAYOUT_H
#ifndef __CUDACC_RTC__
#include <cstdint>
#endif
#include "seam/batch_layout.h"
namespace blink {

constexpr uint32_t DRIVER_THREADS = 0x100;

/* state of a driver; the first two fields are the host's, the others the device's */
struct LoopState {
    uint64_t idle_spin_ns;  /* how long an idle driver polls without sleeping */
    uint32_t idle_sleep_ns;  /* sleep between two polls after that */
    uint32_t error;  /* of the last graph launch that failed */
    uint64_t busy_ns;  /* when there was last something to run */
    uint64_t turns;  /* of the driver: times that it decided */
    uint64_t executions;  /* of the driver's graph, or bodies of its loop */
    uint64_t failed;  /* graph launches that failed */
    uint8_t reserved0[16];
};
static_assert(sizeof(LoopState) == 64, "LoopState");
static_assert(__builtin_offsetof(LoopState, idle_spin_ns) == 0, "LoopState.idle_spin_ns");
static_assert(__builtin_offsetof(LoopState, idle_sleep_ns) == 8, "LoopState.idle_sleep_ns");
static_assert(__builtin_offsetof(LoopState, error) == 12, "LoopState.error");
static_assert(__builtin_offsetof(LoopState, busy_ns) == 16, "LoopState.busy_ns");
static_assert(__builtin_offsetof(LoopState, turns) == 24, "LoopState.turns");
static_assert(__builtin_offsetof(LoopState, executions) == 32, "LoopState.executions");
static_assert(__builtin_offsetof(LoopState, failed) == 40, "LoopState.failed");

/* of blink_init */
struct InitArguments {
    void *memory;  /* the scheduler's */
    SchedConfig config;
    uint8_t *g;
    const uint8_t *f;
    Batch batch;
    const uint32_t *control;
};
static_assert(sizeof(InitArguments) == 4376, "InitArguments");
static_assert(__builtin_offsetof(InitArguments, memory) == 0, "InitArguments.memory");
static_assert(__builtin_offsetof(InitArguments, config) == 8, "InitArguments.config");
static_assert(__builtin_offsetof(InitArguments, g) == 4232, "InitArguments.g");
static_assert(__builtin_offsetof(InitArguments, f) == 4240, "InitArguments.f");
static_assert(__builtin_offsetof(InitArguments, batch) == 4248, "InitArguments.batch");
static_assert(__builtin_offsetof(InitArguments, control) == 4368, "InitArguments.control");

/* of blink_step */
struct StepArguments {
    void *memory;
    Decision *out;
    uint64_t now_ns;  /* a test's clock; 0: the GPU's */
};
static_assert(sizeof(StepArguments) == 24, "StepArguments");
static_assert(__builtin_offsetof(StepArguments, memory) == 0, "StepArguments.memory");
static_assert(__builtin_offsetof(StepArguments, out) == 8, "StepArguments.out");
static_assert(__builtin_offsetof(StepArguments, now_ns) == 16, "StepArguments.now_ns");

/* of blink_turn */
struct TurnArguments {
    void *memory;
    LoopState *loop;
    uint64_t again;  /* handle of the condition of WHILE */
    uint64_t pick;  /* of SWITCH */
};
static_assert(sizeof(TurnArguments) == 32, "TurnArguments");
static_assert(__builtin_offsetof(TurnArguments, memory) == 0, "TurnArguments.memory");
static_assert(__builtin_offsetof(TurnArguments, loop) == 8, "TurnArguments.loop");
static_assert(__builtin_offsetof(TurnArguments, again) == 16, "TurnArguments.again");
static_assert(__builtin_offsetof(TurnArguments, pick) == 24, "TurnArguments.pick");

/* of blink_publish */
struct PublishArguments {
    void *memory;
};
static_assert(sizeof(PublishArguments) == 8, "PublishArguments");
static_assert(__builtin_offsetof(PublishArguments, memory) == 0, "PublishArguments.memory");

/* of blink_resident */
struct ResidentArguments {
    void *memory;
    LoopState *loop;
    const uint64_t *execs;  /* two executable graphs for each graph */
};
static_assert(sizeof(ResidentArguments) == 24, "ResidentArguments");
static_assert(__builtin_offsetof(ResidentArguments, memory) == 0, "ResidentArguments.memory");
static_assert(__builtin_offsetof(ResidentArguments, loop) == 8, "ResidentArguments.loop");
static_assert(__builtin_offsetof(ResidentArguments, execs) == 16, "ResidentArguments.execs");

}  // namespace blink
#endif  // BLINK_LOOP_LAYOUT_H
