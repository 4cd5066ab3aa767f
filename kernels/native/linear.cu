/* y = x Wᵀ for few rows of x: the linear layers of decode steps, bound by the reading of W.
 *
 * W is [outputs][k], x [rows][x_stride], 16 bits each; k is a multiple of 32, what pads it is zero. Tensor cores take
 * 16 outputs × 32 of k against 8 rows of x at a time. An output is the same bits whatever the number of rows and the
 * other rows are: k is cut into SPLITS ranges, one for each warp of a block; a range is summed in steps of 16 by the
 * tensor core, and the ranges are added in their order.
 *
 * W passes through a ring of AHEAD steps in shared memory, in which every thread finds what it put there itself: that
 * keeps more bytes on their way than registers could. Blocks along x have `share` outputs each, and stay on their
 * multiprocessor until those are done; the ring runs on from tile to tile, and begins before earlier kernels have
 * ended. Blocks along y have 8 rows of x each. */
#include "native/rows.cuh"

using namespace blink;

namespace {

constexpr uint32_t SPLITS = LINEAR_SPLITS, THREADS = ROW_THREADS, TILE = LINEAR_OUTPUTS, CHUNK = LINEAR_CHUNK;
static_assert(THREADS == 32 * SPLITS, "a warp has a range of k");

enum Epilogue { STORE, RESIDUAL, SILU, LOGITS, ROTATE };

__device__ __forceinline__ uint4 load(const real *at) {
    uint4 v;
    asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(at));
    return v;
}

__device__ __forceinline__ void copy_later(uint32_t to, const real *from) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

__device__ __forceinline__ uint4 from_shared(uint32_t at) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at));
    return v;
}

/* SILU and ROTATE take outputs in pairs: tiles are of eight, and of what belongs to each. */
__device__ constexpr bool paired(Epilogue e) { return e == SILU || e == ROTATE; }

/* The row of W that output, or pair, `i` begins with; how far away its partner is. */
template <Epilogue E>
__device__ __forceinline__ uint32_t row_of(const LinearArguments &a, uint32_t i) {
    const uint32_t half = a.rotary.head_dim / 2;
    return E == ROTATE ? i / half * 2 * half + i % half : i;
}
template <Epilogue E>
__device__ __forceinline__ uint32_t partner(const LinearArguments &a) {
    return E == SILU ? a.outputs : E == ROTATE ? a.rotary.head_dim / 2 : 8;
}

/* What the epilogue of one output, or pair, needs beside the sums: fetched before they are there. */
template <Epilogue E>
struct Ready {
    float old = 0, bias = 0, other_bias = 0, cos = 1, sin = 0;
    bool rotates = false;
    real *to = nullptr;

    __device__ __forceinline__ void fetch(const LinearArguments &a, uint32_t row, uint32_t output) {
        if (a.bias) {
            const uint32_t at = row_of<E>(a, output);
            bias = a.bias[at];
            if (paired(E)) other_bias = a.bias[at + partner<E>(a)];
        }
        if (E == RESIDUAL) old = ((float *)a.y)[(uint64_t)row * a.y_stride + output];
        if (E == ROTATE) fetch_rotation(a, row, output);
    }

    /* Queries are rotated in place, keys rotated into the cache, and values go there. */
    __device__ __forceinline__ void fetch_rotation(const LinearArguments &a, uint32_t token, uint32_t pair) {
        const Rotary &r = a.rotary;
        const uint32_t half = r.head_dim / 2, head = pair / half, d = pair % half;
        const bool is_value = head >= r.heads + r.kv_heads;
        to = (real *)a.y + (uint64_t)token * a.y_stride + head * r.head_dim + d;
        if (head >= r.heads)
            to = cache_entry(r, is_value ? r.values : r.keys, token, (head - r.heads) % r.kv_heads) + d;
        rotates = !is_value;
        if (!rotates) return;
        const uint64_t at = (uint64_t)r.positions[token] * half + d;
        cos = r.cos[at], sin = r.sin[at];
    }

    __device__ __forceinline__ void finish(const LinearArguments &a, uint32_t row, uint32_t output, float v,
                                           float other) const {
        v += bias;
        if (paired(E)) other += other_bias;
        const uint64_t at = (uint64_t)row * a.y_stride + output;
        if (E == STORE) ((real *)a.y)[at] = to_real(v);
        if (E == LOGITS) ((float *)a.y)[at] = v;
        if (E == RESIDUAL) ((float *)a.y)[at] = old + v;
        if (E == SILU) ((real *)a.y)[at] = to_real(v / (1 + __expf(-v)) * other);
        if (E != ROTATE) return;
        v = to_float(to_real(v)), other = to_float(to_real(other)); /* as where they are stored in between */
        to[0] = to_real(rotates ? rotated_first(v, other, cos, sin) : v);
        to[a.rotary.head_dim / 2] = to_real(rotates ? rotated_second(v, other, cos, sin) : other);
    }
};

