"""What Python and the native kernels agree on: arguments, threads, tiles, shared memory.

kernels/native/layout.h is made of it (`make generate`). Imports nothing of CUDA.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Annotated

from blink.cstruct import Field, Struct
from blink.engine.seam.batch import BATCH, STEP
from blink.gpu.arguments import F32, U32, U64, Arguments, Entry, Pointers

WARP = 32
MAX_HEAD_DIM = 128

ROW_THREADS = 256
"""Of a block that has a row, or a token, of activations; of linear layers' too, which make norms themselves."""
HEADS_PER_BLOCK = ROW_THREADS // WARP
"""Heads of a token that a block of native_rotate has, a warp for each."""
NUMBERS_PER_THREAD = 8
"""Of native_swiglu."""
CHECK_THREADS = 128
RANDOM_BLOCKS = 1056

DECODE_WARPS, DECODE_THREADS = 4, 4 * WARP
DECODE_SPLIT = 128
"""Positions of one item of decode work."""
DECODE_HEADS = 8
"""Query heads of one item."""
DECODE_RECORD = 4
"""Floats that a head's partial result has ahead of its output: sum, largest score, and two to align."""
DECODE_SPREAD = 8
"""Floats between two heads' outputs in shared memory, which spread them over its banks."""

PREFILL_COMPUTING, PREFILL_COPYING = 8 * WARP, 4 * WARP
PREFILL_THREADS = PREFILL_COMPUTING + PREFILL_COPYING
PREFILL_PAIRS = 128
"""Pairs of token and query head of one item of prefill work."""
PREFILL_POSITIONS = 128
"""Positions of one tile of keys or values."""
SWIZZLED_NUMBERS, SWIZZLED_ROW = 64, 128
"""Of 16 bits in a row of a tile in the tensor cores' 128-byte swizzle, and bytes."""
TILE_ALIGN = 1024

SAMPLE_CLUSTER, SAMPLE_WARPS, SAMPLE_THREADS = 8, 16, 16 * WARP
"""Blocks that have a row, and warps and threads of each."""

LINEAR_SPLITS, LINEAR_OUTPUTS, LINEAR_CHUNK = HEADS_PER_BLOCK, 16, 32
"""Ranges of k, one for each warp of a block; outputs of a tile; numbers of k that a warp multiplies at once."""
LINEAR_ROWS, LINEAR_NORMED = 8, 2
"""Rows of x that a block takes, and that it can make by RMSNorm itself."""
LINEAR_SUMS = 2
"""Sets of the ranges' sums in shared memory: one is added up while the next is made."""

CONSTANTS = {
    "MAX": {"HEAD_DIM": MAX_HEAD_DIM},
    "ROW": {"THREADS": ROW_THREADS, "HEADS": HEADS_PER_BLOCK, "EACH": NUMBERS_PER_THREAD},
    "CHECK": {"THREADS": CHECK_THREADS},
    "DECODE": {
        "WARPS": DECODE_WARPS, "THREADS": DECODE_THREADS, "SPLIT": DECODE_SPLIT, "HEADS": DECODE_HEADS,
        "RECORD": DECODE_RECORD, "SPREAD": DECODE_SPREAD,
    },
    "PREFILL": {
        "COMPUTING": PREFILL_COMPUTING, "COPYING": PREFILL_COPYING, "THREADS": PREFILL_THREADS,
        "PAIRS": PREFILL_PAIRS, "POSITIONS": PREFILL_POSITIONS,
    },
    "SWIZZLED": {"NUMBERS": SWIZZLED_NUMBERS, "ROW": SWIZZLED_ROW},
    "TILE": {"ALIGN": TILE_ALIGN},
    "SAMPLE": {"CLUSTER": SAMPLE_CLUSTER, "WARPS": SAMPLE_WARPS, "THREADS": SAMPLE_THREADS},
    "LINEAR": {
        "SPLITS": LINEAR_SPLITS, "OUTPUTS": LINEAR_OUTPUTS, "CHUNK": LINEAR_CHUNK, "ROWS": LINEAR_ROWS,
        "NORMED": LINEAR_NORMED, "SUMS": LINEAR_SUMS,
    },
}  # fmt: skip
"""Prefix of the names in C → names → values."""

