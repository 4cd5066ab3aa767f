/* seat: who gets a lane and pages, and what the step buffers say of whoever has them. */
#ifndef BLINK_SCHED_SEAT_CUH
#define BLINK_SCHED_SEAT_CUH

#include "scheduler/collective.cuh"
#include "scheduler/extension.h"

namespace blink {

BLINK_DEVICE uint32_t pages_for(const Sched &s, uint32_t positions) {
    return (positions + s.config.page_tokens - 1) / s.config.page_tokens;
}

BLINK_DEVICE uint32_t lanes_used(const Sched &s) { return s.config.lanes - s.n_free_lanes; }

/* Whether a lane and pages are free for the record at the head of the list: for all its tokens and the next one, the
 * `due` pages that those who decode need now, and some to spare when others run and will grow, so that it is not
 * preempted at once. */
BLINK_DEVICE bool admissible(Sched &s, uint32_t due) {
    if (s.waiting_head == NONE || s.n_free_lanes == 0) return false;
    uint32_t spare = lanes_used(s) ? (s.config.pages + 63) / 64 : 0;
    return pages_for(s, s.record(s.waiting_head).length() + 1) + due + spare <= s.n_free_pages;
}

/* One thread: the head of the waiting list takes a lane; its pages are free_pages[n_free_pages …] from now on. */
template <class P>
BLINK_DEVICE uint32_t admit(P &p, Sched &s) {
    uint32_t r = s.waiting_head;
    Record &rec = s.record(r);
    waiting_remove(s, r);
    rec.lane = s.free_lanes()[--s.n_free_lanes];
    s.lane_record()[rec.lane] = r;
    rec.state = RECORD_PREFILL;
    rec.pages = pages_for(s, rec.length() + 1);
    s.n_free_pages -= rec.pages;
    count(p, s, COUNTER_LANES_TAKEN);
    count(p, s, COUNTER_PAGES_TAKEN, rec.pages);
    if (rec.preempted) count(p, s, COUNTER_RESUMES);
    rec.preempted = 0;
    return r;
}

/* All threads: the lane's sampling parameters, from the validated request. lane_stop gets every id that ends the lane,
 * the model's EOS ids first. */
template <class P>
BLINK_DEVICE void fill_lane(P &p, Sched &s, uint32_t r) {
    const Record &rec = s.record(r);
    const RingRequest &q = rec.request;
    const SchedConfig &c = s.config;
    const Extension ext(q, s.extension(r));
    uint32_t n_eos = q.flags & FLAG_IGNORE_EOS ? 0 : c.n_eos;
    uint32_t *stop = s.batch.lane_stop + (uint64_t)rec.lane * BATCH_MAX_STOP;
    uint32_t *ids = s.batch.lane_bias_ids + (uint64_t)rec.lane * BATCH_MAX_BIAS;
    float *values = s.batch.lane_bias_values + (uint64_t)rec.lane * BATCH_MAX_BIAS;
    for (uint32_t i = p.tid(); i < n_eos; i += p.nthreads()) stop[i] = c.eos[i];
    for (uint32_t i = p.tid(); i < q.n_stop; i += p.nthreads()) stop[n_eos + i] = q.stop[i];
    for (uint32_t i = p.tid(); i < ext.n_stop; i += p.nthreads()) stop[n_eos + q.n_stop + i] = ext.stop(i);
    for (uint32_t i = p.tid(); i < ext.n_bias; i += p.nthreads()) {
        ids[i] = ext.bias_id(i);
        values[i] = ext.bias_value(i);
    }
    if (p.tid() == 0) {
        LaneParams &lane = s.batch.lane_params[rec.lane];
        lane.temperature = q.temperature, lane.top_p = q.top_p, lane.min_p = q.min_p;
        lane.frequency = q.frequency, lane.presence = q.presence, lane.repetition = q.repetition;
        lane.top_k = q.top_k >= c.vocab ? 0 : q.top_k;
        lane.flags = q.flags, lane.seed = q.seed;
        lane.prompt_len = q.prompt_len, lane.min_tokens = q.min_tokens;
        lane.lp_n = q.flags & FLAG_LOGPROBS ? q.lp_n : 0;
        lane.n_stop = n_eos + q.n_stop + ext.n_stop, lane.n_bias = ext.n_bias;
    }
}

/* The step buffers of row `i`, whose tokens start at `at` in the packed arrays: a thread does every `stride`-th token
 * from `first`, and whoever does the first one does the rest of the row. */
BLINK_DEVICE void fill_row(Sched &s, uint32_t i, uint32_t at, uint32_t first, uint32_t stride) {
    const Row &row = s.row(i);
    uint32_t lane = s.record(row.record).lane, page_tokens = s.config.page_tokens;
    const uint32_t *tokens = s.tokens(row.record);
    const int32_t *table = s.block_table(lane);
    for (uint32_t k = first; k < row.tokens; k += stride) {
        uint32_t pos = row.from + k;
        s.batch.token_ids[at + k] = (int32_t)tokens[pos];
        s.batch.positions[at + k] = (int32_t)pos;
        s.batch.kv_index[at + k] = table[pos / page_tokens] * (int32_t)page_tokens + (int32_t)(pos % page_tokens);
    }
    if (first == 0) {
        s.batch.row_lane[i] = (int32_t)lane;
        s.batch.row_start[i] = (int32_t)at;
        s.batch.row_kv_len[i] = (int32_t)(row.from + row.tokens);
        s.batch.row_sample[i] = (int32_t)row.sample;
    }
}

/* The lanes that decode, and the pages that their newest tokens need. */
struct Decoders {
    uint32_t rows, pages;
    uint32_t first, end; /* the lanes that this thread looks at */
    uint32_t row, page;  /* rows and pages of those before them */
};

template <class P>
BLINK_DEVICE Decoders count_decoders(P &p, Sched &s) {
    uint32_t tid = p.tid(), n = p.nthreads();
    Decoders d;
    d.first = (uint32_t)((uint64_t)s.config.lanes * tid / n);
    d.end = (uint32_t)((uint64_t)s.config.lanes * (tid + 1) / n);
    uint32_t rows = 0, pages = 0;
    for (uint32_t lane = d.first; lane < d.end; lane++) {
        uint32_t r = s.lane_record()[lane];
        if (r == NONE || s.record(r).state != RECORD_DECODE) continue;
        rows++;
        pages += pages_for(s, s.record(r).length()) > s.record(r).pages;
    }
    static_assert(BATCH_MAX_LANES <= 0xFFFF, "two sums over lanes fit one word");
    uint32_t sums;
    uint32_t before = exclusive_sum(p, rows << 16 | pages, sums);
    d.rows = sums >> 16, d.pages = sums & 0xFFFF, d.row = before >> 16, d.page = before & 0xFFFF;
    return d;
}

/* Collective: a row for every lane that decodes, after the first `rows`, which have `tokens`. A lane whose newest token
 * starts a page gets one: the pool has d.pages. */
template <class P>
BLINK_DEVICE void seat_decoders(P &p, Sched &s, const Decoders &d, uint32_t rows, uint32_t tokens) {
    uint32_t i = d.row, top = s.n_free_pages - 1 - d.page;
    for (uint32_t lane = d.first; lane < d.end; lane++) {
        uint32_t r = s.lane_record()[lane];
        if (r == NONE || s.record(r).state != RECORD_DECODE) continue;
        Record &rec = s.record(r);
        if (pages_for(s, rec.length()) > rec.pages) s.block_table(lane)[rec.pages++] = s.free_pages()[top--];
        s.row(rows + i) = {r, rec.length() - 1, 1, 1, 0, 0};
        fill_row(s, rows + i, tokens + i, 0, 1);
        i++;
    }
    p.sync();
    if (p.tid() == 0) {
        s.n_free_pages -= d.pages;
        count(p, s, COUNTER_PAGES_TAKEN, d.pages);
    }
}

}  // namespace blink
#endif  // BLINK_SCHED_SEAT_CUH
