"""Sizes of a model on the device, and what this engine refuses. Imports nothing of CUDA."""

from __future__ import annotations

from dataclasses import dataclass

from blink.engine.native.layout import DECODE_HEADS, DECODE_SPLIT, MAX_HEAD_DIM, SAMPLE_CLUSTER, SAMPLE_WARPS
from blink.engine.seam.engine import DType, EngineSettings
from blink.engine.seam.sampling import MAX_VOCAB
from blink.errors import BlinkError
from blink.model.spec import ModelSpec

REAL, FLOAT = 2, 4
"""Bytes of a weight, an activation, a key or a value: float16 or bfloat16; and of all else: float32."""
PAD = 32
"""Rows that go into a matrix are padded with zeros to a multiple of this, which is what its kernels read at once."""
ALIGN = 256
"""Bytes to a multiple of which the pieces of an arena begin."""


def defines(dtype: DType) -> dict[str, int]:
    """Macros that kernels for numbers of ``dtype`` are compiled with."""
    return {"BLINK_BF16": 1} if dtype == "bfloat16" else {}


def padded(width: int) -> int:
    """``width`` rounded up to a multiple of :data:`PAD`."""
    return -(-width // PAD) * PAD


def aligned(size: int) -> int:
    """``size`` rounded up to what one piece of an arena takes."""
    return -(-size // ALIGN) * ALIGN


@dataclass(frozen=True)
class Matrix:
    """W [outputs, inputs], in rows of ``stride`` numbers of 16 bits, from device address ``address``."""

    outputs: int
    inputs: int
    address: int = 0

    @property
    def stride(self) -> int:
        """Numbers from one row to the next."""
        return padded(self.inputs)

    @property
    def nbytes(self) -> int:
        """Bytes, padding included."""
        return REAL * self.outputs * self.stride


def matrices(spec: ModelSpec) -> dict[str, Matrix]:
    """The matrices of one layer by name, without their addresses: qkv, output, gate_up and down."""
    return {
        "qkv": Matrix(spec.q_width + 2 * spec.kv_width, spec.hidden),
        "output": Matrix(spec.hidden, spec.q_width),
        "gate_up": Matrix(2 * spec.intermediate, spec.hidden),
        "down": Matrix(spec.hidden, spec.intermediate),
    }


def qkv_stride(spec: ModelSpec) -> int:
    """Numbers from one token's queries, keys and values to the next one's."""
    return spec.q_width + 2 * spec.kv_width


def gate_up_stride(spec: ModelSpec) -> int:
    """Numbers from one token's gate and up to the next one's."""
    return padded(2 * spec.intermediate)


@dataclass(frozen=True)
class AttentionShape:
    """One model's attention over a cache of ``pages`` pages of ``page_tokens`` (a power of two) positions.

    ``scale`` multiplies the dot products. Values are of ``dtype``. Raises BlinkError for what the kernels cannot do.
    """

    heads: int
    kv_heads: int
    head_dim: int
    pages: int
    page_tokens: int
    max_context: int
    scale: float
    dtype: DType

    @classmethod
    def of(cls, spec: ModelSpec, settings: EngineSettings) -> AttentionShape:
        """What the kernels are made for. Raises BlinkError."""
        return cls(
            heads=spec.heads, kv_heads=spec.kv_heads, head_dim=spec.head_dim, pages=settings.pages,
            page_tokens=settings.page_tokens, max_context=settings.max_context, scale=spec.head_dim**-0.5,
            dtype=settings.dtype,
        )  # fmt: skip

    def __post_init__(self) -> None:
        if self.head_dim % 8 or not 0 < self.head_dim <= MAX_HEAD_DIM:
            raise BlinkError(
                f"the native engine needs a head_dim that is a multiple of 8 up to {MAX_HEAD_DIM}, not {self.head_dim}",
                _ELSEWHERE,
            )
        if self.heads % self.kv_heads:
            raise BlinkError(
                f"num_attention_heads: {self.heads} is not a multiple of the {self.kv_heads} key heads",
                "check the model's config.json",
            )
        if self.page_tokens & (self.page_tokens - 1) or self.page_tokens < 1:
            raise BlinkError(f"engine.page_tokens: {self.page_tokens} is not a power of two", "use 64")

    @property
    def group(self) -> int:
        """Query heads that share a key head."""
        return self.heads // self.kv_heads

    @property
    def units(self) -> int:
        """Items of decode work for every split of a row."""
        return self.kv_heads * -(-self.group // DECODE_HEADS)

    def most_splits(self, rows: int) -> int:
        """Splits of ``rows`` rows at most: of their longest contexts, or of the whole cache if that is less."""
        of_cache = self.pages * self.page_tokens // DECODE_SPLIT + rows
        return min(rows * -(-self.max_context // DECODE_SPLIT), of_cache)


def warp_ids(vocab: int) -> int:
    """How many consecutive ids each warp has that samples; a multiple of 4. Raises BlinkError."""
    if not 0 < vocab <= MAX_VOCAB:
        raise BlinkError(f"vocab_size: {vocab} is not within 1 … {MAX_VOCAB}", "check the model's config.json")
    return -(-vocab // (4 * SAMPLE_CLUSTER * SAMPLE_WARPS)) * 4


_ELSEWHERE = "serve it with engine.kind reference, or choose another model"


def require_supported(spec: ModelSpec, settings: EngineSettings) -> None:
    """Raise BlinkError, naming what it is, where this engine cannot run ``spec``, or not so."""
    if spec.moe is not None and any(spec.moe.layers):
        raise BlinkError(f"the native engine does not run mixtures of experts ({spec.architecture})", _ELSEWHERE)
    AttentionShape.of(spec, settings)
