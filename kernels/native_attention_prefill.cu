/* Attention of packed rows of new tokens over the paged cache, their own keys and values included.
 *
 * The work of a row and a key head is its pairs of (token, query head of the group), ROWS of them to a block: so few
 * tokens of many heads fill a block as many tokens of few heads do. A block walks the positions that its tokens see,
 * COLUMNS at a time from a multiple of COLUMNS, with the next ones on their way to shared memory; each warp keeps 16
 * pairs in registers. What a pair does not see contributes exact zeros, so its result has the same bits whatever the
 * other pairs of its block are, and whether the prompt comes in one piece or in chunks. */
#include "native_attention.cuh"

using namespace blink;

constexpr uint32_t THREADS = 128, WARPS = THREADS / WARP;
constexpr uint32_t ROWS = WARPS * 16, COLUMNS = 64;
constexpr uint32_t STEPS = (DIM + 15) / 16;      /* of 16 dimensions; the last may be half empty */
constexpr uint32_t CHUNKS = (DIM + 63) / 64 * 8; /* 16-byte chunks of a key in shared memory */
constexpr uint32_t TILE = COLUMNS * CHUNKS;      /* chunks of keys, or of values, at a time */
constexpr uint32_t STAGES = DIM > 128 ? 1 : 2;

namespace {

/* Where chunk c of a position is: eight positions' chunks of one number are in different banks. */
__device__ __forceinline__ uint32_t place(uint32_t position, uint32_t c) {
    return position * CHUNKS + (c ^ position % 8);
}

__device__ __forceinline__ void load_matrices(uint32_t (&m)[4], const uint4 *shared, bool transposed) {
    uint32_t from = (uint32_t)__cvta_generic_to_shared(shared);
    if (transposed)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                     : "r"(from)
                     : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                     : "r"(from)
                     : "memory");
}

/* Two numbers of a query from `dim` on; 0 past its end. */
__device__ __forceinline__ uint32_t load_pair(const real *q, uint32_t dim) {
    return q && dim < DIM ? *reinterpret_cast<const uint32_t *>(q + dim) : 0;
}

/* Collective: COLUMNS keys and values to shared memory, later; those of a column are at entry_of(column). */
template <class EntryOf>
__device__ __forceinline__ void copy_tile(const AttentionArguments &a, uint4 *keys, uint4 *values, EntryOf entry_of) {
    constexpr uint32_t PER_POSITION = (DIM + 15) / 16 * 2; /* chunks that products read */
    static_assert(COLUMNS * PER_POSITION % THREADS == 0, "every thread copies as many chunks");
#pragma unroll
    for (uint32_t n = 0; n < COLUMNS * PER_POSITION / THREADS; n++) {
        uint32_t i = n * THREADS + threadIdx.x, column = i / PER_POSITION, c = i % PER_POSITION;
        if (THREADS % PER_POSITION == 0) { /* the same, and a constant away from the last round's */
            column = n * (THREADS / PER_POSITION) + threadIdx.x / PER_POSITION, c = threadIdx.x % PER_POSITION;
        }
        bool inside = DIM % 16 == 0 || VECTOR * c < DIM;
        uint64_t at = entry_of(column) * DIM + (inside ? VECTOR * c : 0);
        copy_later(&keys[place(column, c)], a.keys + at, inside);
        copy_later(&values[place(column, c)], a.values + at, inside);
    }
}

/* Collective: keys and values from position `from` on to shared memory, later. Past `end` it is the last position's,
 * which nothing there sees. */
