/* Attention of one new token per row over the paged cache ("split KV").
 *
 * The work is a list of items: a row, SPLIT of its positions, and up to HEADS query heads that share a key head. A
 * block takes every gridDim-th item; each of its warps takes WARP_TOKENS positions. Where a row has more splits than
 * one, the block that ends last combines them, in the order of their positions.
 *
 * Queries are the columns of the tensor-core products, so that few heads waste little of them. Both products reduce
 * over an index whose order does not matter, heads over dimensions and the output over positions; it is chosen such
 * that every lane's 16-byte loads are its operands, and no operand passes through another lane. */
#include "native_attention.cuh"

using namespace blink;

constexpr uint32_t THREADS = 256, WARPS = THREADS / WARP;
constexpr uint32_t SPLIT = 256;
constexpr uint32_t WARP_TOKENS = SPLIT / WARPS;
constexpr uint32_t TILES = WARP_TOKENS / 16; /* products have 16 positions */
constexpr uint32_t HEADS = 8;
constexpr uint32_t KEY_STEPS = (DIM + 31) / 32;   /* a lane's loads of one key: 4 lanes share it */
constexpr uint32_t VALUE_STEPS = (DIM + 63) / 64; /* of one value: 8 lanes share it */
constexpr uint32_t OUT_STRIDE = DIM + 8;          /* spreads the heads over the banks of shared memory */
constexpr uint32_t RECORD = DIM + 2;              /* a head's partial result: sum, largest score, output */
constexpr uint32_t WARP_BYTES_V = TILES * 4 * VALUE_STEPS * WARP * 16;
constexpr uint32_t WARP_BYTES_O = HEADS * OUT_STRIDE * 4;
constexpr uint32_t WARP_BYTES = WARP_BYTES_V > WARP_BYTES_O ? WARP_BYTES_V : WARP_BYTES_O;

namespace {

/* One item of work. */
struct Item {
    uint32_t row, first_head, heads;
    uint32_t begin, end; /* the positions that the query sees */
    uint32_t from;       /* the split's first position */
    PagedHead cache;
};

struct Shared {
    float largest[WARPS][HEADS], sum[WARPS][HEADS];
    uint32_t is_last;
};

__device__ __forceinline__ uint32_t word(const uint4 &v, uint32_t i) {
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

/* A warp's share of an item; what it found goes to `shared` and, [HEADS][OUT_STRIDE] float32, to `space`. */
__device__ __forceinline__ void attend(const AttentionArguments &a, const Item &item, Shared &shared, uint4 *space) {
    uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, g = lane / 4, t = lane % 4;
    uint32_t from = item.from + warp * WARP_TOKENS;
    if (from >= item.end || from + WARP_TOKENS <= item.begin) {
        if (lane < HEADS) shared.largest[warp][lane] = -INFINITE;
        return;
    }
    auto seen = [&](uint32_t position) { return position >= item.begin && position < item.end; };

#pragma unroll
    for (uint32_t i = 0; i < TILES * 4; i++) {
        uint32_t position = from + i / 4 * 16 + i / 2 % 2 * 8 + 2 * t + i % 2;
        bool valid = seen(position);
        const real *value = valid ? a.values + item.cache.at(position) : a.values;
#pragma unroll
        for (uint32_t c = 0; c < VALUE_STEPS; c++) {
            uint32_t dim = 64 * c + 8 * g;
            bool inside = valid && dim < DIM;
            copy_later(&space[(i * VALUE_STEPS + c) * WARP + lane], inside ? value + dim : a.values, inside);
        }
    }
    copies_end_group();

    uint4 key[TILES][2][KEY_STEPS], query[KEY_STEPS];
#pragma unroll
    for (uint32_t i = 0; i < TILES * 2; i++) {
        uint32_t position = from + i / 2 * 16 + i % 2 * 8 + g;
        bool valid = seen(position);
        const real *k = valid ? a.keys + item.cache.at(position) : a.keys;
#pragma unroll
        for (uint32_t c = 0; c < KEY_STEPS; c++) {
            uint32_t dim = 32 * c + 8 * t;
            key[i / 2][i % 2][c] = valid && dim < DIM ? load16(k + dim) : make_uint4(0, 0, 0, 0);
        }
    }
    const real *q = a.q + item.row * a.q_stride + (item.first_head + g) * DIM;
#pragma unroll
    for (uint32_t c = 0; c < KEY_STEPS; c++) {
        uint32_t dim = 32 * c + 8 * t;
        query[c] = g < item.heads && dim < DIM ? load16(q + dim) : make_uint4(0, 0, 0, 0);
    }

    float score[TILES][4] = {};
#pragma unroll
    for (uint32_t c = 0; c < KEY_STEPS; c++)
#pragma unroll
        for (uint32_t j = 0; j < 4; j += 2)
#pragma unroll
            for (uint32_t m = 0; m < TILES; m++)
                mma16816(score[m], word(key[m][0][c], j), word(key[m][1][c], j), word(key[m][0][c], j + 1),
                         word(key[m][1][c], j + 1), word(query[c], j), word(query[c], j + 1));

    /* score[m][0, 1]: position 16 m + g of heads 2t and 2t + 1; [2, 3]: position 16 m + 8 + g. */
    float largest[2] = {-INFINITE, -INFINITE}, sum[2] = {};
#pragma unroll
    for (uint32_t m = 0; m < TILES; m++)
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            bool valid = seen(from + 16 * m + i / 2 * 8 + g);
            score[m][i] = valid ? score[m][i] * a.scale_log2 : -INFINITE;
            largest[i % 2] = fmaxf(largest[i % 2], score[m][i]);
        }
#pragma unroll
    for (uint32_t h = 0; h < 2; h++)
#pragma unroll
        for (uint32_t step = 4; step < WARP; step *= 2)
            largest[h] = fmaxf(largest[h], __shfl_xor_sync(EVERY_LANE, largest[h], step));
    uint32_t weight[TILES][2];
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
        shared.largest[warp][2 * t] = largest[0], shared.largest[warp][2 * t + 1] = largest[1];
        shared.sum[warp][2 * t] = sum[0], shared.sum[warp][2 * t + 1] = sum[1];
    }

