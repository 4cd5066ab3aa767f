"""What the native engine takes of a device's memory, summed before anything is allocated. Imports nothing of CUDA."""

from __future__ import annotations

from blink.engine.native.attention_shape import AttentionShape
from blink.engine.native.sampler_memory import sampler_bytes
from blink.engine.native.shape import REAL
from blink.engine.native.sizes import FLOAT, WORKSPACE, activation_sizes, weights_nbytes
from blink.engine.seam.engine import EngineSettings, kv_bytes_per_token
from blink.model.spec import ModelSpec

CODE = 512 << 20
"""Set aside for what the driver takes by itself: code of kernels and of cuBLASLt, and graphs."""


def needs(spec: ModelSpec, settings: EngineSettings) -> dict[str, int]:
    """Bytes of device memory, by what makes them fewer. Raises BlinkError for what no kernel can do."""
    e = settings
    sizes, shape = activation_sizes(spec, e.dims), attention_shape(spec, e)
    return {
        "weights": weights_nbytes(spec),
        "engine.pages": kv_bytes_per_token(spec, REAL) * e.pages * e.page_tokens,
        "logits": sizes.pop("logits"),
        "activations": sum(sizes.values()),
        "rotary tables": FLOAT * e.max_context * spec.rope.dim,
        "attention": shape.memory_bytes(e.lanes),
        "sampling": sampler_bytes(vocab=spec.vocab, lanes=e.lanes, max_context=e.max_context),
        "products": WORKSPACE,
        "code": CODE,
    }


def attention_shape(spec: ModelSpec, settings: EngineSettings) -> AttentionShape:
    """What the attention kernels are made for. Raises BlinkError for what they cannot do."""
    return AttentionShape(
        heads=spec.heads, kv_heads=spec.kv_heads, head_dim=spec.head_dim, pages=settings.pages,
        page_tokens=settings.page_tokens, max_context=settings.max_context, scale=spec.head_dim**-0.5,
        bf16=settings.dtype == "bfloat16",
    )  # fmt: skip
