/* Attention of one new token per row over the paged cache ("split KV").
 *
 * The work is a list of items: a row, up to HEADS query heads that share a key head, and SPLIT positions. A block has
 * consecutive items; each of its warps takes WARP_TOKENS of the positions, and while it computes, the next item's keys
 * and values are on their way. Where a row has more splits than one, the block that ends last combines them, in the
 * order of their positions.
 *
 * Queries are the columns of the tensor-core products, so that few heads waste little of them. Both products reduce
 * over an index whose order does not matter, heads over dimensions and the output over positions; it is chosen such
 * that every lane's 16-byte reads of shared memory are its operands. */
#include "native/attention_splits.cuh"

using namespace blink;

namespace {

typedef float Scores[TILES][4];     /* [m][0, 1]: position 16 m + g of heads 2t and 2t + 1; [2, 3]: 16 m + 8 + g */
typedef uint32_t Weights[TILES][2]; /* as products take them */
typedef float Outputs[VALUE_STEPS][4][4]; /* [c][j]: dimensions 64 c + 8 g + 2 j and the next, of heads 2t and 2t + 1 */

__device__ __forceinline__ uint32_t word(const uint4 &v, uint32_t i) {
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

__device__ __forceinline__ void load_query(const AttentionArguments &a, const Unit &unit, uint4 (&query)[KEY_STEPS]) {
    uint32_t lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const real *q = a.q + unit.row * a.q_stride + (unit.first_head + g) * DIM;
#pragma unroll
    for (uint32_t c = 0; c < KEY_STEPS; c++) {
        uint32_t dim = 32 * c + 8 * t;
        query[c] = g < unit.heads && dim < DIM ? load16(q + dim) : make_uint4(0, 0, 0, 0);
    }
}

__device__ __forceinline__ void multiply_keys(Scores &score, const uint4 *keys, const uint4 (&query)[KEY_STEPS]) {
    uint32_t lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const uint4 zero = make_uint4(0, 0, 0, 0);
#pragma unroll
    for (uint32_t c = 0; c < KEY_STEPS; c++)
#pragma unroll
        for (uint32_t m = 0; m < TILES; m++) {
            bool inside = DIM % 32 == 0 || 32 * c + 8 * t < DIM;
            uint4 k0 = inside ? keys[key_place(16 * m + g, 4 * c + t)] : zero;
            uint4 k1 = inside ? keys[key_place(16 * m + 8 + g, 4 * c + t)] : zero;
            mma16816(score[m], k0.x, k1.x, k0.y, k1.y, query[c].x, query[c].y);
            mma16816(score[m], k0.z, k1.z, k0.w, k1.w, query[c].z, query[c].w);
        }
}

/* Weights of a warp's scores, not yet divided by their sum, which goes with the largest score to `found`. */
__device__ __forceinline__ void weigh(const AttentionArguments &a, const Unit &unit, uint32_t from, Scores &score,
                                      Weights &weight, Found &found) {
    uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, g = lane / 4, t = lane % 4;
    float largest[2] = {-INFINITE, -INFINITE}, sum[2] = {};
#pragma unroll
    for (uint32_t m = 0; m < TILES; m++)
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            uint32_t position = from + 16 * m + i / 2 * 8 + g;
            bool seen = position >= unit.begin && position < unit.end;
            score[m][i] = seen ? score[m][i] * a.scale_log2 : -INFINITE;
            largest[i % 2] = fmaxf(largest[i % 2], score[m][i]);
        }
#pragma unroll
    for (uint32_t h = 0; h < 2; h++)
#pragma unroll
        for (uint32_t step = 4; step < WARP; step *= 2)
            largest[h] = fmaxf(largest[h], __shfl_xor_sync(EVERY_LANE, largest[h], step));
#pragma unroll
    for (uint32_t m = 0; m < TILES; m++)
#pragma unroll
        for (uint32_t half = 0; half < 2; half++) {
            float x = exp2_fast(score[m][2 * half] - largest[0]), y = exp2_fast(score[m][2 * half + 1] - largest[1]);
            sum[0] += x, sum[1] += y;
            uint32_t by_position = pack2(x, y);
            /* From position g, heads 2t and 2t + 1 to head g, positions 2t and 2t + 1. */
            asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(weight[m][half]) : "r"(by_position));
        }
#pragma unroll
    for (uint32_t h = 0; h < 2; h++)
#pragma unroll
        for (uint32_t step = 4; step < WARP; step *= 2) sum[h] += __shfl_xor_sync(EVERY_LANE, sum[h], step);
    if (g == 0) {
        found.largest[warp][2 * t] = largest[0], found.largest[warp][2 * t + 1] = largest[1];
        found.sum[warp][2 * t] = sum[0], found.sum[warp][2 * t + 1] = sum[1];
    }
}

__device__ __forceinline__ void multiply_values(Outputs &out, const uint4 *values, const Weights &weight) {
    uint32_t lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const uint4 zero = make_uint4(0, 0, 0, 0);
#pragma unroll
    for (uint32_t m = 0; m < TILES; m++)
#pragma unroll
        for (uint32_t c = 0; c < VALUE_STEPS; c++) {
            bool inside = DIM % 64 == 0 || 64 * c + 8 * g < DIM;
            uint4 v[4];
#pragma unroll
            for (uint32_t i = 0; i < 4; i++)
                v[i] = inside ? values[value_place(16 * m + i / 2 * 8 + 2 * t + i % 2, 8 * c + g)] : zero;
#pragma unroll
            for (uint32_t j = 0; j < 4; j++) {
                uint32_t v0 = word(v[0], j), v1 = word(v[1], j), v2 = word(v[2], j), v3 = word(v[3], j);
                mma16816(out[c][j], __byte_perm(v0, v1, 0x5410), __byte_perm(v0, v1, 0x7632),
                         __byte_perm(v2, v3, 0x5410), __byte_perm(v2, v3, 0x7632), weight[m][0], weight[m][1]);
            }
        }
}

