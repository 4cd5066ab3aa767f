/* The persistent driver (paper, section 4.2): one resident block that launches captured batches from the device,
 * watches for their end, and scans and publishes while they run.
 *
 * An execution of a graph may launch 120 others ("fire and forget"); then it launches itself to follow it and ends
 * ("tail launch"). The scheduler's launch_window counts, and says RELAUNCH when no batch is in flight. */
#include "loop.cuh"

using namespace blink;

/* Time between two scans beside a batch. In between the block only watches for the batch's end. */
constexpr uint64_t ATTEND_NS = 20000;

namespace {

/* One thread: has the batch run. An exec that has set `done` may still be ending, and cannot be launched until it has,
 * so each graph has two that take turns. */
__device__ void launch_batch(CudaPlatform &p, Sched &s, LoopState &loop, const Decision &d, const uint64_t *execs) {
    loop.busy_ns = p.now_ns();
    auto exec = (cudaGraphExec_t)execs[2 * graph_of(s, d) + s.step_no % 2];
    __threadfence();
    cudaError_t error = cudaGraphLaunch(exec, cudaStreamGraphFireAndForget);
    if (error == cudaSuccess) return;
    loop.error = error, loop.failed++;
    s.batch.control->error = 1, s.batch.control->done = s.step_no; /* its rows end with ERR_ENGINE */
}

/* Collective: watches the batch to its end, and attends to the ring meanwhile. A batch that outlasts its budget is not
 * attended to: the beat stands still, which tells the frontend. */
__device__ void watch(CudaPlatform &p, Sched &s, const LoopState &loop) {
    enum : uint32_t { WAIT, ATTEND, DONE };
    uint64_t attended = p.now_ns();
    for (;;) {
        if (p.tid() == 0) {
            uint64_t now = p.now_ns();
            uint32_t verdict = now - attended > ATTEND_NS ? ATTEND : WAIT;
            if (now - loop.busy_ns > s.config.step_budget_ms * NS_PER_MS) verdict = WAIT;
            if (p.load_acquire(&s.batch.control->done) == s.step_no) verdict = DONE;
            if (verdict == ATTEND) attended = now;
            p.shared().verdict = verdict;
        }
        p.sync();
        uint32_t verdict = p.shared().verdict;
        p.sync();
        if (verdict == DONE) return;
        if (verdict == ATTEND) attend(p, s);
    }
}

}  // namespace

/* `execs`: two graph execs for each graph, instantiated for launch from the device. */
extern "C" __global__ void __launch_bounds__(MAX_THREADS)
    blink_resident(void *memory, LoopState *loop, const uint64_t *execs) {
    __shared__ Shared shared;
    CudaPlatform p{&shared};
    Sched &s = *static_cast<Sched *>(memory);
    if (p.tid() == 0) loop->executions++;
    for (;;) {
        /* A batch that another driver left behind is run again. */
        Decision d = batch_done(p, s) ? begin(p, s) : s.decision;
        if (p.tid() == 0) {
            loop->turns++;
            if (is_batch(d)) launch_batch(p, s, *loop, d, execs);
        }
        attend(p, s);
        if (d.kind == KIND_STOP) return;
        if (d.kind == KIND_RELAUNCH) break;
        if (is_batch(d)) watch(p, s, *loop);
        else rest(p, *loop);
    }
    if (p.tid() == 0) {
        cudaError_t error = cudaGraphLaunch(cudaGetCurrentGraphExec(), cudaStreamGraphTailLaunch);
        if (error != cudaSuccess) loop->error = error, loop->failed++;
    }
}
