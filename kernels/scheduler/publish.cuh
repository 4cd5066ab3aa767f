/* harvest: what a finished batch produced, into private memory. publish: what readers see of it, in G. */
#ifndef BLINK_SCHED_PUBLISH_CUH
#define BLINK_SCHED_PUBLISH_CUH

#include "scheduler/collective.cuh"
#include "scheduler/validate.h"

namespace blink {

/* Why the answer ends with `token`, its newest, or REASON_NONE. */
BLINK_DEVICE uint32_t finish_reason(Sched &s, const Record &rec, uint32_t token) {
    const LaneParams &lane = s.batch.lane_params[rec.lane];
    if (rec.count > lane.min_tokens) {
        const uint32_t *stop = s.batch.lane_stop + (uint64_t)rec.lane * BATCH_MAX_STOP;
        for (uint32_t i = 0; i < lane.n_stop; i++) {
            if (stop[i] != token) continue;
            bool eos = i < s.config.n_eos && (lane.flags & FLAG_IGNORE_EOS) == 0;
            return eos ? REASON_EOS : REASON_STOP_ID;
        }
    }
    return rec.count == rec.request.max_tokens ? REASON_LENGTH : REASON_NONE;
}

template <class P>
BLINK_DEVICE void harvest_row(P &p, Sched &s, uint32_t i) {
    const Row &row = s.row(i);
    Record &rec = s.record(row.record);
    rec.cached = row.from + row.tokens;
    if (s.batch.control->error != 0) return end_record(p, s, row.record, REASON_ERR_ENGINE);
    if (!row.sample) return;
    int32_t token = s.batch.out_token[i];
    if (token < 0 || (uint32_t)token >= s.config.vocab) return end_record(p, s, row.record, REASON_ERR_ENGINE);
    s.tokens(row.record)[rec.length()] = (uint32_t)token;
    rec.count++;
    rec.state = RECORD_DECODE, rec.wire_state = STATE_DECODE_PROCESSING;
    if (rec.request.flags & FLAG_LOGPROBS) rec.logprob = s.batch.out_logprob[i];
    mark_dirty(p, s, row.record);
    count(p, s, COUNTER_OUTPUT_TOKENS);
    uint32_t reason = finish_reason(s, rec, (uint32_t)token);
    if (reason != REASON_NONE) end_record(p, s, row.record, reason);
}

/* Collective. Whoever calls it has seen control.done == control.step with acquire ordering. */
template <class P>
BLINK_DEVICE void harvest(P &p, Sched &s) {
    uint32_t rows = s.decision.rows;
    /* The last thread has a row to take in only where every other has, so nobody waits for the clock. */
    if (p.tid() == p.nthreads() - 1) s.harvest_ns = p.now_ns();
    for (uint32_t i = p.tid(); i < rows; i += p.nthreads()) harvest_row(p, s, i);
    p.sync();
    if (p.tid() == 0) s.in_flight = 0;
    p.sync();
}

/* The newest token's logprob record, packed to the request's lp_n. */
template <class P>
BLINK_DEVICE void publish_logprob(P &p, Sched &s, const Record &rec) {
    const RingLogprob &lp = rec.logprob;
    uint32_t n = rec.request.lp_n, *to;
    to = (uint32_t *)(s.ring.g(rec.part) + rec.request.lp_off + (uint64_t)(rec.count - 1) * logprob_stride(n));
    uint32_t chosen, value;
    __builtin_memcpy(&chosen, &lp.chosen, 4);
    p.ring_store(to, chosen);
    p.ring_store(to + 1, lp.n < n ? lp.n : n);
    for (uint32_t i = 0; i < n; i++) {
        __builtin_memcpy(&value, &lp.values[i], 4);
        p.ring_store(to + 2 + i, lp.ids[i]);
        p.ring_store(to + 2 + n + i, value);
    }
}

template <class P>
BLINK_DEVICE void publish_record(P &p, Sched &s, uint32_t r) {
    Record &rec = s.record(r);
    Slot &own = s.slot(rec.slot);
    const RingRequest &q = rec.request;
    const uint32_t *answer = s.tokens(r) + q.prompt_len;
    uint32_t *out = (uint32_t *)(s.ring.g(rec.part) + q.out_off);
    /* At most one: every harvest is followed by a publish before the next. So one logprob record is enough too. */
    for (uint32_t i = rec.published; i < rec.count; i++) p.ring_store(out + i, answer[i]);
    if (rec.published < rec.count) {
        if (q.flags & FLAG_LOGPROBS) publish_logprob(p, s, rec);
        if (rec.published == 0) own.first_token_ns = s.harvest_ns;
        own.last_token_ns = s.harvest_ns;
    }
    rec.published = rec.count;

    uint32_t last = rec.count > 0 ? answer[rec.count - 1] : 0, prev = rec.count > 1 ? answer[rec.count - 2] : 0;
    bool fits = last < RING_HINT_TOKEN_LIMIT && prev < RING_HINT_TOKEN_LIMIT;
    RingStatus *status = s.ring.status(rec.slot);
    /* The hint needs no order: it holds its tokens itself, and is not taken before the count that it is tagged with. */
    /* For tokens that do not fit: the tag of another generation, which no reader takes. */
    p.ring_store(&status->w1,
                 fits ? W1::put_last(last) | W1::put_prev(prev) | W1::put_count(rec.count) | W1::put_gen(q.gen)
                      : W1::put_gen(~q.gen));
    bool ended = rec.state == RECORD_ENDED;
    if (ended) {
        uint64_t first = own.first_token_ns - own.first_ns, rest = own.last_token_ns - own.first_token_ns;
        p.ring_store(&status->w2,
                     W2::put_gen(q.gen) | W2::put_rest(rest / NS_PER_US) | W2::put_first(first / NS_PER_US));
    }
    p.ring_release(&status->w0, W0::put_gen(q.gen) | W0::put_state(rec.wire_state) |
                                    W0::put_reason(ended ? rec.reason : REASON_NONE) | W0::put_count(rec.count));
    p.store(&s.partition(rec.part).changed, 1u);
    rec.dirty = 0;
    count(p, s, COUNTER_PUBLISHES);
    if (!ended) return;
    rec.state = RECORD_FREE;
    s.free_records()[p.add(&s.n_free_records, 1u)] = r;
    count(p, s, COUNTER_RECORDS_RETURNED);
    count(p, s, COUNTER_FINISHED_BASE + rec.reason);
}

template <class P>
BLINK_DEVICE void publish_head(P &p, Sched &s, uint32_t q) {
    Partition &part = s.partition(q);
    RingGHead *head = s.ring.g_head(q);
    p.ring_store(&head->activity, Activity::put_budget_ms(s.budget_ms) | Activity::put_phase(s.phase));
    p.ring_store(&head->db_seen, (uint64_t)part.db);
    p.ring_store(&head->torn, part.torn);
    if (part.changed) {
        part.changed = 0;
        p.ring_release(&head->pub_seq, ++part.pub_seq);
    }
    p.ring_store(&head->beat, s.beat);
}

/* Collective. May run while a batch is in flight; must run between two harvests. */
template <class P>
BLINK_DEVICE void publish(P &p, Sched &s) {
    uint32_t tid = p.tid(), n = p.nthreads(), dirty = s.n_dirty;
    for (uint32_t i = tid; i < dirty; i += n) publish_record(p, s, s.dirty()[i]);
    p.sync();
    if (tid == 0) {
        s.n_dirty = 0;
        s.beat++;
        count(p, s, COUNTER_STEPS);
    }
    p.sync();
    for (uint32_t q = tid; q < s.ring.parts; q += n) publish_head(p, s, q);
    uint64_t *shown = s.ring.header()->counters;
    for (uint32_t i = tid; i < RING_COUNTERS; i += n) {
        if (s.counters[i] == s.shown[i]) continue;
        s.shown[i] = s.counters[i];
        p.ring_store(&shown[i], s.shown[i]);
    }
    p.sync();
}

}  // namespace blink
#endif  // BLINK_SCHED_PUBLISH_CUH
