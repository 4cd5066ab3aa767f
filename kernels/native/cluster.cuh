/* Eight blocks that work on one row together, as a thread-block cluster: each can read the others' shared memory. */
#ifndef BLINK_NATIVE_CLUSTER_CUH
#define BLINK_NATIVE_CLUSTER_CUH

#include "rtc.h"

#include "native/layout.h"

namespace blink {

constexpr uint32_t CLUSTER = SAMPLE_CLUSTER;
constexpr uint32_t THREADS = SAMPLE_THREADS, WARP = 32, WARPS = SAMPLE_WARPS;
constexpr uint32_t EVERY_LANE = 0xFFFFFFFF;

__device__ __forceinline__ uint32_t cluster_rank() {
    uint32_t rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

/* All threads of all blocks; what each wrote before can be seen by all after. */
__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/* The same shared variable in another block of the cluster. */
template <class T>
__device__ __forceinline__ const T *in_block(const T *mine, uint32_t rank) {
    uint64_t there;
    asm("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(mine), "r"(rank));
    return reinterpret_cast<const T *>(there);
}

template <class T, class Join>
__device__ __forceinline__ T warp_join(T value, Join join) {
#pragma unroll
    for (uint32_t step = WARP / 2; step; step /= 2) value = join(value, __shfl_xor_sync(EVERY_LANE, value, step));
    return value;
}

template <class T>
struct ClusterSlots {
    T warp[WARPS];
    T block;
};

/* Collective for the cluster: every thread's values joined, always in the same order; all get the result. */
template <class T, class Join>
__device__ T cluster_join(ClusterSlots<T> &slots, T value, Join join) {
    value = warp_join(value, join);
    uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    if (lane == 0) slots.warp[warp] = value;
    __syncthreads();
    if (warp == 0) {
        T all = slots.warp[lane % WARPS];
#pragma unroll
        for (uint32_t step = WARPS / 2; step; step /= 2) all = join(all, __shfl_xor_sync(EVERY_LANE, all, step));
        if (lane == 0) slots.block = all;
    }
    cluster_sync();
    T all = *in_block(&slots.block, 0);
#pragma unroll
    for (uint32_t rank = 1; rank < CLUSTER; rank++) all = join(all, *in_block(&slots.block, rank));
    cluster_sync(); /* before the slots are used again */
    return all;
}

}  // namespace blink
#endif  // BLINK_NATIVE_CLUSTER_CUH
