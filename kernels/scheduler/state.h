/* What the scheduler remembers: one block of private memory, without pointers into itself.
 *
 * The block lives as long as the ring's epoch and outlives every execution of a driver, so one driver can stop and
 * another continue. A copy of it can be inspected elsewhere, since its arrays are found by offset. */
#ifndef BLINK_SCHED_STATE_H
#define BLINK_SCHED_STATE_H

#include "rtc.h"

#include "ring/hash.h"
#include "seam/batch_layout.h"

#ifdef __CUDACC__
#define BLINK_DEVICE __device__ inline
#define BLINK_UNROLL _Pragma("unroll")
#else
#define BLINK_DEVICE inline
#define BLINK_UNROLL
#endif

namespace blink {

constexpr uint32_t NONE = 0xFFFFFFFFu;
constexpr uint32_t MAX_THREADS = 256;
constexpr uint64_t NS_PER_US = 1000;
constexpr uint64_t NS_PER_MS = 1000000;

/* The ring as the scheduler addresses it: the header's numbers, copied once, and where both objects are mapped. */
struct RingView {
    uint8_t *g_object;
    const uint8_t *f_object;
    uint64_t g_off, g_stride, f_off, f_stride;
    uint64_t out_off, out_len, in_off, in_len;
    uint64_t request_off;
    uint64_t per_slot; /* partitions per slot, in units of 2^-32, rounded up: part_of() without a division */
    uint32_t slots, parts, per_part;

    BLINK_HD RingHeader *header() const { return (RingHeader *)g_object; }
    BLINK_HD uint8_t *g(uint32_t part) const { return g_object + g_off + part * g_stride; }
    BLINK_HD const uint8_t *f(uint32_t part) const { return f_object + f_off + part * f_stride; }
    BLINK_HD RingGHead *g_head(uint32_t part) const { return (RingGHead *)g(part); }
    BLINK_HD const RingFHead *f_head(uint32_t part) const { return (const RingFHead *)f(part); }
    BLINK_HD uint32_t part_of(uint32_t slot) const { return (uint32_t)(slot * per_slot >> 32); }
    BLINK_HD RingStatus *status(uint32_t slot) const {
        uint32_t part = part_of(slot);
        return (RingStatus *)(g(part) + RING_STATUS_OFF) + (slot - part * per_part);
    }
    BLINK_HD const RingCommand *command(uint32_t slot) const {
        uint32_t part = part_of(slot);
        return (const RingCommand *)(f(part) + RING_CMD_OFF) + (slot - part * per_part);
    }
    BLINK_HD const uint32_t *request_words(uint32_t slot) const {
        uint32_t part = part_of(slot);
        return (const uint32_t *)(f(part) + request_off + (uint64_t)(slot - part * per_part) * sizeof(RingRequest));
    }
};

/* The pending request of a slot, meaningful while its commit says that there is one; its times, until it has ended. */
struct Slot {
    uint64_t stamp;                         /* scan that first saw it; 0: seen none since the last claim */
    uint64_t first_ns;                      /* time of that scan */
    uint64_t first_token_ns, last_token_ns; /* when they were harvested; first_ns until then */
    uint64_t torn_ns;                       /* since when the record is inconsistent; meaningful while torn */
    uint32_t seq;
    uint32_t deadline_ms;
    uint8_t ready; /* the record was consistent when last read */
    uint8_t torn;  /* it was not */
};

struct Partition {
    uint64_t bad_db; /* the last doorbell that failed its check, so that it is counted once */
    uint64_t alive;
    uint64_t alive_ns; /* when alive last moved, or when the partition last had nothing to lose */
    uint64_t pub_seq, torn;
    uint32_t db;
    uint32_t rung; /* whether there was a valid doorbell */
    uint32_t busy; /* the last scan saw a pending or live request */
    uint32_t orphaned;
    uint32_t changed; /* a status was written since pub_seq moved */
};

enum RecordState : uint32_t {
    RECORD_FREE,
    RECORD_WAITING, /* for a lane: new, or preempted */
    RECORD_PREFILL, /* has a lane; part of its tokens are in the cache */
    RECORD_DECODE,  /* has a lane; all tokens but the newest are in the cache */
    RECORD_ENDED    /* waits for its terminal status to be published */
};

/* A claimed request. Its tokens (prompt, then answer) and its extension are in arrays beside the records. */
struct Record {
    RingRequest request; /* the validated copy: the ring's own is never read again */
    uint64_t claim_no;   /* order of claims, from 1 */
    uint64_t deadline_ns;
    uint32_t slot, part;
    uint32_t state;
    uint32_t reason;     /* not NONE: ends at the next plan, or has ended */
    uint32_t wire_state; /* what readers are told */
    uint32_t lane;
    uint32_t count;      /* tokens of the answer */
    uint32_t published;  /* of them in the output arena */
    uint32_t cached;     /* positions whose keys and values are computed */
    uint32_t pages;      /* entries of the lane's block table */
    uint32_t prev, next; /* waiting list */
    uint32_t dirty;      /* is in the list of records to publish */
    uint32_t preempted;
    RingLogprob logprob; /* of the newest token */

