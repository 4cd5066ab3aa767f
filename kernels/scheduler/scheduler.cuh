/* The scheduler: every decision Blink makes about requests, as a step function.
 *
 * One implementation, compiled by g++ for a CPU thread and for the tests, and by NVRTC for the GPU. All threads of the
 * platform `P` call it together; a platform has
 *
 *     tid(), nthreads()                        at most MAX_THREADS
 *     sync()                                   barrier among them, which orders their memory accesses
 *     shared()                                 a Shared that all of them see
 *     now_ns()                                 a monotonic clock
 *     ring_load, ring_store                    relaxed, u32 and u64, where the other side may be another processor
 *     ring_acquire, ring_release               the same with ordering
 *     load_acquire                             of a word that the engine or the host writes
 *     add, cas, store                          atomic, on private memory
 *
 * The phases, and what may run beside a batch:
 *
 *     harvest   finished batch → tokens, finish reasons      no batch in flight
 *     scan      doorbells, cancels, deadlines, claims        any time
 *     plan      admission, preemption, the next batch        no batch in flight
 *     publish   tokens and statuses → G                      any time, between two harvests
 *
 * step() runs them in that order, for drivers that wait for each batch; decide() leaves the publish to the driver. A
 * driver that stays resident beside the batch calls begin(), launches, and calls attend() while the batch runs. */
#ifndef BLINK_SCHEDULER_CUH
#define BLINK_SCHEDULER_CUH

#include "scheduler/plan.cuh"
#include "scheduler/publish.cuh"
#include "scheduler/scan.cuh"

namespace blink {

/* Collective: whether no batch is in flight, or the one that was has finished. */
template <class P>
BLINK_DEVICE bool batch_done(P &p, Sched &s) {
    if (p.tid() == 0) p.shared().flag = !s.in_flight || p.load_acquire(&s.batch.control->done) == s.step_no;
    p.sync();
    bool done = p.shared().flag != 0;
    p.sync();
    return done;
}

/* Collective: one turn of a driver that runs each batch to its end before it calls again, but for the publish that must
 * follow, now or beside the batch. While the batch of the last decision has not finished, that decision is returned
 * again: whoever takes over from a driver that died runs it. */
template <class P>
BLINK_DEVICE Decision decide(P &p, Sched &s) {
    bool done = batch_done(p, s);
    if (done && s.in_flight) harvest(p, s);
    scan(p, s);
    if (done) plan(p, s);
    return s.decision;
}

/* Collective: a whole turn. */
template <class P>
BLINK_DEVICE Decision step(P &p, Sched &s) {
    Decision d = decide(p, s);
    publish(p, s);
    return d;
}

/* Collective: for a resident driver, when batch_done(): the next decision, from what the last attend() saw. */
template <class P>
BLINK_DEVICE Decision begin(P &p, Sched &s) {
    if (s.in_flight) harvest(p, s);
    plan(p, s);
    return s.decision;
}

/* Collective: for a resident driver, while the batch runs, and once more after KIND_STOP, for the last statuses. */
template <class P>
BLINK_DEVICE void attend(P &p, Sched &s) {
    publish(p, s);
    scan(p, s);
}

}  // namespace blink
#endif  // BLINK_SCHEDULER_CUH