Floats = Annotated[int, "const float *"]
Reals = Annotated[int, "const real *"]
Word = Annotated[int, "const uint32_t *", "how many tokens, or rows, there are"]

STEP_STATE = Struct(
    "StepState",
    80,
    (
        Field(0, STEP, "checked"),
        Field(64, "u32", "bad", "while blocks still check"),
        Field(68, "u32", "ticket", "blocks that have checked"),
        Field(72, "u32", "error", "of this step"),
    ),
    "what the check of a step leaves for the other kernels and for the next step; zero at first",
)


@dataclass(frozen=True)
class StepLimits(Arguments):
    """what a step may have"""

    rows: Annotated[int, "u32", "of this graph"]
    tokens: U32
    decode: Annotated[int, "u32", "every row has one token"]
    vocab: U32
    context: U32
    page_tokens: U32
    pages: U32
    lanes: U32
    lane_pages: U32


@dataclass(frozen=True)
class CheckArguments(Arguments):
    """of native_check"""

    batch: Annotated[Pointers, BATCH]
    limits: Annotated[StepLimits, StepLimits]
    state: Annotated[int, "StepState *"]


@dataclass(frozen=True)
class DoneArguments(Arguments):
    """of native_done"""

    control: Annotated[int, "StepControl *"]
    state: Annotated[int, "const StepState *"]


@dataclass(frozen=True)
class EmbedArguments(Arguments):
    """of native_embed"""

    table: Reals
    stride: U32
    ids: Annotated[int, "const int32_t *"]
    count: Word
    x: Annotated[int, "float *"]
    width: U32


@dataclass(frozen=True)
class NormArguments(Arguments):
    """of native_norm"""

    x: Floats
    weight: Floats
    eps: F32
    y: Annotated[int, "real *"]
    width: U32
    stride: U32
    count: Word
    ends: Annotated[int, "const int32_t *", "row_start, or null: of every token"]


@dataclass(frozen=True)
class Rotary(Arguments):
    """how queries and keys of one layer are rotated, and where its cache is"""

    cos: Annotated[int, "const float *", "[context][dim / 2], sin too"]
    sin: Floats
    q_norm: Annotated[int, "const float *", "[head_dim], or null"]
    k_norm: Floats
    positions: Annotated[int, "const int32_t *", "of each token"]
    kv_index: Annotated[int, "const int32_t *", "of each token"]
    keys: Annotated[int, "real *", "[pages][kv_heads][page_tokens][head_dim], values too"]
    values: Annotated[int, "real *"]
    eps: F32
    dim: U32
    heads: U32
    kv_heads: U32
    head_dim: U32
    page_tokens: U32


NO_ROTARY = Rotary(*[0] * 14)


@dataclass(frozen=True)
class RotateArguments(Arguments):
    """of native_rotate"""

    rotary: Annotated[Rotary, Rotary]
    qkv: Annotated[int, "real *"]
    stride: U32
    count: Word


@dataclass(frozen=True)
class SwigluArguments(Arguments):
    """of native_swiglu"""

    both: Annotated[int, "const real *", "[tokens][gate, then up]"]
    y: Annotated[int, "real *"]
    width: U32
    both_stride: U32
    stride: U32
    count: Word


@dataclass(frozen=True)
class BiasArguments(Arguments):
    """of native_bias: y is 16 bits, or float32 where `wide` is given instead"""

    y: Annotated[int, "real *"]
    wide: Annotated[int, "float *"]
    bias: Floats
    width: U32
    stride: U32
    count: Word


