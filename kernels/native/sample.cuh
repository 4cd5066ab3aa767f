/* Choosing tokens, as docs/sampling.md defines it: what a row's blocks share, and the steps on its logits.
 *
 * A warp owns `range` consecutive ids, warps in the order of ids; so sums in the order of ids are sums over warps. The
 * adjusted logits of a block's ids are in its shared memory, or, where the vocabulary is too large, in device memory.
 * Everything is a maximum or an integer sum, so that it comes out the same in whatever order it is joined. */
#ifndef BLINK_NATIVE_SAMPLE_CUH
#define BLINK_NATIVE_SAMPLE_CUH

#include "rtc.h"

#include "native/cluster.cuh"
#include "native/layout.h"

namespace blink {

typedef unsigned long long u64; /* what the device's own functions take */

constexpr uint32_t BINS = 2048;
constexpr uint32_t BIN_BITS = 11;
constexpr uint32_t BLOCK_BINS = BINS / CLUSTER;
constexpr uint32_t WEIGHT_BITS = 40; /* of the most likely token's weight, 2^40 */
constexpr double ONE = 1099511627776.0;
constexpr float WEIGHTLESS = 28.5f; /* exp of minus that and 2^40 is below a half */
constexpr float BINS_PER_UNIT = 64; /* of the exponent: what has a weight is in the first WEIGHTLESS of them */
constexpr u64 BROKEN = ~0ull;       /* joins as the largest of all */

struct SampleShared {
    ClusterSlots<u64> join;
    ClusterSlots<double> norm;
    uint32_t low[BINS], high[BINS]; /* of a histogram: 64-bit sums; later, candidates for a record */
    u64 sums[BLOCK_BINS];           /* of the cluster, for this block's part of the bins */
    u64 block_sum, warp_sum[WARPS];
    uint32_t bin, chosen;
    u64 before;
    u64 of_block[RING_LOGPROBS_MAX], top[RING_LOGPROBS_MAX]; /* for a record */
};

/* Order of floats as integers; −0 and 0 are one. */
__device__ __forceinline__ uint32_t order_of(float x) {
    uint32_t bits = __float_as_uint(x + 0.0f);
    return bits >> 31 ? ~bits : bits | 0x80000000;
}
__device__ __forceinline__ float float_of(uint32_t order) {
    return __uint_as_float(order >> 31 ? order & 0x7FFFFFFF : ~order);
}
/* The larger value wins, then the lower id. */
__device__ __forceinline__ u64 candidate(float x, uint32_t id) { return (u64)order_of(x) << 32 | ~id; }

__device__ __forceinline__ bool finite(float x) { return (__float_as_uint(x) & 0x7F800000) != 0x7F800000; }

/* The best of what a lane looks at, in the order of ids. */
struct Best {
    float x = -__int_as_float(0x7F800000);
    uint32_t id = 0xFFFFFFFF;

    __device__ __forceinline__ void see(uint32_t other_id, float other) {
        bool better = other > x || id == 0xFFFFFFFF;
        x = better ? other : x, id = better ? other_id : id;
    }
    __device__ __forceinline__ u64 joined(bool broken) const {
        return broken ? BROKEN : id == 0xFFFFFFFF ? 0 : candidate(x, id);
    }
};

/* 2^(bits + e log2(e)) for e ≤ 0, within 2^-45 of itself; no denormals are made of what is tiny. */
__device__ __forceinline__ double exp_scaled(double e, uint32_t bits) {
    constexpr double MAGIC = 6755399441055744.0; /* 1.5 · 2^52: adding it rounds to an integer, in the low bits */
    double whole = __fma_rn(e, 1.4426950408889634, MAGIC);
    int power = __double2loint(whole);
    double r = __fma_rn(whole - MAGIC, -0.6931471805599453, e); /* |r| ≤ log(2) / 2, and its error below 2^-48 */
    double p = 1.0 / 39916800;
    p = __fma_rn(p, r, 1.0 / 3628800), p = __fma_rn(p, r, 1.0 / 362880), p = __fma_rn(p, r, 1.0 / 40320);
    p = __fma_rn(p, r, 1.0 / 5040), p = __fma_rn(p, r, 1.0 / 720), p = __fma_rn(p, r, 1.0 / 120);
    p = __fma_rn(p, r, 1.0 / 24), p = __fma_rn(p, r, 1.0 / 6), p = __fma_rn(p, r, 0.5);
    p = __fma_rn(p, r, 1.0), p = __fma_rn(p, r, 1.0);
    return __hiloint2double(__double2hiint(p) + ((power + (int)bits) << 20), __double2loint(p));
}

/* The logits of one row, as the threads of a block see them. */
struct Row {
    float *adjusted;                           /* of this block's ids, with what the row's parameters change */
    const float *raw;                          /* of the warp's, as the model gave them; may be the same */
    uint32_t vocab, block_first, first, count; /* the warp's ids, of which there are `count` */
    double inverse_temperature;
    float top, bins; /* the largest; bins per difference from it */

