/* One token for each row of a step, as docs/sampling.md defines it; and what was fed to each lane, which penalties
 * count.
 *
 * A cluster of eight blocks has a row. The least is done that its parameters ask for: greedy rows are read once;
 * otherwise the logits stay in shared memory and are summed there, for every cut a few times more. */
#include "native/sample_adjust.cuh"
#include "native/sample_cut.cuh"
#include "native/sample_record.cuh"

using namespace blink;

namespace {

/* 64 random bits that belong to a seed and a position: words 0 and 1 of Philox4x32-10 (Salmon et al., 2011). */
__device__ u64 random_bits(uint64_t seed, uint32_t position) {
    uint32_t c[4] = {position, 0, 0, 0}, k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
#pragma unroll
    for (uint32_t round = 0; round < 10; round++) {
        u64 p0 = (u64)0xD2511F53 * c[0], p1 = (u64)0xCD9E8D57 * c[2];
        uint32_t next[4] = {(uint32_t)(p1 >> 32) ^ c[1] ^ k0, (uint32_t)p1, (uint32_t)(p0 >> 32) ^ c[3] ^ k1,
                            (uint32_t)p0};
        for (uint32_t i = 0; i < 4; i++) c[i] = next[i];
        k0 += 0x9E3779B9, k1 += 0xBB67AE85;
    }
    return (u64)c[1] << 32 | c[0];
}

/* Collective for a warp: the first of its ids at which the cumulated weights exceed `target`. */
__device__ uint32_t find_id(const Row &row, const Cut &cut, u64 target) {
    const float *x = row.adjusted + (row.first - row.block_first);
    uint32_t lane = threadIdx.x % WARP;
    u64 ahead = 0;
    for (uint32_t base = 0; base < row.count; base += 4 * WARP) {
        u64 each[4], sum = 0;
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            uint32_t at = base + 4 * lane + i;
            sum += each[i] = at < row.count ? kept_weight(row, cut, x[at]) : 0;
        }
        u64 upto = ahead + warp_scan(sum);
        uint32_t over = __ballot_sync(EVERY_LANE, upto > target);
        if (over) {
            uint32_t owner = __ffs(over) - 1, id = row.first + base + 4 * lane;
            u64 before = upto - sum;
#pragma unroll
            for (uint32_t i = 0; i < 3; i++) id += (before += each[i]) <= target;
            return __shfl_sync(EVERY_LANE, id, owner);
        }
        ahead = __shfl_sync(EVERY_LANE, upto, WARP - 1);
    }
    return row.vocab; /* not reached: the target is below the sum */
}

/* Collective for the cluster: the token that the row's random number picks by weight; every thread gets it. */
__device__ uint32_t draw(SampleShared &s, const Row &row, const LaneParams &params, uint32_t position) {
    uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, rank = cluster_rank();
    Cut cut = find_cut(s, row, params);
    u64 sum = 0;
    row.each<2>([&](uint32_t, float x) { sum += kept_weight(row, cut, x); });
    sum = warp_join(sum, [](u64 a, u64 b) { return a + b; });
    if (lane == 0) s.warp_sum[warp] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        s.block_sum = 0, s.chosen = 0;
        for (uint32_t w = 0; w < WARPS; w++) s.block_sum += s.warp_sum[w];
    }
    cluster_sync();
    u64 all = 0, ahead = 0;
    for (uint32_t r = 0; r < CLUSTER; r++) {
        u64 of_block = *in_block(&s.block_sum, r);
        if (r < rank) ahead += of_block;
        all += of_block;
    }
    u64 target = __umul64hi(random_bits(params.seed, position), all);
    for (uint32_t w = 0; w < warp; w++) ahead += s.warp_sum[w];
    if (target >= ahead && target - ahead < s.warp_sum[warp]) {
        uint32_t id = find_id(row, cut, target - ahead);
        if (lane == 0) s.chosen = id + 1;
    }
    cluster_sync();
    uint32_t chosen = 0;
    for (uint32_t r = 0; r < CLUSTER; r++) chosen += *in_block(&s.chosen, r); /* all but one are 0 */
    return chosen - 1;
}

}  // namespace

extern "C" __cluster_dims__(CLUSTER, 1, 1) __global__ void __launch_bounds__(THREADS, 2)
    native_sample(const SampleArguments a) {
    extern __shared__ float4 dynamic[];
    __shared__ SampleShared s;
    uint32_t r = blockIdx.x / CLUSTER, rank = cluster_rank(), warp = threadIdx.x / WARP;
    pdl_wait();
    pdl_launch();
    if (r >= a.batch.control->rows) return;
    const float *of_row = a.logits + (uint64_t)r * a.vocab;
    Row row;
    row.vocab = a.vocab, row.block_first = rank * WARPS * a.range, row.first = row.block_first + warp * a.range;
    row.count = row.first >= a.vocab ? 0 : a.vocab - row.first < a.range ? a.vocab - row.first : a.range;
    row.adjusted = reinterpret_cast<float *>(dynamic);
    if (a.spill) row.adjusted = a.spill + ((uint64_t)r * CLUSTER + rank) * WARPS * a.range;
    /* The logits come while the parameters are read, though rows that do not sample need none. */
    if (!a.spill) keep_logits(of_row + row.first, row, true);

    Fed fed(a, r);
    if (rank == 0) fed.remember();
    if (!a.batch.row_sample[r]) return logits_arrived(); /* no copy may outlive its block */
    uint32_t lane = (uint32_t)a.batch.row_lane[r];
    const LaneParams params = a.batch.lane_params[lane];
    Adjustments adjustments(a, lane, params, fed);
    if (a.spill) keep_logits(of_row + row.first, row, false);
    logits_arrived();
    u64 best;
    if (adjustments.any()) {
        row.raw = of_row + row.first;
        best = adjust(adjustments, row);
    } else {
        row.raw = row.adjusted + (row.first - row.block_first);
        best = best_raw(row);
    }
    best = cluster_join(s.join, best, [](u64 x, u64 y) { return x > y ? x : y; });
    row.top = float_of((uint32_t)(best >> 32));
    if (best == BROKEN || !finite(row.top)) {
        if (rank == 0 && threadIdx.x == 0) a.batch.out_token[r] = -1;
        return;
    }
    uint32_t token = ~(uint32_t)best;
    if (params.temperature != 0) {
        row.inverse_temperature = 1 / (double)params.temperature;
        row.bins = (float)(BINS_PER_UNIT * row.inverse_temperature);
        token = draw(s, row, params, fed.length);
    }
    if (params.flags & FLAG_LOGPROBS) record(s, row, token, of_row, params.lp_n, a.batch.out_logprob[r]);
    if (rank == 0 && threadIdx.x == 0) a.batch.out_token[r] = (int32_t)token;
    cluster_sync(); /* before a block whose memory another may still read goes away */
}