@dataclass(frozen=True)
class RandomArguments(Arguments):
    """of native_random: fills w, or `wide` where that is given instead"""

    w: Annotated[int, "real *"]
    wide: Annotated[int, "float *"]
    rows: U64
    width: U32
    stride: U32
    seed: U64
    bound: F32
    middle: F32


@dataclass(frozen=True)
class LinearArguments(Arguments):
    """of linear layers for few rows; null is what a kernel does not take"""

    w: Reals
    x: Reals
    y: Annotated[int, "void *", "STORE, SILU, ROTATE: real; RESIDUAL, LOGITS: float"]
    bias: Annotated[int, "const float *", "[outputs], or null"]
    outputs: Annotated[int, "u32", "rows of W; SILU: of gate, and as many of up follow; ROTATE: pairs of rows"]
    k: U32
    x_stride: U32
    y_stride: U32
    rows: Annotated[int, "const uint32_t *", "of x, on the device"]
    share: Annotated[int, "u32", "outputs of a block, a multiple of 8"]
    width: Annotated[int, "u32", "of a row that x is the norm of; these are `width` apart"]
    normed: Annotated[int, "const float *", "those rows"]
    weight: Floats
    eps: F32
    rotary: Annotated[Rotary, Rotary, "for ROTATE; it rotates whole heads, which have no norms"]


@dataclass(frozen=True)
class AttentionArguments(Arguments):
    """of attention"""

    batch: Annotated[Pointers, BATCH]
    q: Annotated[int, "const real *", "[tokens][q_stride], from the first query head on"]
    q_stride: U64
    keys: Annotated[int, "const real *", "[pages][kv_heads][page_tokens][head_dim], values too"]
    values: Reals
    out: Annotated[int, "real *", "[tokens][out_stride]"]
    out_stride: U64
    partial: Annotated[int, "float *", "decode: what splits leave for the last of their row to combine"]
    finished: Annotated[int, "uint32_t *", "decode: [lanes][units], 0 between steps"]
    heads: U32
    kv_heads: U32
    page_bits: U32
    lane_pages: U32
    window: Annotated[int, "u32", "a query sees that many positions up to its own; 0: all"]
    scale_log2: Annotated[float, "f32", "of the dot products, by log2(e) since powers of 2 are taken"]


@dataclass(frozen=True)
class SampleArguments(Arguments):
    """of native_sample"""

    batch: Annotated[Pointers, BATCH]
    logits: Annotated[int, "const float *", "[rows][vocab]"]
    fed: Annotated[int, "int32_t *", "[lanes][context], the token fed at each position of each lane"]
    spill: Annotated[int, "float *", "[rows][ids of a cluster], or null: shared memory has room"]
    context: U32
    vocab: U32
    range: Annotated[int, "u32", "consecutive ids of each warp"]


class Epilogue(enum.Enum):
    """What happens to a product: stored (16 bits); queries rotated and stored, keys rotated and values taken to the
    cache; added to y (f32); SwiGLU of its halves stored (16 bits); stored (f32)."""

    STORE = "store"
    ROTATE = "rotate"
    RESIDUAL = "residual"
    SILU = "silu"
    LOGITS = "logits"


@dataclass(frozen=True)
class LinearKernel:
    """One of kernels/native/linear.cu: it takes ``rows`` of x, made by RMSNorm if these are LINEAR_NORMED; ``ahead``
    steps, of ``step`` chunks, of W are on their way; ``resident`` blocks are on a multiprocessor."""

    rows: int
    epilogue: Epilogue
    step: int
    ahead: int
    resident: int

    @property
    def name(self) -> str:
        """Of the kernel."""
        return f"linear_{self.rows}_{self.epilogue.value}"

    @property
    def entry(self) -> Entry:
        """How it is launched."""
        return Entry("native/linear.cu", self.name, ROW_THREADS, LinearArguments)

    @property
    def storage(self) -> int:
        """Bytes of its Storage: the ring of W's steps, and the ranges' sums. Rows made by RMSNorm come after it."""
        ring = self.ahead * self.step * 2 * 16 * ROW_THREADS
        return ring + 4 * LINEAR_SUMS * LINEAR_SPLITS * self.rows * LINEAR_OUTPUTS


