/* The scheduler as plain kernels of one block: what a driver that ends with every step launches, or captures. */
#include "rtc.h"

#include "scheduler/platform_cuda.cuh"
#include "scheduler/scheduler.cuh"

using namespace blink;

/* Starts an epoch in zeroed `memory`; see init(). */
extern "C" __global__ void blink_init(void *memory, SchedConfig config, uint8_t *g, const uint8_t *f, Batch batch,
                                      const uint32_t *control) {
    if (threadIdx.x == 0) init(*static_cast<Sched *>(memory), config, g, f, batch, control);
}

/* One step; the decision goes to `out`. `now_ns` is a test's clock; 0: the GPU's. */
extern "C" __global__ void __launch_bounds__(MAX_THREADS) blink_step(void *memory, Decision *out, uint64_t now_ns) {
    __shared__ Shared shared;
    CudaPlatform p{&shared, now_ns};
    Decision d = step(p, *static_cast<Sched *>(memory));
    if (p.tid() == 0) *out = d;
}
