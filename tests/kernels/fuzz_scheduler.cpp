/* For AddressSanitizer and UndefinedBehaviorSanitizer: a frontend that writes anything anywhere in F, between steps and
 * at every read. Arguments: seed, steps. Exits 0 if the scheduler stayed within its memory, consistent, and stopped. */
#include <random>

#include "appliance.h"

using namespace blink;
using namespace blink::test;

namespace {

struct Fuzzer {
    Appliance &a;
    std::mt19937_64 rng;

    uint64_t below(uint64_t n) { return rng() % n; }

    /* A number that tends to be at an edge. */
    uint64_t edgy() {
        uint64_t x = rng();
        switch (below(6)) {
            case 0:
                return below(4);
            case 1:
                return ~below(4);
            case 2:
                return (1ull << below(64)) + below(3) - 1;
            case 3:
                return a.in_off + below(a.in_len + 64) / 64 * 64;
            case 4:
                return a.out_off + below(a.out_len + 64) / 64 * 64;
            default:
                return x;
        }
    }

    void word(uint8_t *at) {
        uint64_t value = edgy();
        std::memcpy(at, &value, 8);
    }

    /* A request that would run, in which some fields are then replaced, and which is mostly sealed again. */
    void plausible(uint32_t part, uint32_t slot) {
        /* What a frontend that kept count would send next, so that slots do not stay dead after nonsense. */
        uint32_t gen = a.sched().claimed()[part * a.per_part + slot] + 1, seq = a.sched().partition(part).db + 1;
        uint32_t n = 1 + below(20), hash = 0;
        uint32_t ext_words = below(2) ? 0 : 2 + below(12);
        uint32_t *words = reinterpret_cast<uint32_t *>(a.f_part(part) + a.in_off + slot * 512);
        for (uint32_t i = 0; i < n + ext_words; i++) words[i] = below(20) ? below(a.config.vocab) : edgy();
        if (ext_words) words[n] = below(4), words[n + 1] = (ext_words - 2 - words[n]) / 2;
        for (uint32_t i = 0; i < n + ext_words; i++) hash += hash_term(words[i], i);
        RingRequest q{};
        q.gen = gen, q.seq = seq, q.prompt_off = a.in_off + slot * 512, q.prompt_len = n, q.max_tokens = 1 + below(20);
        q.out_off = a.out_off + below(32) * 64, q.lp_off = a.out_off + below(64) * 4, q.out_cap = 20;
        q.flags = below(4), q.temperature = 1, q.top_p = 1, q.repetition = 1, q.lp_n = below(21), q.prompt_hash = hash;
        q.ext_off = a.in_off + slot * 512 + 4 * n, q.ext_words = ext_words, q.n_stop = below(5);
        q.deadline_ms = below(4) ? 0 : below(20), q.min_tokens = below(30);
        for (auto &id : q.stop) id = below(a.config.vocab);
        uint8_t bytes[sizeof q + 8];
        std::memcpy(bytes, &q, sizeof q);
        for (uint64_t k = below(3); k > 0; k--) word(bytes + below(31) * 4);
        std::memcpy(&q, bytes, sizeof q);
        if (below(8)) q.gen = gen, q.seq = seq;
        if (below(8)) seal(q);
        *a.request(part, slot) = q;
        a.command(part, slot)->commit = Commit::put_gen(gen) | Commit::put_seq(seq);
        a.f_head(part)->db = Bell::put_seq(seq);
        if (below(6) == 0) a.command(part, slot)->cancel = Cancel::put_gen(gen);
    }

    void spray() {
        uint32_t part = below(a.parts), slot = below(a.per_part);
        switch (below(8)) {
            case 0:
                word(a.f_part(part));
                break;
            case 1:
                word(a.f_part(part) + 64 + below(a.per_part * 2) * 8);
                break;
            case 2:
                word(a.f_part(part) + a.request_off + below(a.per_part * 32 - 1) * 4);
                break;
            case 3:
                word(a.f_part(part) + a.in_off + below(a.in_len / 4 - 1) * 4);
                break;
            case 4:
                a.f_head(part)->db = Bell::put_seq((uint32_t)edgy());
                break;
            default:
                plausible(part, slot);
        }
    }
};

/* Changes F while the scheduler reads it: between any two loads the frontend may have written. */
struct HostilePlatform : CpuPlatform {
    static inline Fuzzer *fuzzer = nullptr;
    template <class T>
    static T ring_load(const T *a) {
        if (fuzzer && fuzzer->below(400) == 0) fuzzer->spray();
        return CpuPlatform::ring_load(a);
    }
};

}  // namespace

int main(int argc, char **argv) {
    uint64_t seed = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1, steps = argc > 2 ? std::atoi(argv[2]) : 20000;
    SchedConfig config = small_config(3, 6, 50);
    config.n_eos = 2, config.eos[0] = 7, config.eos[1] = 11, config.alive_ms = 50;
    config.mixed = seed % 2;
    Appliance a(config, 3, 6);
    Fuzzer fuzzer{a, std::mt19937_64(seed)};
    Shared shared;
    HostilePlatform p{{&shared}};
    HostilePlatform::fuzzer = &fuzzer;
    Sched &s = a.sched();
    for (uint64_t i = 0; i < steps; i++) {
        for (uint64_t k = fuzzer.below(4); k > 0; k--) fuzzer.spray();
        for (uint32_t part = 0; part < a.parts; part++)
            if (fuzzer.below(4)) a.f_head(part)->alive++;
        p.fixed_now_ns = (i + 1) * 100000;
        Decision d = step(p, s);
        a.require_integrity();
        if (d.kind == KIND_PREFILL || d.kind == KIND_DECODE) {
            a.run_engine();
            if (fuzzer.below(500) == 0) a.control[0].error = 1;
            else if (fuzzer.below(50) == 0) a.out_token[fuzzer.below(d.rows)] = (int32_t)fuzzer.edgy();
        }
    }
    uint64_t served = 0, refused = 0;
    for (uint32_t r = 1; r < 32; r++) (r < 16 ? served : refused) += s.counters[COUNTER_FINISHED_BASE + r];
    std::printf("%lu ended, %lu refused, %lu tokens, %lu torn, %lu preempted\n", (unsigned long)served,
                (unsigned long)refused, (unsigned long)s.counters[COUNTER_OUTPUT_TOKENS],
                (unsigned long)s.counters[COUNTER_TORN], (unsigned long)s.counters[COUNTER_PREEMPTIONS]);
    REQUIRE(served > steps / 20 && refused > steps / 20 && s.counters[COUNTER_PREEMPTIONS] > 0);

    a.control_word[0] = CONTROL_STOP;
    for (uint64_t i = 0;; i++) {
        REQUIRE(i < 100); /* even a frontend that goes on cannot keep the scheduler from stopping */
        fuzzer.spray();
        p.fixed_now_ns += 100000;
        Decision d = step(p, s);
        if (d.kind == KIND_PREFILL || d.kind == KIND_DECODE) a.run_engine();
        if (d.kind == KIND_STOP) break;
    }
    a.require_integrity();
    REQUIRE(s.n_free_records == config.records && s.n_free_pages == config.pages && s.n_free_lanes == config.lanes);
}