    /* body(id, x) for the lane's share of the warp's ids, some at once. */
    template <int AT_ONCE, class Body>
    __device__ __forceinline__ void each_of(const float *x, Body body) const {
#pragma unroll AT_ONCE
        for (uint32_t i = threadIdx.x % WARP; i < count; i += WARP) body(first + i, x[i]);
    }
    template <int AT_ONCE = 1, class Body>
    __device__ __forceinline__ void each(Body body) const {
        each_of<AT_ONCE>(adjusted + (first - block_first), body);
    }
    template <int AT_ONCE = 1, class Body>
    __device__ __forceinline__ void each_raw(Body body) const {
        each_of<AT_ONCE>(raw, body);
    }
    /* The coarse bin of a logit; less likely tokens are in later ones. Those without a weight are in BINS or later. */
    __device__ __forceinline__ uint32_t bin(float x) const {
        float b = (top - x) * bins;
        return b <= WEIGHTLESS * BINS_PER_UNIT ? (uint32_t)b : x == top ? 0 : BINS;
    }
    __device__ __forceinline__ u64 weight(float x) const {
        double e = ((double)x - top) * inverse_temperature;
        if (e < -WEIGHTLESS) return 0;
        constexpr double MAGIC = 6755399441055744.0;
        double w = exp_scaled(e, WEIGHT_BITS) + MAGIC; /* rounds to nearest, ties to even */
        return __double_as_longlong(w) & ((1ull << 50) - 1);
    }
};

/* What top-k, top-p and min-p leave. */
struct Cut {
    uint32_t order = 0;  /* of a logit, at least */
    u64 weight = 1;      /* at least */
    uint32_t bin = BINS; /* at most: what makes a second look cheap */
};

__device__ __forceinline__ u64 kept_weight(const Row &row, const Cut &cut, float x) {
    if (row.bin(x) > cut.bin || order_of(x) < cut.order) return 0;
    u64 w = row.weight(x);
    return w < cut.weight ? 0 : w;
}

/* 64-bit sums in two words: 32-bit additions to shared memory are one instruction, 64-bit ones are loops. */
__device__ __forceinline__ void add_to_bin(SampleShared &s, uint32_t bin, u64 value) {
    uint32_t low = (uint32_t)value, high = (uint32_t)(value >> 32);
    if (low && atomicAdd(&s.low[bin], low) + low < low) high++;
    if (high) atomicAdd(&s.high[bin], high);
}

__device__ __forceinline__ void clear_bins(SampleShared &s) {
    for (uint32_t i = threadIdx.x; i < BINS; i += THREADS) s.low[i] = s.high[i] = 0;
    __syncthreads();
}

/* Inclusive sum over the lanes up to this one. */
__device__ __forceinline__ u64 warp_scan(u64 value) {
#pragma unroll
    for (uint32_t step = 1; step < WARP; step *= 2) {
        u64 lower = __shfl_up_sync(EVERY_LANE, value, step);
        if (threadIdx.x % WARP >= step) value += lower;
    }
    return value;
}

/* What a sum has to reach, as a double: a share of the whole, once that is known. */
struct Bound {
    double share, sum;
};

/* Collective for the cluster: the first bin at which the sum of `before` and the bins up to it reaches the bound, or
 * BINS if none does; `before` becomes the sum ahead of it. A share is of what the bins hold. */
__device__ uint32_t find_bin(SampleShared &s, Bound &wanted, u64 &before) {
    uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, rank = cluster_rank();
    cluster_sync();
    if (threadIdx.x < BLOCK_BINS) {
        uint32_t bin = rank * BLOCK_BINS + threadIdx.x;
        u64 sum = 0;
#pragma unroll
        for (uint32_t r = 0; r < CLUSTER; r++)
            sum += *in_block(&s.low[bin], r) + ((u64)*in_block(&s.high[bin], r) << 32);
        s.sums[threadIdx.x] = sum;
        sum = warp_join(sum, [](u64 a, u64 b) { return a + b; });
        if (lane == 0) s.warp_sum[warp] = sum;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        s.block_sum = 0;
        for (uint32_t w = 0; w < BLOCK_BINS / WARP; w++) s.block_sum += s.warp_sum[w];
    }
    cluster_sync();
    if (wanted.share > 0) {
        u64 all = 0;
        for (uint32_t r = 0; r < CLUSTER; r++) all += *in_block(&s.block_sum, r);
        wanted = {0, fmax(wanted.share * (double)all, 1.0)};
    }
    double bound = wanted.sum;
    if (warp == 0) {
        u64 ahead = before;
        uint32_t r = 0;
        for (; r < CLUSTER; r++) {
            u64 sum = *in_block(&s.block_sum, r);
            if ((double)(ahead + sum) >= bound) break;
            ahead += sum;
        }
        uint32_t bin = BINS;
        if (r < CLUSTER) {
            constexpr uint32_t EACH = BLOCK_BINS / WARP;
            const u64 *sums = in_block(s.sums, r) + lane * EACH;
            u64 mine = 0;
            for (uint32_t i = 0; i < EACH; i++) mine += sums[i];
            u64 upto = ahead + warp_scan(mine);
            uint32_t reached = __ballot_sync(EVERY_LANE, (double)upto >= bound), owner = __ffs(reached) - 1;
            if (lane == owner) {
                u64 sum = upto - mine;
                bin = r * BLOCK_BINS + lane * EACH;
                for (; (double)(sum + *sums) < bound; bin++) sum += *sums++;
                s.bin = bin, s.before = sum;
            }
        } else if (lane == 0) s.bin = BINS, s.before = ahead;
    }
    cluster_sync();
    before = s.before;
    return s.bin;
}

}  // namespace blink
#endif  // BLINK_NATIVE_SAMPLE_CUH