    /* out[c][j]: dimensions 64 c + 8 g + 2 j and the next, of heads 2t and 2t + 1. */
    float out[VALUE_STEPS][4][4] = {};
    copies_wait_all_but<0>();
#pragma unroll
    for (uint32_t m = 0; m < TILES; m++)
#pragma unroll
        for (uint32_t c = 0; c < VALUE_STEPS; c++) {
            uint4 value[4];
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) value[i] = space[((4 * m + i) * VALUE_STEPS + c) * WARP + lane];
#pragma unroll
            for (uint32_t j = 0; j < 4; j++) {
                uint32_t v0 = word(value[0], j), v1 = word(value[1], j), v2 = word(value[2], j), v3 = word(value[3], j);
                mma16816(out[c][j], __byte_perm(v0, v1, 0x5410), __byte_perm(v0, v1, 0x7632),
                         __byte_perm(v2, v3, 0x5410), __byte_perm(v2, v3, 0x7632), weight[m][0], weight[m][1]);
            }
        }
    __syncwarp(); /* the values were the warp's own, and so is the space for the output in their place */
    float *to = reinterpret_cast<float *>(space);
#pragma unroll
    for (uint32_t c = 0; c < VALUE_STEPS; c++)
        if (64 * c + 8 * g < DIM)
#pragma unroll
            for (uint32_t j = 0; j < 4; j++)
#pragma unroll
                for (uint32_t i = 0; i < 2; i++)
                    *reinterpret_cast<float2 *>(&to[(2 * t + i) * OUT_STRIDE + 64 * c + 8 * g + 2 * j]) =
                        make_float2(out[c][j][i], out[c][j][2 + i]);
}

/* Collective: adds up the warps' results. To `record`, [heads][RECORD], or, where that is null, to the output. */
__device__ __forceinline__ void combine_warps(const AttentionArguments &a, const Item &item, const Shared &shared,
                                              const uint8_t *space, float *record) {
    for (uint32_t i = threadIdx.x; i < item.heads * DIM / 2; i += THREADS) {
        uint32_t head = i / (DIM / 2), dim = 2 * (i % (DIM / 2));
        float largest = -INFINITE, sum = 0, x = 0, y = 0;
#pragma unroll
        for (uint32_t w = 0; w < WARPS; w++) largest = fmaxf(largest, shared.largest[w][head]);
#pragma unroll
        for (uint32_t w = 0; w < WARPS; w++) {
            float of_warp = shared.largest[w][head];
            if (of_warp == -INFINITE) continue; /* nothing to see: it left nothing */
            float factor = exp2_fast(of_warp - largest);
            const float *part = reinterpret_cast<const float *>(space + w * WARP_BYTES) + head * OUT_STRIDE + dim;
            sum += factor * shared.sum[w][head], x += factor * part[0], y += factor * part[1];
        }
        if (record) {
            float *to = record + head * RECORD;
            if (dim == 0) to[0] = sum, to[1] = largest;
            to[2 + dim] = x, to[3 + dim] = y;
        } else {
            real *to = a.out + item.row * a.out_stride + (item.first_head + head) * DIM + dim;
            *reinterpret_cast<uint32_t *>(to) = pack2(x / sum, y / sum);
        }
    }
}

