/* Arithmetic on a row that several kernels do in different places, with the same bits in each. */
#ifndef BLINK_NATIVE_ROWS_CUH
#define BLINK_NATIVE_ROWS_CUH

#include "native/layout.h"

namespace blink {

constexpr uint32_t ROW_WARPS = ROW_THREADS / 32;

__device__ __forceinline__ float warp_sum(float v) {
    for (int i = 16; i > 0; i /= 2) v += __shfl_xor_sync(~0u, v, i);
    return v;
}

/* Of all threads' values, the same in each; the order of the additions is fixed. `parts` has ROW_WARPS floats, which
 * nobody else uses until the next barrier. */
__device__ __forceinline__ float block_sum(float v, float *parts) {
    v = warp_sum(v);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = v;
    __syncthreads();
    float total = 0;
    for (uint32_t w = 0; w < ROW_WARPS; w++) total += parts[w];
    return total;
}

/* What a block of ROW_THREADS holds of a row: four numbers a thread and turn, up to HELD turns. */
constexpr uint32_t HELD = 5, TURN = 4 * ROW_THREADS;

/* A norm's weights, ahead of the row that they are for. */
struct NormWeights {
    float4 held[HELD];

    __device__ __forceinline__ static bool fit(uint32_t width) { return width % 4 == 0 && width <= HELD * TURN; }
    __device__ __forceinline__ void fetch(const float *weight, uint32_t width) {
        if (!fit(width)) return;
#pragma unroll
        for (uint32_t j = 0; j < HELD; j++) {
            const uint32_t i = j * TURN + 4 * threadIdx.x;
            if (i < width) held[j] = *(const float4 *)(weight + i);
        }
    }
};

__device__ __forceinline__ float add_squares(const float4 &v, float to) {
    return fmaf(v.x, v.x, fmaf(v.y, v.y, fmaf(v.z, v.z, fmaf(v.w, v.w, to))));
}
__device__ __forceinline__ uint2 weighted(const float4 &v, float scale, const float4 &w) {
    return {pack2(v.x * scale * w.x, v.y * scale * w.y), pack2(v.z * scale * w.z, v.w * scale * w.w)};
}

/* to = from / √(mean(from²) + eps) · weight, by a block of ROW_THREADS. `to` may be in shared memory. */
__device__ __forceinline__ void norm_row(const float *from, const float *weight, const NormWeights &ahead, float eps,
                                         real *to, uint32_t width, float *parts) {
    float squares = 0;
    if (NormWeights::fit(width)) {
        float4 row[HELD];
#pragma unroll
        for (uint32_t j = 0; j < HELD; j++) {
            const uint32_t i = j * TURN + 4 * threadIdx.x;
            if (i < width) row[j] = *(const float4 *)(from + i);
        }
#pragma unroll
        for (uint32_t j = 0; j < HELD; j++)
            if (j * TURN + 4 * threadIdx.x < width) squares = add_squares(row[j], squares);
        const float scale = rsqrtf(block_sum(squares, parts) / width + eps);
#pragma unroll
        for (uint32_t j = 0; j < HELD; j++) {
            const uint32_t i = j * TURN + 4 * threadIdx.x;
            if (i < width) *(uint2 *)(to + i) = weighted(row[j], scale, ahead.held[j]);
        }
    } else if (width % 4 == 0) {
        for (uint32_t i = 4 * threadIdx.x; i < width; i += TURN)
            squares = add_squares(*(const float4 *)(from + i), squares);
        const float scale = rsqrtf(block_sum(squares, parts) / width + eps);
        for (uint32_t i = 4 * threadIdx.x; i < width; i += TURN)
            *(uint2 *)(to + i) = weighted(*(const float4 *)(from + i), scale, *(const float4 *)(weight + i));
    } else {
        for (uint32_t i = threadIdx.x; i < width; i += ROW_THREADS) squares = fmaf(from[i], from[i], squares);
        const float scale = rsqrtf(block_sum(squares, parts) / width + eps);
        for (uint32_t i = threadIdx.x; i < width; i += ROW_THREADS) to[i] = to_real(from[i] * scale * weight[i]);
    }
}

/* The two halves of a rotated pair. */
__device__ __forceinline__ float rotated_first(float first, float second, float cos, float sin) {
    return fmaf(first, cos, -__fmul_rn(second, sin));
}
__device__ __forceinline__ float rotated_second(float first, float second, float cos, float sin) {
    return fmaf(second, cos, __fmul_rn(first, sin));
}

/* Where a token's key or value of one head goes. */
__device__ __forceinline__ real *cache_entry(const Rotary &r, real *cache, uint32_t token, uint32_t kv_head) {
    const uint32_t at = r.kv_index[token];
    const uint64_t page = at / r.page_tokens * r.kv_heads + kv_head;
    return cache + (page * r.page_tokens + at % r.page_tokens) * r.head_dim;
}

}  // namespace blink
#endif  // BLINK_NATIVE_ROWS_CUH
