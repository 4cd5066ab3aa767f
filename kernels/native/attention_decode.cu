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
#include "native/attention.cuh"

using namespace blink;

constexpr uint32_t WARPS = DECODE_WARPS, THREADS = DECODE_THREADS, SPLIT = DECODE_SPLIT, HEADS = DECODE_HEADS;
constexpr uint32_t WARP_TOKENS = SPLIT / WARPS;
constexpr uint32_t TILES = WARP_TOKENS / 16;         /* products have 16 positions */
constexpr uint32_t KEY_STEPS = (DIM + 31) / 32;      /* a lane's loads of one key: 4 lanes share it */
constexpr uint32_t VALUE_STEPS = (DIM + 63) / 64;    /* of one value: 8 lanes share it */
constexpr uint32_t CHUNKS = DIM / VECTOR;            /* 16-byte chunks of a key or a value in device memory */
constexpr uint32_t PITCH = VALUE_STEPS * 8;          /* and its place in shared memory */
constexpr uint32_t AT_ONCE = 8;                      /* splits whose results are read together */
constexpr uint32_t OUT_STRIDE = DIM + DECODE_SPREAD; /* spreads the heads over the banks of shared memory */
constexpr uint32_t RECORD = DECODE_RECORD + DIM;     /* a head's partial result: sum, largest score; then the output */
constexpr uint32_t TILE = WARP_TOKENS * PITCH;       /* chunks of a warp's keys, or values, in shared memory */
static_assert(WARP_TOKENS * CHUNKS % WARP == 0 && WARP_TOKENS <= WARP, "every lane copies as many chunks");

