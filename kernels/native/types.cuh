/* Numbers of 16 bits, tensor-core products of them, and dependent launches: what every native kernel is made of.
 *
 * `real` is the bits of a float16, or with BLINK_BF16 of a bfloat16. PTX is spelt out since cuda_fp16.h needs headers
 * that NVRTC does not carry. */
#ifndef BLINK_NATIVE_TYPES_CUH
#define BLINK_NATIVE_TYPES_CUH

#include "rtc.h"

namespace blink {

typedef uint16_t real;

/* The float that 16 bits mean. */
__device__ __forceinline__ float to_float(real bits) {
    float f;
#ifdef BLINK_BF16
    f = __uint_as_float((uint32_t)bits << 16);
#else
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(bits));
#endif
    return f;
}

/* Two numbers of 16 bits in a word, `lo` in its low half; to nearest, ties to even; too large is infinite. */
__device__ __forceinline__ uint32_t pack2(float lo, float hi) {
    uint32_t word;
#ifdef BLINK_BF16
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(hi), "f"(lo));
#else
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(hi), "f"(lo));
#endif
    return word;
}

__device__ __forceinline__ real to_real(float f) { return (real)pack2(f, 0.0f); }
__device__ __forceinline__ float low(uint32_t word) { return to_float((real)word); }
__device__ __forceinline__ float high(uint32_t word) { return to_float((real)(word >> 16)); }

/* c += a b on tensor cores: a 16 × 16, b 16 × 8, c 16 × 8 in float32. Lane 4 g + t of the warp holds
 *   a[0..3] = A[g][2t,2t+1], A[g+8][2t,2t+1], A[g][2t+8,2t+9], A[g+8][2t+8,2t+9]
 *   b[0..1] = B[2t,2t+1][g], B[2t+8,2t+9][g]
 *   c[0..3] = C[g][2t], C[g][2t+1], C[g+8][2t], C[g+8][2t+1] */
__device__ __forceinline__ void mma16816(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                         uint32_t b1) {
#ifdef BLINK_BF16
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
#else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
#endif
}

/* Until all that earlier kernels of the stream wrote can be seen. A kernel launched as dependent reads and writes
 * nothing of theirs before. */
__device__ __forceinline__ void pdl_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
/* The next kernel may begin, up to its own wait. */
__device__ __forceinline__ void pdl_launch() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

}  // namespace blink
#endif  // BLINK_NATIVE_TYPES_CUH