_DEEP, _WIDE = (4, 3, 2), (4, 2, 3)  # step, ahead, resident
LINEAR_KERNELS = (
    LinearKernel(LINEAR_NORMED, Epilogue.STORE, *_DEEP),
    LinearKernel(LINEAR_NORMED, Epilogue.ROTATE, *_WIDE),
    LinearKernel(LINEAR_NORMED, Epilogue.SILU, *_DEEP),
    *(LinearKernel(LINEAR_ROWS, e, *(_WIDE if e is Epilogue.ROTATE else _DEEP)) for e in Epilogue),
)

LAYERS = tuple(
    Entry("native/layers.cu", f"native_{name}", ROW_THREADS, arguments)
    for name, arguments in {
        "embed": EmbedArguments, "norm": NormArguments, "rotate": RotateArguments, "swiglu": SwigluArguments,
        "bias": BiasArguments,
    }.items()
)  # fmt: skip
RANDOM = Entry("native/layers.cu", "native_random", ROW_THREADS, RandomArguments)
CHECK = Entry("native/step.cu", "native_check", CHECK_THREADS, CheckArguments)
DONE = Entry("native/step.cu", "native_done", 1, DoneArguments)
DECODE = Entry("native/attention_decode.cu", "native_attention_decode", DECODE_THREADS, AttentionArguments)
PREFILL = Entry("native/attention_prefill.cu", "native_attention_prefill", PREFILL_THREADS, AttentionArguments)
SAMPLE = Entry("native/sample.cu", "native_sample", SAMPLE_THREADS, SampleArguments)
ENTRIES = (*LAYERS, RANDOM, CHECK, DONE, DECODE, PREFILL, SAMPLE, *(kernel.entry for kernel in LINEAR_KERNELS))


def decode_storage(head_dim: int, group: int) -> int:
    """Bytes of decode's shared memory, for ``group`` query heads of a key head: the keys and values of an item, and the
    warps' outputs. A word for each lane comes after it."""
    outputs = DECODE_WARPS * min(group, DECODE_HEADS) * (head_dim + DECODE_SPREAD) * 4
    return 2 * DECODE_SPLIT * _row_bytes(head_dim) + outputs


def prefill_storage(head_dim: int) -> int:
    """Bytes of prefill's Storage: a block's queries, two tiles of keys and of values. A word for each lane comes after
    it, and up to TILE_ALIGN bytes before it, where it begins."""
    return (PREFILL_PAIRS + 4 * PREFILL_POSITIONS) * _row_bytes(head_dim)


def _row_bytes(head_dim: int) -> int:
    """Of a head in a tile."""
    return -(-head_dim // SWIZZLED_NUMBERS) * SWIZZLED_ROW


STRUCTS = (
    STEP_STATE,
    *(
        arguments.struct()
        for arguments in (
            StepLimits, CheckArguments, DoneArguments, EmbedArguments, NormArguments, Rotary, RotateArguments,
            SwigluArguments, BiasArguments, RandomArguments, LinearArguments, AttentionArguments, SampleArguments,
        )
    ),
)  # fmt: skip


def linear_macro() -> str:
    """C's list of :data:`LINEAR_KERNELS`, for a macro that takes one."""
    rows = (
        f"    KERNEL({k.name}, {k.epilogue.name}, {str(k.rows == LINEAR_NORMED).lower()}, "
        f"{k.step}, {k.ahead}, {k.resident}, {k.storage})"
        for k in LINEAR_KERNELS
    )
    comment = "/* name, epilogue, whether x is a norm, step, ahead, resident, bytes of Storage */"
    return f"{comment}\n#define BLINK_LINEAR_KERNELS(KERNEL) \\\n" + " \\\n".join(rows) + "\n"
