/* The conditional driver: one graph that the host launches once,
 *
 *     WHILE(again) { blink_turn → SWITCH(pick) { batch 0 ∥ blink_publish | batch 1 ∥ blink_publish | … } }
 *
 * where every batch is a captured graph. What the last batch produced is published beside the next one, since stores to
 * the ring and the fences between them take longer than the decision. */
#include "drivers/loop.cuh"

using namespace blink;

/* Polls of an idle driver before the loop turns: the turn costs more than the poll. */
constexpr uint32_t IDLE_POLLS = 64;

extern "C" __global__ void __launch_bounds__(DRIVER_THREADS) blink_turn(const TurnArguments a) {
    __shared__ Shared shared;
    CudaPlatform p{&shared};
    Sched &s = *static_cast<Sched *>(a.memory);
    Decision d;
    uint32_t turns = 1;
    for (;; turns++) {
        d = decide(p, s);
        if (is_batch(d)) break;
        publish(p, s);
        if (d.kind != KIND_IDLE || turns == IDLE_POLLS) break;
        rest(p, *a.loop);
    }
    if (p.tid() != 0) return;
    a.loop->turns += turns;
    a.loop->executions++;
    if (is_batch(d)) a.loop->busy_ns = p.now_ns();
    cudaGraphSetConditional(a.pick, graph_of(s, d)); /* NONE is past the last graph: none runs */
    cudaGraphSetConditional(a.again, d.kind != KIND_STOP);
}

extern "C" __global__ void __launch_bounds__(DRIVER_THREADS) blink_publish(const PublishArguments a) {
    __shared__ Shared shared;
    CudaPlatform p{&shared};
    publish(p, *static_cast<Sched *>(a.memory));
}
