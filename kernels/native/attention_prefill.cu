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
#include "native/attention_items.cuh"

using namespace blink;

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    native_attention_prefill(const __grid_constant__ AttentionArguments a) {
    extern __shared__ uint8_t dynamic[];
    uint8_t *queries = dynamic + -(uint32_t)__cvta_generic_to_shared(dynamic) % 1024;
    uint8_t *keys = queries + QUERIES, *values = keys + 2 * TILE; /* two tiles of each */
    uint32_t *ends = reinterpret_cast<uint32_t *>(values + 2 * TILE);
    __shared__ Barrier keys_there[2], values_there[2], keys_done[2], values_done[2];
    pdl_wait();
    pdl_launch();
    uint32_t rows = a.batch.control->rows, group = a.heads / a.kv_heads;
    if (rows == 0) return;
    uint32_t per_head = row_ends<THREADS>(rows, ends, [&](uint32_t row) {
        return ((uint32_t)(a.batch.row_start[row + 1] - a.batch.row_start[row]) * group + ROWS - 1) / ROWS;
    });
    uint32_t items = per_head * a.kv_heads;
    if (threadIdx.x < 2) {
        keys_there[threadIdx.x].begin(COPYING / 2), values_there[threadIdx.x].begin(COPYING / 2);
        keys_done[threadIdx.x].begin(COMPUTING / WARP), values_done[threadIdx.x].begin(COMPUTING / WARP);
    }
    __syncthreads();

    uint32_t lane = threadIdx.x % WARP, warp = uniform(threadIdx.x / WARP), g = lane / 4, t = lane % 4;
    uint32_t i = 0; /* tiles of keys before this one, of all items; of values too */
    if (warp >= COMPUTING / WARP) {
        registers_give<72>();
        bool of_keys = warp < (COMPUTING + COPYING / 2) / WARP; /* or of values, and neither waits for the other */
        uint32_t thread = threadIdx.x % (COPYING / 2);
        const real *pool = of_keys ? a.keys : a.values;
        Barrier *there = of_keys ? keys_there : values_there, *done = of_keys ? keys_done : values_done;
        uint8_t *to = of_keys ? keys : values;
        for (uint32_t round = 0; number_of(round) < items; round++) {
            Item item(a, ends, rows, per_head, number_of(round));
            const int32_t *table = a.batch.block_table + (uint64_t)a.batch.row_lane[item.row] * a.lane_pages;
            PagedHead cache = {table, a.kv_heads, item.kv_head, a.page_bits};
            for (uint32_t from = item.begin; from < item.end; from += COLUMNS, i++) {
                if (i >= 2) done[i % 2].wait(i / 2 - 1);
                copy_tile(to + i % 2 * TILE, thread, pool, cache, from, item.lowest, item.end);
                there[i % 2].arrive_after_copies();
            }
        }
        copies_end_group();
        copies_wait_all_but<0>();
        return;
    }

    registers_take<216>();
    uint32_t of_group = warp / 4 * 64; /* the warpgroup's first pair in an item */
    uint8_t *mine = queries + warp * 16 * SWIZZLED_ROW;
    Operand query(uniform((uint32_t)__cvta_generic_to_shared(queries) + of_group * SWIZZLED_ROW), QUERY_PART);
    uint32_t key_tiles = uniform((uint32_t)__cvta_generic_to_shared(keys)), value_tiles = key_tiles + 2 * TILE;
    for (uint32_t round = 0; number_of(round) < items; round++) {
        Item item(a, ends, rows, per_head, number_of(round));
        uint32_t pairs = item.pairs, first = item.first_pair + warp * 16; /* the warp's first pair */
        if (item.first_pair + of_group >= pairs) {                        /* nothing to compute */
            for (uint32_t from = item.begin; from < item.end; from += COLUMNS, i++) {
                keys_there[i % 2].wait(i / 2);
                if (lane == 0) keys_done[i % 2].arrive();
                values_there[i % 2].wait(i / 2);
                if (lane == 0) values_done[i % 2].arrive();
            }
            continue;
        }

        /* Those past the row's last are as the last, and are not stored. */
        auto token_of = [=](uint32_t pair) { return (pair < pairs ? pair : pairs - 1) / group; };
        auto head_of = [=](uint32_t pair) { return item.kv_head * group + (pair < pairs ? pair : pairs - 1) % group; };
        warpgroup_barrier(1 + warp / 4); /* all have done with the last item's queries */
        auto every = [](uint32_t) { return true; };
        copy_rows<WARP, 16, QUERY_PART, 16>(mine, lane, every, [=](uint32_t r) {
            return a.q + (item.start + token_of(first + r)) * a.q_stride + head_of(first + r) * DIM;
        });
        copies_end_group();
        uint32_t seen_from[2], seen_end[2]; /* what the lane's two pairs see */
#pragma unroll
        for (uint32_t h = 0; h < 2; h++) {
            seen_end[h] = item.position + token_of(first + 8 * h + g) + 1;
            seen_from[h] = first_seen(seen_end[h], a.window);
        }
        uint32_t fewest = __reduce_min_sync(EVERY_LANE, seen_end[0]);
        uint32_t most = __reduce_max_sync(EVERY_LANE, seen_from[1]);
        copies_wait_all_but<0>();
        products_see_shared();
        warpgroup_barrier(1 + warp / 4);

        float out[PARTS][32] = {}, largest[2] = {-INFINITE, -INFINITE}, sum[2] = {};
        float score[COLUMNS / 64][32]; /* [n / 8][n % 8 * 4 …]: pairs g and g + 8, positions 8 n + 2t and the next */
        uint32_t weight[COLUMNS / 16][4] = {}; /* of the tile before: pairs g and g + 8, positions 16 n + 2t … */
        auto add_values = [&](uint32_t i) {
            values_there[i % 2].wait(i / 2);
            products_see_shared();
            Operand value(value_tiles + i % 2 * TILE, PART);
            products_begin();
#pragma unroll
            for (uint32_t n = 0; n < COLUMNS / 16; n++) {
#pragma unroll
                for (uint32_t p = 0; p + 1 < PARTS; p += 2)
                    multiply_add(out[p], out[p + 1], weight[n], value.at(p * PART + n * 16 * SWIZZLED_ROW));
                if (PARTS % 2)
                    multiply_add(out[PARTS - 1], weight[n], value.at((PARTS - 1) * PART + n * 16 * SWIZZLED_ROW));
            }
            products_end_group();
        };
        for (uint32_t from = item.begin; from < item.end; from += COLUMNS, i++) {
            keys_there[i % 2].wait(i / 2);
            products_see_shared();
            Operand key(key_tiles + i % 2 * TILE, PART);
            products_begin();
#pragma unroll
            for (uint32_t k = 0; k < STEPS; k++)
                multiply(score, query.at(k / 4 * QUERY_PART + k % 4 * 32), key.at(k / 4 * PART + k % 4 * 32), k > 0);
            products_end_group();
            if (from > item.begin) add_values(i - 1);
            else products_end_group();
            products_wait_all_but<1>(score);
            if (lane == 0) keys_done[i % 2].arrive();

            if (from + COLUMNS > fewest || from < most)
#pragma unroll
                for (uint32_t n = 0; n < COLUMNS / 8; n++)
#pragma unroll
                    for (uint32_t e = 0; e < 4; e++) {
                        uint32_t column = from + 8 * n + 2 * t + e % 2;
                        bool seen = (column < seen_end[e / 2]) & (column >= seen_from[e / 2]);
                        if (!seen) score[n / 8][n % 8 * 4 + e] = -INFINITE;
                    }
            float top[2], factor[2];
#pragma unroll
            for (uint32_t h = 0; h < 2; h++) {
                top[h] = score[0][2 * h];
#pragma unroll
                for (uint32_t n = 0; n < COLUMNS / 8; n++) {
                    const float *s = &score[n / 8][n % 8 * 4 + 2 * h];
                    top[h] = fmaxf(top[h], fmaxf(s[0], s[1]));
                }
            }
#pragma unroll
            for (uint32_t step = 1; step < 4; step *= 2)
#pragma unroll
                for (uint32_t h = 0; h < 2; h++) top[h] = fmaxf(top[h], __shfl_xor_sync(EVERY_LANE, top[h], step));
#pragma unroll
            for (uint32_t h = 0; h < 2; h++) {
                /* Where nothing was seen yet, −∞ less −∞ must not become a NaN; and what nothing is added to stays as
                 * it is, by a factor of exactly 1. */
                top[h] = fmaxf(largest[h], top[h] * a.scale_log2);
                float subtract = top[h] == -INFINITE ? 0 : top[h];
                factor[h] = exp2_fast(largest[h] - subtract);
                largest[h] = top[h], sum[h] *= factor[h];
#pragma unroll
                for (uint32_t n = 0; n < COLUMNS / 8; n++) {
                    float *s = &score[n / 8][n % 8 * 4 + 2 * h];
                    s[0] = exp2_fast(s[0] * a.scale_log2 - subtract);
                    s[1] = exp2_fast(s[1] * a.scale_log2 - subtract);
                    sum[h] += s[0] + s[1];
                }
            }
            /* The assembler moves a wait for products up to the last branch, so there is one in front of it: the
             * scores' exponentials are to be computed meanwhile. */
            keep_order(score);
            if (__all_sync(EVERY_LANE, factor[0] == 1 && factor[1] == 1)) {
                products_wait_all_but<0>(out);
            } else {
                products_wait_all_but<0>(out);
#pragma unroll
                for (uint32_t n = 0; n < PARTS * 32; n++) out[n / 32][n % 32] *= factor[n / 2 % 2];
            }
            if (from > item.begin && lane == 0) values_done[(i - 1) % 2].arrive();
#pragma unroll
            for (uint32_t n = 0; n < COLUMNS / 8; n++)
#pragma unroll
                for (uint32_t h = 0; h < 2; h++) {
                    const float *s = &score[n / 8][n % 8 * 4 + 2 * h];
                    weight[n / 2][n % 2 * 2 + h] = pack2(s[0], s[1]);
                }
        }
        add_values(i - 1);
        products_wait_all_but<0>(out);
        if (lane == 0) values_done[(i - 1) % 2].arrive();

        /* Through shared memory, where the warp's queries were, so that rows are written as a whole. */
#pragma unroll
        for (uint32_t h = 0; h < 2; h++) {
#pragma unroll
            for (uint32_t step = 1; step < 4; step *= 2) sum[h] += __shfl_xor_sync(EVERY_LANE, sum[h], step);
            float inverse = 1 / sum[h];
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
            uint32_t r = n / UNITS, unit = n % UNITS, pair = first + r;
            if (pair >= pairs || VECTOR * unit >= DIM) continue;
            real *to = a.out + (item.start + token_of(pair)) * a.out_stride + head_of(pair) * DIM;
            *reinterpret_cast<uint4 *>(to + VECTOR * unit) = *reinterpret_cast<const uint4 *>(
                mine + unit / SWIZZLED_UNITS * QUERY_PART + 16 * swizzled(r, unit % SWIZZLED_UNITS));
        }
    }
}
