/* What a block of prefill attention does, by items, and how what they need gets to shared memory. */
#ifndef BLINK_NATIVE_ATTENTION_ITEMS_CUH
#define BLINK_NATIVE_ATTENTION_ITEMS_CUH

#include "native/attention.cuh"
#include "native/wgmma.cuh"

namespace blink {

constexpr uint32_t COMPUTING = PREFILL_COMPUTING, COPYING = PREFILL_COPYING, THREADS = PREFILL_THREADS;
constexpr uint32_t ROWS = PREFILL_PAIRS, COLUMNS = PREFILL_POSITIONS;
static_assert(ROWS == COMPUTING / 2, "a warp of those that compute has 16 pairs");
constexpr uint32_t STEPS = (DIM + 15) / 16; /* of 16 dimensions; the last may be half empty */
constexpr uint32_t PARTS = (DIM + 63) / 64; /* of 64 dimensions: a tile of each */
constexpr uint32_t UNITS = 2 * STEPS;       /* 16-byte units of a key, value or query that products read */
constexpr uint32_t PART = COLUMNS * SWIZZLED_ROW, TILE = PARTS * PART; /* bytes of keys, or of values */
constexpr uint32_t QUERY_PART = ROWS * SWIZZLED_ROW, QUERIES = PARTS * QUERY_PART;
constexpr uint32_t RUN = 64; /* positions that are copied at once */

/* A block's shared memory, from a multiple of TILE_ALIGN bytes on. The rows' ends in the list of items follow it. */
struct Storage {
    uint8_t queries[QUERIES]; /* later the outputs */
    uint8_t keys[2][TILE], values[2][TILE];

    __device__ __forceinline__ static Storage &in(uint8_t *memory) {
        return *reinterpret_cast<Storage *>(memory + -(uint32_t)__cvta_generic_to_shared(memory) % TILE_ALIGN);
    }
    __device__ __forceinline__ uint32_t *ends() { return reinterpret_cast<uint32_t *>(this + 1); }
};

/* For each of the two tiles: that it is there, and that nobody needs it any more. */
struct Barriers {
    Barrier keys_there[2], values_there[2], keys_done[2], values_done[2];

    /* By two threads. */
    __device__ __forceinline__ void begin(uint32_t tile) {
        keys_there[tile].begin(COPYING / 2), values_there[tile].begin(COPYING / 2);
        keys_done[tile].begin(COMPUTING / WARP), values_done[tile].begin(COMPUTING / WARP);
    }
};

/* The step's items: `all` of them, `per_head` of each key head. */
struct Items {
    const uint32_t *ends; /* of each row's, among those of one key head */
    uint32_t rows, per_head, all;
};

/* What all of a warp's lanes have, said so that the compiler keeps it once for the warp. */
__device__ __forceinline__ uint32_t uniform(uint32_t x) { return __shfl_sync(EVERY_LANE, x, 0); }

/* By BY threads: COUNT rows of UNITS units to shared memory, later, to tiles that are PITCH bytes apart: unit u of row
 * r from what from(r) is, or zeros where has(r) is false, and then nothing is read. */
template <uint32_t BY, uint32_t COUNT, uint32_t PITCH, int AT_ONCE, class Has, class From>
__device__ __forceinline__ void copy_rows(uint8_t *to, uint32_t thread, Has has, From from) {
    constexpr uint32_t ALL = COUNT * UNITS;
#pragma unroll AT_ONCE
    for (uint32_t n = 0; n < (ALL + BY - 1) / BY; n++) {
        uint32_t i = n * BY + thread, row = i / UNITS, unit = i % UNITS;
        if (BY % UNITS == 0) { /* the same, and a constant away from the last round's */
            row = n * (BY / UNITS) + thread / UNITS, unit = thread % UNITS;
        }
        if (ALL % BY && i >= ALL) break;
        bool inside = (DIM % 16 == 0 || VECTOR * unit < DIM) && has(row);
        copy_later(to + unit / SWIZZLED_UNITS * PITCH + 16 * swizzled(row, unit % SWIZZLED_UNITS),
                   from(row) + (inside ? VECTOR * unit : 0), inside);
    }
}

/* By half of the copying threads: keys or values of COLUMNS positions from `from` on to the tile `to`, later; zeros for
 * those that are not in [lowest, end). */
__device__ __forceinline__ void copy_tile(uint8_t *to, uint32_t thread, const real *pool, const PagedHead &cache,
                                          uint32_t from, uint32_t lowest, uint32_t end) {
#pragma unroll 1
    for (uint32_t run = 0; run < COLUMNS; run += RUN, from += RUN, to += RUN * SWIZZLED_ROW) {
        /* Where all are on one page, addresses differ by constants. */
        if (RUN >> cache.page_bits <= 1 && from >= lowest && from + RUN <= end) {
            const real *first = pool + (uint64_t)cache.entry(from) * DIM;
            auto every = [](uint32_t) { return true; };
            copy_rows<COPYING / 2, RUN, PART, 16>(to, thread, every, [=](uint32_t r) { return first + r * DIM; });
        } else {
            auto has = [=](uint32_t r) { return from + r >= lowest && from + r < end; };
            auto at = [=](uint32_t r) { return has(r) ? pool + (uint64_t)cache.entry(from + r) * DIM : pool; };
            copy_rows<COPYING / 2, RUN, PART, 4>(to, thread, has, at);
        }
    }
}

/* An item: up to ROWS pairs of a row and a key head, from `first_pair` of the row's `pairs` on. */
struct Item {
    uint32_t row, kv_head, first_pair, pairs;
    uint32_t start, position; /* of the row's first token: among the step's, and in the row */
    uint32_t lowest, end;     /* of what any of its tokens sees */
    uint32_t begin;           /* of the walk over that */

    /* Item `number`, the last of a prompt first, which see most. */
    __device__ __forceinline__ Item(const AttentionArguments &a, const Items &items, uint32_t number) {
        const uint32_t *ends = items.ends;
        uint32_t group = a.heads / a.kv_heads, item = items.per_head - 1 - number / a.kv_heads;
        kv_head = number % a.kv_heads, row = row_of(ends, items.rows, item);
        start = a.batch.row_start[row], pairs = (uint32_t)(a.batch.row_start[row + 1] - start) * group;
        first_pair = (item - (row ? ends[row - 1] : 0)) * ROWS;
        uint32_t last_pair = first_pair + ROWS < pairs ? first_pair + ROWS - 1 : pairs - 1;
        position = a.batch.row_kv_len[row] - pairs / group;
        lowest = first_seen(position + first_pair / group + 1, a.window);
        begin = uniform(lowest / COLUMNS * COLUMNS);
        end = uniform(position + last_pair / group + 1);
    }
};

/* Block b takes items b, 2 n - 1 - b, 2 n + b … of n blocks, since they get shorter. */
__device__ __forceinline__ uint32_t number_of(uint32_t round) {
    return round * gridDim.x + (round % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
}

}  // namespace blink
#endif  // BLINK_NATIVE_ATTENTION_ITEMS_CUH
