/* plan: which batch runs next. Called when no batch is in flight.
 *
 * First come, first served, strictly: whoever is at the head of the waiting list gets the next lane. Prefill and decode
 * take turns while both have work: a running answer waits at most one prefill step per token, and a new request at most
 * one decode step (paper, section 4.2, pause and resume).
 *
 * With mixed batches, no decode step comes between prefill steps: the lanes that decode ride along, a token each, where
 * the prompts leave them room, and after PAUSED_MOST steps that had none, whatever the prompts want. */
#ifndef BLINK_SCHED_PLAN_CUH
#define BLINK_SCHED_PLAN_CUH

#include "scheduler/seat.cuh"

namespace blink {

/* With mixed batches, prefill steps that a running answer waits for at most. Each in which it rides leaves the prompts
 * less room, so that the fewer it waits for, the sooner come its tokens, and the later the first ones of a burst of
 * prompts; docs/gpu.md weighs the two. */
constexpr uint32_t PAUSED_MOST = 4;

BLINK_DEVICE uint32_t headroom(const Sched &s) {
    return s.config.launch_window ? s.config.launch_window - s.launched : NONE;
}

/* Collective: says that the buffers are filled and what the driver is to run; `decoding` of the rows decode. */
template <class P>
BLINK_DEVICE void launch(P &p, Sched &s, uint32_t kind, uint32_t rows, uint32_t tokens, uint32_t decoding) {
    if (p.tid() == 0) {
        bool prefill = kind == KIND_PREFILL;
        uint32_t graph = prefill ? s.prefill_graph()[tokens] : s.decode_graph()[rows];
        s.decision = {kind, graph, rows, tokens};
        s.batch.row_start[rows] = (int32_t)tokens;
        if (++s.step_no == 0) s.step_no = 1;
        StepControl &c = *s.batch.control;
        c.kind = kind, c.graph = graph, c.rows = rows, c.tokens = tokens, c.step = s.step_no, c.error = 0;
        s.in_flight = 1;
        s.launched++;
        s.paused = decoding ? 0 : s.paused + 1;
        s.phase = prefill ? PHASE_PREFILL : PHASE_DECODE;
        s.budget_ms = s.config.step_budget_ms;
        count(p, s, COUNTER_LAUNCHES);
        count(p, s, prefill ? COUNTER_PREFILL_STEPS : COUNTER_DECODE_STEPS);
        if (prefill) count(p, s, COUNTER_PREFILL_TOKENS, tokens - decoding);
    }
    p.sync();
}

/* Collective: packs the prompt that is prefilled in part, then newly admitted ones, into one step, and with mixed
 * batches the lanes that decode. Only the last prompt can be cut, so at most one is ever in part. */
template <class P>
BLINK_DEVICE void plan_prefill(P &p, Sched &s, const Decoders &d) {
    bool mixed = s.config.mixed != 0;
    if (p.tid() == 0) {
        /* Not 0: what pends has a lane or gets one, so not all decode, and a step holds a token of every lane. */
        uint32_t most = s.config.batch_tokens - (mixed && s.paused >= PAUSED_MOST ? d.rows : 0);
        uint32_t rows = 0, tokens = 0;
        uint32_t r = s.partial;
        while (r != NONE || (tokens < most && admissible(s, d.pages))) {
            bool fresh = r == NONE;
            if (fresh) r = admit(p, s);
            Record &rec = s.record(r);
            uint32_t left = rec.length() - rec.cached, room = most - tokens;
            uint32_t n = left < room ? left : room;
            s.row(rows++) = {r, rec.cached, n, n == left, s.n_free_pages, fresh ? rec.pages : 0};
            tokens += n;
            s.partial = n < left ? r : NONE;
            r = NONE;
        }
        p.shared().verdict = rows, p.shared().flag = tokens;
    }
    p.sync();
    uint32_t rows = p.shared().verdict, tokens = p.shared().flag;
    for (uint32_t i = 0; i < rows; i++) {
        const Row &row = s.row(i);
        int32_t *table = s.block_table(s.record(row.record).lane);
        for (uint32_t k = p.tid(); k < row.new_pages; k += p.nthreads()) table[k] = s.free_pages()[row.page_base + k];
        if (row.new_pages) fill_lane(p, s, row.record);
    }
    p.sync();
    uint32_t at = 0;
    for (uint32_t i = 0; i < rows; i++) {
        fill_row(s, i, at, p.tid(), p.nthreads());
        at += s.row(i).tokens;
    }
    uint32_t riding = mixed && tokens + d.rows <= s.config.batch_tokens ? d.rows : 0;
    if (riding) seat_decoders(p, s, d, rows, tokens);
    launch(p, s, KIND_PREFILL, rows + riding, tokens + riding, riding);
}

/* Collective: the youngest that runs gives its pages back and waits at the front. */
template <class P>
BLINK_DEVICE void preempt_youngest(P &p, Sched &s) {
    Key mine = {NO_KEY, 0, 0};
    for (uint32_t lane = p.tid(); lane < s.config.lanes; lane += p.nthreads()) {
        uint32_t r = s.lane_record()[lane];
        if (r == NONE) continue;
        Key key = {~s.record(r).claim_no - 1, 0, r}; /* the largest claim_no first, and never NO_KEY */
        if (less(key, mine)) mine = key;
    }
    uint32_t r = (uint32_t)block_min(p, s, mine).id;
    unseat(p, s, r);
    if (p.tid() == 0) {
        Record &rec = s.record(r);
        rec.state = RECORD_WAITING, rec.preempted = 1;
        waiting_push_front(s, r);
        if (rec.count) {
            rec.wire_state = STATE_DECODE_PAUSED;
            mark_dirty(p, s, r);
        }
        count(p, s, COUNTER_PREEMPTIONS);
    }
    p.sync();
}

/* Collective: a decode step. While the pool has too few pages for it, the youngest makes way. The oldest always goes
 * on, since the pool holds any single request. */
template <class P>
BLINK_DEVICE void plan_decode(P &p, Sched &s, Decoders d) {
    while (d.pages > s.n_free_pages) {
        preempt_youngest(p, s);
        d = count_decoders(p, s);
    }
    seat_decoders(p, s, d, 0, 0);
    launch(p, s, KIND_DECODE, d.rows, d.rows, d.rows);
}

/* One thread: what to do next, as a Kind. */
BLINK_DEVICE uint32_t choose(Sched &s, const Decoders &d) {
    if (s.mode != CONTROL_RUN && s.live == 0) {
        /* A record that stays torn cannot hold up the end for longer than its own time. */
        if (s.stop_ns == 0) s.stop_ns = s.now;
        if (s.pending == 0 || s.now - s.stop_ns > s.config.torn_ms * NS_PER_MS) return KIND_STOP;
        return KIND_IDLE;
    }
    s.stop_ns = 0;
    bool decodes = d.rows > 0;
    bool pending = s.partial != NONE || admissible(s, d.pages);
    if (!decodes && !pending) return KIND_IDLE;
    if (headroom(s) == 0) return KIND_RELAUNCH;
    /* Whoever is to ride along needs its page; the decode step makes way for it. */
    bool turn = !decodes || (s.config.mixed ? d.pages <= s.n_free_pages : s.paused == 0);
    if (pending && turn) {
        /* The prefill graph, and the decode that must follow it in the same execution. */
        if (headroom(s) >= 2) return KIND_PREFILL;
        if (!decodes) return KIND_RELAUNCH;
    }
    return KIND_DECODE;
}

/* Collective: decides, and fills the step buffers for a batch. s.decision is the outcome. */
template <class P>
BLINK_DEVICE void plan(P &p, Sched &s) {
    reap(p, s);
    Decoders d = count_decoders(p, s);
    if (p.tid() == 0) p.shared().verdict = choose(s, d);
    p.sync();
    uint32_t kind = p.shared().verdict;
    p.sync();
    if (kind == KIND_PREFILL) plan_prefill(p, s, d);
    else if (kind == KIND_DECODE) plan_decode(p, s, d);
    if (p.tid() == 0 && kind != KIND_PREFILL && kind != KIND_DECODE) {
        s.decision = {kind, 0, 0, 0};
        s.phase = kind == KIND_STOP ? PHASE_STOPPED : PHASE_IDLE;
        s.budget_ms = 0;
        if (kind == KIND_RELAUNCH) {
            s.launched = 0;
            count(p, s, COUNTER_RELAUNCHES);
        }
        if (kind == KIND_IDLE) count(p, s, COUNTER_IDLE_STEPS);
    }
    if (p.tid() == 0 && s.mode != CONTROL_RUN && kind != KIND_STOP) s.phase = PHASE_DRAINING;
    p.sync();
}

}  // namespace blink
#endif  // BLINK_SCHED_PLAN_CUH
