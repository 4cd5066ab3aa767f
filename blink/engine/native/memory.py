"""What the native engine takes of a device's memory, summed before anything is allocated. Imports nothing of CUDA."""

from __future__ import annotations

from collections.abc import Mapping

from blink.engine.native.attention_shape import AttentionShape
from blink.engine.native.sampler_memory import sampler_bytes
from blink.engine.native.shape import REAL, DType
from blink.engine.native.sizes import FLOAT, WORKSPACE, activation_sizes, weights_nbytes
from blink.engine.seam.engine import kv_bytes_per_token
from blink.errors import BlinkError
from blink.model.spec import ModelSpec

CODE = 512 << 20
"""Set aside for what the driver takes by itself: code of kernels and of cuBLASLt, and graphs."""


def memory_parts(
    spec: ModelSpec, *, dtype: DType, pages: int, page_tokens: int, max_context: int, dims: Mapping[str, int]
) -> dict[str, int]:
    """Bytes of device memory by part. ``dims`` are the step buffers': lanes, tokens, lane_pages."""
    sizes, shape = activation_sizes(spec, dims), attention_shape(spec, dtype, pages, page_tokens, max_context)
    return {
        "weights": weights_nbytes(spec),
        "engine.pages": kv_bytes_per_token(spec, REAL) * pages * page_tokens,
        "logits": sizes.pop("logits"),
        "activations": sum(sizes.values()),
        "rotary tables": FLOAT * max_context * spec.rope.dim,
        "attention": shape.memory_bytes(dims["lanes"]),
        "sampling": sampler_bytes(vocab=spec.vocab, lanes=dims["lanes"], max_context=max_context),
        "products": WORKSPACE,
        "code": CODE,
    }


def attention_shape(spec: ModelSpec, dtype: DType, pages: int, page_tokens: int, max_context: int) -> AttentionShape:
    """What the attention kernels are made for. Raises BlinkError for what they cannot do."""
    return AttentionShape(
        heads=spec.heads, kv_heads=spec.kv_heads, head_dim=spec.head_dim, pages=pages, page_tokens=page_tokens,
        max_context=max_context, scale=spec.head_dim**-0.5, bf16=dtype == "bfloat16",
    )  # fmt: skip


def require_memory(parts: Mapping[str, int], free: int) -> None:
    """Raise BlinkError, with the terms and what to lower, where ``parts`` are more than the ``free`` bytes."""
    missing = sum(parts.values()) - free
    if missing <= 0:
        return
    terms = " + ".join(f"{name} {size / 2**30:.2f}" for name, size in parts.items())
    pages = parts["engine.pages"]
    remedy = (
        f"lower engine.pages by {100 * missing / pages:.0f} %"
        if missing < pages
        else "choose a smaller model or a larger GPU"
    )
    raise BlinkError(
        f"the GPU has {free / 2**30:.2f} GiB free, {missing / 2**30:.2f} GiB less than {terms} GiB", remedy
    )
