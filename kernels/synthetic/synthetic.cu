/* An engine without a model: a token is a hash of everything that a model would attend to, so that a wrong page, lane
 * or position changes the answer. It keeps token ids where a model keeps keys and values. */
#include "rtc.h"

#include "synthetic/layout.h"

using namespace blink;

namespace {

__device__ void put_logprob(RingLogprob &to, uint32_t n, uint32_t token, uint32_t vocab) {
    to.chosen = -(float)token / 8, to.n = n;
    for (uint32_t i = 0; i < n; i++) to.ids[i] = (token + 1 + i) % vocab, to.values[i] = -(float)i / 4;
}

}  // namespace

/* One block for each row. A row whose context reaches the position in bits 48 to 63 of its seed cannot be sampled. */
extern "C" __global__ void __launch_bounds__(ROW_THREADS) synthetic_hash(const HashArguments a) {
    const Batch &b = a.batch;
    __shared__ uint64_t sum;
    uint32_t row = blockIdx.x, tid = threadIdx.x;
    if (row >= b.control->rows) return;
    uint32_t start = b.row_start[row], end = b.row_start[row + 1], lane = b.row_lane[row];
    const LaneParams &params = b.lane_params[lane];
    for (uint32_t k = start + tid; k < end; k += ROW_THREADS) a.kv[b.kv_index[k]] = b.token_ids[k];
    if (tid == 0) sum = 0;
    if (tid == 0 && a.trace_size && b.positions[start] == 0) {
        uint32_t i = atomicAdd(a.traced, 1);
        if (i < a.trace_size) a.trace[i] = {params.seed, b.control->step};
    }
    if (!b.row_sample[row]) return;
    __syncthreads();

    uint32_t length = b.row_kv_len[row];
    const int32_t *table = b.block_table + (uint64_t)lane * a.lane_pages;
    uint64_t own = 0;
    for (uint32_t i = tid; i < length; i += ROW_THREADS) {
        uint64_t token = a.kv[table[i / a.page_tokens] * a.page_tokens + i % a.page_tokens];
        own += (token + 0x9E3779B9) * ((i + 1) * 0xC2B2AE3D27D4EB4F | 1);
    }
    atomicAdd((unsigned long long *)&sum, own);
    __syncthreads();
    if (tid != 0) return;
    uint64_t h = sum ^ params.seed * 0xFF51AFD7ED558CCD, fails_at = params.seed >> 48;
    h = (h ^ h >> 33) * 0xFF51AFD7ED558CCD;
    uint32_t token = (uint32_t)((h ^ h >> 29) % a.vocab);
    b.out_token[row] = fails_at && length >= fails_at ? -1 : (int32_t)token;
    if (params.flags & FLAG_LOGPROBS) put_logprob(b.out_logprob[row], params.lp_n, token, a.vocab);
}

/* A node that does nothing, where the number of nodes is what matters. */
extern "C" __global__ void synthetic_nothing() {}

/* Fills the device: two blocks are all the threads that a multiprocessor holds. */
extern "C" __global__ void __launch_bounds__(FILL_THREADS, FILL_BLOCKS) synthetic_fill(const FillArguments a) {
    float x = threadIdx.x, y = 1.0f;
    for (uint32_t i = 0; i < a.rounds; i++) x = x * 0.999f + y, y = y * 0.998f + x;
    if (x == -1.0f) *a.never = y;
}

/* Runs for as long as the host's word is not 0: a batch that hangs. */
extern "C" __global__ void synthetic_hold(const HoldArguments a) {
    uint32_t value;
    do {
        asm volatile("ld.relaxed.sys.u32 %0, [%1];" : "=r"(value) : "l"(a.held));
    } while (value != 0);
}

/* The last node of every batch. */
extern "C" __global__ void synthetic_done(const EndArguments a) {
    StepControl *control = a.control;
    asm volatile("st.release.sys.u32 [%0], %1;" ::"l"(&control->done), "r"(control->step) : "memory");
}
