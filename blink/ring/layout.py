"""Layout of the ring: the one definition from which the C header and the NumPy views are made.

The ring is three kinds of region (docs/protocol.md). H is the header. For each partition p there is a region G_p that
only the scheduler writes and a region F_p that only frontend worker p writes. All words are little-endian, and every
word has one writer.

    G object:  [ H, 4 KiB ][ G_0 ][ G_1 ] …      G_p: GHead, status[n], output arena
    F object:  [ F_0 ][ F_1 ] …                  F_p: FHead, cmd[n], request[n], input arena

n = slots / parts. Offsets of the arenas are from the start of their partition and stand in H, so that a reader needs
nothing but H.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from blink import limits
from blink.cstruct import Field, Linear, Struct
from blink.ring.words import HINT_TOKEN_LIMIT, W0, W1, W2, WORDS, Activity, Bell, Cancel, Commit

MAGIC = 0x31474E524B4E4C42  # "BLNKRNG1"
VERSION = 2
PAGE = 4096
EXTENT_ALIGN = 64
LOGPROBS_MAX = 20
STOP_INLINE = 4
"""Stop ids in the request record itself; more are in the extension."""
COUNTERS = 128


class State(enum.IntEnum):
    """State of a slot as published in w0; EMPTY and PREFILL_PENDING are derived by the readers (paper, section 4.2)."""

    EMPTY = 0
    PREFILL_PENDING = 1
    PREFILL_PROCESSING = 2
    DECODE_PROCESSING = 3
    DECODE_PAUSED = 4
    DECODE_COMPLETED = 5


class Reason(enum.IntEnum):
    """Why a slot completed; below 16 a normal end, from 16 on an error."""

    NONE = 0
    EOS = 1
    STOP_ID = 2
    LENGTH = 3
    CANCELLED = 4
    DEADLINE = 5
    ORPHANED = 6
    ERR_TORN = 16
    ERR_EMPTY = 17
    ERR_HASH = 18
    ERR_TOKEN = 19
    ERR_BOUNDS = 20
    ERR_TOO_LONG = 21
    ERR_PARAMS = 22
    ERR_DRAINING = 23
    ERR_ENGINE = 24
    ERR_STOPPED = 25


REASON_TEXT = {
    Reason.NONE: "not finished",
    Reason.EOS: "the model ended its answer",
    Reason.STOP_ID: "a stop token was generated",
    Reason.LENGTH: "max_tokens or the context length was reached",
    Reason.CANCELLED: "cancelled by the frontend",
    Reason.DEADLINE: "the request's deadline passed",
    Reason.ORPHANED: "the frontend's partition stopped beating",
    Reason.ERR_TORN: "the request record never became consistent",
    Reason.ERR_EMPTY: "the prompt is empty",
    Reason.ERR_HASH: "the prompt does not match its hash",
    Reason.ERR_TOKEN: "a token id is outside the vocabulary",
    Reason.ERR_BOUNDS: "an extent lies outside its partition or is too small",
    Reason.ERR_TOO_LONG: "prompt and max_tokens exceed the context length",
    Reason.ERR_PARAMS: "a sampling parameter is out of range",
    Reason.ERR_DRAINING: "the scheduler is draining",
    Reason.ERR_ENGINE: "the engine failed on this request",
    Reason.ERR_STOPPED: "the scheduler was stopped",
}


class Flag(enum.IntFlag):
    """Bits of ``Request.flags``."""

    IGNORE_EOS = 1
    LOGPROBS = 2


class Phase(enum.IntEnum):
    """What the scheduler is doing, published before anything that may outlast a beat."""

    STARTING = 0
    IDLE = 1
    PREFILL = 2
    DECODE = 3
    DRAINING = 4
    STOPPED = 5


class Counter(enum.IntEnum):
    """Index into ``Header.counters``; each only grows."""

    STEPS = 0
    IDLE_STEPS = 1
    PREFILL_STEPS = 2
    DECODE_STEPS = 3
    LAUNCHES = 4
    RELAUNCHES = 5
    CLAIMS = 6
    REJECTS = 7
    TORN = 8
    PROMPT_TOKENS = 9
    PREFILL_TOKENS = 10
    OUTPUT_TOKENS = 11
    PREEMPTIONS = 12
    RESUMES = 13
    PAGES_TAKEN = 14
    PAGES_RETURNED = 15
    LANES_TAKEN = 16
    LANES_RETURNED = 17
    RECORDS_TAKEN = 18
    RECORDS_RETURNED = 19
    PUBLISHES = 20
    DOORBELL_BAD = 21
    FINISHED_BASE = 32  # + Reason: requests that ended with it


HEADER = Struct(
    "RingHeader",
    PAGE,
    (
        Field(0x000, "u64", "magic"),
        Field(0x008, "u32", "version"),
        Field(0x00C, "u32", "features", "zero in this version"),
        Field(0x010, "u64", "epoch", "random, never zero, written last; a new backend is a new epoch"),
        Field(0x018, "u32", "slots"),
        Field(0x01C, "u32", "parts"),
        Field(0x020, "u32", "lanes"),
        Field(0x024, "u32", "queue_cap", "requests that all workers together may have outstanding"),
        Field(0x028, "u64", "g_off", "of G_0 in the G object"),
        Field(0x030, "u64", "g_stride"),
        Field(0x038, "u64", "f_off", "of F_0 in the F object"),
        Field(0x040, "u64", "f_stride"),
        Field(0x048, "u64", "out_off", "output arena within G_p"),
        Field(0x050, "u64", "out_len"),
        Field(0x058, "u64", "in_off", "input arena within F_p"),
        Field(0x060, "u64", "in_len"),
        Field(0x068, "u8", "fingerprint", "SHA-256 that names model and tokenizer", 32),
        Field(0x088, "u32", "vocab"),
        Field(0x08C, "u32", "max_context", "tokens of prompt and answer together"),
        Field(0x090, "u32", "ext_words", "longest extension, in 32-bit words"),
        Field(0x094, "u32", "page_tokens"),
        Field(0x098, "u32", "pages"),
        Field(0x400, "u64", "counters", "see Counter", COUNTERS),
    ),
    "H: written by the host before launch, then by the scheduler; remote read only",
)

G_HEAD = Struct(
    "RingGHead",
    0x40,
    (
        Field(0x00, "u64", "epoch"),
        Field(0x08, "u64", "pub_seq", "grows whenever a status of this partition changes"),
        Field(0x10, "u64", "beat", "grows every scheduler step"),
        Field(0x18, "u64", "activity", word=Activity),
        Field(0x20, "u64", "db_seen"),
        Field(0x28, "u64", "torn"),
    ),
    "head of G_p, written by the scheduler",
)

STATUS = Struct(
    "RingStatus",
    24,
    (
        Field(0, "u64", "w0", word=W0),
        Field(8, "u64", "w1", word=W1),
        Field(16, "u64", "w2", word=W2),
    ),
    "status of a slot, written by the scheduler",
)

F_HEAD = Struct(
    "RingFHead",
    0x40,
    (
        Field(0x00, "u64", "db", word=Bell),
        Field(0x08, "u64", "alive", "grows while the worker lives"),
    ),
    "head of F_p, written by worker p",
)

COMMAND = Struct(
    "RingCommand",
    16,
    (
        Field(0, "u64", "commit", word=Commit),
        Field(8, "u64", "cancel", word=Cancel),
    ),
    "commands for a slot, written by worker p",
)

REQUEST = Struct(
    "RingRequest",
    128,
    (
        Field(0x00, "u32", "gen"),
        Field(0x04, "u32", "seq"),
        Field(0x08, "u64", "prompt_off", "from the start of F_p"),
        Field(0x10, "u32", "prompt_len", "tokens"),
        Field(0x14, "u32", "max_tokens"),
        Field(0x18, "u64", "out_off", "from the start of G_p; u32 token i at out_off + 4 i"),
        Field(0x20, "u64", "lp_off", "from the start of G_p; logprob record i at lp_off + i * logprob_stride(lp_n)"),
        Field(0x28, "u32", "out_cap", "tokens that fit behind out_off, and records behind lp_off; >= max_tokens"),
        Field(0x2C, "u32", "flags"),
        Field(0x30, "f32", "temperature", "0 is greedy"),
        Field(0x34, "f32", "top_p"),
        Field(0x38, "u32", "top_k", "0 keeps all"),
        Field(0x3C, "f32", "min_p"),
        Field(0x40, "f32", "frequency"),
        Field(0x44, "f32", "presence"),
        Field(0x48, "f32", "repetition", "1 changes nothing"),
        Field(0x4C, "u32", "n_stop", "stop ids in stop[]; more in the extension"),
        Field(0x50, "u64", "seed"),
        Field(0x58, "u32", "stop", "", STOP_INLINE),
        Field(0x68, "u32", "ext_off", "from the start of F_p; see docs/protocol.md, Extension"),
        Field(0x6C, "u32", "ext_words"),
        Field(0x70, "u32", "deadline_ms", "from the first scan that sees the request; 0 is none"),
        Field(0x74, "u16", "lp_n", "alternatives per token, 0 to 20; only with LOGPROBS"),
        Field(0x76, "u16", "min_tokens", "no EOS and no stop id before that many tokens"),
        Field(0x78, "u32", "prompt_hash", "words_hash over prompt and extension"),
        Field(0x7C, "u32", "crc", "CRC-32C of bytes 00 to 7B"),
    ),
    "a request, written by worker p; the scheduler copies it, then validates the copy",
)

EXTENSION_STOP = 2
"""32-bit words of an extension before its stop ids: n_stop and n_bias."""
EXTENSION_PAIR = 2
"""32-bit words of one entry of an extension's logit bias, which follow the stop ids: token id, bits of a float32."""
EXTENSION_WORDS = Linear(
    "extension_words",
    EXTENSION_STOP,
    {"n_stop": 1, "n_bias": EXTENSION_PAIR},
    doc="32-bit words of an extension: n_stop, n_bias, stop id[n_stop], (token id, bits of a float32)[n_bias]",
)

