/* Generated from blink/backend/gpu/loop_layout.py by `make generate`. Do not edit. */
#ifndef BLINK_LOOP_LAYOUT_H
#define BLINK_LOOP_LAYOUT_H
#ifndef __CUDACC_RTC__
#include <cstdint>
#endif
namespace blink {

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

}  // namespace blink
#endif  // BLINK_LOOP_LAYOUT_H
