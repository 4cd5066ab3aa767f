/* The platform of the scheduler on a GPU: the threads of one block.
 *
 * Ring memory is read and written by a NIC or a CPU, so its accesses are PTX "strong" operations at system scope, which
 * no cache may answer from an older copy; private memory is the block's own. PTX is spelt out since the device
 * libraries that wrap it need headers that NVRTC does not carry. */
#ifndef BLINK_PLATFORM_CUDA_CUH
#define BLINK_PLATFORM_CUDA_CUH

#include "scheduler/state.h"

namespace blink {

struct CudaPlatform {
    Shared *common;            /* in the block's shared memory */
    uint64_t fixed_now_ns = 0; /* a test's clock; 0: the real one */

    __device__ uint32_t tid() const { return threadIdx.x; }
    __device__ uint32_t nthreads() const { return blockDim.x; }
    __device__ Shared &shared() const { return *common; }
    __device__ void sync() const { __syncthreads(); }
    __device__ uint64_t now_ns() const {
        if (fixed_now_ns) return fixed_now_ns;
        uint64_t t;
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
        return t;
    }

    __device__ static uint32_t ring_load(const uint32_t *a) {
        uint32_t v;
        asm volatile("ld.relaxed.sys.u32 %0, [%1];" : "=r"(v) : "l"(a));
        return v;
    }
    __device__ static uint64_t ring_load(const uint64_t *a) {
        uint64_t v;
        asm volatile("ld.relaxed.sys.u64 %0, [%1];" : "=l"(v) : "l"(a));
        return v;
    }
    __device__ static uint64_t ring_acquire(const uint64_t *a) {
        uint64_t v;
        asm volatile("ld.acquire.sys.u64 %0, [%1];" : "=l"(v) : "l"(a) : "memory");
        return v;
    }
    __device__ static void ring_store(uint32_t *a, uint32_t v) {
        asm volatile("st.relaxed.sys.u32 [%0], %1;" ::"l"(a), "r"(v) : "memory");
    }
    __device__ static void ring_store(uint64_t *a, uint64_t v) {
        asm volatile("st.relaxed.sys.u64 [%0], %1;" ::"l"(a), "l"(v) : "memory");
    }
    __device__ static void ring_release(uint64_t *a, uint64_t v) {
        asm volatile("st.release.sys.u64 [%0], %1;" ::"l"(a), "l"(v) : "memory");
    }
    __device__ static uint32_t load_acquire(const uint32_t *a) {
        uint32_t v;
        asm volatile("ld.acquire.sys.u32 %0, [%1];" : "=r"(v) : "l"(a) : "memory");
        return v;
    }

    __device__ static uint32_t add(uint32_t *a, uint32_t v) { return atomicAdd(a, v); }
    __device__ static uint64_t add(uint64_t *a, uint64_t v) {
        return atomicAdd(reinterpret_cast<unsigned long long *>(a), v);
    }
    __device__ static void store(uint32_t *a, uint32_t v) {
        asm volatile("st.relaxed.cta.u32 [%0], %1;" ::"l"(a), "r"(v) : "memory");
    }
    __device__ static bool cas(uint32_t *a, uint32_t expected, uint32_t desired) {
        return atomicCAS(a, expected, desired) == expected;
    }
};

}  // namespace blink
#endif  // BLINK_PLATFORM_CUDA_CUH