namespace {

/* What the items of one row and key head share. */
struct Unit {
    uint32_t row, first_head, heads;
    uint32_t begin, end;  /* the positions that the query sees */
    uint32_t first_split; /* the one of the first of them */
    uint32_t splits;
    float *records; /* the first split's */
    uint32_t *finished;
    PagedHead cache;
};

struct Shared {
    float largest[WARPS][HEADS], sum[WARPS][HEADS];
    uint32_t is_last;
};

__device__ __forceinline__ uint32_t word(const uint4 &v, uint32_t i) {
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

/* Where chunk c of a position is, such that lanes that read together read from different banks. */
__device__ __forceinline__ uint32_t key_place(uint32_t i, uint32_t c) { return i * PITCH + (c ^ i % 2 * 4); }
__device__ __forceinline__ uint32_t value_place(uint32_t i, uint32_t c) { return i * PITCH + (c ^ i % 8); }

/* Whether the query sees nothing of a warp's positions. */
__device__ __forceinline__ bool idle(const Unit &unit, uint32_t from) {
    return from >= unit.end || from + WARP_TOKENS <= unit.begin;
}

/* The warp's positions from `from` on to shared memory, later. What the query does not see is read as a position that
 * it sees, and gets no weight. */
template <class Place>
__device__ __forceinline__ void fetch(const real *pool, const Unit &unit, uint32_t from, uint4 *tile, Place place) {
    uint32_t lane = threadIdx.x % WARP;
    if (!idle(unit, from)) {
        uint32_t position = from + lane < unit.begin ? unit.begin : from + lane < unit.end ? from + lane : unit.end - 1;
        uint32_t entry = unit.cache.entry(position);
#pragma unroll
        for (uint32_t n = 0; n < WARP_TOKENS * CHUNKS / WARP; n++) {
            uint32_t i = (n * WARP + lane) / CHUNKS, c = (n * WARP + lane) % CHUNKS;
            uint64_t at = (uint64_t)__shfl_sync(EVERY_LANE, entry, i) * DIM + VECTOR * c;
            copy_later(&tile[place(i, c)], pool + at, true);
        }
    }
    copies_end_group();
}

/* A warp's share of a split, from position `from` on. Its keys and values are on their way; then those from `ahead` on
 * of unit `next` are. What it found goes to `shared` and, [heads][OUT_STRIDE] float32, to `to`. */
__device__ __forceinline__ void attend(const AttentionArguments &a, const Unit &unit, uint32_t from, const Unit &next,
                                       uint32_t ahead, Shared &shared, uint4 *keys, uint4 *values, float *to) {
    uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, g = lane / 4, t = lane % 4;
    if (idle(unit, from)) {
        if (lane < HEADS) shared.largest[warp][lane] = -INFINITE, shared.sum[warp][lane] = 0;
        fetch(a.keys, next, ahead, keys, key_place);
        fetch(a.values, next, ahead, values, value_place);
        return;
    }
    auto seen = [&](uint32_t position) { return position >= unit.begin && position < unit.end; };
    const uint4 zero = make_uint4(0, 0, 0, 0);

    uint4 query[KEY_STEPS];
    const real *q = a.q + unit.row * a.q_stride + (unit.first_head + g) * DIM;
#pragma unroll
    for (uint32_t c = 0; c < KEY_STEPS; c++) {
        uint32_t dim = 32 * c + 8 * t;
        query[c] = g < unit.heads && dim < DIM ? load16(q + dim) : zero;
    }
    copies_wait_all_but<1>(); /* the values' */
    __syncwarp();             /* the other lanes' copies, too */

    float score[TILES][4] = {};
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

    __syncwarp();
    fetch(a.keys, next, ahead, keys, key_place);

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
    copies_wait_all_but<1>(); /* the next keys' */
    __syncwarp();
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
    __syncwarp();
    fetch(a.values, next, ahead, values, value_place);
#pragma unroll
    for (uint32_t c = 0; c < VALUE_STEPS; c++)
        if (DIM % 64 == 0 || 64 * c + 8 * g < DIM)
#pragma unroll
            for (uint32_t j = 0; j < 4; j += 2)
#pragma unroll
                for (uint32_t i = 0; i < 2; i++)
                    if (2 * t + i < unit.heads)
                        *reinterpret_cast<float4 *>(&to[(2 * t + i) * OUT_STRIDE + 64 * c + 8 * g + 2 * j]) =
                            make_float4(out[c][j][i], out[c][j][2 + i], out[c][j + 1][i], out[c][j + 1][2 + i]);
}

/* Four numbers of the output. */
__device__ __forceinline__ void put_out(const AttentionArguments &a, const Unit &unit, uint32_t head, uint32_t dim,
                                        float4 x, float sum) {
    real *to = a.out + unit.row * a.out_stride + (unit.first_head + head) * DIM + dim;
    float f = 1 / sum;
    *reinterpret_cast<uint2 *>(to) = make_uint2(pack2(x.x * f, x.y * f), pack2(x.z * f, x.w * f));
}

__device__ __forceinline__ void add_scaled(float4 &x, float f, const float4 &y) {
    x.x += f * y.x, x.y += f * y.y, x.z += f * y.z, x.w += f * y.w;
}

/* Collective: adds up the warps' results. To `record`, [heads][RECORD], or, where that is null, to the output. */
__device__ __forceinline__ void combine_warps(const AttentionArguments &a, const Unit &unit, const Shared &shared,
                                              const float *of_warps, uint32_t most_heads, float *record) {
    for (uint32_t i = threadIdx.x; i < unit.heads * DIM / 4; i += THREADS) {
        uint32_t head = i / (DIM / 4), dim = 4 * (i % (DIM / 4));
        float largest = -INFINITE, sum = 0;
        float4 x = make_float4(0, 0, 0, 0);
#pragma unroll
        for (uint32_t w = 0; w < WARPS; w++) largest = fmaxf(largest, shared.largest[w][head]);
#pragma unroll
        for (uint32_t w = 0; w < WARPS; w++) {
            if (shared.sum[w][head] == 0) continue; /* nothing to see: it left nothing. A NaN must go on. */
            float f = exp2_fast(shared.largest[w][head] - largest);
            sum += f * shared.sum[w][head];
            add_scaled(x, f, *reinterpret_cast<const float4 *>(of_warps + (w * most_heads + head) * OUT_STRIDE + dim));
        }
        if (record) {
            float *to = record + head * RECORD;
            if (dim == 0) *reinterpret_cast<float2 *>(to) = make_float2(sum, largest);
            *reinterpret_cast<float4 *>(to + DECODE_RECORD + dim) = x;
        } else put_out(a, unit, head, dim, x, sum);
    }
}

/* Collective: the output from all splits' records, which are `stride` floats apart. */
__device__ void combine_splits(const AttentionArguments &a, const Unit &unit, uint64_t stride) {
    for (uint32_t i = threadIdx.x; i < unit.heads * DIM / 4; i += THREADS) {
        uint32_t head = i / (DIM / 4), dim = 4 * (i % (DIM / 4));
        const float *record = unit.records + head * RECORD;
        float largest = -INFINITE, sum = 0;
        float4 x = make_float4(0, 0, 0, 0);
        for (uint32_t first = 0; first < unit.splits; first += AT_ONCE) {
            float2 of_split[AT_ONCE];
            float4 of_dims[AT_ONCE];
#pragma unroll
            for (uint32_t s = 0; s < AT_ONCE; s++) {
                const float *part = record + (first + s) * stride;
                bool valid = first + s < unit.splits;
                of_split[s] = valid ? __ldcg(reinterpret_cast<const float2 *>(part)) : make_float2(0, -INFINITE);
                of_dims[s] = valid ? __ldcg(reinterpret_cast<const float4 *>(part + DECODE_RECORD + dim))
                                   : make_float4(0, 0, 0, 0);
            }
            float top = largest;
#pragma unroll
            for (uint32_t s = 0; s < AT_ONCE; s++) top = fmaxf(top, of_split[s].y);
            float f = exp2_fast(largest - top);
            largest = top, sum *= f, x.x *= f, x.y *= f, x.z *= f, x.w *= f;
#pragma unroll
            for (uint32_t s = 0; s < AT_ONCE; s++) {
                f = exp2_fast(of_split[s].y - top);
                sum += f * of_split[s].x, add_scaled(x, f, of_dims[s]);
            }
        }
        put_out(a, unit, head, dim, x, sum);
    }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS, 3)
    native_attention_decode(const __grid_constant__ AttentionArguments a) {
    extern __shared__ uint4 dynamic[];
    __shared__ Shared shared;
    float *of_warps = reinterpret_cast<float *>(dynamic + 2 * WARPS * TILE);
    uint32_t group = a.heads / a.kv_heads, most_heads = group < HEADS ? group : HEADS;
    uint32_t *ends = reinterpret_cast<uint32_t *>(of_warps + WARPS * most_heads * OUT_STRIDE);
    pdl_wait();
    pdl_launch();
    uint32_t rows = a.batch.control->rows;
    if (rows == 0) return;
    const int32_t *lengths = a.batch.row_kv_len;
    uint32_t tiles = (group + HEADS - 1) / HEADS, units = a.kv_heads * tiles;
    uint32_t items = units * row_ends<THREADS>(rows, ends, [&](uint32_t row) {
                         uint32_t length = (uint32_t)lengths[row];
                         return (length + SPLIT - 1) / SPLIT - first_seen(length, a.window) / SPLIT;
                     });
    /* Items are in the order of rows, units, splits; a block has consecutive ones. */
    uint32_t item = (uint32_t)((uint64_t)items * blockIdx.x / gridDim.x);
    uint32_t last = (uint32_t)((uint64_t)items * (blockIdx.x + 1) / gridDim.x);
    if (item >= last) return;
    auto unit_of = [&](uint32_t row, uint32_t number) {
        Unit unit;
        unit.row = row, unit.end = (uint32_t)lengths[row], unit.begin = first_seen(unit.end, a.window);
        uint32_t before = row ? ends[row - 1] : 0, first = number % tiles * HEADS;
        unit.splits = ends[row] - before, unit.first_split = unit.begin / SPLIT;
        unit.first_head = number / tiles * group + first, unit.heads = group - first < HEADS ? group - first : HEADS;
        unit.records = a.partial + ((uint64_t)before * units + number) * HEADS * RECORD;
        unit.finished = a.finished + row * units + number;
        const int32_t *table = a.batch.block_table + (uint64_t)a.batch.row_lane[row] * a.lane_pages;
        unit.cache = {table, a.kv_heads, number / tiles, a.page_bits};
        return unit;
    };
    uint32_t row = row_of(ends, rows, item / units), in_row = item - (row ? ends[row - 1] : 0) * units;
    Unit unit = unit_of(row, in_row / (ends[row] - (row ? ends[row - 1] : 0))), next = unit;
    uint32_t number = in_row / unit.splits, split = in_row % unit.splits, begun = split;

    uint32_t warp = threadIdx.x / WARP, own = warp * WARP_TOKENS;
    uint4 *keys = dynamic + 2 * warp * TILE, *values = keys + TILE;
    float *to = of_warps + warp * most_heads * OUT_STRIDE;
    uint64_t stride = (uint64_t)units * HEADS * RECORD;
    uint32_t from = (unit.first_split + split) * SPLIT + own;
    fetch(a.keys, unit, from, keys, key_place);
    fetch(a.values, unit, from, values, value_place);
    for (;; item++) {
        bool unit_ends = split + 1 == unit.splits || item + 1 == last;
        uint32_t ahead = from + SPLIT, next_split = split + 1;
        if (item + 1 == last) {
            ahead = unit.end; /* nothing more */
        } else if (unit_ends) {
            if (++number == units) number = 0, row++;
            next = unit_of(row, number), next_split = 0;
            ahead = next.first_split * SPLIT + own;
        }
        attend(a, unit, from, next, ahead, shared, keys, values, to);
        __syncthreads();
        combine_warps(a, unit, shared, of_warps, most_heads,
                      unit.splits == 1 ? nullptr : unit.records + split * stride);
        __syncthreads();
        if (unit_ends && unit.splits > 1) {
            uint32_t done = split + 1 - begun;
            if (done < unit.splits) {
                if (threadIdx.x == 0) {
                    uint32_t before;
                    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;"
                                 : "=r"(before)
                                 : "l"(unit.finished), "r"(done)
                                 : "memory");
                    shared.is_last = before + done == unit.splits;
                    if (shared.is_last) *unit.finished = 0; /* for the next step */
                }
                __syncthreads();
            }
            if (done == unit.splits || shared.is_last) combine_splits(a, unit, stride);
        }
        if (item + 1 == last) return;
        if (unit_ends) unit = next, begun = 0;
        split = next_split, from = ahead;
    }
}
