/* What decode and prefill attention share: their arguments, the paged cache, and finding a block's work on the device.
 *
 * Both kernels are compiled for one head dimension and one type. Positions are tiled at fixed multiples from position
 * 0, whatever else is in the step; so a query's result is the same bits with any batch-mates, lane, pages and bucket.
 */
#ifndef BLINK_NATIVE_ATTENTION_CUH
#define BLINK_NATIVE_ATTENTION_CUH

#include "rtc.h"

#include "native/layout.h"

#ifndef HEAD_DIM
#define HEAD_DIM 128
#endif

namespace blink {

constexpr uint32_t DIM = HEAD_DIM;
constexpr uint32_t WARP = 32, EVERY_LANE = 0xFFFFFFFF;
#define INFINITE __int_as_float(0x7F800000)
constexpr uint32_t VECTOR = 8; /* numbers of 16 bits in one 16-byte access */
static_assert(DIM % VECTOR == 0 && DIM <= MAX_HEAD_DIM, "a head is whole 16-byte accesses");

/* The first position that a query at the end of `length` positions sees. */
__device__ __forceinline__ uint32_t first_seen(uint32_t length, uint32_t window) {
    return window && length > window ? length - window : 0;
}

/* Keys or values of one head of a row's lane. */
struct PagedHead {
    const int32_t *table;
    uint32_t kv_heads, kv_head, page_bits;

    /* Where a position is, in keys. */
    __device__ __forceinline__ uint32_t entry(uint32_t position) const {
        uint32_t page = (uint32_t)table[position >> page_bits], inside = position & ((1u << page_bits) - 1);
        return (page * kv_heads + kv_head << page_bits) + inside;
    }
};

/* 16 bytes to shared memory, later; zeros where `valid` is false, and then nothing is read. Between barriers the
 * compiler may move other accesses across it: that of the next address, above all. */
__device__ __forceinline__ void copy_later(void *shared, const real *from, bool valid) {
    uint32_t to = (uint32_t)__cvta_generic_to_shared(shared);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid ? 16 : 0));
}
__device__ __forceinline__ void copies_end_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int GROUPS>
__device__ __forceinline__ void copies_wait_all_but() {
    asm volatile("cp.async.wait_group %0;" ::"n"(GROUPS) : "memory");
}

/* 16 bytes that nobody will read again soon. */
__device__ __forceinline__ uint4 load16(const real *from) {
    uint4 v;
    asm("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
        : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
        : "l"(from));
    return v;
}

/* 2^x; 0 for −∞. */
__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Collective: ends[r] = count(0) + … + count(r), in shared memory; returns the sum over all rows. */
template <uint32_t THREADS, class Count>
__device__ uint32_t row_ends(uint32_t rows, uint32_t *ends, Count count) {
    __shared__ uint32_t warp_sums[THREADS / WARP];
    uint32_t tid = threadIdx.x, before = 0;
    for (uint32_t base = 0; base < rows; base += THREADS) {
        uint32_t row = base + tid, sum = row < rows ? count(row) : 0;
        for (uint32_t step = 1; step < WARP; step *= 2) {
            uint32_t lower = __shfl_up_sync(EVERY_LANE, sum, step);
            if (tid % WARP >= step) sum += lower;
        }
        if (tid % WARP == WARP - 1) warp_sums[tid / WARP] = sum;
        __syncthreads();
        uint32_t all = 0;
        for (uint32_t w = 0; w < THREADS / WARP; w++) {
            if (w < tid / WARP) sum += warp_sums[w];
            all += warp_sums[w];
        }
        if (row < rows) ends[row] = before + sum;
        before += all;
        __syncthreads();
    }
    return before;
}

/* The row whose work has `item`: the first with ends[row] > item. */
__device__ __forceinline__ uint32_t row_of(const uint32_t *ends, uint32_t rows, uint32_t item) {
    uint32_t low = 0, high = rows - 1;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (ends[middle] > item) high = middle;
        else low = middle + 1;
    }
    return low;
}

}  // namespace blink
#endif  // BLINK_NATIVE_ATTENTION_CUH
