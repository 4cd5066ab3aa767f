/* The lanes' histories, and what changes logits before a token is chosen: bias, penalties, bans. */
#ifndef BLINK_NATIVE_SAMPLE_ADJUST_CUH
#define BLINK_NATIVE_SAMPLE_ADJUST_CUH

#include "native_sample.cuh"

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

/* body(id, x) for the lane's share of the warp's ids, from device memory, 16 bytes at a time where they are aligned. */
template <class Body>
__device__ __forceinline__ void each_raw(const Row &row, Body body) {
    const float *x = row.raw + row.first;
    uint32_t lane = threadIdx.x % WARP, count = row.count;
    if ((uint64_t)x % 16 == 0 && count % 4 == 0) {
        constexpr uint32_t AT_ONCE = 4;
        for (uint32_t base = 4 * lane; base < count; base += AT_ONCE * 4 * WARP) {
            float4 v[AT_ONCE];
#pragma unroll
            for (uint32_t k = 0; k < AT_ONCE; k++)
                if (base + k * 4 * WARP < count) v[k] = *reinterpret_cast<const float4 *>(x + base + k * 4 * WARP);
#pragma unroll
            for (uint32_t k = 0; k < AT_ONCE; k++) {
                uint32_t id = row.first + base + k * 4 * WARP;
                if (base + k * 4 * WARP < count)
                    body(id, v[k].x), body(id + 1, v[k].y), body(id + 2, v[k].z), body(id + 3, v[k].w);
            }
        }
    } else {
#pragma unroll 4
        for (uint32_t i = lane; i < count; i += WARP) body(row.first + i, x[i]);
    }
}

/* The largest of the logits that this lane looks at, which are kept as they are. BROKEN if one is not finite. */
__device__ u64 keep_raw(const Row &row) {
    u64 best = 0;
    each_raw(row, [&](uint32_t id, float x) {
        row.adjusted[id - row.block_first] = x += 0.0f;
        u64 c = finite(x) ? candidate(x, id) : BROKEN;
        best = c > best ? c : best;
    });
    __syncwarp();
    return best;
}

/* What is marked for an id, in place of its logit, before that is read. */
constexpr uint32_t IN_PROMPT = 1u << 31, BIAS_SHIFT = 20, COUNT = (1u << BIAS_SHIFT) - 1;
static_assert(BATCH_MAX_BIAS < IN_PROMPT >> BIAS_SHIFT, "a bias' number fits");

/* Collective: marks the block's ids: number of the bias + 1, whether the prompt has it, how often the answer does. */
__device__ void mark(const Adjustments &j, uint32_t *marks, uint32_t first, uint32_t count) {
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
    each_raw(row, [&](uint32_t id, float x) {
        uint32_t at = id - row.block_first;
        broken |= !finite(x);
        row.adjusted[at] = adjusted_logit(j, x, marks[at]) + 0.0f;
    });
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < j.n_banned; i += THREADS) {
        uint32_t at = j.stop[i] - row.block_first;
        if (at < block_count) row.adjusted[at] = -__int_as_float(0x7F800000);
    }
    __syncthreads();
    u64 best = broken ? BROKEN : 0;
    row.each([&](uint32_t id, float x) {
        u64 c = candidate(x, id);
        best = c > best ? c : best;
    });
    return best;
}

}  // namespace blink
#endif  // BLINK_NATIVE_SAMPLE_ADJUST_CUH