/* Collective: the output from `count` splits' records, which are `stride` floats apart. */
__device__ void combine_splits(const AttentionArguments &a, const Item &item, const float *records, uint32_t count,
                               uint64_t stride) {
    for (uint32_t i = threadIdx.x; i < item.heads * DIM / 2; i += THREADS) {
        uint32_t head = i / (DIM / 2), dim = 2 * (i % (DIM / 2));
        const float *record = records + head * RECORD;
        float largest = -INFINITE, sum = 0, x = 0, y = 0;
        for (uint32_t s = 0; s < count; s++) largest = fmaxf(largest, __ldcg(record + s * stride + 1));
#pragma unroll 4
        for (uint32_t s = 0; s < count; s++) {
            const float *part = record + s * stride;
            float2 of_split = __ldcg(reinterpret_cast<const float2 *>(part));
            float2 of_dims = __ldcg(reinterpret_cast<const float2 *>(part + 2 + dim));
            float factor = exp2_fast(of_split.y - largest);
            sum += factor * of_split.x, x += factor * of_dims.x, y += factor * of_dims.y;
        }
        real *to = a.out + item.row * a.out_stride + (item.first_head + head) * DIM + dim;
        *reinterpret_cast<uint32_t *>(to) = pack2(x / sum, y / sum);
    }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS, DIM > 128 ? 1 : 2)
    native_attention_decode(const __grid_constant__ AttentionArguments a) {
    extern __shared__ uint4 dynamic[];
    __shared__ Shared shared;
    uint8_t *space = reinterpret_cast<uint8_t *>(dynamic);
    uint32_t *ends = reinterpret_cast<uint32_t *>(space + WARPS * WARP_BYTES);
    pdl_wait();
    pdl_launch();
    uint32_t rows = a.batch.control->rows;
    if (rows == 0) return;
    const int32_t *lengths = a.batch.row_kv_len;
    uint32_t group = a.heads / a.kv_heads, tiles = (group + HEADS - 1) / HEADS, units = a.kv_heads * tiles;
    uint32_t items = units * row_ends<THREADS>(rows, ends, [&](uint32_t row) {
                         uint32_t length = (uint32_t)lengths[row];
                         return (length + SPLIT - 1) / SPLIT - first_seen(length, a.window) / SPLIT;
                     });
    uint32_t warp = threadIdx.x / WARP;
    for (uint32_t i = blockIdx.x; i < items; i += gridDim.x) {
        uint32_t split = i / units, unit = i % units;
        Item item;
        item.row = row_of(ends, rows, split);
        item.end = (uint32_t)lengths[item.row];
        item.begin = first_seen(item.end, a.window);
        uint32_t row_first = item.row ? ends[item.row - 1] : 0, splits = ends[item.row] - row_first;
        item.from = (item.begin / SPLIT + split - row_first) * SPLIT;
        uint32_t first = unit % tiles * HEADS;
        item.first_head = unit / tiles * group + first;
        item.heads = group - first < HEADS ? group - first : HEADS;
        const int32_t *table = a.batch.block_table + (uint64_t)a.batch.row_lane[item.row] * a.lane_pages;
        item.cache = {table, a.kv_heads, unit / tiles, a.page_bits};

        attend(a, item, shared, dynamic + warp * (WARP_BYTES / 16));
        __syncthreads();
        uint64_t stride = (uint64_t)units * HEADS * RECORD;
        float *records = a.partial + row_first * stride + unit * HEADS * RECORD;
        combine_warps(a, item, shared, space, splits == 1 ? nullptr : records + (split - row_first) * stride);
        if (splits > 1) {
            __threadfence();
            __syncthreads();
            if (threadIdx.x == 0) {
                uint32_t *finished = a.finished + item.row * units + unit;
                shared.is_last = atomicAdd(finished, 1) == splits - 1;
                if (shared.is_last) *finished = 0; /* for the next step */
                __threadfence();
            }
            __syncthreads();
            if (shared.is_last) combine_splits(a, item, records, splits, stride);
        }
        __syncthreads();
    }
}