LOGPROB = Struct(
    "RingLogprob",
    8 + 8 * LOGPROBS_MAX,
    (
        Field(0, "f32", "chosen", "natural log probability of the token itself, before temperature and penalties"),
        Field(4, "u32", "n"),
        Field(8, "u32", "ids", "the n most likely tokens, most likely first", LOGPROBS_MAX),
        Field(8 + 4 * LOGPROBS_MAX, "f32", "values", "", LOGPROBS_MAX),
    ),
    "a logprob record as the engine leaves it; in the output arena it is packed to chosen, n, ids[lp_n], values[lp_n]",
)

LOGPROB_STRIDE = Linear(
    "logprob_stride",
    LOGPROB.offset("ids"),
    {"lp_n": 8},
    doc="bytes of one packed logprob record in the output arena with lp_n alternatives per token",
)
REQUEST_OFF = Linear(
    "request_off",
    F_HEAD.size,
    {"slots_per_part": COMMAND.size},
    REQUEST.size,
    "of request[0] within F_p: behind the commands",
)

STRUCTS = (HEADER, G_HEAD, STATUS, F_HEAD, COMMAND, REQUEST, LOGPROB)
PARTS = (*WORDS, *STRUCTS, EXTENSION_WORDS, LOGPROB_STRIDE, REQUEST_OFF)


