/* What a request must satisfy. These functions see the private copy of a request only, and trust none of it. */
#ifndef BLINK_SCHED_VALIDATE_H
#define BLINK_SCHED_VALIDATE_H

#include "scheduler/extension.h"
#include "scheduler/state.h"

namespace blink {

/* Wide limits that keep the arithmetic of an engine finite; the narrower ones of an API are the frontend's. */
constexpr float MAX_TEMPERATURE = 100.0f;
constexpr float MAX_PENALTY = 100.0f;
constexpr float MAX_BIAS_VALUE = 10000.0f;

/* False for NaN too. */
BLINK_HD bool within(float x, float low, float high) { return x >= low && x <= high; }

BLINK_HD bool extent_ok(uint64_t off, uint64_t bytes, uint64_t align, uint64_t arena_off, uint64_t arena_len) {
    uint64_t from = off - arena_off; /* before the arena: wraps, and is beyond it */
    return off % align == 0 && from <= arena_len && bytes <= arena_len - from;
}

/* REASON_NONE, or why the fixed part of a request is refused. Afterwards every length and extent in it is safe. */
BLINK_HD uint32_t check_request(const SchedConfig &c, const RingView &ring, const RingRequest &q) {
    if (q.prompt_len == 0) return REASON_ERR_EMPTY;
    if ((uint64_t)q.prompt_len + q.max_tokens > c.max_context) return REASON_ERR_TOO_LONG;
    bool sampling = within(q.temperature, 0.0f, MAX_TEMPERATURE) && within(q.top_p, 0.0f, 1.0f) && q.top_p > 0.0f &&
                    within(q.min_p, 0.0f, 1.0f) && within(q.frequency, -MAX_PENALTY, MAX_PENALTY) &&
                    within(q.presence, -MAX_PENALTY, MAX_PENALTY) && within(q.repetition, 0.0f, MAX_PENALTY) &&
                    q.repetition > 0.0f;
    if (!sampling || q.max_tokens == 0 || q.n_stop > RING_STOP_INLINE || q.lp_n > RING_LOGPROBS_MAX ||
        q.ext_words > c.ext_words || (q.ext_words != 0 && q.ext_words < RING_EXTENSION_STOP) ||
        (q.flags & ~(FLAG_IGNORE_EOS | FLAG_LOGPROBS)) != 0)
        return REASON_ERR_PARAMS;
    for (uint32_t i = 0; i < q.n_stop; i++)
        if (q.stop[i] >= c.vocab) return REASON_ERR_TOKEN;

    bool in = extent_ok(q.prompt_off, (uint64_t)q.prompt_len * 4, RING_EXTENT_ALIGN, ring.in_off, ring.in_len) &&
              (q.ext_words == 0 || extent_ok(q.ext_off, (uint64_t)q.ext_words * 4, 4, ring.in_off, ring.in_len));
    bool out = q.out_cap >= q.max_tokens &&
               extent_ok(q.out_off, (uint64_t)q.out_cap * 4, RING_EXTENT_ALIGN, ring.out_off, ring.out_len);
    bool logprobs = (q.flags & FLAG_LOGPROBS) == 0 ||
                    extent_ok(q.lp_off, (uint64_t)q.out_cap * logprob_stride(q.lp_n), 4, ring.out_off, ring.out_len);
    return in && out && logprobs ? REASON_NONE : REASON_ERR_BOUNDS;
}

/* REASON_NONE, or why the extension `ext` of request `q` is refused. */
BLINK_HD uint32_t check_extension(const SchedConfig &c, const RingRequest &q, const uint32_t *ext) {
    if (q.ext_words == 0) return REASON_NONE;
    Extension e(q, ext);
    if (e.n_stop > BATCH_MAX_REQUEST_STOP - q.n_stop || e.n_bias > BATCH_MAX_BIAS ||
        q.ext_words != extension_words(e.n_stop, e.n_bias))
        return REASON_ERR_PARAMS;
    for (uint32_t i = 0; i < e.n_stop; i++)
        if (e.stop(i) >= c.vocab) return REASON_ERR_TOKEN;
    for (uint32_t i = 0; i < e.n_bias; i++) {
        if (e.bias_id(i) >= c.vocab) return REASON_ERR_TOKEN;
        if (!within(e.bias_value(i), -MAX_BIAS_VALUE, MAX_BIAS_VALUE)) return REASON_ERR_PARAMS;
    }
    return REASON_NONE;
}

/* nullptr, or which field of the configuration is wrong; the scheduler relies on all of this. */
BLINK_HD const char *check_config(const SchedConfig &c, uint32_t slots, uint32_t parts) {
    uint64_t most_pages = c.page_tokens ? ((uint64_t)c.max_context + c.page_tokens - 1) / c.page_tokens : 0;
    if (c.lanes < 1 || c.lanes > BATCH_MAX_LANES) return "lanes: 0, or more than a step can have";
    if (c.records < c.lanes || c.records > BATCH_MAX_RECORDS) return "records: below lanes, or above 2^20";
    if (c.page_tokens < 1 || c.page_tokens > BATCH_MAX_PAGE_TOKENS || c.max_context < 2 ||
        c.max_context > BATCH_MAX_CONTEXT)
        return "page_tokens or max_context";
    if (c.lane_pages < most_pages) return "lane_pages: a lane's block table does not hold max_context";
    if (c.pages < most_pages) return "pages: the pool does not hold one request of max_context";
    if ((uint64_t)c.pages * c.page_tokens > 0x7FFFFFFF) return "pages: KV entries exceed 2^31";
    if (c.vocab < 1 || c.vocab > 0x7FFFFFFF) return "vocab";
    if (c.batch_tokens < c.lanes || c.batch_tokens > BATCH_MAX_TOKENS)
        return "batch_tokens: below lanes, or above 2^20";
    if (c.ext_words > extension_words(BATCH_MAX_REQUEST_STOP, BATCH_MAX_BIAS))
        return "ext_words: longer than any valid extension";
    if (c.launch_window == 1) return "launch_window: 1 has no room for a prefill and the decode after it";
    if (c.claims_per_step < 1) return "claims_per_step: 0";
    if (c.n_decode < 1 || c.n_decode > BATCH_MAX_BUCKETS || c.decode_bucket[c.n_decode - 1] != c.lanes)
        return "decode_bucket: the last is not lanes";
    if (c.n_prefill < 1 || c.n_prefill > BATCH_MAX_BUCKETS || c.prefill_bucket[c.n_prefill - 1] != c.batch_tokens)
        return "prefill_bucket: the last is not batch_tokens";
    for (uint32_t i = 1; i < c.n_decode; i++)
        if (c.decode_bucket[i] <= c.decode_bucket[i - 1]) return "decode_bucket: not ascending";
    for (uint32_t i = 1; i < c.n_prefill; i++)
        if (c.prefill_bucket[i] <= c.prefill_bucket[i - 1]) return "prefill_bucket: not ascending";
    if (c.n_eos > BATCH_MAX_EOS) return "n_eos: too many";
    if (parts < 1 || parts > RING_MAX_PARTITIONS || slots > RING_MAX_SLOTS || slots < parts || slots % parts != 0)
        return "slots or parts";
    return nullptr;
}

}  // namespace blink
#endif  // BLINK_SCHED_VALIDATE_H
