/* Log probabilities of the logits as the model gave them. */
#ifndef BLINK_NATIVE_SAMPLE_RECORD_CUH
#define BLINK_NATIVE_SAMPLE_RECORD_CUH

#include "native/sample_adjust.cuh"

namespace blink {

constexpr uint32_t MOST = RING_LOGPROBS_MAX;
static_assert(WARPS * MOST * sizeof(u64) <= BINS * sizeof(uint32_t), "the warps' candidates fit a histogram's words");

/* Puts candidate c, one of `count`, at its place among the n largest if it is one of them. No two are equal but 0. */
template <class At>
__device__ void put_in_order(u64 *to, uint32_t n, u64 c, uint32_t count, At at) {
    uint32_t larger = 0;
    for (uint32_t i = 0; i < count; i++) larger += at(i) > c;
    if (c && larger < n) to[larger] = c;
}

/* Collective for the cluster: the n largest candidates of the row, in s.top of block 0, larger first. */
__device__ void find_top(SampleShared &s, const Row &row, uint32_t n) {
    uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, rank = cluster_rank();
    u64 *of_warps = reinterpret_cast<u64 *>(s.low);
    auto best_below = [&](u64 limit) {
        u64 best = 0;
        row.each_raw([&](uint32_t id, float x) {
            u64 c = candidate(x, id);
            if (c < limit && c > best) best = c;
        });
        return best;
    };
    /* A lane looks at its logits again only once its best is taken. */
    u64 mine = best_below(BROKEN);
    for (uint32_t i = 0; i < n; i++) {
        u64 best = warp_join(mine, [](u64 x, u64 y) { return x > y ? x : y; });
        if (lane == 0) of_warps[warp * n + i] = best;
        if (best && mine == best) mine = best_below(best);
        __syncwarp();
    }
    if (threadIdx.x < n) s.of_block[threadIdx.x] = 0;
    __syncthreads();
    if (threadIdx.x < WARPS * n)
        put_in_order(s.of_block, n, of_warps[threadIdx.x], WARPS * n, [&](uint32_t i) { return of_warps[i]; });
    cluster_sync();
    auto of_blocks = [&](uint32_t i) { return in_block(s.of_block, i / n)[i % n]; };
    if (rank == 0 && threadIdx.x < CLUSTER * n) put_in_order(s.top, n, of_blocks(threadIdx.x), CLUSTER * n, of_blocks);
    cluster_sync();
}

/* Collective for the cluster: the record of a row that got `token`. */
__device__ void record(SampleShared &s, const Row &row, uint32_t token, const float *logits, uint32_t wanted,
                       RingLogprob &to) {
    u64 best = cluster_join(s.join, best_raw(row), [](u64 x, u64 y) { return x > y ? x : y; });
    double top = float_of((uint32_t)(best >> 32)), sum = 0;
    row.each_raw<2>([&](uint32_t, float x) {
        double e = x - top;
        if (e > -60) sum += exp_scaled(e, 0); /* the others are nothing beside the top's 1 */
    });
    sum = cluster_join(s.norm, sum, [](double x, double y) { return x + y; });
    double norm = top + log(sum);
    uint32_t n = wanted < row.vocab ? wanted : row.vocab;
    if (n > MOST) n = MOST;
    find_top(s, row, n);
    if (cluster_rank() != 0) return;
    if (threadIdx.x == 0) to.chosen = (float)(logits[token] - norm), to.n = n;
    if (threadIdx.x < n) {
        u64 c = s.top[threadIdx.x];
        to.ids[threadIdx.x] = ~(uint32_t)c;
        to.values[threadIdx.x] = (float)(float_of((uint32_t)(c >> 32)) - norm);
    }
}

}  // namespace blink
#endif  // BLINK_NATIVE_SAMPLE_RECORD_CUH
