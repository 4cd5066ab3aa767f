"""What the native engine takes of a device's memory. Imports nothing of CUDA."""

from __future__ import annotations

from collections.abc import Mapping

from blink.engine.native.layout import DECODE_HEADS, DECODE_RECORD, SAMPLE_CLUSTER, SAMPLE_WARPS
from blink.engine.native.shape import (
    FLOAT,
    REAL,
    AttentionShape,
    Matrix,
    aligned,
    gate_up_stride,
    matrices,
    padded,
    qkv_stride,
    require_supported,
    warp_ids,
)
from blink.engine.seam.engine import EngineSettings, kv_bytes_per_token
from blink.errors import BlinkError
from blink.model.spec import ModelSpec

WORKSPACE = 32 << 20
"""Bytes that a product of cuBLASLt may use; what NVIDIA advises for Hopper."""
CODE = 512 << 20
"""Set aside for what CUDA takes by itself: code of kernels and of cuBLASLt, and graphs."""
SHARED_LOGITS = 192 << 10
"""Bytes of logits that a block which samples keeps in shared memory."""
MAX_CONTEXT = (1 << 20) - 1
"""Occurrences of a token are counted in 20 bits."""


def needs(spec: ModelSpec, settings: EngineSettings) -> dict[str, int]:
    """Bytes of device memory, by what makes them fewer. Raises BlinkError for what this engine cannot run."""
    require_supported(spec, settings)
    sizes, lanes, context = activation_sizes(spec, settings.dims), settings.lanes, settings.max_context
    attention = AttentionShape.of(spec, settings)
    return {
        "weights": weights_nbytes(spec),
        "engine.pages": kv_bytes_per_token(spec, REAL) * settings.pages * settings.page_tokens,
        "logits": sizes.pop("logits"),
        "activations": sum(sizes.values()),
        "rotary tables": FLOAT * context * spec.rope.dim,
        "attention": partial_bytes(attention, lanes) + finished_bytes(attention, lanes),
        "sampling": sampler_bytes(vocab=spec.vocab, lanes=lanes, max_context=context),
        "products": WORKSPACE,
        "code": CODE,
    }


def weights_nbytes(spec: ModelSpec) -> int:
    """Bytes that :class:`blink.engine.native.weights.Weights` allocates."""
    table = aligned(Matrix(spec.vocab, spec.hidden).nbytes) * (1 if spec.tied_embeddings else 2)
    layer = 2 * aligned(FLOAT * spec.hidden) + 2 * aligned(FLOAT * spec.head_dim)
    layer += sum(aligned(m.nbytes) + aligned(FLOAT * m.outputs) for m in matrices(spec).values())
    return table + aligned(FLOAT * spec.hidden) + spec.layers * layer


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


def partial_bytes(shape: AttentionShape, lanes: int) -> int:
    """Of what attention's splits leave to be combined."""
    return FLOAT * shape.most_splits(lanes) * shape.units * DECODE_HEADS * (shape.head_dim + DECODE_RECORD)


def finished_bytes(shape: AttentionShape, lanes: int) -> int:
    """Of the counts of splits that have ended."""
    return 4 * lanes * shape.units


def block_bytes(vocab: int) -> int:
    """Of the logits that one block has which samples. Raises BlinkError."""
    return FLOAT * SAMPLE_WARPS * warp_ids(vocab)


def spills(vocab: int) -> bool:
    """Whether they are kept in device memory, since shared memory is too small. Raises BlinkError."""
    return block_bytes(vocab) > SHARED_LOGITS


def sampler_bytes(*, vocab: int, lanes: int, max_context: int) -> int:
    """Of the tokens that lanes were fed, and of logits that spill. Raises BlinkError."""
    if max_context > MAX_CONTEXT:
        raise BlinkError(f"engine.max_context: {max_context} exceeds {MAX_CONTEXT}", "lower it")
    return 4 * lanes * max_context + (lanes * SAMPLE_CLUSTER * block_bytes(vocab) if spills(vocab) else 0)
