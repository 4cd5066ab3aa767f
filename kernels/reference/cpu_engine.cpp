// The two operations of the reference engine that NumPy cannot do as it needs them: a linear layer and attention
// whose result for one token is the same sequence of roundings whatever else is in the batch. A BLAS picks its kernel
// by the number of rows, so there a token's low bits depend on its batch-mates; and it copies the weights on each
// call with more than one row, which for a handful of rows costs more than the arithmetic.
//
// Every output number here is one chain of fused multiply-adds in the order of the reduced index. Rows, tiles and
// threads only decide which chains run side by side.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "reference/cpu_pool.h"

namespace {

constexpr int kPanel = 16;  // outputs that share a panel of weights, [inputs][kPanel]
constexpr int kTile = 6;    // rows whose accumulators fit into the registers of AVX2, and hide the latency of AVX-512

typedef float Vec __attribute__((vector_size(64)));
typedef float Vec8 __attribute__((vector_size(32)));
typedef float Vec4 __attribute__((vector_size(16)));
typedef float VecU __attribute__((vector_size(64), aligned(4)));

// ThreadSanitizer is not ready when the loader chooses between clones.
#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(__SANITIZE_THREAD__)
#define BLINK_CLONES __attribute__((target_clones("avx512f", "fma", "default")))
#else
#define BLINK_CLONES
#endif
#define BLINK_ALWAYS __attribute__((always_inline))
#define BLINK_INLINE inline BLINK_ALWAYS

template <int R>
BLINK_INLINE void tile(const float *x, size_t inputs, const Vec *w, float *y, size_t outputs, int valid) {
    Vec acc[R] = {};
    for (size_t k = 0; k < inputs; ++k) {
        for (int r = 0; r < R; ++r) acc[r] += x[r * inputs + k] * w[k];
    }
    for (int r = 0; r < R; ++r) std::memcpy(y + r * outputs, &acc[r], valid * sizeof(float));
}

BLINK_CLONES void linear_panel(const float *x, size_t rows, size_t inputs, const Vec *w, float *y, size_t outputs,
                               int valid) {
    size_t tiles = (rows + kTile - 1) / kTile;
    for (size_t i = 0, at = 0; i < tiles; ++i) {  // tiles of nearly equal height
        size_t height = (rows - at + tiles - i - 1) / (tiles - i);
        const float *from = x + at * inputs;
        float *to = y + at * outputs;
        switch (height) {
            case 1:
                tile<1>(from, inputs, w, to, outputs, valid);
                break;
            case 2:
                tile<2>(from, inputs, w, to, outputs, valid);
                break;
            case 3:
                tile<3>(from, inputs, w, to, outputs, valid);
                break;
            case 4:
                tile<4>(from, inputs, w, to, outputs, valid);
                break;
            case 5:
                tile<5>(from, inputs, w, to, outputs, valid);
                break;
            default:
                tile<6>(from, inputs, w, to, outputs, valid);
                break;
        }
        at += height;
    }
}

BLINK_INLINE float dot(const float *a, const float *b, size_t n) {
    Vec acc = {};
    size_t i = 0;
    for (; i + kPanel <= n; i += kPanel) acc += *(const VecU *)(a + i) * *(const VecU *)(b + i);
    Vec8 half[2];
    std::memcpy(half, &acc, sizeof acc);
    half[0] += half[1];
    Vec4 quarter[2];
    std::memcpy(quarter, half, sizeof quarter);
    quarter[0] += quarter[1];
    float sum = (quarter[0][0] + quarter[0][2]) + (quarter[0][1] + quarter[0][3]);
    for (; i < n; ++i) sum += a[i] * b[i];
    return sum;
}

BLINK_INLINE void add_scaled(float *out, float scale, const float *v, size_t n) {
    size_t i = 0;
    for (; i + kPanel <= n; i += kPanel) *(VecU *)(out + i) += scale * *(const VecU *)(v + i);
    for (; i < n; ++i) out[i] += scale * v[i];
}

// Attention of the query heads that share one key head: q and out are f32 [group][dim], positions first to last of
// the lane whose pages are table.
struct Span {
    const int32_t *table;
    size_t page_tokens, first, last;
    size_t stride;  // floats between two entries of the cache