def logprob_stride(lp_n: int) -> int:
    """Bytes of one packed logprob record in the output arena with ``lp_n`` alternatives per token."""
    return LOGPROB_STRIDE(lp_n=lp_n)


def _up(value: int, align: int) -> int:
    return -(-value // align) * align


@dataclass(frozen=True)
class Geometry:
    """Sizes of a ring, from which every offset follows.

    ``slots`` is a multiple of ``parts``; ``input_bytes`` and ``output_bytes`` are the arenas of one partition.
    Raises ValueError, naming the field, for a geometry that cannot be laid out.
    """

    slots: int = 4096
    parts: int = 1
    input_bytes: int = 16 << 20
    output_bytes: int = 16 << 20

    def __post_init__(self) -> None:
        if not 1 <= self.parts <= limits.PARTITIONS:
            raise ValueError(f"parts: {self.parts} is not between 1 and {limits.PARTITIONS}")
        if self.slots < self.parts or self.slots % self.parts or self.slots > limits.SLOTS:
            raise ValueError(f"slots: {self.slots} is not a multiple of parts ({self.parts}) up to {limits.SLOTS}")
        for name in ("input_bytes", "output_bytes"):
            value = getattr(self, name)
            if value < PAGE or value % EXTENT_ALIGN or value > 1 << 31:
                raise ValueError(f"{name}: {value} is not a multiple of {EXTENT_ALIGN} between {PAGE} and 2 GiB")

    @property
    def slots_per_part(self) -> int:
        """n: slots of one partition."""
        return self.slots // self.parts

    @property
    def status_off(self) -> int:
        """Of status[0] within G_p."""
        return G_HEAD.size

    @property
    def out_off(self) -> int:
        """Of the output arena within G_p; page-aligned."""
        return _up(self.status_off + self.slots_per_part * STATUS.size, PAGE)

    @property
    def g_off(self) -> int:
        """Of G_0 within the G object."""
        return HEADER.size

    @property
    def g_stride(self) -> int:
        """Bytes of one G_p; page-aligned."""
        return _up(self.out_off + self.output_bytes, PAGE)

    @property
    def cmd_off(self) -> int:
        """Of cmd[0] within F_p."""
        return F_HEAD.size

    @property
    def request_off(self) -> int:
        """Of request[0] within F_p."""
        return REQUEST_OFF(slots_per_part=self.slots_per_part)

    @property
    def in_off(self) -> int:
        """Of the input arena within F_p; page-aligned."""
        return _up(self.request_off + self.slots_per_part * REQUEST.size, PAGE)

    @property
    def f_stride(self) -> int:
        """Bytes of one F_p; page-aligned."""
        return _up(self.in_off + self.input_bytes, PAGE)

    @property
    def g_bytes(self) -> int:
        """Bytes of the G object, header included."""
        return self.g_off + self.parts * self.g_stride

    @property
    def f_bytes(self) -> int:
        """Bytes of the F object."""
        return self.parts * self.f_stride


def header_enums() -> dict[str, dict[str, int]]:
    """The constants that the C header carries."""
    return {
        "RING": {"MAGIC": MAGIC, "VERSION": VERSION, "MAX_PARTITIONS": limits.PARTITIONS, "MAX_SLOTS": limits.SLOTS,
                 "EXTENT_ALIGN": EXTENT_ALIGN, "LOGPROBS_MAX": LOGPROBS_MAX, "HINT_TOKEN_LIMIT": HINT_TOKEN_LIMIT,
                 "STOP_INLINE": STOP_INLINE, "COUNTERS": COUNTERS, "EXTENSION_STOP": EXTENSION_STOP,
                 "EXTENSION_PAIR": EXTENSION_PAIR, "STATUS_OFF": G_HEAD.size, "CMD_OFF": F_HEAD.size},
        "STATE": {s.name: s.value for s in State},
        "REASON": {r.name: r.value for r in Reason},
        "FLAG": {f.name or "": f.value for f in Flag},
        "PHASE": {p.name: p.value for p in Phase},
        "COUNTER": {c.name: c.value for c in Counter},
    }  # fmt: skip
