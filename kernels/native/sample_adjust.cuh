/* The lanes' histories, and what changes logits before a token is chosen: bias, penalties, bans. */
#ifndef BLINK_NATIVE_SAMPLE_ADJUST_CUH
#define BLINK_NATIVE_SAMPLE_ADJUST_CUH

#include "native/sample.cuh"

namespace blink {

/* The tokens of a row's lane: those of earlier steps, by position, and those that this step feeds. Nothing is ever
 * cleared: a lane that starts over feeds every position again before it is counted. */
struct Fed {
    int32_t *earlier;
    const int32_t *now;
    uint32_t count, first, length;

    __device__ Fed(const SampleArguments &a, uint32_t row) {
        uint32_t start = (uint32_t)a.batch.row_start[row];
        earlier = a.fed + (uint64_t)a.batch.row_lane[row] * a.context;
        now = a.batch.token_ids + start;
        count = (uint32_t)a.batch.row_start[row + 1] - start;
        length = (uint32_t)a.batch.row_kv_len[row], first = length - count;
    }
    __device__ void remember() const {
        for (uint32_t i = threadIdx.x; i < count; i += THREADS) earlier[first + i] = now[i];
    }
    __device__ uint32_t token(uint32_t position) const {
        return (uint32_t)(position < first ? earlier[position] : now[position - first]);
    }
};

struct Adjustments {
    const SampleArguments &a;
    const LaneParams &params;
    const Fed &fed;
    const uint32_t *stop, *bias_ids;
    const float *bias_values;
    uint32_t n_prompt, n_banned;
    bool penalties;

    __device__ Adjustments(const SampleArguments &args, uint32_t lane, const LaneParams &p, const Fed &f)
        : a(args), params(p), fed(f) {
        stop = a.batch.lane_stop + (uint64_t)lane * BATCH_MAX_STOP;
        bias_ids = a.batch.lane_bias_ids + (uint64_t)lane * BATCH_MAX_BIAS;
        bias_values = a.batch.lane_bias_values + (uint64_t)lane * BATCH_MAX_BIAS;
        n_prompt = params.prompt_len < fed.length ? params.prompt_len : fed.length;
        n_banned = fed.length - n_prompt < params.min_tokens ? params.n_stop : 0;
        penalties = params.repetition != 1 || params.presence != 0 || params.frequency != 0;
    }
    __device__ bool any() const { return penalties || n_banned || params.n_bias; }
};

/* The warp's logits to where they are kept; they are there after logits_arrived(). */
__device__ void keep_logits(const float *from, const Row &row, bool shared) {
    float *to = row.adjusted + (row.first - row.block_first);
    uint32_t lane = threadIdx.x % WARP, at = (uint32_t)__cvta_generic_to_shared(to);
    if (!shared) {
        for (uint32_t i = lane; i < row.count; i += WARP) to[i] = from[i];
    } else if ((uint64_t)from % 16 == 0 && row.count % 4 == 0) {
        for (uint32_t i = 4 * lane; i < row.count; i += 4 * WARP)
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at + 4 * i), "l"(from + i) : "memory");
    } else {
        for (uint32_t i = lane; i < row.count; i += WARP)
            asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(at + 4 * i), "l"(from + i) : "memory");
    }
}
__device__ __forceinline__ void logits_arrived() {
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncwarp();
}

/* The best of the logits that this lane looks at; BROKEN if one is not finite. */
__device__ u64 best_raw(const Row &row) {
    Best best;
    bool broken = false;
    row.each_raw<8>([&](uint32_t id, float x) {
        broken |= !finite(x);
        best.see(id, x);
    });
    return best.joined(broken);
}

/* What is marked for an id, in place of its logit, before that is read. */
constexpr uint32_t IN_PROMPT = 1u << 31, BIAS_SHIFT = 20, COUNT = (1u << BIAS_SHIFT) - 1;
static_assert(BATCH_MAX_BIAS < IN_PROMPT >> BIAS_SHIFT, "a bias' number fits");

/* Collective: marks the block's ids: number of the bias + 1, whether the prompt has it, how often the answer does. */
__device__ void mark(const Adjustments &j, uint32_t *marks, uint32_t first, uint32_t count) {
    __syncthreads(); /* the logits that every warp has put there must not come after the marks */
    for (uint32_t i = threadIdx.x; i < count; i += THREADS) marks[i] = 0;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < j.params.n_bias; i += THREADS) {
        uint32_t id = j.bias_ids[i] - first;
        if (id < count) atomicMax(&marks[id], i + 1 << BIAS_SHIFT); /* the last, where an id is there twice */
    }
    __syncthreads();
    if (j.penalties)
        for (uint32_t p = threadIdx.x; p < j.fed.length; p += THREADS) {
            uint32_t id = j.fed.token(p) - first;
            if (id >= count) continue;
            if (p < j.n_prompt) atomicOr(&marks[id], IN_PROMPT);
            else atomicAdd(&marks[id], 1);
        }
    __syncthreads();
}

/* Each operation rounds, as NumPy's do: no multiply-add may fuse two. */
__device__ __forceinline__ float adjusted_logit(const Adjustments &j, float x, uint32_t mark) {
    uint32_t bias = (mark & ~IN_PROMPT) >> BIAS_SHIFT, count = mark & COUNT;
    if (bias) x = __fadd_rn(x, j.bias_values[bias - 1]);
    if (mark & (IN_PROMPT | COUNT)) {
        float r = j.params.repetition;
        if (r != 1) x = x > 0 ? __fdiv_rn(x, r) : __fmul_rn(x, r);
        if (count) x = __fsub_rn(__fsub_rn(x, __fmul_rn(j.params.frequency, (float)count)), j.params.presence);
    }
    return x;
}

/* Collective: the largest of the logits that this lane looks at, after all adjustments, and these kept. */
__device__ u64 adjust(const Adjustments &j, const Row &row) {
    uint32_t block_count = WARPS * j.a.range;
    uint32_t *marks = reinterpret_cast<uint32_t *>(row.adjusted);
    mark(j, marks, row.block_first, block_count);
    bool broken = false;
    row.each_raw([&](uint32_t id, float x) {
        uint32_t at = id - row.block_first;
        broken |= !finite(x);
        row.adjusted[at] = adjusted_logit(j, x, marks[at]);
    });
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < j.n_banned; i += THREADS) {
        uint32_t at = j.stop[i] - row.block_first;
        if (at < block_count) row.adjusted[at] = -__int_as_float(0x7F800000);
    }
    __syncthreads();
    Best best;
    row.each([&](uint32_t id, float x) {
        broken |= x != x;
        best.see(id, x);
    });
    return best.joined(broken);
}

}  // namespace blink
#endif  // BLINK_NATIVE_SAMPLE_ADJUST_CUH
