/* Attention of packed rows of new tokens over the paged cache, their own keys and values included.
 *
 * The work of a row and a key head is its pairs of (token, query head of the group), ROWS of them to an item: so few
 * tokens of many heads fill an item as many tokens of few heads do. An item is a walk over the positions that its
 * tokens see, COLUMNS at a time from a multiple of COLUMNS. What a pair does not see contributes exact zeros, so its
 * result has the same bits whatever the other pairs of its item are, and whether the prompt comes in one piece or in
 * chunks.
 *
 * Two warpgroups of a block compute 64 pairs each. A step of their walk is the scores of one tile and the sums of the
 * tile before it, so that tensor cores have work while weights are made of the scores. Four more warps only copy keys
 * and values to shared memory, two tiles of each, as the others are done with what was there. */
#include "native/attention_softmax.cuh"

using namespace blink;

namespace {

/* By the warps that only copy: half of them keys, half values, and neither waits for the other. */
__device__ __forceinline__ void copy_warps(const AttentionArguments &a, Storage &s, Barriers &barriers,
                                           const Items &items, uint32_t warp) {
    registers_give<72>();
    bool of_keys = warp < (COMPUTING + COPYING / 2) / WARP;
    uint32_t thread = threadIdx.x % (COPYING / 2);
    const real *pool = of_keys ? a.keys : a.values;
    Barrier *there = of_keys ? barriers.keys_there : barriers.values_there;
    Barrier *done = of_keys ? barriers.keys_done : barriers.values_done;
    uint8_t (*to)[TILE] = of_keys ? s.keys : s.values;
    uint32_t i = 0; /* tiles before this one, of all items */
    for (uint32_t round = 0; number_of(round) < items.all; round++) {
        Item item(a, items, number_of(round));
        const int32_t *table = a.batch.block_table + (uint64_t)a.batch.row_lane[item.row] * a.lane_pages;
        PagedHead cache = {table, a.kv_heads, item.kv_head, a.page_bits};
        for (uint32_t from = item.begin; from < item.end; from += COLUMNS, i++) {
            if (i >= 2) done[i % 2].wait(i / 2 - 1);
            copy_tile(to[i % 2], thread, pool, cache, from, item.lowest, item.end);
            there[i % 2].arrive_after_copies();
        }
    }
    copies_end_group();
    copies_wait_all_but<0>();
}

/* A warp's 16 pairs of an item, by number. Those past the row's last are as the last, and are not stored. */
struct Pairs {
    uint32_t start, kv_head, group, all, first;

