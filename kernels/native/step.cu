/* The ends of a step of the native engine: check what the scheduler wrote, and say that the step is done.
 *
 * No later kernel looks at an index again. They read a copy of the control block, which says 0 rows of 0 tokens where
 * anything in the step would reach outside a buffer; the real one then gets the error. */
#include "rtc.h"

#include "native/layout.h"

using namespace blink;

namespace {

constexpr uint32_t THREADS = CHECK_THREADS;

__device__ bool row_is_good(const Batch &b, const StepLimits &l, uint32_t row, uint32_t rows, uint32_t tokens) {
    const uint32_t start = b.row_start[row], end = b.row_start[row + 1], lane = b.row_lane[row];
    if (start >= end || end > tokens || lane >= l.lanes) return false;
    if ((row == 0 && start != 0) || (row == rows - 1 && end != tokens)) return false;
    const uint32_t position = b.positions[start], length = position + (end - start);
    if (position >= l.context || length > l.context || (uint32_t)b.row_kv_len[row] != length) return false;
    bool good = true;
    for (uint32_t t = start + threadIdx.x; t < end; t += THREADS)
        good &= (uint32_t)b.token_ids[t] < l.vocab && (uint32_t)b.positions[t] == position + (t - start) &&
                (uint32_t)b.kv_index[t] < l.pages * l.page_tokens;
    const uint32_t used = (length + l.page_tokens - 1) / l.page_tokens;
    if (used > l.lane_pages) return false;
    const int32_t *table = b.block_table + (uint64_t)lane * l.lane_pages;
    for (uint32_t p = threadIdx.x; p < used; p += THREADS) good &= (uint32_t)table[p] < l.pages;
    return good;
}

}  // namespace

/* A block for each row that the graph can have. */
extern "C" __global__ void __launch_bounds__(THREADS) native_check(const CheckArguments a) {
    const Batch &b = a.batch;
    const StepLimits &l = a.limits;
    StepState *state = a.state;
    pdl_wait();
    pdl_launch();
    const uint32_t rows = b.control->rows, tokens = b.control->tokens, row = blockIdx.x;
    const bool counts = rows >= 1 && rows <= l.rows && rows <= l.lanes && tokens >= rows && tokens <= l.tokens &&
                        (!l.decode || tokens == rows);
    bool good = counts;
    if (counts && row < rows) good = row_is_good(b, l, row, rows, tokens);
    if (row < min(rows, l.lanes) && threadIdx.x == 0) b.out_token[row] = -1;
    if (__syncthreads_or(!good) && threadIdx.x == 0) atomicOr(&state->bad, 1);
    if (threadIdx.x != 0) return;
    __threadfence();
    if (atomicInc(&state->ticket, gridDim.x - 1) != gridDim.x - 1) return;
    __threadfence();
    const uint32_t bad = atomicExch(&state->bad, 0);
    state->checked = *b.control;
    state->error = bad;
    if (bad) state->checked.rows = state->checked.tokens = 0;
}

/* The last kernel of a step. */
extern "C" __global__ void native_done(const DoneArguments a) {
    StepControl *control = a.control;
    pdl_wait();
    control->error = a.state->error;
    asm volatile("st.release.sys.u32 [%0], %1;" ::"l"(&control->done), "r"(control->step) : "memory");
}
