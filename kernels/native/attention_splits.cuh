/* What a block of decode attention does, by items: where an item's keys and values go, and how what warps and splits
 * leave is combined. */
#ifndef BLINK_NATIVE_ATTENTION_SPLITS_CUH
#define BLINK_NATIVE_ATTENTION_SPLITS_CUH

#include "native/attention.cuh"

namespace blink {

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

/* A block's shared memory: keys and values of each warp's positions. The warps' outputs follow, [WARPS][most_heads]
 * [OUT_STRIDE] float32, then the rows' ends in the list of items. */
struct Storage {
    struct {
        uint4 keys[TILE], values[TILE];
    } tiles[WARPS];

    __device__ __forceinline__ float *outputs() { return reinterpret_cast<float *>(this + 1); }
    __device__ __forceinline__ uint32_t *ends(uint32_t most_heads) {
        return reinterpret_cast<uint32_t *>(outputs() + WARPS * most_heads * OUT_STRIDE);
    }
};
/* Bytes of both, for `group` query heads of a key head. */
__device__ constexpr uint32_t storage_bytes(uint32_t group) {
    return sizeof(Storage) + 4 * WARPS * (group < HEADS ? group : HEADS) * OUT_STRIDE;
}

/* What a block's warps find out of their positions, for each head. */
struct Found {
    float largest[WARPS][HEADS], sum[WARPS][HEADS];
    uint32_t is_last;
};

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

/* The step's items, in the order of rows, units, splits. */
struct Items {
    const uint32_t *ends; /* of each row's splits */
    uint32_t rows, group, tiles, units;

    __device__ __forceinline__ uint32_t before(uint32_t row) const { return row ? ends[row - 1] : 0; }

    /* Unit `number` of a row. */
    __device__ __forceinline__ Unit unit(const AttentionArguments &a, uint32_t row, uint32_t number) const {
        Unit unit;
        unit.row = row, unit.end = (uint32_t)a.batch.row_kv_len[row], unit.begin = first_seen(unit.end, a.window);
        uint32_t ahead = before(row), first = number % tiles * HEADS;
        unit.splits = ends[row] - ahead, unit.first_split = unit.begin / SPLIT;
        unit.first_head = number / tiles * group + first, unit.heads = group - first < HEADS ? group - first : HEADS;
        unit.records = a.partial + ((uint64_t)ahead * units + number) * HEADS * RECORD;
        unit.finished = a.finished + row * units + number;
        const int32_t *table = a.batch.block_table + (uint64_t)a.batch.row_lane[row] * a.lane_pages;
        unit.cache = {table, a.kv_heads, number / tiles, a.page_bits};
        return unit;
    }
};

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
__device__ __forceinline__ void combine_warps(const AttentionArguments &a, const Unit &unit, const Found &found,
                                              const float *of_warps, uint32_t most_heads, float *record) {
    for (uint32_t i = threadIdx.x; i < unit.heads * DIM / 4; i += THREADS) {
        uint32_t head = i / (DIM / 4), dim = 4 * (i % (DIM / 4));
        float largest = -INFINITE, sum = 0;
        float4 x = make_float4(0, 0, 0, 0);
#pragma unroll
        for (uint32_t w = 0; w < WARPS; w++) largest = fmaxf(largest, found.largest[w][head]);
#pragma unroll
        for (uint32_t w = 0; w < WARPS; w++) {
            if (found.sum[w][head] == 0) continue; /* nothing to see: it left nothing. A NaN must go on. */
            float f = exp2_fast(found.largest[w][head] - largest);
            sum += f * found.sum[w][head];
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

/* Collective: whether the `done` splits of a unit that the block has are the last to end of all its splits. */
__device__ __forceinline__ bool ends_last(const Unit &unit, uint32_t done, Found &found) {
    if (done == unit.splits) return true;
    if (threadIdx.x == 0) {
        uint32_t before;
        asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;"
                     : "=r"(before)
                     : "l"(unit.finished), "r"(done)
                     : "memory");
        found.is_last = before + done == unit.splits;
        if (found.is_last) *unit.finished = 0; /* for the next step */
    }
    __syncthreads();
    return found.is_last;
}

}  // namespace blink
#endif  // BLINK_NATIVE_ATTENTION_SPLITS_CUH
