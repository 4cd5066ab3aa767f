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
 * ended. Blocks along y have 8 NT rows of x each. */
#include "native_types.cuh"

using namespace blink;

namespace {

constexpr uint32_t SPLITS = 8, THREADS = 32 * SPLITS, TILE = 16, CHUNK = 32, STEP = 2;

enum Epilogue { STORE, RESIDUAL, SILU, LOGITS };

struct Layer {
    const real *w, *x;
    void *y;           /* STORE, SILU: real; RESIDUAL, LOGITS: float */
    const float *bias; /* [outputs], or null */
    uint32_t outputs;  /* rows of W; SILU: of gate, and as many of up follow */
    uint32_t k;
    uint32_t x_stride, y_stride;
    const uint32_t *rows; /* of x, on the device */
    uint32_t share;       /* outputs of a block, a multiple of 8 */
};

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

template <Epilogue E>
__device__ __forceinline__ void finish(const Layer &a, uint32_t row, uint32_t output, float v, float up) {
    if (a.bias) v += a.bias[output];
    const uint64_t at = (uint64_t)row * a.y_stride + output;
    if (E == STORE) ((real *)a.y)[at] = to_real(v);
    if (E == LOGITS) ((float *)a.y)[at] = v;
    if (E == RESIDUAL) ((float *)a.y)[at] += v;
    if (E == SILU) {
        if (a.bias) up += a.bias[a.outputs + output];
        ((real *)a.y)[at] = to_real(v / (1 + __expf(-v)) * up);
    }
}

extern __shared__ __align__(16) unsigned char memory[];

/* A tile is 16 MT outputs, or 8 MT of gate and the same of up. */
template <int NT, int MT, int AHEAD, Epilogue E>
__device__ __forceinline__ void multiply(const Layer &a) {
    constexpr uint32_t OUT = (E == SILU ? 8 : 16) * MT, PART = 8 * NT * MT * TILE, BUFFERS = NT * MT <= 2 ? 2 : 1;
    constexpr uint32_t PIECE = 16 * THREADS, SLOT = STEP * MT * 2 * PIECE;
    float *parts = (float *)(memory + AHEAD * SLOT);
    const uint32_t ring = (uint32_t)__cvta_generic_to_shared(memory) + 16 * threadIdx.x;
    const uint32_t warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const uint32_t chunks = a.k / CHUNK, each = (chunks + SPLITS - 1) / SPLITS;
    const uint32_t begin = min(warp * each, chunks), length = min(each, chunks - begin);
    uint32_t output = blockIdx.x * a.share;
    const uint32_t last = min(output + a.share, a.outputs), first = 8 * NT * blockIdx.y;

    /* What is fetched next: chunk `c` of the tile from output `at` on. */
    uint32_t c = 0, at = output, slot = 0;
    const real *w = a.w + (uint64_t)(output + g) * a.k + begin * CHUNK + 8 * t;
    const uint64_t up = (E == SILU ? (uint64_t)a.outputs : 8ull) * a.k, tile = (uint64_t)OUT * a.k;
    auto fetch = [&] {
        const uint32_t to = ring + slot * SLOT;
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const uint32_t row = E == SILU ? 8 * m : 16 * m + 8 * i;
                if (at + row + g < last) {
                    const real *from = w + (E == SILU ? 8 * m : 16 * m) * a.k + i * up + c * CHUNK;
#pragma unroll
                    for (int s = 0; s < STEP; s++)
                        if (c + s < length) copy_later(to + ((s * MT + m) * 2 + i) * PIECE, from + s * CHUNK);
                }
            }
        c += STEP;
        if (c >= length) c = 0, at += OUT, w += tile;
        slot = slot + 1 == AHEAD ? 0 : slot + 1;
    };
    pdl_launch();
    for (int u = 0; u < AHEAD; u++) {
        fetch();
        asm volatile("cp.async.commit_group;");
    }
    pdl_wait(); /* weights are nobody's output; everything below may be */
    const uint32_t rows = *a.rows;
    if (first >= rows) {
        asm volatile("cp.async.wait_all;");
        return;
    }
    const real *x = a.x + (uint64_t)(first + g) * a.x_stride + begin * CHUNK + 8 * t;
    uint4 near[STEP][NT];
    auto fetch_x = [&](uint32_t from) {
#pragma unroll
        for (int s = 0; s < STEP; s++)
#pragma unroll
            for (int n = 0; n < NT; n++)
                if (from + s < length && first + 8 * n + g < rows)
                    near[s][n] = load(x + (uint64_t)8 * n * a.x_stride + (from + s) * CHUNK);
    };
#pragma unroll
    for (int s = 0; s < STEP; s++)
#pragma unroll
        for (int n = 0; n < NT; n++) near[s][n] = {};
    fetch_x(0);
    uint32_t now = 0;
    for (uint32_t turn = 0; output < last; turn++, output += OUT) {
        float sum[MT][NT][4] = {};
        for (uint32_t done = 0; done < length; done += STEP) {
            asm volatile("cp.async.wait_group %0;" ::"n"(AHEAD - 1) : "memory");
            const uint32_t from = ring + now * SLOT;
            uint4 b[STEP][NT];
#pragma unroll
            for (int s = 0; s < STEP; s++)
#pragma unroll
                for (int n = 0; n < NT; n++) b[s][n] = near[s][n];
            fetch_x(done + STEP < length ? done + STEP : 0);
#pragma unroll
            for (int s = 0; s < STEP; s++) {
                if (done + s >= length) break;
#pragma unroll
                for (int m = 0; m < MT; m++) {
                    const uint4 lo = from_shared(from + ((s * MT + m) * 2) * PIECE);
                    const uint4 hi = from_shared(from + ((s * MT + m) * 2 + 1) * PIECE);
#pragma unroll
                    for (int n = 0; n < NT; n++) {
                        mma16816(sum[m][n], lo.x, hi.x, lo.y, hi.y, b[s][n].x, b[s][n].y);
                        mma16816(sum[m][n], lo.z, hi.z, lo.w, hi.w, b[s][n].z, b[s][n].w);
                    }
                }
            }
            if (at < last) fetch();
            asm volatile("cp.async.commit_group;");
            now = now + 1 == AHEAD ? 0 : now + 1;
        }
        float *own = parts + turn % BUFFERS * SPLITS * PART;
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int n = 0; n < NT; n++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    own[warp * PART + (8 * n + 2 * t + i % 2) * (MT * TILE) + m * TILE + g + i / 2 * 8] = sum[m][n][i];
        __syncthreads();
        const uint32_t outputs = min(OUT, last - output), count = min(rows - first, 8 * NT);
        for (uint32_t e = threadIdx.x; e < count * OUT; e += THREADS) {
            const uint32_t n = e / OUT, o = e % OUT;
            if (o >= outputs) continue;
            const uint32_t of = n * (MT * TILE) + (E == SILU ? o / 8 * 16 + o % 8 : o);
            float v = 0, other = 0;
#pragma unroll
            for (uint32_t s = 0; s < SPLITS; s++) {
                v += own[s * PART + of];
                if (E == SILU) other += own[s * PART + of + 8];
            }
            finish<E>(a, first + n, output + o, v, other);
        }
        if (BUFFERS == 1) __syncthreads();
    }
}

}  // namespace

#define BLINK_LINEAR(rows, name, NT, MT, AHEAD, RESIDENT, E)                                      \
    extern "C" __global__ void __launch_bounds__(256, RESIDENT) linear_##rows##_##name(Layer a) { \
        multiply<NT, MT, AHEAD, E>(a);                                                            \
    }

BLINK_LINEAR(8, store, 1, 1, 6, 2, STORE)
BLINK_LINEAR(8, residual, 1, 1, 6, 2, RESIDUAL)
BLINK_LINEAR(8, silu, 1, 1, 6, 2, SILU)
BLINK_LINEAR(8, logits, 1, 1, 6, 2, LOGITS)
BLINK_LINEAR(16, store, 2, 1, 5, 2, STORE)
BLINK_LINEAR(16, residual, 2, 1, 5, 2, RESIDUAL)
BLINK_LINEAR(16, silu, 2, 1, 5, 2, SILU)
BLINK_LINEAR(16, logits, 2, 1, 5, 2, LOGITS)
