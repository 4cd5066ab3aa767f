"""Sizes of a model on the device, and what this engine refuses. Needs no device."""

from __future__ import annotations

from dataclasses import dataclass

from blink.errors import BlinkError
from blink.model.spec import ModelSpec

REAL = 2
"""Bytes of a weight, an activation, a key or a value: float16 or bfloat16."""
PAD = 32
"""Rows that go into a matrix are padded with zeros to a multiple of this, which is what its kernels read at once."""
MAX_HEAD_DIM = 128


def padded(width: int) -> int:
    """``width`` rounded up to a multiple of :data:`PAD`."""
    return -(-width // PAD) * PAD


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


def require_supported(spec: ModelSpec) -> None:
    """Raise BlinkError, naming what it is, where this engine cannot run ``spec``."""
    remedy = "serve it with engine.kind reference, or choose another model"
    if spec.moe is not None and any(spec.moe.layers):
        raise BlinkError(f"the native engine does not run mixtures of experts ({spec.architecture})", remedy)
    if spec.head_dim % 8 or spec.head_dim > MAX_HEAD_DIM:
        raise BlinkError(
            f"the native engine needs a head_dim that is a multiple of 8 up to {MAX_HEAD_DIM}, not {spec.head_dim}",
            remedy,
        )