/* To [heads][OUT_STRIDE] float32. */
__device__ __forceinline__ void store(const Outputs &out, uint32_t heads, float *to) {
    uint32_t lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
#pragma unroll
    for (uint32_t c = 0; c < VALUE_STEPS; c++)
        if (DIM % 64 == 0 || 64 * c + 8 * g < DIM)
#pragma unroll
            for (uint32_t j = 0; j < 4; j += 2)
#pragma unroll
                for (uint32_t i = 0; i < 2; i++)
                    if (2 * t + i < heads)
                        *reinterpret_cast<float4 *>(&to[(2 * t + i) * OUT_STRIDE + 64 * c + 8 * g + 2 * j]) =
                            make_float4(out[c][j][i], out[c][j][2 + i], out[c][j + 1][i], out[c][j + 1][2 + i]);
}

/* A warp's share of a split, from position `from` on. Its keys and values are on their way; then those from `ahead` on
 * of unit `next` are. What it found goes to `found` and, [heads][OUT_STRIDE] float32, to `to`. */
__device__ __forceinline__ void attend(const AttentionArguments &a, const Unit &unit, uint32_t from, const Unit &next,
                                       uint32_t ahead, Found &found, uint4 *keys, uint4 *values, float *to) {
    uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    if (idle(unit, from)) {
        if (lane < HEADS) found.largest[warp][lane] = -INFINITE, found.sum[warp][lane] = 0;
        fetch(a.keys, next, ahead, keys, key_place);
        fetch(a.values, next, ahead, values, value_place);
        return;
    }
    uint4 query[KEY_STEPS];
    load_query(a, unit, query);
    copies_wait_all_but<1>(); /* the values' */
    __syncwarp();             /* the other lanes' copies, too */
    Scores score = {};
    multiply_keys(score, keys, query);
    __syncwarp();
    fetch(a.keys, next, ahead, keys, key_place);

    Weights weight;
    weigh(a, unit, from, score, weight, found);
    Outputs out = {};
    copies_wait_all_but<1>(); /* the next keys' */
    __syncwarp();
    multiply_values(out, values, weight);
    __syncwarp();
    fetch(a.values, next, ahead, values, value_place);
    store(out, unit.heads, to);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS, 3)
    native_attention_decode(const __grid_constant__ AttentionArguments a) {
    extern __shared__ uint4 dynamic[];
    __shared__ Found found;
    Storage &s = *reinterpret_cast<Storage *>(dynamic);
    uint32_t group = a.heads / a.kv_heads, most_heads = group < HEADS ? group : HEADS;
    pdl_wait();
    pdl_launch();
    uint32_t rows = a.batch.control->rows;
    if (rows == 0) return;
    uint32_t tiles = (group + HEADS - 1) / HEADS;
    Items items = {s.ends(most_heads), rows, group, tiles, a.kv_heads * tiles};
    uint32_t all = items.units * row_ends<THREADS>(rows, s.ends(most_heads), [&](uint32_t row) {
                       uint32_t length = (uint32_t)a.batch.row_kv_len[row];
                       return (length + SPLIT - 1) / SPLIT - first_seen(length, a.window) / SPLIT;
                   });
    /* A block has consecutive items. */
    uint32_t item = (uint32_t)((uint64_t)all * blockIdx.x / gridDim.x);
    uint32_t last = (uint32_t)((uint64_t)all * (blockIdx.x + 1) / gridDim.x);
    if (item >= last) return;
    uint32_t row = row_of(items.ends, rows, item / items.units), in_row = item - items.before(row) * items.units;
    Unit unit = items.unit(a, row, in_row / (items.ends[row] - items.before(row))), next = unit;
    uint32_t number = in_row / unit.splits, split = in_row % unit.splits, begun = split;

    uint32_t warp = threadIdx.x / WARP, own = warp * WARP_TOKENS;
    uint4 *keys = s.tiles[warp].keys, *values = s.tiles[warp].values;
    float *to = s.outputs() + warp * most_heads * OUT_STRIDE;
    uint64_t stride = (uint64_t)items.units * HEADS * RECORD;
    uint32_t from = (unit.first_split + split) * SPLIT + own;
    fetch(a.keys, unit, from, keys, key_place);
    fetch(a.values, unit, from, values, value_place);
    for (;; item++) {
        bool unit_ends = split + 1 == unit.splits || item + 1 == last;
        uint32_t ahead = from + SPLIT, next_split = split + 1;
        if (item + 1 == last) {
            ahead = unit.end; /* nothing more */
        } else if (unit_ends) {
            if (++number == items.units) number = 0, row++;
            next = items.unit(a, row, number), next_split = 0;
            ahead = next.first_split * SPLIT + own;
        }
        attend(a, unit, from, next, ahead, found, keys, values, to);
        __syncthreads();
        combine_warps(a, unit, found, s.outputs(), most_heads,
                      unit.splits == 1 ? nullptr : unit.records + split * stride);
        __syncthreads();
        if (unit_ends && unit.splits > 1 && ends_last(unit, split + 1 - begun, found)) combine_splits(a, unit, stride);
        if (item + 1 == last) return;
        if (unit_ends) unit = next, begun = 0;
        split = next_split, from = ahead;
    }
}
