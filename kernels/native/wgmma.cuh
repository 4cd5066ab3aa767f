/* Products of a warpgroup (four warps in a row) on the tensor cores of compute capability 9.0, which go on while its
 * threads do other things. Operands in shared memory are tiles of rows of 128 bytes, 64 numbers, whose eight 16-byte
 * units are swizzled: unit u of row r is at u ^ r % 8. A tile begins at a multiple of 1024 bytes. */
#ifndef BLINK_NATIVE_WGMMA_CUH
#define BLINK_NATIVE_WGMMA_CUH

#include "rtc.h"

#include "native/layout.h"

namespace blink {

constexpr uint32_t SWIZZLED_UNITS = SWIZZLED_ROW / 16; /* 16-byte units of a row of a tile */

/* Where unit u of row r of a tile is, in units. */
__device__ __forceinline__ uint32_t swizzled(uint32_t r, uint32_t u) { return r * SWIZZLED_UNITS + (u ^ r % 8); }

/* What an instruction is told of the tile at `shared`, and of the tile with the next 64 columns, `next` bytes on. What
 * is whole rows times eight on, or a multiple of 32 bytes in the rows, is `bytes` / 16 more. */
struct Operand {
    uint32_t low;

    __device__ __forceinline__ Operand(uint32_t shared, uint32_t next) : low(shared >> 4 | next >> 4 << 16) {}
    __device__ __forceinline__ uint64_t at(uint32_t bytes) const {
        constexpr uint32_t EIGHT_ROWS = 8 * SWIZZLED_ROW, SWIZZLE_128 = 1;
        return (uint64_t)(EIGHT_ROWS >> 4 | SWIZZLE_128 << 30) << 32 | low + (bytes >> 4);
    }
};

/* A barrier in shared memory that threads wait at without arriving. Its first phase is 0. */
class Barrier {
    uint64_t bits;
    __device__ __forceinline__ uint32_t address() { return (uint32_t)__cvta_generic_to_shared(&bits); }

  public:
    /* By one thread; all others see it after their next barrier. A phase ends with `count` arrivals. */
    __device__ __forceinline__ void begin(uint32_t count) {
        asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(address()), "r"(count) : "memory");
    }
    __device__ __forceinline__ void arrive() {
        asm volatile("{ .reg .b64 phase; mbarrier.arrive.shared.b64 phase, [%0]; }" ::"r"(address()) : "memory");
    }
    /* Later: when what the thread copies by cp.async is there. */
    __device__ __forceinline__ void arrive_after_copies() {
        asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(address()) : "memory");
    }
    /* Until `phase` has ended; it or the next is going on. */
    __device__ __forceinline__ void wait(uint32_t phase) {
        asm volatile(
            "{ .reg .pred ended;\n"
            "again: mbarrier.try_wait.parity.shared.b64 ended, [%0], %1;\n"
            "@!ended bra again; }" ::"r"(address()),
            "r"(phase % 2)
            : "memory");
    }
};

/* By a warpgroup: go on with so many registers a thread, fewer than it began with; or more, once others gave theirs. */
template <int COUNT>
__device__ __forceinline__ void registers_give() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT>
__device__ __forceinline__ void registers_take() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

/* Among the four warps of a warpgroup; `number` is not 0. */
__device__ __forceinline__ void warpgroup_barrier(uint32_t number) {
    asm volatile("bar.sync %0, 128;" ::"r"(number) : "memory");
}

/* What was copied to shared memory, by cp.async or otherwise, is for products to read. */
__device__ __forceinline__ void products_see_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/* Before products whose registers were touched since the last ones. */
__device__ __forceinline__ void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void products_end_group() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
/* What is computed into `x` above is, by the compiler, not moved below, nor what is computed of it below moved above.
 */
template <uint32_t PARTS>
__device__ __forceinline__ void keep_order(float (&x)[PARTS][32]) {
#pragma unroll
    for (uint32_t p = 0; p < PARTS; p++)
#pragma unroll
        for (uint32_t i = 0; i < 32; i++) asm volatile("" : "+f"(x[p][i])::"memory");
}
/* Until all but the last GROUPS groups are done, those of `sums` among the former. */
template <int GROUPS, uint32_t PARTS>
__device__ __forceinline__ void products_wait_all_but(float (&sums)[PARTS][32]) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(GROUPS) : "memory");
    keep_order(sums);
}

#ifdef BLINK_BF16
#define BLINK_WGMMA(n) "wgmma.mma_async.sync.aligned.m64n" n "k16.f32.bf16.bf16 "
#else
#define BLINK_WGMMA(n) "wgmma.mma_async.sync.aligned.m64n" n "k16.f32.f16.f16 "
#endif
#define BLINK_8(c, i)                                                                                           \
    "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3]), "+f"(c[i + 4]), "+f"(c[i + 5]), "+f"(c[i + 6]), \
        "+f"(c[i + 7])
#define BLINK_32(c) BLINK_8(c, 0), BLINK_8(c, 8), BLINK_8(c, 16), BLINK_8(c, 24)
#define BLINK_SUMS_32                                                                                \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25," \
    "%26,%27,%28,%29,%30,%31"
#define BLINK_SUMS_64                                                                       \
    BLINK_SUMS_32                                                                           \
    ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52," \
    "%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"

/* c = a b, or with `add` c += a b, later: a 64 × 16, b 16 × 128, c 64 × 128 in float32, in two parts of 64 columns.
 * Lane 4 g + t of warp w holds, of a part's rows 16 w + g and 16 w + g + 8, at [4 n …] columns 8 n + 2 t and the next
 * of the first, then of the second. a's rows and b's columns are rows of tiles. */
__device__ __forceinline__ void multiply(float (&c)[2][32], uint64_t a, uint64_t b, bool add) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %66, 0; " BLINK_WGMMA("128") "{" BLINK_SUMS_64
                                                                              "}, %64, %65, p, 1, 1, 0, 0; }"
                 : BLINK_32(c[0]), BLINK_32(c[1])
                 : "l"(a), "l"(b), "r"((int)add));
}

/* c += a b, later, of a in registers, as c's rows are in them (mma16816's a, for every warp), and b's 16 rows of tiles:
 * one part of c, or two. */
__device__ __forceinline__ void multiply_add(float (&c)[32], const uint32_t (&a)[4], uint64_t b) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, 1, 0; " BLINK_WGMMA("64") "{" BLINK_SUMS_32
                                                                           "}, {%32,%33,%34,%35}, %36, p, 1, 1, 1; }"
                 : BLINK_32(c)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
__device__ __forceinline__ void multiply_add(float (&c)[32], float (&d)[32], const uint32_t (&a)[4], uint64_t b) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, 1, 0; " BLINK_WGMMA("128") "{" BLINK_SUMS_64
                                                                            "}, {%64,%65,%66,%67}, %68, p, 1, 1, 1; }"
                 : BLINK_32(c), BLINK_32(d)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

}  // namespace blink
#endif  // BLINK_NATIVE_WGMMA_CUH
