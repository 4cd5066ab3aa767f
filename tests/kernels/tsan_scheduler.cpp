/* For ThreadSanitizer: three scheduler threads, an engine and a frontend that meet only as they do in an appliance.
 *
 * The frontend writes payload and reads tokens with plain accesses, as a NIC does: only the doorbell's and the status
 * word's ordering makes that right, so a missing one is a report. Arguments: requests, and "resident" for the driver
 * that works beside the batch. */
#include <thread>
#include <vector>

#include "appliance.h"

using namespace blink;
using namespace blink::test;

namespace {

constexpr uint32_t VOCAB = 50, SLOTS = 5, MAX_TOKENS = 9;

struct Client {
    const Appliance &a;
    uint32_t gen[SLOTS] = {}, seq = 0, random = 12345;
    uint32_t start[SLOTS] = {};
    bool busy[SLOTS] = {}, cancelled[SLOTS] = {};

    uint32_t next() { return random = random * 1664525u + 1013904223u, random >> 8; }

    void submit(uint32_t slot) {
        uint32_t n = 1 + next() % 20, g = ++gen[slot], hash = 0;
        uint32_t *prompt = reinterpret_cast<uint32_t *>(a.f_part(0) + a.in_off) + slot * 32;
        for (uint32_t i = 0; i < n; i++) prompt[i] = next() % VOCAB, hash += hash_term(prompt[i], i);
        start[slot] = prompt[n - 1];
        RingRequest q{};
        q.gen = g, q.seq = ++seq, q.prompt_off = a.in_off + slot * 128, q.prompt_len = n, q.max_tokens = MAX_TOKENS;
        q.out_off = a.out_off + slot * 2048, q.out_cap = MAX_TOKENS, q.lp_off = q.out_off + 128, q.lp_n = 2;
        q.flags = FLAG_LOGPROBS, q.temperature = 1, q.top_p = 1, q.repetition = 1, q.prompt_hash = hash;
        seal(q);
        *a.request(0, slot) = q;
        __atomic_store_n(&a.command(0, slot)->commit, Commit::put_gen(g) | Commit::put_seq(seq), __ATOMIC_RELAXED);
        __atomic_store_n(&a.f_head(0)->db, Bell::put_seq(seq), __ATOMIC_RELEASE);
        busy[slot] = true, cancelled[slot] = false;
    }

    void look(uint32_t slot) {
        uint64_t w0 = __atomic_load_n(&a.status(0, slot)->w0, __ATOMIC_ACQUIRE);
        if (W0::gen(w0) != (gen[slot] & 0xFFFF)) return;
        const uint32_t *out = reinterpret_cast<const uint32_t *>(a.g_part(0) + a.out_off + slot * 2048);
        for (uint32_t i = 0; i < W0::count(w0); i++) REQUIRE(out[i] == (start[slot] + i + 1) % VOCAB);
        for (uint32_t i = 0; i < W0::count(w0); i++) {
            float chosen;
            std::memcpy(&chosen, out + 32 + i * 6, 4);
            REQUIRE(chosen == -1.0f && out[32 + i * 6 + 1] == 2);
        }
        if (W0::state(w0) != STATE_DECODE_COMPLETED) return;
        REQUIRE(W0::reason(w0) == REASON_LENGTH ? W0::count(w0) == MAX_TOKENS
                                                : W0::reason(w0) == REASON_CANCELLED && cancelled[slot]);
        busy[slot] = false;
    }

    void run(uint32_t requests) {
        for (uint32_t sent = 0; sent < requests || busy[0] || busy[1] || busy[2] || busy[3] || busy[4];) {
            uint32_t slot = next() % SLOTS;
            if (!busy[slot] && sent < requests) submit(slot), sent++;
            else if (busy[slot] && next() % 64 == 0) {
                cancelled[slot] = true;
                __atomic_store_n(&a.command(0, slot)->cancel, Cancel::put_gen(gen[slot]), __ATOMIC_RELAXED);
            } else if (busy[slot]) look(slot);
            __atomic_add_fetch(&a.f_head(0)->alive, 1, __ATOMIC_RELAXED);
            std::this_thread::yield();
        }
        __atomic_store_n(a.control_word.get(), CONTROL_DRAIN, __ATOMIC_RELEASE);
    }
};

}  // namespace

int main(int argc, char **argv) {
    uint32_t requests = argc > 1 ? std::atoi(argv[1]) : 200;
    bool resident = argc > 2 && std::strcmp(argv[2], "resident") == 0;
    constexpr uint32_t threads = 3;
    Appliance a(small_config(3, 5, VOCAB), 1, SLOTS);
    std::barrier<> barrier(threads);
    Shared shared;
    uint32_t launched = 0; /* the driver's hand-over to the engine: the step that may run */
    bool over = false;

    auto schedule = [&](uint32_t tid) {
        CpuPlatform p{&shared, tid, threads, &barrier};
        Sched &s = a.sched();
        uint32_t last = 0;
        for (;;) {
            Decision d;
            if (resident) {
                if (batch_done(p, s)) d = begin(p, s);
                else d = s.decision;
            } else {
                d = step(p, s);
            }
            if (tid == 0 && (d.kind == KIND_PREFILL || d.kind == KIND_DECODE) && last != a.control[0].step) {
                last = a.control[0].step;
                __atomic_store_n(&launched, last, __ATOMIC_RELEASE);
            }
            if (d.kind == KIND_STOP) break;
            if (resident) attend(p, s);
        }
        if (resident) publish(p, s);
        if (tid == 0) __atomic_store_n(&over, true, __ATOMIC_RELEASE);
    };
    auto engine = [&] {
        for (uint32_t ran = 0; !__atomic_load_n(&over, __ATOMIC_ACQUIRE); std::this_thread::yield()) {
            uint32_t next = __atomic_load_n(&launched, __ATOMIC_ACQUIRE);
            if (next != ran) a.run_engine(), ran = next;
        }
    };
    Client client{a};
    std::vector<std::thread> all;
    for (uint32_t t = 0; t < threads; t++) all.emplace_back(schedule, t);
    all.emplace_back(engine);
    all.emplace_back([&] { client.run(requests); });
    for (auto &t : all) t.join();
    a.require_integrity();
    const uint64_t *c = a.sched().counters;
    REQUIRE(c[COUNTER_FINISHED_BASE + REASON_LENGTH] + c[COUNTER_FINISHED_BASE + REASON_CANCELLED] == requests);
    REQUIRE(c[COUNTER_RECORDS_TAKEN] == c[COUNTER_RECORDS_RETURNED] && a.sched().live == 0);
    std::printf("%u requests, %lu steps, %lu preemptions, %lu cancelled\n", requests, (unsigned long)c[COUNTER_STEPS],
                (unsigned long)c[COUNTER_PREEMPTIONS], (unsigned long)c[COUNTER_FINISHED_BASE + REASON_CANCELLED]);
}