    BLINK_HD uint32_t length() const { return request.prompt_len + count; }
};

/* A row of the batch that runs, as planned. */
struct Row {
    uint32_t record;
    uint32_t from, tokens; /* positions fed */
    uint32_t sample;
    uint32_t page_base, new_pages; /* pages granted: free_pages[page_base …] */
};

struct Key {
    uint64_t major, minor;
    uint64_t id;
};

/* How threads tell each other the outcome of a collective operation; on a GPU in the block's shared memory. */
struct Shared {
    uint32_t verdict, hash, bad_token, flag;
    uint32_t sum[MAX_THREADS];
};

struct Offsets {
    uint64_t claimed, slots, candidates, partitions, records, tokens, extensions, free_records, dirty, ending,
        lane_record;
    uint64_t free_lanes, free_pages, rows, decode_graph, prefill_graph, size;
};

struct Sched {
    SchedConfig config;
    RingView ring;
    Batch batch;
    const uint32_t *control;
    Offsets at;

    uint64_t counters[RING_COUNTERS];
    uint64_t shown[RING_COUNTERS]; /* what the header has */
    uint64_t now, scan_no, beat, next_claim;
    uint64_t stop_ns; /* since when nothing is live while draining or stopping; 0: not so */
    Decision decision;
    uint32_t mode; /* Control, as the last scan read it */
    uint32_t phase, budget_ms;
    uint32_t in_flight, step_no;
    uint32_t launched; /* in this launch window */
    uint32_t paused;   /* prefill steps since one in which those who decode had a row */
    uint32_t waiting_head, waiting_tail;
    uint32_t partial; /* the record whose prompt is prefilled in part, or NONE */
    uint32_t live;    /* records neither free nor ended */
    uint32_t pending, n_candidates;
    uint32_t n_free_records, n_free_lanes, n_free_pages, n_dirty, n_ending;
    uint64_t harvest_ns; /* of the newest tokens, which are published next */

    Key key[MAX_THREADS]; /* of block_min() */

