/* Generated from blink/ring/layout.py by `make generate`. Do not edit. */
#ifndef BLINK_RING_LAYOUT_H
#define BLINK_RING_LAYOUT_H
#ifndef __CUDACC_RTC__
#include <cstdint>
#endif
#ifndef BLINK_HD
#ifdef __CUDACC__
#define BLINK_HD __host__ __device__ inline
#else
#define BLINK_HD inline
#endif
#endif
namespace blink {

constexpr uint64_t RING_MAGIC = 0x31474e524b4e4c42;
constexpr uint32_t RING_VERSION = 0x2;
constexpr uint32_t RING_MAX_PARTITIONS = 0x40;
constexpr uint32_t RING_MAX_SLOTS = 0x10000;
constexpr uint32_t RING_EXTENT_ALIGN = 0x40;
constexpr uint32_t RING_LOGPROBS_MAX = 0x14;
constexpr uint32_t RING_HINT_TOKEN_LIMIT = 0x100000;
constexpr uint32_t RING_STOP_INLINE = 0x4;
constexpr uint32_t RING_COUNTERS = 0x80;
constexpr uint32_t RING_EXTENSION_STOP = 0x2;
constexpr uint32_t RING_EXTENSION_PAIR = 0x2;
constexpr uint32_t RING_STATUS_OFF = 0x40;
constexpr uint32_t RING_CMD_OFF = 0x40;

constexpr uint32_t STATE_EMPTY = 0x0;
constexpr uint32_t STATE_PREFILL_PENDING = 0x1;
constexpr uint32_t STATE_PREFILL_PROCESSING = 0x2;
constexpr uint32_t STATE_DECODE_PROCESSING = 0x3;
constexpr uint32_t STATE_DECODE_PAUSED = 0x4;
constexpr uint32_t STATE_DECODE_COMPLETED = 0x5;

constexpr uint32_t REASON_NONE = 0x0;
constexpr uint32_t REASON_EOS = 0x1;
constexpr uint32_t REASON_STOP_ID = 0x2;
constexpr uint32_t REASON_LENGTH = 0x3;
constexpr uint32_t REASON_CANCELLED = 0x4;
constexpr uint32_t REASON_DEADLINE = 0x5;
constexpr uint32_t REASON_ORPHANED = 0x6;
constexpr uint32_t REASON_ERR_TORN = 0x10;
constexpr uint32_t REASON_ERR_EMPTY = 0x11;
constexpr uint32_t REASON_ERR_HASH = 0x12;
constexpr uint32_t REASON_ERR_TOKEN = 0x13;
constexpr uint32_t REASON_ERR_BOUNDS = 0x14;
constexpr uint32_t REASON_ERR_TOO_LONG = 0x15;
constexpr uint32_t REASON_ERR_PARAMS = 0x16;
constexpr uint32_t REASON_ERR_DRAINING = 0x17;
constexpr uint32_t REASON_ERR_ENGINE = 0x18;
constexpr uint32_t REASON_ERR_STOPPED = 0x19;

constexpr uint32_t FLAG_IGNORE_EOS = 0x1;
constexpr uint32_t FLAG_LOGPROBS = 0x2;

constexpr uint32_t PHASE_STARTING = 0x0;
constexpr uint32_t PHASE_IDLE = 0x1;
constexpr uint32_t PHASE_PREFILL = 0x2;
constexpr uint32_t PHASE_DECODE = 0x3;
constexpr uint32_t PHASE_DRAINING = 0x4;
constexpr uint32_t PHASE_STOPPED = 0x5;

constexpr uint32_t COUNTER_STEPS = 0x0;
constexpr uint32_t COUNTER_IDLE_STEPS = 0x1;
constexpr uint32_t COUNTER_PREFILL_STEPS = 0x2;
constexpr uint32_t COUNTER_DECODE_STEPS = 0x3;
constexpr uint32_t COUNTER_LAUNCHES = 0x4;
constexpr uint32_t COUNTER_RELAUNCHES = 0x5;
constexpr uint32_t COUNTER_CLAIMS = 0x6;
constexpr uint32_t COUNTER_REJECTS = 0x7;
constexpr uint32_t COUNTER_TORN = 0x8;
constexpr uint32_t COUNTER_PROMPT_TOKENS = 0x9;
constexpr uint32_t COUNTER_PREFILL_TOKENS = 0xa;
constexpr uint32_t COUNTER_OUTPUT_TOKENS = 0xb;
constexpr uint32_t COUNTER_PREEMPTIONS = 0xc;
constexpr uint32_t COUNTER_RESUMES = 0xd;
constexpr uint32_t COUNTER_PAGES_TAKEN = 0xe;
constexpr uint32_t COUNTER_PAGES_RETURNED = 0xf;
constexpr uint32_t COUNTER_LANES_TAKEN = 0x10;
constexpr uint32_t COUNTER_LANES_RETURNED = 0x11;
constexpr uint32_t COUNTER_RECORDS_TAKEN = 0x12;
constexpr uint32_t COUNTER_RECORDS_RETURNED = 0x13;
constexpr uint32_t COUNTER_PUBLISHES = 0x14;
constexpr uint32_t COUNTER_DOORBELL_BAD = 0x15;
constexpr uint32_t COUNTER_FINISHED_BASE = 0x20;

/* gen16 ‖ state8 ‖ reason8 ‖ count32: state and reason of a slot, and how many tokens its answer has; one store */
struct W0 {
    BLINK_HD static uint64_t put_gen(uint64_t v) { return (v & 0xffffu) << 48; }
    BLINK_HD static uint32_t gen(uint64_t word) { return (uint32_t)(word >> 48) & 0xffffu; }
    BLINK_HD static uint64_t put_state(uint64_t v) { return (v & 0xffu) << 40; }
    BLINK_HD static uint32_t state(uint64_t word) { return (uint32_t)(word >> 40) & 0xffu; }
    BLINK_HD static uint64_t put_reason(uint64_t v) { return (v & 0xffu) << 32; }
    BLINK_HD static uint32_t reason(uint64_t word) { return (uint32_t)(word >> 32) & 0xffu; }
    BLINK_HD static uint64_t put_count(uint64_t v) { return (v & 0xffffffffu) << 0; }
    BLINK_HD static uint32_t count(uint64_t word) { return (uint32_t)(word >> 0) & 0xffffffffu; }
};

/* last20 ‖ prev20 ‖ count16 ‖ gen8: a hint, the last two of count tokens inline */
struct W1 {
    BLINK_HD static uint64_t put_last(uint64_t v) { return (v & 0xfffffu) << 44; }
    BLINK_HD static uint32_t last(uint64_t word) { return (uint32_t)(word >> 44) & 0xfffffu; }
    BLINK_HD static uint64_t put_prev(uint64_t v) { return (v & 0xfffffu) << 24; }
    BLINK_HD static uint32_t prev(uint64_t word) { return (uint32_t)(word >> 24) & 0xfffffu; }
    BLINK_HD static uint64_t put_count(uint64_t v) { return (v & 0xffffu) << 8; }
    BLINK_HD static uint32_t count(uint64_t word) { return (uint32_t)(word >> 8) & 0xffffu; }
    BLINK_HD static uint64_t put_gen(uint64_t v) { return (v & 0xffu) << 0; }
    BLINK_HD static uint32_t gen(uint64_t word) { return (uint32_t)(word >> 0) & 0xffu; }
};

/* gen4 ‖ rest30 ‖ first30: times of a request that ended, in µs: until its first token, and the rest until its last */
struct W2 {
    BLINK_HD static uint64_t put_gen(uint64_t v) { return (v & 0xfu) << 60; }
    BLINK_HD static uint32_t gen(uint64_t word) { return (uint32_t)(word >> 60) & 0xfu; }
    BLINK_HD static uint64_t put_rest(uint64_t v) { return (v > 0x3fffffffu ? 0x3fffffffu : v) << 30; }
    BLINK_HD static uint32_t rest(uint64_t word) { return (uint32_t)(word >> 30) & 0x3fffffffu; }
    BLINK_HD static uint64_t put_first(uint64_t v) { return (v > 0x3fffffffu ? 0x3fffffffu : v) << 0; }
    BLINK_HD static uint32_t first(uint64_t word) { return (uint32_t)(word >> 0) & 0x3fffffffu; }
};

/* seq32 ‖ gen32: a request of generation gen is in its slot */
struct Commit {
    BLINK_HD static uint64_t put_seq(uint64_t v) { return (v & 0xffffffffu) << 32; }
    BLINK_HD static uint32_t seq(uint64_t word) { return (uint32_t)(word >> 32) & 0xffffffffu; }
    BLINK_HD static uint64_t put_gen(uint64_t v) { return (v & 0xffffffffu) << 0; }
    BLINK_HD static uint32_t gen(uint64_t word) { return (uint32_t)(word >> 0) & 0xffffffffu; }
};

/* ~seq32 ‖ seq32: every commit up to seq is complete */
struct Bell {
    BLINK_HD static uint64_t put_seq(uint64_t v) { return (v & 0xffffffffu) << 0 | (~v & 0xffffffffu) << 32; }
    BLINK_HD static uint32_t seq(uint64_t word) { return (uint32_t)(word >> 0) & 0xffffffffu; }
    BLINK_HD static bool intact(uint64_t word) { return (word >> 32 & 0xffffffffu) == (~seq(word) & 0xffffffffu); }
};

/* ~gen32 ‖ gen32: generation gen of the slot is to end */
struct Cancel {
    BLINK_HD static uint64_t put_gen(uint64_t v) { return (v & 0xffffffffu) << 0 | (~v & 0xffffffffu) << 32; }
    BLINK_HD static uint32_t gen(uint64_t word) { return (uint32_t)(word >> 0) & 0xffffffffu; }
    BLINK_HD static bool intact(uint64_t word) { return (word >> 32 & 0xffffffffu) == (~gen(word) & 0xffffffffu); }
};

/* budget_ms32 ‖ phase32: what the scheduler does (see Phase), and how long that may last without a beat, in ms */
struct Activity {
    BLINK_HD static uint64_t put_budget_ms(uint64_t v) { return (v & 0xffffffffu) << 32; }
    BLINK_HD static uint32_t budget_ms(uint64_t word) { return (uint32_t)(word >> 32) & 0xffffffffu; }
    BLINK_HD static uint64_t put_phase(uint64_t v) { return (v & 0xffffffffu) << 0; }
    BLINK_HD static uint32_t phase(uint64_t word) { return (uint32_t)(word >> 0) & 0xffffffffu; }
};

/* H: written by the host before launch, then by the scheduler; remote read only */
struct RingHeader {
    uint64_t magic;
    uint32_t version;
    uint32_t features;  /* zero in this version */
    uint64_t epoch;  /* random, never zero, written last; a new backend is a new epoch */
    uint32_t slots;
    uint32_t parts;
    uint32_t lanes;
    uint32_t queue_cap;  /* requests that all workers together may have outstanding */
    uint64_t g_off;  /* of G_0 in the G object */
    uint64_t g_stride;
    uint64_t f_off;  /* of F_0 in the F object */
    uint64_t f_stride;
    uint64_t out_off;  /* output arena within G_p */
    uint64_t out_len;
    uint64_t in_off;  /* input arena within F_p */
    uint64_t in_len;
    uint8_t fingerprint[32];  /* SHA-256 that names model and tokenizer */
    uint32_t vocab;
    uint32_t max_context;  /* tokens of prompt and answer together */
    uint32_t ext_words;  /* longest extension, in 32-bit words */
    uint32_t page_tokens;
    uint32_t pages;
    uint8_t reserved0[868];
    uint64_t counters[128];  /* see Counter */
    uint8_t reserved1[2048];
};
static_assert(sizeof(RingHeader) == 4096, "RingHeader");
static_assert(__builtin_offsetof(RingHeader, magic) == 0, "RingHeader.magic");
static_assert(__builtin_offsetof(RingHeader, version) == 8, "RingHeader.version");
static_assert(__builtin_offsetof(RingHeader, features) == 12, "RingHeader.features");
static_assert(__builtin_offsetof(RingHeader, epoch) == 16, "RingHeader.epoch");
static_assert(__builtin_offsetof(RingHeader, slots) == 24, "RingHeader.slots");
static_assert(__builtin_offsetof(RingHeader, parts) == 28, "RingHeader.parts");
static_assert(__builtin_offsetof(RingHeader, lanes) == 32, "RingHeader.lanes");
static_assert(__builtin_offsetof(RingHeader, queue_cap) == 36, "RingHeader.queue_cap");
static_assert(__builtin_offsetof(RingHeader, g_off) == 40, "RingHeader.g_off");
static_assert(__builtin_offsetof(RingHeader, g_stride) == 48, "RingHeader.g_stride");
static_assert(__builtin_offsetof(RingHeader, f_off) == 56, "RingHeader.f_off");
static_assert(__builtin_offsetof(RingHeader, f_stride) == 64, "RingHeader.f_stride");
static_assert(__builtin_offsetof(RingHeader, out_off) == 72, "RingHeader.out_off");
static_assert(__builtin_offsetof(RingHeader, out_len) == 80, "RingHeader.out_len");
static_assert(__builtin_offsetof(RingHeader, in_off) == 88, "RingHeader.in_off");
static_assert(__builtin_offsetof(RingHeader, in_len) == 96, "RingHeader.in_len");
static_assert(__builtin_offsetof(RingHeader, fingerprint) == 104, "RingHeader.fingerprint");
static_assert(__builtin_offsetof(RingHeader, vocab) == 136, "RingHeader.vocab");
static_assert(__builtin_offsetof(RingHeader, max_context) == 140, "RingHeader.max_context");
static_assert(__builtin_offsetof(RingHeader, ext_words) == 144, "RingHeader.ext_words");
static_assert(__builtin_offsetof(RingHeader, page_tokens) == 148, "RingHeader.page_tokens");
static_assert(__builtin_offsetof(RingHeader, pages) == 152, "RingHeader.pages");
static_assert(__builtin_offsetof(RingHeader, counters) == 1024, "RingHeader.counters");

/* head of G_p, written by the scheduler */
struct RingGHead {
    uint64_t epoch;
    uint64_t pub_seq;  /* grows whenever a status of this partition changes */
    uint64_t beat;  /* grows every scheduler step */
    uint64_t activity;  /* budget_ms32 ‖ phase32: what the scheduler does (see Phase), and how long that may last without a beat, in ms */
    uint64_t db_seen;
    uint64_t torn;
    uint8_t reserved0[16];
};
static_assert(sizeof(RingGHead) == 64, "RingGHead");
static_assert(__builtin_offsetof(RingGHead, epoch) == 0, "RingGHead.epoch");
static_assert(__builtin_offsetof(RingGHead, pub_seq) == 8, "RingGHead.pub_seq");
static_assert(__builtin_offsetof(RingGHead, beat) == 16, "RingGHead.beat");
static_assert(__builtin_offsetof(RingGHead, activity) == 24, "RingGHead.activity");
static_assert(__builtin_offsetof(RingGHead, db_seen) == 32, "RingGHead.db_seen");
static_assert(__builtin_offsetof(RingGHead, torn) == 40, "RingGHead.torn");

/* status of a slot, written by the scheduler */
struct RingStatus {
    uint64_t w0;  /* gen16 ‖ state8 ‖ reason8 ‖ count32: state and reason of a slot, and how many tokens its answer has; one store */
    uint64_t w1;  /* last20 ‖ prev20 ‖ count16 ‖ gen8: a hint, the last two of count tokens inline */
    uint64_t w2;  /* gen4 ‖ rest30 ‖ first30: times of a request that ended, in µs: until its first token, and the rest until its last */
};
static_assert(sizeof(RingStatus) == 24, "RingStatus");
static_assert(__builtin_offsetof(RingStatus, w0) == 0, "RingStatus.w0");
static_assert(__builtin_offsetof(RingStatus, w1) == 8, "RingStatus.w1");
static_assert(__builtin_offsetof(RingStatus, w2) == 16, "RingStatus.w2");

/* head of F_p, written by worker p */
struct RingFHead {
    uint64_t db;  /* ~seq32 ‖ seq32: every commit up to seq is complete */
    uint64_t alive;  /* grows while the worker lives */
    uint8_t reserved0[48];
};
static_assert(sizeof(RingFHead) == 64, "RingFHead");
static_assert(__builtin_offsetof(RingFHead, db) == 0, "RingFHead.db");
static_assert(__builtin_offsetof(RingFHead, alive) == 8, "RingFHead.alive");

/* commands for a slot, written by worker p */
struct RingCommand {
    uint64_t commit;  /* seq32 ‖ gen32: a request of generation gen is in its slot */
    uint64_t cancel;  /* ~gen32 ‖ gen32: generation gen of the slot is to end */
};
static_assert(sizeof(RingCommand) == 16, "RingCommand");
static_assert(__builtin_offsetof(RingCommand, commit) == 0, "RingCommand.commit");
static_assert(__builtin_offsetof(RingCommand, cancel) == 8, "RingCommand.cancel");

/* a request, written by worker p; the scheduler copies it, then validates the copy */
struct RingRequest {
    uint32_t gen;
    uint32_t seq;
    uint64_t prompt_off;  /* from the start of F_p */
    uint32_t prompt_len;  /* tokens */
    uint32_t max_tokens;
    uint64_t out_off;  /* from the start of G_p; u32 token i at out_off + 4 i */
    uint64_t lp_off;  /* from the start of G_p; logprob record i at lp_off + i * logprob_stride(lp_n) */
    uint32_t out_cap;  /* tokens that fit behind out_off, and records behind lp_off; >= max_tokens */
    uint32_t flags;
    float temperature;  /* 0 is greedy */
    float top_p;
    uint32_t top_k;  /* 0 keeps all */
    float min_p;
    float frequency;
    float presence;
    float repetition;  /* 1 changes nothing */
    uint32_t n_stop;  /* stop ids in stop[]; more in the extension */
    uint64_t seed;
    uint32_t stop[4];
    uint32_t ext_off;  /* from the start of F_p; see docs/protocol.md, Extension */
    uint32_t ext_words;
    uint32_t deadline_ms;  /* from the first scan that sees the request; 0 is none */
    uint16_t lp_n;  /* alternatives per token, 0 to 20; only with LOGPROBS */
    uint16_t min_tokens;  /* no EOS and no stop id before that many tokens */
    uint32_t prompt_hash;  /* words_hash over prompt and extension */
    uint32_t crc;  /* CRC-32C of bytes 00 to 7B */
};
static_assert(sizeof(RingRequest) == 128, "RingRequest");
static_assert(__builtin_offsetof(RingRequest, gen) == 0, "RingRequest.gen");
static_assert(__builtin_offsetof(RingRequest, seq) == 4, "RingRequest.seq");
static_assert(__builtin_offsetof(RingRequest, prompt_off) == 8, "RingRequest.prompt_off");
static_assert(__builtin_offsetof(RingRequest, prompt_len) == 16, "RingRequest.prompt_len");
static_assert(__builtin_offsetof(RingRequest, max_tokens) == 20, "RingRequest.max_tokens");
static_assert(__builtin_offsetof(RingRequest, out_off) == 24, "RingRequest.out_off");
static_assert(__builtin_offsetof(RingRequest, lp_off) == 32, "RingRequest.lp_off");
static_assert(__builtin_offsetof(RingRequest, out_cap) == 40, "RingRequest.out_cap");
static_assert(__builtin_offsetof(RingRequest, flags) == 44, "RingRequest.flags");
static_assert(__builtin_offsetof(RingRequest, temperature) == 48, "RingRequest.temperature");
static_assert(__builtin_offsetof(RingRequest, top_p) == 52, "RingRequest.top_p");
static_assert(__builtin_offsetof(RingRequest, top_k) == 56, "RingRequest.top_k");
static_assert(__builtin_offsetof(RingRequest, min_p) == 60, "RingRequest.min_p");
static_assert(__builtin_offsetof(RingRequest, frequency) == 64, "RingRequest.frequency");
static_assert(__builtin_offsetof(RingRequest, presence) == 68, "RingRequest.presence");
static_assert(__builtin_offsetof(RingRequest, repetition) == 72, "RingRequest.repetition");
static_assert(__builtin_offsetof(RingRequest, n_stop) == 76, "RingRequest.n_stop");
static_assert(__builtin_offsetof(RingRequest, seed) == 80, "RingRequest.seed");
static_assert(__builtin_offsetof(RingRequest, stop) == 88, "RingRequest.stop");
static_assert(__builtin_offsetof(RingRequest, ext_off) == 104, "RingRequest.ext_off");
static_assert(__builtin_offsetof(RingRequest, ext_words) == 108, "RingRequest.ext_words");
static_assert(__builtin_offsetof(RingRequest, deadline_ms) == 112, "RingRequest.deadline_ms");
static_assert(__builtin_offsetof(RingRequest, lp_n) == 116, "RingRequest.lp_n");
static_assert(__builtin_offsetof(RingRequest, min_tokens) == 118, "RingRequest.min_tokens");
static_assert(__builtin_offsetof(RingRequest, prompt_hash) == 120, "RingRequest.prompt_hash");
static_assert(__builtin_offsetof(RingRequest, crc) == 124, "RingRequest.crc");

/* a logprob record as the engine leaves it; in the output arena it is packed to chosen, n, ids[lp_n], values[lp_n] */
struct RingLogprob {
    float chosen;  /* natural log probability of the token itself, before temperature and penalties */
    uint32_t n;
    uint32_t ids[20];  /* the n most likely tokens, most likely first */
    float values[20];
};
static_assert(sizeof(RingLogprob) == 168, "RingLogprob");
static_assert(__builtin_offsetof(RingLogprob, chosen) == 0, "RingLogprob.chosen");
static_assert(__builtin_offsetof(RingLogprob, n) == 4, "RingLogprob.n");
static_assert(__builtin_offsetof(RingLogprob, ids) == 8, "RingLogprob.ids");
static_assert(__builtin_offsetof(RingLogprob, values) == 88, "RingLogprob.values");

/* 32-bit words of an extension: n_stop, n_bias, stop id[n_stop], (token id, bits of a float32)[n_bias] */
BLINK_HD uint64_t extension_words(uint64_t n_stop, uint64_t n_bias) { return 2 + 1 * n_stop + 2 * n_bias; }

/* bytes of one packed logprob record in the output arena with lp_n alternatives per token */
BLINK_HD uint64_t logprob_stride(uint64_t lp_n) { return 8 + 8 * lp_n; }

/* of request[0] within F_p: behind the commands */
BLINK_HD uint64_t request_off(uint64_t slots_per_part) { return (64 + 16 * slots_per_part + 127) / 128 * 128; }

}  // namespace blink
#endif  // BLINK_RING_LAYOUT_H