    __device__ __forceinline__ bool real_one(uint32_t r) const { return first + r < all; }
    __device__ __forceinline__ uint32_t pair(uint32_t r) const { return first + r < all ? first + r : all - 1; }
    __device__ __forceinline__ uint32_t token(uint32_t r) const { return pair(r) / group; }
    __device__ __forceinline__ uint32_t head(uint32_t r) const { return kv_head * group + pair(r) % group; }
};

/* Collective for a warpgroup: the item's queries, once all have done with the last item's. Each warp brings its own to
 * `mine`, and finds out meanwhile what they see. */
__device__ __forceinline__ Seen bring_queries(const AttentionArguments &a, const Item &item, const Pairs &pairs,
                                              uint8_t *mine, uint32_t warpgroup) {
    uint32_t lane = threadIdx.x % WARP, g = lane / 4;
    warpgroup_barrier(1 + warpgroup);
    auto every = [](uint32_t) { return true; };
    copy_rows<WARP, 16, QUERY_PART, 16>(mine, lane, every, [=](uint32_t r) {
        return a.q + (pairs.start + pairs.token(r)) * a.q_stride + pairs.head(r) * DIM;
    });
    copies_end_group();
    Seen seen(item.position + pairs.token(g) + 1, item.position + pairs.token(8 + g) + 1, a.window);
    copies_wait_all_but<0>();
    products_see_shared();
    warpgroup_barrier(1 + warpgroup);
    return seen;
}

/* By a warpgroup: score = queries · keys, and out += weight · values; later. */
__device__ __forceinline__ void multiply_keys(Scores &score, const Operand &query, const Operand &key) {
    products_see_shared();
    products_begin();
#pragma unroll
    for (uint32_t k = 0; k < STEPS; k++)
        multiply(score, query.at(k / 4 * QUERY_PART + k % 4 * 32), key.at(k / 4 * PART + k % 4 * 32), k > 0);
    products_end_group();
}
__device__ __forceinline__ void add_values(Outputs &out, const Weights &weight, const Operand &value) {
    products_see_shared();
    products_begin();
#pragma unroll
    for (uint32_t n = 0; n < COLUMNS / 16; n++) {
#pragma unroll
        for (uint32_t p = 0; p + 1 < PARTS; p += 2)
            multiply_add(out[p], out[p + 1], weight[n], value.at(p * PART + n * 16 * SWIZZLED_ROW));
        if (PARTS % 2) multiply_add(out[PARTS - 1], weight[n], value.at((PARTS - 1) * PART + n * 16 * SWIZZLED_ROW));
    }
    products_end_group();
}

/* Collective for a warp: its outputs, through shared memory where its queries were, so that rows are written whole. */
__device__ __forceinline__ void store(const AttentionArguments &a, const Pairs &pairs, const Outputs &out,
                                      Softmax &softmax, uint8_t *mine) {
    uint32_t lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
#pragma unroll
    for (uint32_t h = 0; h < 2; h++) {
        float inverse = softmax.inverse(h);
#pragma unroll
        for (uint32_t n = 0; n < UNITS; n++) {
            const float *o = &out[n / 8][n % 8 * 4 + 2 * h];
            uint8_t *unit = mine + n / SWIZZLED_UNITS * QUERY_PART + 16 * swizzled(8 * h + g, n % SWIZZLED_UNITS);
            *reinterpret_cast<uint32_t *>(unit + 4 * t) = pack2(o[0] * inverse, o[1] * inverse);
        }
    }
    __syncwarp();
#pragma unroll
    for (uint32_t n = lane; n < 16 * UNITS; n += WARP) {
        uint32_t r = n / UNITS, unit = n % UNITS;
        if (!pairs.real_one(r) || VECTOR * unit >= DIM) continue;
        real *to = a.out + (pairs.start + pairs.token(r)) * a.out_stride + pairs.head(r) * DIM;
        *reinterpret_cast<uint4 *>(to + VECTOR * unit) = *reinterpret_cast<const uint4 *>(
            mine + unit / SWIZZLED_UNITS * QUERY_PART + 16 * swizzled(r, unit % SWIZZLED_UNITS));
    }
}

/* By the two warpgroups that compute. */
__device__ __forceinline__ void compute_warps(const AttentionArguments &a, Storage &s, Barriers &barriers,
                                              const Items &items, uint32_t warp) {
    registers_take<216>();
    uint32_t lane = threadIdx.x % WARP, group = a.heads / a.kv_heads;
    uint32_t of_group = warp / 4 * 64; /* the warpgroup's first pair in an item */
    uint8_t *mine = s.queries + warp * 16 * SWIZZLED_ROW;
    Operand query(uniform((uint32_t)__cvta_generic_to_shared(s.queries) + of_group * SWIZZLED_ROW), QUERY_PART);
    uint32_t key_tiles = uniform((uint32_t)__cvta_generic_to_shared(s.keys));
    uint32_t value_tiles = key_tiles + sizeof(s.keys);
    uint32_t i = 0; /* tiles of keys before this one, of all items; of values too */
    for (uint32_t round = 0; number_of(round) < items.all; round++) {
        Item item(a, items, number_of(round));
        if (item.first_pair + of_group >= item.pairs) { /* nothing to compute */
            for (uint32_t from = item.begin; from < item.end; from += COLUMNS, i++) {
                barriers.keys_there[i % 2].wait(i / 2);
                if (lane == 0) barriers.keys_done[i % 2].arrive();
                barriers.values_there[i % 2].wait(i / 2);
                if (lane == 0) barriers.values_done[i % 2].arrive();
            }
            continue;
        }

        Pairs pairs = {item.start, item.kv_head, group, item.pairs, item.first_pair + warp * 16};
        Seen seen = bring_queries(a, item, pairs, mine, warp / 4);
        Softmax softmax;
        Outputs out = {};
        Scores score;
        Weights weight = {}; /* of the tile before */
        auto begin_values = [&](uint32_t i) {
            barriers.values_there[i % 2].wait(i / 2);
            add_values(out, weight, Operand(value_tiles + i % 2 * TILE, PART));
        };
        for (uint32_t from = item.begin; from < item.end; from += COLUMNS, i++) {
            barriers.keys_there[i % 2].wait(i / 2);
            multiply_keys(score, query, Operand(key_tiles + i % 2 * TILE, PART));
            if (from > item.begin) begin_values(i - 1);
            else products_end_group();
            products_wait_all_but<1>(score);
            if (lane == 0) barriers.keys_done[i % 2].arrive();

            seen.mask(score, from);
            softmax.update(score, a.scale_log2);
            /* The assembler moves a wait for products up to the last branch, so there is one in front of it: the
             * scores' exponentials are to be computed meanwhile. */
            keep_order(score);
            softmax.rescale(out);
            if (from > item.begin && lane == 0) barriers.values_done[(i - 1) % 2].arrive();
            pack(weight, score);
        }
        begin_values(i - 1);
        products_wait_all_but<0>(out);
        if (lane == 0) barriers.values_done[(i - 1) % 2].arrive();
        store(a, pairs, out, softmax, mine);
    }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    native_attention_prefill(const __grid_constant__ AttentionArguments a) {
    extern __shared__ uint8_t dynamic[];
    __shared__ Barriers barriers;
    Storage &s = Storage::in(dynamic);
    pdl_wait();
    pdl_launch();
    uint32_t rows = a.batch.control->rows, group = a.heads / a.kv_heads;
    if (rows == 0) return;
    uint32_t per_head = row_ends<THREADS>(rows, s.ends(), [&](uint32_t row) {
        return ((uint32_t)(a.batch.row_start[row + 1] - a.batch.row_start[row]) * group + ROWS - 1) / ROWS;
    });
    Items items = {s.ends(), rows, per_head, per_head * a.kv_heads};
    if (threadIdx.x < 2) barriers.begin(threadIdx.x);
    __syncthreads();

    uint32_t warp = uniform(threadIdx.x / WARP);
    if (warp >= COMPUTING / WARP) copy_warps(a, s, barriers, items, warp);
    else compute_warps(a, s, barriers, items, warp);
}
