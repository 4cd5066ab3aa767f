/* C functions through which Python drives the scheduler core on a CPU. */
#include <cstring>
#include <thread>
#include <vector>

#include "scheduler/check.h"
#include "scheduler/platform_cpu.h"
#include "scheduler/scheduler.cuh"

using namespace blink;

namespace {
Sched &state(void *s) { return *static_cast<Sched *>(s); }

/* Runs body(platform) on `threads` threads that share a barrier; the caller is the first of them. */
template <class Body>
void together(uint32_t threads, uint64_t now_ns, Body body) {
    Shared shared;
    if (threads <= 1) {
        CpuPlatform alone{&shared, 0, 1, nullptr, now_ns};
        body(alone);
        return;
    }
    std::barrier<> barrier(threads);
    std::vector<std::thread> others;
    for (uint32_t t = 1; t < threads; t++)
        others.emplace_back([&, t] {
            CpuPlatform p{&shared, t, threads, &barrier, now_ns};
            body(p);
        });
    CpuPlatform p{&shared, 0, threads, &barrier, now_ns};
    body(p);
    for (auto &other : others) other.join();
}
}  // namespace

extern "C" {

/* What is wrong with the configuration for a ring of `slots` and `parts`, or NULL. */
const char *blink_sched_check_config(const SchedConfig *config, uint32_t slots, uint32_t parts) {
    return check_config(*config, slots, parts);
}

/* Bytes of private memory that a scheduler of a valid configuration needs. */
uint64_t blink_sched_size(const SchedConfig *config, uint32_t slots, uint32_t parts) {
    return lay_out(*config, slots, parts).size;
}

/* Starts an epoch in `memory`, 64-byte aligned and zeroed. `batch` is a table of pointers; everything pointed to must
 * outlive the scheduler. */
void blink_sched_init(void *memory, const SchedConfig *config, uint8_t *g, const uint8_t *f, const Batch *batch,
                      const uint32_t *control) {
    init(state(memory), *config, g, f, *batch, control);
}

/* One step. `now_ns` 0 is the monotonic clock. `threads` above 1 is for tests. */
void blink_sched_step(void *memory, uint64_t now_ns, uint32_t threads, Decision *out) {
    together(threads, now_ns, [&](CpuPlatform &p) {
        Decision d = step(p, state(memory));
        if (p.tid() == 0) *out = d;
    });
}

/* A resident driver's turn in two halves: the decision, and what it does while the batch runs. False: it still runs. */
bool blink_sched_begin(void *memory, uint64_t now_ns, uint32_t threads, Decision *out) {
    bool began = false;
    together(threads, now_ns, [&](CpuPlatform &p) {
        bool done = batch_done(p, state(memory));
        Decision d{};
        if (done) d = begin(p, state(memory));
        if (p.tid() == 0) *out = d, began = done;
    });
    return began;
}

void blink_sched_attend(void *memory, uint64_t now_ns, uint32_t threads) {
    together(threads, now_ns, [&](CpuPlatform &p) { attend(p, state(memory)); });
}

/* Copies the 128 counters. */
void blink_sched_counters(const void *memory, uint64_t *out) {
    std::memcpy(out, static_cast<const Sched *>(memory)->counters, sizeof(Sched::counters));
}

/* Writes what is inconsistent in the scheduler's memory to `text`, or an empty string. Call between steps. */
void blink_sched_check(void *memory, char *text, uint64_t size) { check_integrity(state(memory), text, size); }

/* Makes `gen` the generation claimed last of `slot`, for tests of wrap-around. */
void blink_sched_set_gen(void *memory, uint32_t slot, uint32_t gen) { state(memory).claimed()[slot] = gen; }
}