/* A block's shared memory. Rows of x that are made here come after it. */
template <int STEP, int AHEAD, uint32_t ROWS>
struct Storage {
    unsigned char ring[AHEAD][STEP][2][16 * THREADS]; /* of each thread 16 bytes, of outputs and of their partners */
    float sums[LINEAR_SUMS][SPLITS][ROWS * TILE];
};

/* A warp's range of k, in chunks. */
struct Range {
    uint32_t begin, length;
};

/* The warp's range of the block's outputs in W, on its way through the ring. */
template <int STEP, int AHEAD, Epilogue E>
struct Stream {
    static constexpr uint32_t OUT = paired(E) ? 8 : 16, PIECE = 16 * THREADS, SLOT = STEP * 2 * PIECE;
    const LinearArguments &a;
    const Range range;
    const uint32_t last, ring; /* output after the block's; the thread's place in the ring */
    const uint64_t away;       /* of the partners */
    /* What is fetched next: chunk `c` of the tile from output `at` on. */
    uint32_t at, c = 0, slot = 0;
    const real *w;

    __device__ __forceinline__ Stream(const LinearArguments &a, Range range, uint32_t first, uint32_t last,
                                      const void *memory)
        : a(a),
          range(range),
          last(last),
          ring((uint32_t)__cvta_generic_to_shared(memory) + 16 * threadIdx.x),
          away((uint64_t)partner<E>(a) * a.k),
          at(first),
          w(start()) {}

    /* Of the thread's numbers of its output in the tile. */
    __device__ __forceinline__ const real *start() const {
        const uint32_t g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
        return a.w + (uint64_t)(row_of<E>(a, at) + g) * a.k + range.begin * CHUNK + 8 * t;
    }

    __device__ __forceinline__ void fetch() {
        const uint32_t to = ring + slot * SLOT, g = threadIdx.x % 32 / 4;
#pragma unroll
        for (int i = 0; i < 2; i++)
            if (at + (paired(E) ? 0 : 8 * i) + g < last) {
                const real *from = w + i * away + c * CHUNK;
#pragma unroll
                for (int s = 0; s < STEP; s++)
                    if (c + s < range.length) copy_later(to + (s * 2 + i) * PIECE, from + s * CHUNK);
            }
        c += STEP;
        if (c >= range.length) {
            c = 0, at += OUT;
            w = start();
        }
        slot = slot + 1 == AHEAD ? 0 : slot + 1;
    }
};

/* Rows of x made by RMSNorm in shared memory, padded with zeros. `parts` is free for it. */
__device__ __forceinline__ void make_rows(const LinearArguments &a, uint32_t rows, const NormWeights &weights, real *to,
                                          float *parts) {
    for (uint32_t i = threadIdx.x; i < rows * (a.k - a.width); i += THREADS)
        to[i / (a.k - a.width) * a.k + a.width + i % (a.k - a.width)] = 0;
    for (uint32_t row = 0; row < rows; row++)
        norm_row(a.normed + (uint64_t)row * a.width, a.weight, weights, a.eps, to + row * a.k, a.width,
                 parts + row * ROW_WARPS);
    __syncthreads();
}

/* The warp's range of the block's rows of x, STEP chunks of it at a time, ahead of their use. */
template <int STEP, bool NORM>
struct Columns {
    const Range range;
    const bool there; /* the thread's row is */
    const real *x;
    const uint32_t made; /* where it is in shared memory, with NORM */
    uint4 next[STEP];

    __device__ __forceinline__ Columns(const LinearArguments &a, Range range, uint32_t first, uint32_t rows,
                                       const real *made_rows)
        : range(range),
          there(first + g() < rows),
          x(a.x + (uint64_t)(first + g()) * a.x_stride + range.begin * CHUNK + 8 * t()),
          made((uint32_t)__cvta_generic_to_shared(made_rows) + 2 * (g() * a.k + range.begin * CHUNK + 8 * t())),
          next{} {
        fetch(0);
    }
    __device__ __forceinline__ static uint32_t g() { return threadIdx.x % 32 / 4; }
    __device__ __forceinline__ static uint32_t t() { return threadIdx.x % 4; }

