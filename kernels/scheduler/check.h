/* Consistency of the scheduler's memory, checked between two steps: every page, lane and record is in one place. */
#ifndef BLINK_SCHED_CHECK_H
#define BLINK_SCHED_CHECK_H

#include <cstdio>
#include <vector>

#include "scheduler/state.h"

namespace blink {

namespace check {

struct Failure {
    char text[200];
};

#define BLINK_CHECK(condition, ...)                                        \
    do {                                                                   \
        if (!(condition)) {                                                \
            Failure failure;                                               \
            std::snprintf(failure.text, sizeof failure.text, __VA_ARGS__); \
            throw failure;                                                 \
        }                                                                  \
    } while (0)

inline void pages(Sched &s) {
    std::vector<uint32_t> owners(s.config.pages, 0);
    BLINK_CHECK(s.n_free_pages <= s.config.pages, "%u free pages of %u", s.n_free_pages, s.config.pages);
    auto own = [&](int32_t page, const char *who, uint32_t which) {
        BLINK_CHECK(page >= 0 && (uint32_t)page < s.config.pages, "page %d of %s %u is not a page", page, who, which);
        BLINK_CHECK(owners[page]++ == 0, "page %d is in two places, one is %s %u", page, who, which);
    };
    for (uint32_t i = 0; i < s.n_free_pages; i++) own(s.free_pages()[i], "free list entry", i);
    uint32_t held = 0;
    for (uint32_t lane = 0; lane < s.config.lanes; lane++) {
        uint32_t r = s.lane_record()[lane];
        if (r == NONE) continue;
        for (uint32_t i = 0; i < s.record(r).pages; i++) own(s.block_table(lane)[i], "lane", lane);
        held += s.record(r).pages;
    }
    BLINK_CHECK(s.n_free_pages + held == s.config.pages, "%u free + %u held pages are not %u", s.n_free_pages, held,
                s.config.pages);
    uint64_t taken = s.counters[COUNTER_PAGES_TAKEN], returned = s.counters[COUNTER_PAGES_RETURNED];
    BLINK_CHECK(taken - returned == held, "page counters say %lu held, not %u", (unsigned long)(taken - returned),
                held);
}

inline void lanes(Sched &s) {
    std::vector<uint32_t> owners(s.config.lanes, 0);
    for (uint32_t i = 0; i < s.n_free_lanes; i++) owners.at(s.free_lanes()[i])++;
    uint32_t used = 0;
    for (uint32_t lane = 0; lane < s.config.lanes; lane++) {
        uint32_t r = s.lane_record()[lane];
        if (r != NONE) {
            const Record &rec = s.record(r);
            BLINK_CHECK(rec.lane == lane, "lane %u belongs to record %u, which has lane %u", lane, r, rec.lane);
            bool seated = rec.state == RECORD_PREFILL || rec.state == RECORD_DECODE;
            BLINK_CHECK(seated, "lane %u belongs to record %u in state %u", lane, r, rec.state);
            BLINK_CHECK(rec.length() <= s.config.max_context, "record %u is longer than max_context", r);
            owners[lane]++, used++;
        }
        BLINK_CHECK(owners[lane] == 1, "lane %u is in %u places", lane, owners[lane]);
    }
    uint64_t taken = s.counters[COUNTER_LANES_TAKEN], returned = s.counters[COUNTER_LANES_RETURNED];
    BLINK_CHECK(taken - returned == used, "lane counters say %lu held, not %u", (unsigned long)(taken - returned),
                used);
}

inline void records(Sched &s) {
    std::vector<uint32_t> places(s.config.records, 0);
    for (uint32_t i = 0; i < s.n_free_records; i++) places.at(s.free_records()[i])++;
    uint64_t youngest_running = 0, before = 0;
    for (uint32_t lane = 0; lane < s.config.lanes; lane++) {
        uint32_t r = s.lane_record()[lane];
        if (r == NONE) continue;
        places.at(r)++;
        if (s.record(r).claim_no > youngest_running) youngest_running = s.record(r).claim_no;
    }
    uint32_t waiting = 0, previous = NONE;
    for (uint32_t r = s.waiting_head; r != NONE; previous = r, r = s.record(r).next) {
        const Record &rec = s.record(r);
        BLINK_CHECK(rec.state == RECORD_WAITING && rec.prev == previous, "waiting list is broken at record %u", r);
        BLINK_CHECK(rec.claim_no > before, "record %u waits out of order", r);
        BLINK_CHECK(rec.claim_no > youngest_running, "record %u waits while a younger one runs", r);
        BLINK_CHECK(++waiting <= s.config.records, "waiting list is a circle");
        before = rec.claim_no;
        places.at(r)++;
    }
    BLINK_CHECK(previous == s.waiting_tail, "waiting list ends with record %u, not %u", previous, s.waiting_tail);
    uint32_t live = 0, held = 0;
    for (uint32_t r = 0; r < s.config.records; r++) {
        uint32_t state = s.record(r).state;
        if (state == RECORD_ENDED) places[r]++;
        BLINK_CHECK(places[r] == 1, "record %u (state %u) is in %u places", r, state, places[r]);
        held += state != RECORD_FREE;
        live += state != RECORD_FREE && state != RECORD_ENDED;
    }
    BLINK_CHECK(live == s.live, "%u live records, not %u", live, s.live);
    uint64_t taken = s.counters[COUNTER_RECORDS_TAKEN], returned = s.counters[COUNTER_RECORDS_RETURNED];
    BLINK_CHECK(taken - returned == held, "record counters say %lu held, not %u", (unsigned long)(taken - returned),
                held);
}

#undef BLINK_CHECK
}  // namespace check

/* Leaves what is wrong in `text`, or an empty string. */
inline void check_integrity(Sched &s, char *text, size_t size) {
    text[0] = 0;
    try {
        check::pages(s);
        check::lanes(s);
        check::records(s);
    } catch (const check::Failure &failure) {
        std::snprintf(text, size, "%s", failure.text);
    } catch (const std::exception &e) {
        std::snprintf(text, size, "an index is out of range: %s", e.what());
    }
}

}  // namespace blink
#endif  // BLINK_SCHED_CHECK_H