    // Calls body(i, offset) for the i-th position, whose key and value begin at that offset.
    template <class Body>
    BLINK_INLINE void each(const Body &body) const {
        for (size_t p = first; p <= last;) {
            size_t from = p % page_tokens, left = last - p + 1;
            size_t run = left < page_tokens - from ? left : page_tokens - from;
            size_t entry = (size_t)table[p / page_tokens] * page_tokens + from;
            for (size_t j = 0; j < run; ++j) body(p - first + j, (entry + j) * stride);
            p += run;
        }
    }
};

BLINK_CLONES void attend_group(const float *q, const float *keys, const float *values, float *out, size_t group,
                               size_t dim, Span s, float *scores) {
    size_t n = s.last - s.first + 1;
    float scale = 1.0f / std::sqrt((float)dim);
    s.each([=](size_t i, size_t at) BLINK_ALWAYS {
        for (size_t g = 0; g < group; ++g) scores[g * n + i] = scale * dot(q + g * dim, keys + at, dim);
    });
    for (size_t g = 0; g < group; ++g) {
        float *row = scores + g * n;
        float top = row[0];
        for (size_t i = 1; i < n; ++i) top = row[i] > top ? row[i] : top;
        double sum = 0;
        for (size_t i = 0; i < n; ++i) sum += row[i] = std::exp(row[i] - top);
        float inverse = (float)(1.0 / sum);
        for (size_t i = 0; i < n; ++i) row[i] *= inverse;
    }
    std::memset(out, 0, group * dim * sizeof(float));
    s.each([=](size_t i, size_t at) BLINK_ALWAYS {
        for (size_t g = 0; g < group; ++g) add_scaled(out + g * dim, scores[g * n + i], values + at, dim);
    });
}

}  // namespace

extern "C" {

void *blink_pool_create(int threads) { return new blink::Pool(threads); }

void blink_pool_destroy(void *pool) { delete static_cast<blink::Pool *>(pool); }

// Copies rows [count][inputs] of a matrix to its panels, from row start on; panels is f32 [⌈outputs / 16⌉][inputs][16].
void blink_pack(void *pool, const float *rows, size_t count, size_t inputs, size_t start, float *panels) {
    auto &threads = *static_cast<blink::Pool *>(pool);
    size_t first = start / kPanel, end = (start + count + kPanel - 1) / kPanel;
    threads.loop(end - first, threads.threads() * 8, [=](size_t begin, size_t stop) {
        for (size_t p = first + begin; p < first + stop; ++p) {
            size_t low = p * kPanel < start ? start - p * kPanel : 0;
            size_t high = (p + 1) * kPanel > start + count ? start + count - p * kPanel : kPanel;
            for (size_t k = 0; k < inputs; ++k) {
                for (size_t j = low; j < high; ++j) {
                    panels[(p * inputs + k) * kPanel + j] = rows[(p * kPanel + j - start) * inputs + k];
                }
            }
        }
    });
}

// y [rows][outputs] = x [rows][inputs] Wᵀ, with W [outputs][inputs] in panels as blink_pack leaves it.
void blink_linear(void *pool, const float *x, size_t rows, size_t inputs, const float *panels, size_t outputs,
                  float *y) {
    auto &threads = *static_cast<blink::Pool *>(pool);
    threads.loop((outputs + kPanel - 1) / kPanel, threads.threads() * 8, [=](size_t begin, size_t end) {
        for (size_t p = begin; p < end; ++p) {
            size_t left = outputs - p * kPanel;
            linear_panel(x, rows, inputs, (const Vec *)(panels + p * inputs * kPanel), y + p * kPanel, outputs,
                         left < kPanel ? (int)left : kPanel);
        }
    });
}

// out [tokens][heads][dim]: every token attends to positions max(0, p - window + 1) to p of its row (window 0: from 0).
// keys and values [entries][kv_heads][dim]; token_row [tokens] indexes tables [rows][table_columns].
void blink_attend(void *pool, const float *q, size_t tokens, size_t heads, size_t kv_heads, size_t dim,
                  const float *keys, const float *values, const int32_t *positions, const int32_t *token_row,
                  const int32_t *tables, size_t table_columns, size_t page_tokens, size_t window, float *out) {
    auto &threads = *static_cast<blink::Pool *>(pool);
    size_t group = heads / kv_heads;
    threads.loop(tokens * kv_heads, threads.threads() * 16, [=](size_t begin, size_t end) {
        std::vector<float> scores;
        for (size_t i = begin; i < end; ++i) {
            size_t t = i / kv_heads, h = i % kv_heads;
            size_t last = positions[t], first = window && last >= window ? last - window + 1 : 0;
            scores.resize(group * (last - first + 1));
            size_t at = (t * heads + h * group) * dim;
            attend_group(q + at, keys + h * dim, values + h * dim, out + at, group, dim,
                         {tables + token_row[t] * table_columns, page_tokens, first, last, kv_heads * dim},
                         scores.data());
        }
    });
}

}  // extern "C"
