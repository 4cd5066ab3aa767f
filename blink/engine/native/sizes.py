"""How many bytes the parts of the native engine take. Imports nothing of CUDA."""

from __future__ import annotations

from collections.abc import Mapping

from blink.engine.native.shape import REAL, Matrix, matrices, padded
from blink.model.spec import ModelSpec

ALIGN = 256
WORKSPACE = 32 << 20
"""Bytes that a product of cuBLASLt may use; what NVIDIA advises for Hopper."""
FLOAT = 4


def aligned(size: int) -> int:
    """``size`` rounded up to what one piece of an arena takes."""
    return -(-size // ALIGN) * ALIGN


def weights_nbytes(spec: ModelSpec) -> int:
    """Bytes that :class:`blink.engine.native.weights.Weights` allocates."""
    table = aligned(Matrix(spec.vocab, spec.hidden).nbytes) * (1 if spec.tied_embeddings else 2)
    layer = 2 * aligned(FLOAT * spec.hidden) + 2 * aligned(FLOAT * spec.head_dim)
    layer += sum(aligned(m.nbytes) + aligned(FLOAT * m.outputs) for m in matrices(spec).values())
    return table + aligned(FLOAT * spec.hidden) + spec.layers * layer


def qkv_stride(spec: ModelSpec) -> int:
    """Numbers from one token's queries, keys and values to the next one's."""
    return spec.q_width + 2 * spec.kv_width


def gate_up_stride(spec: ModelSpec) -> int:
    """Numbers from one token's gate and up to the next one's."""
    return padded(2 * spec.intermediate)


def activation_sizes(spec: ModelSpec, dims: Mapping[str, int]) -> dict[str, int]:
    """Bytes of each buffer, for ``dims["tokens"]`` packed tokens and ``dims["lanes"]`` rows of logits.

    ``x`` is the residual stream, f32 [tokens, hidden]; ``logits`` f32 [lanes, vocab]. The rest is of 16 bits, in rows
    padded as the matrices are: ``normed`` [tokens, hidden], ``qkv``, ``mixed`` (attention's output), ``gate_up`` and
    ``inner`` (SwiGLU's output).
    """
    tokens, lanes = dims["tokens"], dims["lanes"]
    return {
        "x": FLOAT * tokens * spec.hidden,
        "normed": REAL * tokens * padded(spec.hidden),
        "qkv": REAL * tokens * qkv_stride(spec),
        "mixed": REAL * tokens * padded(spec.q_width),
        "gate_up": REAL * tokens * gate_up_stride(spec),
        "inner": REAL * tokens * padded(spec.intermediate),
        "logits": FLOAT * lanes * spec.vocab,
    }
