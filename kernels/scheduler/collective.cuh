/* What all threads of the scheduler do together, and the bookkeeping that several phases share.
 *
 * A *collective* function is called by every thread with the same arguments; a barrier separates what one thread
 * writes from what others read. Everything else is called by one thread at a time for the record or slot in question.
 */
#ifndef BLINK_SCHED_COLLECTIVE_CUH
#define BLINK_SCHED_COLLECTIVE_CUH

#include "scheduler/state.h"

namespace blink {

template <class P>
BLINK_DEVICE void count(P &p, Sched &s, uint32_t counter, uint64_t n = 1) {
    p.add(&s.counters[counter], n);
}

/* Collective: the sum of `value` over the threads before this one; `total` is over all. */
template <class P>
BLINK_DEVICE uint32_t exclusive_sum(P &p, uint32_t value, uint32_t &total) {
    uint32_t *sum = p.shared().sum;
    uint32_t tid = p.tid(), n = p.nthreads();
    sum[tid] = value;
    p.sync();
    for (uint32_t width = 1; width < n; width *= 2) {
        uint32_t before = tid >= width ? sum[tid - width] : 0;
        p.sync();
        sum[tid] += before;
        p.sync();
    }
    total = sum[n - 1];
    uint32_t own = sum[tid] - value;
    p.sync();
    return own;
}

BLINK_DEVICE bool less(const Key &a, const Key &b) {
    return a.major != b.major ? a.major < b.major : a.minor < b.minor;
}

constexpr uint64_t NO_KEY = ~0ull;

/* Collective: the smallest key of all threads; a thread that has none passes major = NO_KEY. */
template <class P>
BLINK_DEVICE Key block_min(P &p, Sched &s, const Key &mine) {
    Key *key = s.key;
    uint32_t tid = p.tid(), n = p.nthreads();
    key[tid] = mine;
    p.sync();
    for (uint32_t width = 1; width < n; width *= 2) {
        if (tid % (2 * width) == 0 && tid + width < n && less(key[tid + width], key[tid])) key[tid] = key[tid + width];
        p.sync();
    }
    Key best = key[0];
    p.sync();
    return best;
}

/* Has the record's status published by the next publish(). */
template <class P>
BLINK_DEVICE void mark_dirty(P &p, Sched &s, uint32_t r) {
    Record &rec = s.record(r);
    if (rec.dirty) return;
    rec.dirty = 1;
    s.dirty()[p.add(&s.n_dirty, 1u)] = r;
}

/* Has the record ended by the next plan(). The first reason wins. */
template <class P>
BLINK_DEVICE void end_record(P &p, Sched &s, uint32_t r, uint32_t reason) {
    Record &rec = s.record(r);
    if (rec.reason != REASON_NONE) return;
    rec.reason = reason;
    s.ending()[p.add(&s.n_ending, 1u)] = r;
}

/* The waiting list is in order of claims, and everything that runs was claimed before everything that waits: a new
 * claim goes to the back, admission takes the front, and a preempted record, the youngest that ran, returns to the
 * front. */
BLINK_DEVICE void waiting_push_back(Sched &s, uint32_t r) {
    Record &rec = s.record(r);
    rec.prev = s.waiting_tail, rec.next = NONE;
    if (s.waiting_tail == NONE) s.waiting_head = r;
    else s.record(s.waiting_tail).next = r;
    s.waiting_tail = r;
}

BLINK_DEVICE void waiting_push_front(Sched &s, uint32_t r) {
    Record &rec = s.record(r);
    rec.prev = NONE, rec.next = s.waiting_head;
    if (s.waiting_head == NONE) s.waiting_tail = r;
    else s.record(s.waiting_head).prev = r;
    s.waiting_head = r;
}

BLINK_DEVICE void waiting_remove(Sched &s, uint32_t r) {
    Record &rec = s.record(r);
    if (rec.prev == NONE) s.waiting_head = rec.next;
    else s.record(rec.prev).next = rec.next;
    if (rec.next == NONE) s.waiting_tail = rec.prev;
    else s.record(rec.next).prev = rec.prev;
}

/* Collective: takes lane and pages from the record. */
template <class P>
BLINK_DEVICE void unseat(P &p, Sched &s, uint32_t r) {
    Record &rec = s.record(r);
    uint32_t lane = rec.lane, pages = rec.pages, base = s.n_free_pages;
    for (uint32_t i = p.tid(); i < pages; i += p.nthreads()) s.free_pages()[base + i] = s.block_table(lane)[i];
    p.sync();
    if (p.tid() == 0) {
        s.n_free_pages = base + pages;
        s.free_lanes()[s.n_free_lanes++] = lane;
        s.lane_record()[lane] = NONE;
        rec.lane = NONE, rec.pages = 0, rec.cached = 0;
        if (s.partial == r) s.partial = NONE;
        count(p, s, COUNTER_PAGES_RETURNED, pages);
        count(p, s, COUNTER_LANES_RETURNED);
    }
    p.sync();
}

/* Collective: ends what asked to end. No batch is in flight. */
template <class P>
BLINK_DEVICE void reap(P &p, Sched &s) {
    uint32_t n = s.n_ending;
    if (n == 0) return;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t r = s.ending()[i];
        if (s.record(r).lane != NONE) unseat(p, s, r);
        else if (p.tid() == 0) waiting_remove(s, r);
        if (p.tid() == 0) {
            s.record(r).state = RECORD_ENDED;
            s.record(r).wire_state = STATE_DECODE_COMPLETED;
            s.live--;
            mark_dirty(p, s, r);
        }
        p.sync();
    }
    if (p.tid() == 0) s.n_ending = 0;
    p.sync();
}

}  // namespace blink
#endif  // BLINK_SCHED_COLLECTIVE_CUH
