/* scan: what the frontend wants. Reads doorbells, commits and cancels; claims requests in order of first sight.
 *
 * Nothing here touches the step buffers, so a driver may scan while a batch runs. F may hold anything at any time: a
 * word is read once, checked, and used only in the copy that was checked. */
#ifndef BLINK_SCHED_SCAN_CUH
#define BLINK_SCHED_SCAN_CUH

#include "scheduler/collective.cuh"
#include "scheduler/validate.h"

namespace blink {

/* Doorbell and sign of life of every partition. */
template <class P>
BLINK_DEVICE void read_heads(P &p, Sched &s) {
    uint64_t now = p.now_ns();
    /* From the last thread on, since the first reads the control word: both may be behind a bus. So may alive, and it
     * is read first because nothing after an acquire starts before it. */
    for (uint32_t q = p.nthreads() - 1 - p.tid(); q < s.ring.parts; q += p.nthreads()) {
        Partition &part = s.partition(q);
        uint64_t alive = p.ring_load(&s.ring.f_head(q)->alive);
        uint64_t word = p.ring_acquire(&s.ring.f_head(q)->db);
        uint32_t seq = Bell::seq(word);
        if (Bell::intact(word)) {
            if (!part.rung || (int32_t)(seq - part.db) > 0) part.db = seq, part.rung = 1;
        } else if (word != 0 && word != part.bad_db) { /* 0: never rung */
            part.bad_db = word;
            count(p, s, COUNTER_DOORBELL_BAD);
        }
        if (alive != part.alive || !part.busy) part.alive = alive, part.alive_ns = now;
        uint64_t limit = s.config.alive_ms * NS_PER_MS;
        part.orphaned = limit != 0 && now - part.alive_ns > limit;
        part.busy = 0;
    }
}

/* Publishes the end of a request that never got a record. */
template <class P>
BLINK_DEVICE void refuse(P &p, Sched &s, uint32_t slot, uint32_t gen, uint32_t reason) {
    uint32_t q = s.ring.part_of(slot);
    RingStatus *status = s.ring.status(slot);
    p.ring_store(&status->w2, W2::put_gen(gen));
    p.ring_release(&status->w0, W0::put_gen(gen) | W0::put_state(STATE_DECODE_COMPLETED) | W0::put_reason(reason));
    p.store(&s.partition(q).changed, 1u);
    s.slot(slot).stamp = 0;
    count(p, s, COUNTER_REJECTS);
    count(p, s, COUNTER_FINISHED_BASE + reason);
    count(p, s, COUNTER_PUBLISHES);
}

/* Takes the slot's next generation. The word is private, so compare-and-swap is atomic among all who can write it. */
template <class P>
BLINK_DEVICE bool take(P &p, Sched &s, uint32_t slot, uint32_t gen) {
    return p.cas(&s.claimed()[slot], gen - 1, gen);
}

/* Copies the pending request of `slot` and says whether the copy is whole and the one that was committed. */
template <class P>
BLINK_DEVICE bool snapshot(P &p, Sched &s, uint32_t slot, RingRequest *copy) {
    constexpr uint32_t n = sizeof(RingRequest) / 4;
    uint32_t words[n];
    const uint32_t *from = s.ring.request_words(slot);
    for (uint32_t i = 0; i < n; i++) words[i] = p.ring_load(from + i);
    __builtin_memcpy(copy, words, sizeof(RingRequest));
    const Slot &own = s.slot(slot);
    return copy->gen == s.claimed()[slot] + 1 && copy->seq == own.seq && copy->crc == crc32c_words(words, n - 1);
}

template <class P>
BLINK_DEVICE void note_torn(P &p, Sched &s, uint32_t slot) {
    Slot &own = s.slot(slot);
    own.ready = 0;
    if (own.torn) return;
    own.torn = 1, own.torn_ns = s.now;
    count(p, s, COUNTER_TORN);
    p.add(&s.partition(s.ring.part_of(slot)).torn, (uint64_t)1);
}

template <class P>
BLINK_DEVICE bool cancelled(P &p, Sched &s, uint32_t slot, uint32_t gen) {
    uint64_t word = p.ring_load(&s.ring.command(slot)->cancel);
    return Cancel::intact(word) && Cancel::gen(word) == gen;
}

/* Why a request ends that nothing else ends, or REASON_NONE. `fresh`: it has not run yet. */
template <class P>
BLINK_DEVICE uint32_t outside_reason(P &p, Sched &s, uint32_t slot, uint32_t gen, uint64_t deadline_ns, bool fresh) {
    if (s.mode == CONTROL_STOP) return REASON_ERR_STOPPED;
    if (cancelled(p, s, slot, gen)) return REASON_CANCELLED;
    if (s.mode == CONTROL_DRAIN && fresh) return REASON_ERR_DRAINING;
    if (s.partition(s.ring.part_of(slot)).orphaned) return REASON_ORPHANED;
    if (deadline_ns != 0 && s.now > deadline_ns) return REASON_DEADLINE;
    return REASON_NONE;
}

BLINK_DEVICE uint64_t slot_deadline(const Slot &own, uint32_t deadline_ms) {
    return deadline_ms ? own.first_ns + deadline_ms * NS_PER_MS : 0;
}

/* Whether the slot has a request to claim: committed, rung, unclaimed and whole. Ends it here where it need not be
 * claimed to end. Each slot is looked at by one thread. */
template <class P>
BLINK_DEVICE bool candidate(P &p, Sched &s, uint32_t slot) {
    uint64_t commit = p.ring_load(&s.ring.command(slot)->commit);
    uint32_t gen = Commit::gen(commit), seq = Commit::seq(commit);
    if (gen != s.claimed()[slot] + 1) return false;
    Slot &own = s.slot(slot);
    Partition &part = s.partition(s.ring.part_of(slot));
    if (!part.rung || (int32_t)(seq - part.db) > 0) return false;
    if (own.stamp == 0 || own.seq != seq) {
        own.stamp = s.scan_no, own.first_ns = s.now, own.seq = seq;
        own.ready = own.torn = 0, own.deadline_ms = 0;
    }
    p.store(&part.busy, 1u);
    uint32_t reason = outside_reason(p, s, slot, gen, slot_deadline(own, own.deadline_ms), true);
    if (own.ready && reason == REASON_NONE) return true;

    RingRequest copy;
    if (snapshot(p, s, slot, &copy)) {
        own.ready = 1, own.torn = 0, own.deadline_ms = copy.deadline_ms;
        if (reason == REASON_NONE) return true;
    } else {
        note_torn(p, s, slot);
        if (s.now - own.torn_ns <= s.config.torn_ms * NS_PER_MS) {
            p.add(&s.pending, 1u);
            return false;
        }
        reason = REASON_ERR_TORN;
    }
    if (take(p, s, slot, gen)) refuse(p, s, slot, gen, reason);
    return false;
}

/* Asks for the end of a live record whose time has come. */
template <class P>
BLINK_DEVICE void look_after(P &p, Sched &s, uint32_t r) {
    Record &rec = s.record(r);
    if (rec.state == RECORD_FREE || rec.state == RECORD_ENDED) return;
    p.store(&s.partition(rec.part).busy, 1u);
    bool fresh = rec.state == RECORD_WAITING && rec.count == 0;
    uint32_t reason = outside_reason(p, s, rec.slot, rec.request.gen, rec.deadline_ns, fresh);
    if (reason != REASON_NONE) end_record(p, s, r, reason);
}

/* Collective: claims `slot` into a free record. False where the request was found torn after all. */
template <class P>
BLINK_DEVICE bool claim(P &p, Sched &s, uint32_t slot) {
    uint32_t r = s.free_records()[s.n_free_records - 1];
    Record &rec = s.record(r);
    const RingRequest &q = rec.request;
    Shared &shared = p.shared();
    if (p.tid() == 0) {
        uint32_t gen = s.claimed()[slot] + 1;
        shared.hash = shared.bad_token = 0;
        shared.flag = snapshot(p, s, slot, &rec.request) && take(p, s, slot, gen);
        if (shared.flag) shared.verdict = check_request(s.config, s.ring, q);
        else note_torn(p, s, slot), s.pending++;
    }
    p.sync();
    bool taken = shared.flag != 0;
    uint32_t verdict = shared.verdict;
    if (taken && verdict == REASON_NONE) {
        const uint8_t *f = s.ring.f(s.ring.part_of(slot));
        const uint32_t *prompt = (const uint32_t *)(f + q.prompt_off), *ext = (const uint32_t *)(f + q.ext_off);
        uint32_t hash = 0, bad = 0;
        for (uint32_t i = p.tid(); i < q.prompt_len; i += p.nthreads()) {
            uint32_t token = p.ring_load(prompt + i);
            s.tokens(r)[i] = token;
            hash += hash_term(token, i);
            bad |= token >= s.config.vocab;
        }
        for (uint32_t i = p.tid(); i < q.ext_words; i += p.nthreads()) {
            uint32_t word = p.ring_load(ext + i);
            s.extension(r)[i] = word;
            hash += hash_term(word, q.prompt_len + i);
        }
        p.add(&shared.hash, hash);
        if (bad) p.store(&shared.bad_token, 1u);
    }
    p.sync();
    if (p.tid() == 0 && taken) {
        if (verdict == REASON_NONE && shared.hash != q.prompt_hash) verdict = REASON_ERR_HASH;
        if (verdict == REASON_NONE && shared.bad_token) verdict = REASON_ERR_TOKEN;
        if (verdict == REASON_NONE) verdict = check_extension(s.config, q, s.extension(r));
        if (verdict != REASON_NONE) {
            refuse(p, s, slot, q.gen, verdict);
        } else {
            Slot &own = s.slot(slot);
            s.n_free_records--;
            rec.claim_no = s.next_claim++;
            rec.deadline_ns = slot_deadline(own, q.deadline_ms);
            rec.slot = slot, rec.part = s.ring.part_of(slot);
            rec.state = RECORD_WAITING, rec.wire_state = STATE_PREFILL_PROCESSING, rec.reason = REASON_NONE;
            rec.lane = NONE, rec.count = rec.published = rec.cached = rec.pages = 0;
            rec.dirty = rec.preempted = 0;
            own.stamp = 0, own.first_token_ns = own.last_token_ns = own.first_ns;
            s.live++;
            waiting_push_back(s, r);
            mark_dirty(p, s, r);
            count(p, s, COUNTER_CLAIMS);
            count(p, s, COUNTER_RECORDS_TAKEN);
            count(p, s, COUNTER_PROMPT_TOKENS, q.prompt_len);
        }
    }
    p.sync();
    return taken;
}

/* Leaves this thread's candidates in `mine` and returns their number. Threads take slots in turn, so that a warp reads
 * neighbouring words, and several at a time, so that their latencies overlap. */
template <class P>
BLINK_DEVICE uint32_t find_candidates(P &p, Sched &s, uint32_t *mine) {
    constexpr uint32_t ahead = 16;
    uint32_t n = p.nthreads(), slots = s.ring.slots, found = 0;
    for (uint32_t base = p.tid(); base < slots; base += ahead * n) {
        uint32_t committed[ahead], claimed[ahead], fresh = 0;
        BLINK_UNROLL
        for (uint32_t k = 0; k < ahead; k++) {
            uint32_t slot = base + k * n < slots ? base + k * n : base;
            committed[k] = Commit::gen(p.ring_load(&s.ring.command(slot)->commit));
            claimed[k] = s.claimed()[slot];
        }
        BLINK_UNROLL
        for (uint32_t k = 0; k < ahead; k++) fresh |= (uint32_t)(committed[k] == claimed[k] + 1) << k;
        for (uint32_t k = 0; fresh >> k != 0; k++) {
            uint32_t slot = base + k * n;
            if (fresh >> k & 1 && slot < slots && candidate(p, s, slot)) mine[found++] = slot;
        }
    }
    return found;
}

/* Collective. Claims go in order of (scan of first sight, partition, sequence); which partition is first in a scan
 * rotates, so that none is favoured when many are pending. */
template <class P>
BLINK_DEVICE void scan(P &p, Sched &s) {
    uint32_t tid = p.tid(), n = p.nthreads();
    if (tid == 0) {
        s.now = p.now_ns();
        s.scan_no++;
        s.pending = s.n_candidates = 0;
        uint32_t control = p.load_acquire(s.control);
        s.mode = control > CONTROL_STOP ? CONTROL_STOP : control;
    }
    read_heads(p, s);
    p.sync();

    uint32_t *mine = s.candidates() + tid * ((s.ring.slots + n - 1) / n);
    uint32_t found = find_candidates(p, s, mine);
    if (found) p.add(&s.n_candidates, found);
    for (uint32_t r = tid; r < s.config.records; r += n) look_after(p, s, r);
    p.sync();

    uint32_t left = s.n_candidates;
    for (uint32_t claims = 0; claims < s.config.claims_per_step && left > 0 && s.n_free_records > 0; left--) {
        Key best = {NO_KEY, 0, 0};
        uint32_t best_index = 0;
        for (uint32_t i = 0; i < found; i++) {
            const Slot &own = s.slot(mine[i]);
            uint32_t q = s.ring.part_of(mine[i]), parts = s.ring.parts;
            uint32_t turn = (uint32_t)((q + own.stamp) % parts);
            /* The doorbell is at or after seq, by at most 2^31. */
            uint32_t age = s.partition(q).db - own.seq;
            Key key = {own.stamp, (uint64_t)turn << 32 | (0x80000000u - age), mine[i]};
            if (less(key, best)) best = key, best_index = i;
        }
        Key chosen = block_min(p, s, best);
        if (best.major != NO_KEY && best.id == chosen.id) mine[best_index] = mine[--found];
        claims += claim(p, s, (uint32_t)chosen.id);
    }
    if (p.tid() == 0) s.pending += left;
    p.sync();
}

}  // namespace blink
#endif  // BLINK_SCHED_SCAN_CUH
