/* From the scores of a tile of positions to weights, as a lane of a warp that computes has them: of the warp's pairs g
 * and g + 8, g = lane / 4, at positions 8 n + 2 t and the next, t = lane % 4. */
#ifndef BLINK_NATIVE_ATTENTION_SOFTMAX_CUH
#define BLINK_NATIVE_ATTENTION_SOFTMAX_CUH

#include "native/attention_items.cuh"

namespace blink {

typedef float Scores[COLUMNS / 64][32];    /* [n / 8][n % 8 * 4 …]: position 8 n + 2 t … of pair g, then of g + 8 */
typedef uint32_t Weights[COLUMNS / 16][4]; /* as multiply_add takes them */
typedef float Outputs[PARTS][32];          /* [n / 8][n % 8 * 4 …]: dimension 8 n + 2 t …, likewise */

/* What a lane's two pairs see; and of all of the warp's, the least that a first one's end is, the most that a second
 * one's begin is. */
struct Seen {
    uint32_t from[2], end[2];
    uint32_t fewest, most;

    /* Of tokens that are the last of `end0` and `end1` positions. */
    __device__ __forceinline__ Seen(uint32_t end0, uint32_t end1, uint32_t window) {
        end[0] = end0, end[1] = end1;
        from[0] = first_seen(end0, window), from[1] = first_seen(end1, window);
        fewest = __reduce_min_sync(EVERY_LANE, end[0]);
        most = __reduce_max_sync(EVERY_LANE, from[1]);
    }

    /* −∞ for what is not seen of the tile that begins at position `first`. */
    __device__ __forceinline__ void mask(Scores &score, uint32_t first) const {
        if (first + COLUMNS <= fewest && first >= most) return;
        uint32_t t = threadIdx.x % 4;
#pragma unroll
        for (uint32_t n = 0; n < COLUMNS / 8; n++)
#pragma unroll
            for (uint32_t e = 0; e < 4; e++) {
                uint32_t column = first + 8 * n + 2 * t + e % 2;
                bool seen = (column < end[e / 2]) & (column >= from[e / 2]);
                if (!seen) score[n / 8][n % 8 * 4 + e] = -INFINITE;
            }
    }
};

/* What a lane's two pairs know of the tiles so far. */
struct Softmax {
    float largest[2] = {-INFINITE, -INFINITE}, sum[2] = {};
    float factor[2]; /* of what was summed before the last tile */

    /* Makes weights of a tile's scores, not yet divided by their sum. */
    __device__ __forceinline__ void update(Scores &score, float scale_log2) {
        float top[2];
#pragma unroll
        for (uint32_t h = 0; h < 2; h++) {
            top[h] = score[0][2 * h];
#pragma unroll
            for (uint32_t n = 0; n < COLUMNS / 8; n++) {
                const float *s = &score[n / 8][n % 8 * 4 + 2 * h];
                top[h] = fmaxf(top[h], fmaxf(s[0], s[1]));
            }
        }
#pragma unroll
        for (uint32_t step = 1; step < 4; step *= 2)
#pragma unroll
            for (uint32_t h = 0; h < 2; h++) top[h] = fmaxf(top[h], __shfl_xor_sync(EVERY_LANE, top[h], step));
#pragma unroll
        for (uint32_t h = 0; h < 2; h++) {
            /* Where nothing was seen yet, −∞ less −∞ must not become a NaN; and what nothing is added to stays as it
             * is, by a factor of exactly 1. */
            top[h] = fmaxf(largest[h], top[h] * scale_log2);
            float subtract = top[h] == -INFINITE ? 0 : top[h];
            factor[h] = exp2_fast(largest[h] - subtract);
            largest[h] = top[h], sum[h] *= factor[h];
#pragma unroll
            for (uint32_t n = 0; n < COLUMNS / 8; n++) {
                float *s = &score[n / 8][n % 8 * 4 + 2 * h];
                s[0] = exp2_fast(s[0] * scale_log2 - subtract);
                s[1] = exp2_fast(s[1] * scale_log2 - subtract);
                sum[h] += s[0] + s[1];
            }
        }
    }

    /* Collective for a warp: waits for the products of the tiles before, and fits them to the last tile. */
    __device__ __forceinline__ void rescale(Outputs &out) const {
        if (__all_sync(EVERY_LANE, factor[0] == 1 && factor[1] == 1)) {
            products_wait_all_but<0>(out);
        } else {
            products_wait_all_but<0>(out);
#pragma unroll
            for (uint32_t n = 0; n < PARTS * 32; n++) out[n / 32][n % 32] *= factor[n / 2 % 2];
        }
    }

    /* Collective for four lanes: the outputs divided by the sum of the weights. */
    __device__ __forceinline__ float inverse(uint32_t h) {
#pragma unroll
        for (uint32_t step = 1; step < 4; step *= 2) sum[h] += __shfl_xor_sync(EVERY_LANE, sum[h], step);
        return 1 / sum[h];
    }
};

__device__ __forceinline__ void pack(Weights &weight, const Scores &score) {
#pragma unroll
    for (uint32_t n = 0; n < COLUMNS / 8; n++)
#pragma unroll
        for (uint32_t h = 0; h < 2; h++) {
            const float *s = &score[n / 8][n % 8 * 4 + 2 * h];
            weight[n / 2][n % 2 * 2 + h] = pack2(s[0], s[1]);
        }
}

}  // namespace blink
#endif  // BLINK_NATIVE_ATTENTION_SOFTMAX_CUH