__device__ __forceinline__ void fetch(const AttentionArguments &a, const PagedHead &cache, uint32_t from, uint32_t end,
                                      uint4 *keys, uint4 *values) {
    if (COLUMNS >> a.page_bits <= 1 && from + COLUMNS <= end) { /* on one page, so that addresses differ by constants */
        uint64_t first = cache.entry(from);
        copy_tile(a, keys, values, [=](uint32_t column) { return first + column; });
    } else {
        copy_tile(a, keys, values, [&](uint32_t column) {
            return (uint64_t)cache.entry(from + column < end ? from + column : end - 1);
        });
    }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS, DIM > 128 ? 1 : 2)
    native_attention_prefill(const __grid_constant__ AttentionArguments a) {
    extern __shared__ uint4 dynamic[];
    uint32_t *ends = reinterpret_cast<uint32_t *>(dynamic + 2 * STAGES * TILE);
    pdl_wait();
    pdl_launch();
    uint32_t rows = a.batch.control->rows, group = a.heads / a.kv_heads;
    if (rows == 0) return;
    const int32_t *starts = a.batch.row_start;
    uint32_t tiles = row_ends<THREADS>(rows, ends, [&](uint32_t row) {
        return ((uint32_t)(starts[row + 1] - starts[row]) * group + ROWS - 1) / ROWS;
    });
    if (blockIdx.x >= tiles) return;
    uint32_t item = tiles - 1 - blockIdx.x; /* the last of a prompt see most, and begin first */
    uint32_t row = row_of(ends, rows, item), kv_head = blockIdx.y;
    uint32_t start = starts[row], pairs = (uint32_t)(starts[row + 1] - start) * group;
    uint32_t first_pair = (item - (row ? ends[row - 1] : 0)) * ROWS;
    uint32_t last_pair = first_pair + ROWS < pairs ? first_pair + ROWS - 1 : pairs - 1;
    uint32_t position = a.batch.row_kv_len[row] - pairs / group; /* of the row's first token */
    uint32_t end = position + last_pair / group + 1;             /* of what any of the block's tokens sees */
    uint32_t begin = first_seen(position + first_pair / group + 1, a.window) / COLUMNS * COLUMNS;
    const int32_t *table = a.batch.block_table + (uint64_t)a.batch.row_lane[row] * a.lane_pages;
    PagedHead cache = {table, a.kv_heads, kv_head, a.page_bits};

    auto fetch_both = [&](uint32_t from, uint32_t stage) {
        fetch(a, cache, from, end, dynamic + 2 * stage * TILE, dynamic + (2 * stage + 1) * TILE);
    };
    fetch_both(begin, 0);
    copies_end_group();

    uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, g = lane / 4, t = lane % 4;
    /* The lane's two pairs, and what they see. Those past the row's last see what the last sees, and are not stored. */
    uint32_t seen_from[2], seen_end[2], fewest, most;
    real *to[2];
    uint32_t query[STEPS][4];
#pragma unroll
    for (uint32_t h = 0; h < 2; h++) {
        uint32_t pair = first_pair + warp * 16 + 8 * h + g, token = (pair < pairs ? pair : pairs - 1) / group;
        uint32_t head = kv_head * group + pair % group;
        seen_end[h] = position + token + 1, seen_from[h] = first_seen(seen_end[h], a.window);
        const real *q = pair < pairs ? a.q + (start + token) * a.q_stride + head * DIM : nullptr;
        to[h] = pair < pairs ? a.out + (start + token) * a.out_stride + head * DIM : nullptr;
#pragma unroll
        for (uint32_t k = 0; k < STEPS; k++)
            query[k][h] = load_pair(q, 16 * k + 2 * t), query[k][2 + h] = load_pair(q, 16 * k + 8 + 2 * t);
    }
    fewest = __reduce_min_sync(EVERY_LANE, seen_end[0]), most = __reduce_max_sync(EVERY_LANE, seen_from[1]);

    float out[2 * STEPS][4] = {}, largest[2] = {-INFINITE, -INFINITE}, sum[2] = {};
    uint32_t stage = 0;
    for (uint32_t from = begin; from < end; from += COLUMNS) {
        uint32_t next = from + COLUMNS;
        if (STAGES > 1 && next < end) fetch_both(next, 1 - stage);
        copies_end_group();
        copies_wait_all_but<STAGES - 1>();
        __syncthreads();
        const uint4 *k_tile = dynamic + 2 * stage * TILE, *v_tile = k_tile + TILE;

        /* score[n]: of pairs g and g + 8 with positions 8 n + 2t and the next. */
        float score[COLUMNS / 8][4] = {};
#pragma unroll
        for (uint32_t k = 0; k < STEPS; k++)
#pragma unroll
            for (uint32_t n = 0; n < COLUMNS / 16; n++) {
                uint32_t m[4]; /* positions 16 n …, dimensions 16 k and 16 k + 8; then positions 16 n + 8 … */
                load_matrices(m, &k_tile[place(16 * n + lane % 8 + lane / 16 * 8, 2 * k + lane / 8 % 2)], false);
                mma16816(score[2 * n], query[k][0], query[k][1], query[k][2], query[k][3], m[0], m[1]);
                mma16816(score[2 * n + 1], query[k][0], query[k][1], query[k][2], query[k][3], m[2], m[3]);
            }

        if (next > fewest || from < most)
#pragma unroll
            for (uint32_t n = 0; n < COLUMNS / 8; n++)
#pragma unroll
                for (uint32_t i = 0; i < 4; i++) {
                    uint32_t column = from + 8 * n + 2 * t + i % 2;
                    bool seen = (column < seen_end[i / 2]) & (column >= seen_from[i / 2]);
                    score[n][i] = seen ? score[n][i] : -INFINITE;
                }
        float subtract[2];
#pragma unroll
        for (uint32_t h = 0; h < 2; h++) {
            float top = score[0][2 * h];
#pragma unroll
            for (uint32_t n = 0; n < COLUMNS / 8; n++) top = fmaxf(top, fmaxf(score[n][2 * h], score[n][2 * h + 1]));
#pragma unroll
            for (uint32_t step = 1; step < 4; step *= 2) top = fmaxf(top, __shfl_xor_sync(EVERY_LANE, top, step));
            /* Where nothing was seen yet, −∞ less −∞ must not become a NaN; and what nothing is added to stays as it
             * is, by a factor of exactly 1. */
            top = fmaxf(largest[h], top * a.scale_log2);
            subtract[h] = top == -INFINITE ? 0 : top;
            float factor = exp2_fast(largest[h] - subtract[h]);
            largest[h] = top, sum[h] *= factor;
            if (__all_sync(EVERY_LANE, factor == 1)) continue;
#pragma unroll
            for (uint32_t n = 0; n < 2 * STEPS; n++) out[n][2 * h] *= factor, out[n][2 * h + 1] *= factor;
        }
#pragma unroll
        for (uint32_t n = 0; n < COLUMNS / 8; n++)
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) {
                score[n][i] = exp2_fast(score[n][i] * a.scale_log2 - subtract[i / 2]);
                sum[i / 2] += score[n][i];
            }

#pragma unroll
        for (uint32_t n = 0; n < COLUMNS / 16; n++) {
            uint32_t weight[4] = {pack2(score[2 * n][0], score[2 * n][1]), pack2(score[2 * n][2], score[2 * n][3]),
                                  pack2(score[2 * n + 1][0], score[2 * n + 1][1]),
                                  pack2(score[2 * n + 1][2], score[2 * n + 1][3])};
#pragma unroll
            for (uint32_t d = 0; d < STEPS; d++) {
                uint32_t m[4]; /* dimensions 16 d …, positions 16 n and 16 n + 8; then dimensions 16 d + 8 … */
                load_matrices(m, &v_tile[place(16 * n + lane % 16, 2 * d + lane / 16)], true);
                mma16816(out[2 * d], weight[0], weight[1], weight[2], weight[3], m[0], m[1]);
                mma16816(out[2 * d + 1], weight[0], weight[1], weight[2], weight[3], m[2], m[3]);
            }
        }
        __syncthreads(); /* before the tile is overwritten */
        if (STAGES == 1 && next < end) fetch_both(next, 0);
        stage = (stage + 1) % STAGES;
    }

#pragma unroll
    for (uint32_t h = 0; h < 2; h++) {
#pragma unroll
        for (uint32_t step = 1; step < 4; step *= 2) sum[h] += __shfl_xor_sync(EVERY_LANE, sum[h], step);
        if (!to[h]) continue;
        float inverse = 1 / sum[h];
#pragma unroll
        for (uint32_t n = 0; n < 2 * STEPS; n++)
            if (8 * n + 2 * t < DIM)
                *reinterpret_cast<uint32_t *>(to[h] + 8 * n + 2 * t) =
                    pack2(out[n][2 * h] * inverse, out[n][2 * h + 1] * inverse);
    }
}