    template <class T>
    BLINK_HD T *array(uint64_t offset) {
        return (T *)((uint8_t *)this + offset);
    }
    /* The generation of each slot that was claimed last; claimed by compare-and-swap. Apart from the rest, since it is
     * all that a scan reads of a slot with nothing new. */
    BLINK_HD uint32_t *claimed() { return array<uint32_t>(at.claimed); }
    BLINK_HD Slot &slot(uint32_t i) { return array<Slot>(at.slots)[i]; }
    BLINK_HD uint32_t *candidates() { return array<uint32_t>(at.candidates); }
    BLINK_HD Partition &partition(uint32_t i) { return array<Partition>(at.partitions)[i]; }
    BLINK_HD Record &record(uint32_t i) { return array<Record>(at.records)[i]; }
    BLINK_HD uint32_t *tokens(uint32_t r) { return array<uint32_t>(at.tokens) + (uint64_t)r * config.max_context; }
    BLINK_HD uint32_t *extension(uint32_t r) { return array<uint32_t>(at.extensions) + (uint64_t)r * config.ext_words; }
    BLINK_HD uint32_t *free_records() { return array<uint32_t>(at.free_records); }
    BLINK_HD uint32_t *dirty() { return array<uint32_t>(at.dirty); }
    BLINK_HD uint32_t *ending() { return array<uint32_t>(at.ending); }
    BLINK_HD uint32_t *lane_record() { return array<uint32_t>(at.lane_record); }
    BLINK_HD uint32_t *free_lanes() { return array<uint32_t>(at.free_lanes); }
    BLINK_HD int32_t *free_pages() { return array<int32_t>(at.free_pages); }
    BLINK_HD Row &row(uint32_t i) { return array<Row>(at.rows)[i]; }
    BLINK_HD uint16_t *decode_graph() { return array<uint16_t>(at.decode_graph); }
    BLINK_HD uint16_t *prefill_graph() { return array<uint16_t>(at.prefill_graph); }
    BLINK_HD int32_t *block_table(uint32_t lane) { return batch.block_table + (uint64_t)lane * config.lane_pages; }
};

BLINK_HD uint64_t reserve(uint64_t &end, uint64_t bytes) {
    uint64_t offset = end;
    end = (end + bytes + 63) & ~(uint64_t)63;
    return offset;
}

/* Where the arrays are; `size` is what a scheduler of this configuration needs, 64-byte aligned. */
BLINK_HD Offsets lay_out(const SchedConfig &c, uint32_t slots, uint32_t parts) {
    Offsets o;
    uint64_t end = 0;
    reserve(end, sizeof(Sched));
    o.claimed = reserve(end, (uint64_t)slots * 4);
    o.slots = reserve(end, (uint64_t)slots * sizeof(Slot));
    o.candidates = reserve(end, ((uint64_t)slots + MAX_THREADS) * 4); /* every thread's share, rounded up */
    o.partitions = reserve(end, (uint64_t)parts * sizeof(Partition));
    o.records = reserve(end, (uint64_t)c.records * sizeof(Record));
    o.tokens = reserve(end, (uint64_t)c.records * c.max_context * 4);
    o.extensions = reserve(end, (uint64_t)c.records * c.ext_words * 4);
    o.free_records = reserve(end, (uint64_t)c.records * 4);
    o.dirty = reserve(end, (uint64_t)c.records * 4);
    o.ending = reserve(end, (uint64_t)c.records * 4);
    o.lane_record = reserve(end, (uint64_t)c.lanes * 4);
    o.free_lanes = reserve(end, (uint64_t)c.lanes * 4);
    o.free_pages = reserve(end, (uint64_t)c.pages * 4);
    o.rows = reserve(end, (uint64_t)c.lanes * sizeof(Row));
    o.decode_graph = reserve(end, ((uint64_t)c.lanes + 1) * sizeof(uint16_t));
    o.prefill_graph = reserve(end, ((uint64_t)c.batch_tokens + 1) * sizeof(uint16_t));
    o.size = end;
    return o;
}

/* For every size up to `largest`, the tightest of the ascending `buckets` that holds it. */
BLINK_HD void fill_graph_table(uint16_t *table, uint32_t largest, const uint32_t *buckets) {
    uint32_t bucket = 0;
    for (uint32_t size = 0; size <= largest; size++) {
        while (buckets[bucket] < size) bucket++;
        table[size] = (uint16_t)bucket;
    }
}

/* Starts an epoch in zeroed memory `s` of lay_out().size bytes. The ring's header and `config` must be valid. One
 * thread calls it. */
BLINK_HD void init(Sched &s, const SchedConfig &config, uint8_t *g, const uint8_t *f, const Batch &batch,
                   const uint32_t *control) {
    const RingHeader &h = *(const RingHeader *)g;
    s.config = config;
    s.batch = batch;
    s.control = control;
    s.at = lay_out(config, h.slots, h.parts);
    RingView &ring = s.ring;
    ring.g_object = g;
    ring.f_object = f;
    ring.g_off = h.g_off, ring.g_stride = h.g_stride, ring.f_off = h.f_off, ring.f_stride = h.f_stride;
    ring.out_off = h.out_off, ring.out_len = h.out_len, ring.in_off = h.in_off, ring.in_len = h.in_len;
    ring.slots = h.slots, ring.parts = h.parts, ring.per_part = h.slots / h.parts;
    ring.per_slot = (1ull << 32) / ring.per_part + 1; /* exact for up to RING_MAX_SLOTS */
    ring.request_off = request_off(ring.per_part);

    *batch.control = StepControl{}; /* what an earlier epoch's engine finished is not this one's step */
    s.waiting_head = s.waiting_tail = s.partial = NONE;
    s.next_claim = 1;
    s.phase = PHASE_STARTING;
    /* Stacks are filled so that the lowest index comes off first. */
    for (uint32_t i = 0; i < config.records; i++) s.free_records()[i] = config.records - 1 - i;
    for (uint32_t i = 0; i < config.lanes; i++) s.free_lanes()[i] = config.lanes - 1 - i, s.lane_record()[i] = NONE;
    for (uint32_t i = 0; i < config.pages; i++) s.free_pages()[i] = (int32_t)(config.pages - 1 - i);
    s.n_free_records = config.records, s.n_free_lanes = config.lanes, s.n_free_pages = config.pages;
    fill_graph_table(s.decode_graph(), config.lanes, config.decode_bucket);
    fill_graph_table(s.prefill_graph(), config.batch_tokens, config.prefill_bucket);
}

}  // namespace blink
#endif  // BLINK_SCHED_STATE_H
