/* The persistent driver (paper, section 4.2): one resident block that launches captured batches from the device,
 * watches for their end, and scans and publishes while they run.
 *
 * An execution of a graph may launch 120 others ("fire and forget"); then it launches itself to follow it and ends
 * ("tail launch"). The scheduler's launch_window counts, and says RELAUNCH when no batch is in flight. */
#include "drivers/loop.cuh"

using namespace blink;

/* Time between two scans beside a batch. In between the block only watches for the batch's end. */
constexpr uint64_t ATTEND_NS = 50000;

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

/* Collective: watches the batch until it has ended, or, with false, until the ring wants attention again. A batch that
 * outlasts its budget gets the ring no more attention: the beat stands still, which tells the frontend. */
__device__ bool watch(CudaPlatform &p, Sched &s, const LoopState &loop) {
    enum : uint32_t { WAIT, ATTEND, DONE };
    uint64_t since = p.now_ns();
    for (;;) {
        if (p.tid() == 0) {
            uint64_t now = p.now_ns();
            bool overdue = now - loop.busy_ns > s.config.step_budget_ms * NS_PER_MS;
            uint32_t verdict = now - since > ATTEND_NS && !overdue ? ATTEND : WAIT;
            if (p.load_acquire(&s.batch.control->done) == s.step_no) verdict = DONE;
            p.shared().verdict = verdict;
        }
        p.sync();
        uint32_t verdict = p.shared().verdict;
        p.sync();
        if (verdict != WAIT) return verdict == DONE;
    }
}

}  // namespace

/* The graphs' executables are instantiated for launch from the device. Registers are bounded so that a
 * batch's blocks find room beside this one. */
extern "C" __global__ void __launch_bounds__(DRIVER_THREADS, 2) blink_resident(const ResidentArguments a) {
    __shared__ Shared shared;
    CudaPlatform p{&shared};
    Sched &s = *static_cast<Sched *>(a.memory);
    if (p.tid() == 0) a.loop->executions++;
    Decision d = {KIND_IDLE, 0, 0, 0};
    /* Whoever starts this driver, and does not follow a window of its own, has news in the control word: attend first.
     */
    bool due = s.decision.kind == KIND_RELAUNCH;
    for (;;) {
        if (due) {
            /* A batch that another driver left behind is run again. */
            d = batch_done(p, s) ? begin(p, s) : s.decision;
            if (p.tid() == 0) {
                a.loop->turns++;
                if (is_batch(d)) launch_batch(p, s, *a.loop, d, a.execs);
            }
        }
        attend(p, s);
        if (d.kind == KIND_STOP) return;
        if (d.kind == KIND_RELAUNCH) break;
        due = !is_batch(d) || watch(p, s, *a.loop);
        if (!is_batch(d)) rest(p, *a.loop);
    }
    if (p.tid() == 0) {
        cudaError_t error = cudaGraphLaunch(cudaGetCurrentGraphExec(), cudaStreamGraphTailLaunch);
        if (error != cudaSuccess) a.loop->error = error, a.loop->failed++;
    }
}
