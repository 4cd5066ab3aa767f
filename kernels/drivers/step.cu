/* The scheduler as plain kernels of one block: what a driver that ends with every step launches, or captures. */
#include "rtc.h"

#include "drivers/loop_layout.h"
#include "scheduler/platform_cuda.cuh"
#include "scheduler/scheduler.cuh"

using namespace blink;

/* Starts an epoch in zeroed `memory`; see init(). */
extern "C" __global__ void blink_init(const __grid_constant__ InitArguments a) {
    if (threadIdx.x == 0) init(*static_cast<Sched *>(a.memory), a.config, a.g, a.f, a.batch, a.control);
}

/* One step; the decision goes to `out`. */
extern "C" __global__ void __launch_bounds__(DRIVER_THREADS) blink_step(const StepArguments a) {
    __shared__ Shared shared;
    CudaPlatform p{&shared, a.now_ns};
    Decision d = step(p, *static_cast<Sched *>(a.memory));
    if (p.tid() == 0) *a.out = d;
}
