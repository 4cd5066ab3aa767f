/* What lies between the matrices of a transformer: embedding, norms, rotary positions and the cache, SwiGLU, biases.
 *
 * The residual stream is float32 [tokens][width]; what goes into a matrix is 16 bits, in rows whose padding is zero.
 * `count` is a word on the device: tokens, or rows, of this step. */
#include "native/rows.cuh"

using namespace blink;

namespace {

constexpr uint32_t THREADS = ROW_THREADS;
static_assert(ROW_HEADS == ROW_WARPS, "native_rotate has a warp for each head");
static_assert(ROW_EACH == 8, "native_swiglu reads 16 bytes at once");

__device__ __forceinline__ float silu(float x) { return x / (1 + __expf(-x)); }

/* W numbers that lie together, 1 or 2. */
template <uint32_t W>
__device__ __forceinline__ void read(const real *from, float (&v)[W]) {
    if (W == 1) {
        v[0] = to_float(*from);
    } else {
        const uint32_t word = *(const uint32_t *)from;
        v[0] = low(word), v[W - 1] = high(word);
    }
}
template <uint32_t W>
__device__ __forceinline__ void write(real *to, const float (&v)[W]) {
    if (W == 1) *to = to_real(v[0]);
    else *(uint32_t *)to = pack2(v[0], v[W - 1]);
}

/* What native_rotate does with one head, by a warp: W numbers a lane and turn. */
template <uint32_t W>
__device__ __forceinline__ void rotate_head(const Rotary &r, real *own, uint32_t token, uint32_t head) {
    const uint32_t first = W * (threadIdx.x % 32), turn = W * 32, n = r.head_dim, half = r.dim / 2;
    const bool is_value = head >= r.heads + r.kv_heads, is_key = !is_value && head >= r.heads;
    const float *norm = is_value ? nullptr : is_key ? r.k_norm : r.q_norm;
    real *to = own;
    if (is_key || is_value) to = cache_entry(r, is_value ? r.values : r.keys, token, (head - r.heads) % r.kv_heads);
    float scale = 1;
    if (norm) {
        float squares = 0;
        for (uint32_t i = first; i < n; i += turn) {
            float v[W];
            read(own + i, v);
            for (uint32_t j = 0; j < W; j++) squares += v[j] * v[j];
        }
        scale = rsqrtf(warp_sum(squares) / n + r.eps);
    }
    const auto read_normed = [&](uint32_t i, float (&v)[W]) {
        read(own + i, v);
        for (uint32_t j = 0; norm && j < W; j++) v[j] *= scale * norm[i + j];
    };
    const uint64_t at = (uint64_t)r.positions[token] * half;
    for (uint32_t i = first; i < half && !is_value; i += turn) {
        float a[W], b[W], from_a[W], from_b[W];
        read_normed(i, a), read_normed(i + half, b);
        for (uint32_t j = 0; j < W; j++) {
            from_a[j] = rotated_first(a[j], b[j], r.cos[at + i + j], r.sin[at + i + j]);
            from_b[j] = rotated_second(a[j], b[j], r.cos[at + i + j], r.sin[at + i + j]);
        }
        write(to + i, from_a), write(to + i + half, from_b);
    }
    for (uint32_t i = first + (is_value ? 0 : r.dim); i < n; i += turn) {
        float v[W];
        read_normed(i, v);
        write(to + i, v);
    }
}

}  // namespace

/* A block for each token: its row of the table. Past the last token: zeros, so that nothing there grows. */
extern "C" __global__ void __launch_bounds__(THREADS) native_embed(const EmbedArguments a) {
    pdl_launch();
    pdl_wait();
    const uint32_t token = blockIdx.x;
    const bool there = token < *a.count;
    const real *row = a.table + (uint64_t)(there ? a.ids[token] : 0) * a.stride;
    float *to = a.x + (uint64_t)token * a.width;
    for (uint32_t i = threadIdx.x; i < a.width; i += THREADS) to[i] = there ? to_float(row[i]) : 0.0f;
}

