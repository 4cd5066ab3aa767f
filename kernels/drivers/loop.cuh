/* What both drivers on the device do: resting when there is nothing to run, and numbering the graphs. */
#ifndef BLINK_LOOP_CUH
#define BLINK_LOOP_CUH

#include "rtc.h"

#include "drivers/loop_layout.h"
#include "scheduler/platform_cuda.cuh"
#include "scheduler/scheduler.cuh"

namespace blink {

static_assert(DRIVER_THREADS <= MAX_THREADS, "the scheduler has room for no more");

BLINK_DEVICE bool is_batch(const Decision &d) { return d.kind == KIND_PREFILL || d.kind == KIND_DECODE; }

/* The number of the graph to run, or NONE. */
BLINK_DEVICE uint32_t graph_of(const Sched &s, const Decision &d) {
    static_assert(GRAPHS_FIRST == KIND_DECODE, "as the host numbers them");
    if (!is_batch(d)) return NONE;
    return d.kind == KIND_DECODE ? d.graph : s.config.n_decode + d.graph;
}

/* Collective: between two polls of an idle driver. One thread sleeps and the others wait for it, which costs little
 * power; the sleep bounds both how late a request is seen and the time between two beats. */
BLINK_DEVICE void rest(CudaPlatform &p, LoopState &loop) {
    if (p.tid() == 0 && p.now_ns() - loop.busy_ns > loop.idle_spin_ns) __nanosleep(loop.idle_sleep_ns);
    p.sync();
}

}  // namespace blink
#endif  // BLINK_LOOP_CUH
