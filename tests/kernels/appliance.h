/* A ring, a scheduler's memory and step buffers for the C++ tests, each array in a heap block of its exact size, so
 * that AddressSanitizer sees every step beyond one. */
#ifndef BLINK_TESTS_APPLIANCE_H
#define BLINK_TESTS_APPLIANCE_H

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "scheduler/check.h"
#include "scheduler/platform_cpu.h"
#include "scheduler/scheduler.cuh"

namespace blink::test {

#define REQUIRE(condition)                                                       \
    do {                                                                         \
        if (!(condition)) {                                                      \
            std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
            std::exit(1);                                                        \
        }                                                                        \
    } while (0)

struct FreeBlock {
    void operator()(void *block) const { std::free(block); }
};

template <class T>
struct Array {
    std::unique_ptr<T, FreeBlock> block;
    explicit Array(size_t n) : block(static_cast<T *>(std::aligned_alloc(64, (n * sizeof(T) + 63) / 64 * 64))) {
        std::memset(static_cast<void *>(block.get()), 0, (n * sizeof(T) + 63) / 64 * 64);
    }
    T *get() const { return block.get(); }
    T &operator[](size_t i) const { return block.get()[i]; }
};

inline uint64_t page_up(uint64_t x) { return (x + 4095) / 4096 * 4096; }

inline SchedConfig small_config(uint32_t lanes, uint32_t records, uint32_t vocab) {
    SchedConfig c{};
    c.lanes = lanes, c.records = records, c.page_tokens = 4, c.pages = 14, c.max_context = 40, c.lane_pages = 10;
    c.vocab = vocab, c.batch_tokens = 12, c.ext_words = 32, c.claims_per_step = 3, c.torn_ms = 1, c.launch_window = 5;
    c.mixed = 1, c.step_budget_ms = 1000, c.n_decode = 1, c.decode_bucket[0] = lanes, c.n_prefill = 1,
    c.prefill_bucket[0] = 12;
    return c;
}

struct Appliance {
    SchedConfig config;
    uint32_t parts, per_part;
    uint64_t in_len = 16384, out_len = 16384;
    uint64_t out_off, g_stride, request_off, in_off, f_stride;
    Array<uint8_t> g, f;
    Array<StepControl> control;
    Array<int32_t> row_lane, row_start, row_kv_len, row_sample, token_ids, positions, kv_index, block_table;
    Array<LaneParams> lane_params;
    Array<uint32_t> lane_stop, lane_bias_ids;
    Array<float> lane_bias_values;
    Array<int32_t> out_token;
    Array<RingLogprob> out_logprob;
    Array<uint32_t> control_word;
    Array<uint8_t> memory;

    Appliance(const SchedConfig &c, uint32_t parts, uint32_t per_part)
        : config(c),
          parts(parts),
          per_part(per_part),
          out_off(page_up(64 + 16 * per_part)),
          g_stride(page_up(out_off + out_len)),
          request_off((64 + 16 * per_part + 127) / 128 * 128),
          in_off(page_up(request_off + 128 * per_part)),
          f_stride(page_up(in_off + in_len)),
          g(4096 + parts * g_stride),
          f(parts * f_stride),
          control(1),
          row_lane(c.lanes),
          row_start(c.lanes + 1),
          row_kv_len(c.lanes),
          row_sample(c.lanes),
          token_ids(c.batch_tokens),
          positions(c.batch_tokens),
          kv_index(c.batch_tokens),
          block_table(c.lanes * c.lane_pages),
          lane_params(c.lanes),
          lane_stop(c.lanes * BATCH_MAX_STOP),
          lane_bias_ids(c.lanes * BATCH_MAX_BIAS),
          lane_bias_values(c.lanes * BATCH_MAX_BIAS),
          out_token(c.lanes),
          out_logprob(c.lanes),
          control_word(1),
          memory(lay_out(c, parts * per_part, parts).size) {
        REQUIRE(check_config(c, parts * per_part, parts) == nullptr);
        RingHeader &h = *reinterpret_cast<RingHeader *>(g.get());
        h.slots = parts * per_part, h.parts = parts;
        h.g_off = 4096, h.g_stride = g_stride, h.f_off = 0, h.f_stride = f_stride;
        h.out_off = out_off, h.out_len = out_len, h.in_off = in_off, h.in_len = in_len;
        Batch batch = {control.get(),          row_lane.get(),    row_start.get(),  row_kv_len.get(),
                       row_sample.get(),       token_ids.get(),   positions.get(),  kv_index.get(),
                       block_table.get(),      lane_params.get(), lane_stop.get(),  lane_bias_ids.get(),
                       lane_bias_values.get(), out_token.get(),   out_logprob.get()};
        init(sched(), config, g.get(), f.get(), batch, control_word.get());
    }

    Sched &sched() const { return *reinterpret_cast<Sched *>(memory.get()); }
    uint8_t *f_part(uint32_t part) const { return f.get() + part * f_stride; }
    uint8_t *g_part(uint32_t part) const { return g.get() + 4096 + part * g_stride; }
    RingFHead *f_head(uint32_t part) const { return reinterpret_cast<RingFHead *>(f_part(part)); }
    RingCommand *command(uint32_t part, uint32_t i) const {
        return reinterpret_cast<RingCommand *>(f_part(part) + 64) + i;
    }
    RingRequest *request(uint32_t part, uint32_t i) const {
        return reinterpret_cast<RingRequest *>(f_part(part) + request_off) + i;
    }
    RingStatus *status(uint32_t part, uint32_t i) const {
        return reinterpret_cast<RingStatus *>(g_part(part) + 64) + i;
    }

    /* Every row's next token is its newest plus 1. */
    void run_engine() const {
        StepControl &c = control[0];
        for (uint32_t r = 0; r < c.rows; r++) {
            REQUIRE(row_start[r] < row_start[r + 1]);
            if (!row_sample[r]) continue;
            out_token[r] = (token_ids[row_start[r + 1] - 1] + 1) % (int32_t)config.vocab;
            out_logprob[r].chosen = -1, out_logprob[r].n = 20;
        }
        __atomic_store_n(&c.done, c.step, __ATOMIC_RELEASE);
    }

    void require_integrity() const {
        char text[256];
        check_integrity(sched(), text, sizeof text);
        if (text[0]) std::fprintf(stderr, "%s\n", text);
        REQUIRE(text[0] == 0);
    }
};

/* A valid request with its CRC; the prompt's hash is the caller's. */
inline void seal(RingRequest &q) {
    uint32_t words[32];
    std::memcpy(words, &q, sizeof q);
    q.crc = crc32c_words(words, 31);
}

}  // namespace blink::test
#endif  // BLINK_TESTS_APPLIANCE_H