/* y = x / √(mean(x²) + eps) · weight: a block for each token, or with `ends` (row_start) for each row's last token. */
extern "C" __global__ void __launch_bounds__(THREADS) native_norm(const NormArguments a) {
    NormWeights ahead;
    pdl_launch();
    ahead.fetch(a.weight, a.width);
    pdl_wait();
    const uint32_t row = blockIdx.x;
    if (row >= *a.count) return;
    __shared__ float parts[ROW_WARPS];
    const float *from = a.x + (uint64_t)(a.ends ? a.ends[row + 1] - 1 : row) * a.width;
    norm_row(from, a.weight, ahead, a.eps, a.y + (uint64_t)row * a.stride, a.width, parts);
}

/* Norm and rotate queries in place; norm and rotate keys, and take them and the values to the cache. A warp for each
 * head of a token; blocks along x are tokens, along y eight heads each: the queries', the keys', the values'. */
extern "C" __global__ void __launch_bounds__(THREADS) native_rotate(const RotateArguments a) {
    pdl_launch();
    pdl_wait();
    const Rotary &r = a.rotary;
    const uint32_t token = blockIdx.x, head = blockIdx.y * ROW_HEADS + threadIdx.x / 32;
    if (token >= *a.count || head >= r.heads + 2 * r.kv_heads) return;
    real *own = a.qkv + (uint64_t)token * a.stride + head * r.head_dim;
    if (r.dim % 4 == 0) rotate_head<2>(r, own, token, head);
    else rotate_head<1>(r, own, token, head);
}

/* y = silu(gate) · up, of [tokens][gate, then up]: blocks along x are tokens, along y eight numbers of each thread. */
extern "C" __global__ void __launch_bounds__(THREADS) native_swiglu(const SwigluArguments a) {
    pdl_launch();
    pdl_wait();
    const uint32_t token = blockIdx.x, i = ROW_EACH * (blockIdx.y * THREADS + threadIdx.x);
    if (token >= *a.count || i >= a.width) return;
    const real *gate = a.both + (uint64_t)token * a.both_stride + i, *up = gate + a.width;
    real *to = a.y + (uint64_t)token * a.stride + i;
    if (a.width % ROW_EACH == 0) {
        const uint4 g = *(const uint4 *)gate, u = *(const uint4 *)up;
        const auto both = [](uint32_t x, uint32_t y) { return pack2(silu(low(x)) * low(y), silu(high(x)) * high(y)); };
        *(uint4 *)to = {both(g.x, u.x), both(g.y, u.y), both(g.z, u.z), both(g.w, u.w)};
        return;
    }
    for (uint32_t j = 0; j < ROW_EACH && i + j < a.width; j++)
        to[j] = to_real(silu(to_float(gate[j])) * to_float(up[j]));
}

/* y += bias: a block for each token. y is 16 bits, or float32 where `wide` is given instead. */
extern "C" __global__ void __launch_bounds__(THREADS) native_bias(const BiasArguments a) {
    pdl_launch();
    pdl_wait();
    const uint32_t token = blockIdx.x;
    if (token >= *a.count) return;
    const uint64_t at = (uint64_t)token * a.stride;
    for (uint32_t i = threadIdx.x; i < a.width; i += THREADS) {
        if (a.wide) a.wide[at + i] += a.bias[i];
        else a.y[at + i] = to_real(to_float(a.y[at + i]) + a.bias[i]);
    }
}

/* Random numbers to measure with: uniform in ± bound, by a hash of seed and index; padding stays zero. */
extern "C" __global__ void __launch_bounds__(THREADS) native_random(const RandomArguments a) {
    for (uint64_t i = blockIdx.x * (uint64_t)THREADS + threadIdx.x; i < a.rows * a.width;
         i += (uint64_t)gridDim.x * THREADS) {
        uint64_t h = (i + 1) * 0x9E3779B97F4A7C15 + a.seed * 0xC2B2AE3D27D4EB4F;
        h = (h ^ h >> 30) * 0xBF58476D1CE4E5B9;
        h = (h ^ h >> 27) * 0x94D049BB133111EB;
        const float v = a.middle + a.bound * ((float)(uint32_t)(h >> 40) * (1.0f / 8388608.0f) - 1.0f);
        const uint64_t at = i / a.width * a.stride + i % a.width;
        if (a.wide) a.wide[at] = v;
        else a.w[at] = to_real(v);
    }
}