    __device__ __forceinline__ void fetch(uint32_t from) {
        if (!there) return;
#pragma unroll
        for (int s = 0; s < STEP; s++)
            if (from + s < range.length)
                next[s] = NORM ? from_shared(made + 2 * (from + s) * CHUNK) : load(x + (from + s) * CHUNK);
    }
};

extern __shared__ __align__(16) unsigned char memory[];

/* A tile is 16 outputs, or 8 pairs. */
template <int STEP, int AHEAD, Epilogue E, bool NORM>
__device__ __forceinline__ void multiply(const LinearArguments &a) {
    constexpr uint32_t ROWS = NORM ? LINEAR_NORMED : LINEAR_ROWS, PART = ROWS * TILE;
    using W = Stream<STEP, AHEAD, E>;
    constexpr uint32_t OUT = W::OUT, PIECE = W::PIECE;
    static_assert(ROWS * OUT <= THREADS, "a thread has one output");
    using Memory = Storage<STEP, AHEAD, ROWS>;
    Memory &m = *reinterpret_cast<Memory *>(memory);
    const uint32_t warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const uint32_t chunks = a.k / CHUNK, each = (chunks + SPLITS - 1) / SPLITS, begin = min(warp * each, chunks);
    const Range range = {begin, min(each, chunks - begin)};
    uint32_t output = blockIdx.x * a.share;
    const uint32_t last = min(output + a.share, a.outputs), first = LINEAR_ROWS * blockIdx.y;

    W w(a, range, output, last, m.ring);
    NormWeights weights;
    pdl_launch();
    for (int u = 0; u < AHEAD; u++) {
        w.fetch();
        asm volatile("cp.async.commit_group;");
    }
    if (NORM) weights.fetch(a.weight, a.width);
    pdl_wait(); /* weights are nobody's output; everything below may be */
    const uint32_t rows = *a.rows;
    if (first >= rows) {
        asm volatile("cp.async.wait_all;");
        return;
    }
    real *made = reinterpret_cast<real *>(&m + 1);
    if (NORM) make_rows(a, rows, weights, made, m.sums[0][0]);
    Columns<STEP, NORM> x(a, range, first, rows, made);
    uint32_t now = 0;
    for (uint32_t turn = 0; output < last; turn++, output += OUT) {
        const uint32_t n = threadIdx.x / OUT, o = threadIdx.x % OUT;
        const bool mine = n < ROWS && first + n < rows && output + o < last;
        Ready<E> ready;
        if (mine) ready.fetch(a, first + n, output + o);
        float sum[4] = {};
        for (uint32_t done = 0; done < range.length; done += STEP) {
            asm volatile("cp.async.wait_group %0;" ::"n"(AHEAD - 1) : "memory");
            const uint32_t from = w.ring + now * W::SLOT;
            uint4 b[STEP];
#pragma unroll
            for (int s = 0; s < STEP; s++) b[s] = x.next[s];
            x.fetch(done + STEP < range.length ? done + STEP : 0);
#pragma unroll
            for (int s = 0; s < STEP; s++) {
                if (done + s >= range.length) break;
                const uint4 lo = from_shared(from + s * 2 * PIECE), hi = from_shared(from + (s * 2 + 1) * PIECE);
                mma16816(sum, lo.x, hi.x, lo.y, hi.y, b[s].x, b[s].y);
                mma16816(sum, lo.z, hi.z, lo.w, hi.w, b[s].z, b[s].w);
            }
            if (w.at < last) w.fetch();
            asm volatile("cp.async.commit_group;");
            now = now + 1 == AHEAD ? 0 : now + 1;
        }
        float (*sums)[PART] = m.sums[turn % LINEAR_SUMS];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t row = 2 * t + i % 2;
            if (row < ROWS) sums[warp][row * TILE + g + i / 2 * 8] = sum[i];
        }
        __syncthreads();
        if (!mine) continue;
        float v = 0, other = 0;
#pragma unroll
        for (uint32_t s = 0; s < SPLITS; s++) {
            v += sums[s][n * TILE + o];
            if (paired(E)) other += sums[s][n * TILE + o + 8];
        }
        ready.finish(a, first + n, output + o, v, other);
    }
}

}  // namespace

#define BLINK_LINEAR(name, E, NORM, STEP, AHEAD, RESIDENT, BYTES)                                                    \
    static_assert(sizeof(Storage < STEP, AHEAD, NORM ? LINEAR_NORMED : LINEAR_ROWS >) == BYTES, "what is launched"); \
    extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) name(const LinearArguments a) {                  \
        multiply<STEP, AHEAD, E, NORM>(a);                                                                           \
    }
BLINK_LINEAR_KERNELS(BLINK_LINEAR)
