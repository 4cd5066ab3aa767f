"""What attention kernels are made for, and the device memory they need beside the cache. Imports nothing of CUDA."""

from __future__ import annotations

from dataclasses import dataclass

from blink.errors import BlinkError

SPLIT = 128  # positions of one item of decode work; kernels/native/attention_decode.cu
DECODE_HEADS = 8  # query heads of one item
MAX_HEAD_DIM = 256
_RECORD = 4  # floats that a head's partial result has beside its output


@dataclass(frozen=True)
class AttentionShape:
    """One model's attention over a cache of ``pages`` pages of ``page_tokens`` (a power of two) positions.

    ``scale`` multiplies the dot products. Values are float16, or bfloat16 with ``bf16``. Raises BlinkError for what the
    kernels cannot do.
    """

    heads: int
    kv_heads: int
    head_dim: int
    pages: int
    page_tokens: int
    max_context: int
    scale: float
    bf16: bool

    def __post_init__(self) -> None:
        if self.head_dim % 8 or not 0 < self.head_dim <= MAX_HEAD_DIM:
            raise BlinkError(
                f"head_dim: {self.head_dim} is not a multiple of 8 up to {MAX_HEAD_DIM}",
                "use the reference engine for this model",
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
        return min(rows * -(-self.max_context // SPLIT), self.pages * self.page_tokens // SPLIT + rows)

    def partial_bytes(self, lanes: int) -> int:
        """Of what decode's splits leave to be combined."""
        return 4 * self.most_splits(lanes) * self.units * DECODE_HEADS * (self.head_dim + _RECORD)

    def memory_bytes(self, lanes: int) -> int:
        """Device memory that :class:`blink.engine.native.attention.Attention` takes."""
        return self.partial_bytes(lanes) + 4 * lanes * self.units
