"""Which tensors, of which shapes, a model of each architecture has under HuggingFace's names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from blink.errors import BlinkError
from blink.model.spec import ModelSpec

Shape = tuple[int, ...]


def check_tensors(where: Path, spec: ModelSpec, found: Mapping[str, Shape]) -> None:
    """Raise BlinkError, naming ``where``, for the first tensor that is missing or has another shape.

    Further tensors are allowed: checkpoints carry buffers, and a tied output matrix, that nobody reads.
    """
    for name, shape in expected_shapes(spec, found).items():
        if name not in found:
            raise BlinkError(f"{where} has no tensor {name}", "use a whole checkpoint of the model that it describes")
        if tuple(found[name]) != shape:
            raise BlinkError(
                f"{where}: tensor {name} has shape {list(found[name])}, and its configuration asks for {list(shape)}",
                "use weights and configuration of one model",
            )


def expected_shapes(spec: ModelSpec, found: Mapping[str, Shape]) -> dict[str, Shape]:
    """Every tensor that an engine reads, by name. ``found`` tells which of two spellings its experts have."""
    out: dict[str, Shape] = {
        "model.embed_tokens.weight": (spec.vocab, spec.hidden),
        "model.norm.weight": (spec.hidden,),
    }
    if not spec.tied_embeddings:
        out["lm_head.weight"] = (spec.vocab, spec.hidden)
    for i in range(spec.layers):
        at = f"model.layers.{i}."
        out |= {f"{at}{norm}.weight": (spec.hidden,) for norm in ("input_layernorm", "post_attention_layernorm")}
        out |= _attention(spec, at + "self_attn.")
        out |= _mlp(spec, at + "mlp.", spec.is_moe_layer(i), stacked=f"{at}mlp.experts.gate_up_proj" in found)
    return out


def _attention(spec: ModelSpec, at: str) -> dict[str, Shape]:
    if spec.architecture == "Phi3ForCausalLM":
        rows = {"qkv_proj": spec.q_width + 2 * spec.kv_width}
    else:
        rows = {"q_proj": spec.q_width, "k_proj": spec.kv_width, "v_proj": spec.kv_width}
    out: dict[str, Shape] = {f"{at}{name}.weight": (n, spec.hidden) for name, n in rows.items()}
    out[f"{at}o_proj.weight"] = (spec.hidden, spec.q_width)
    if spec.attention_bias:
        out |= {f"{at}{name}.bias": (n,) for name, n in (*rows.items(), ("o_proj", spec.hidden))}
    if spec.qk_norm:
        out |= {f"{at}{x}_norm.weight": (spec.head_dim,) for x in "qk"}
    return out


def _mlp(spec: ModelSpec, at: str, routed: bool, stacked: bool) -> dict[str, Shape]:
    if not routed or spec.moe is None:
        return _gated(spec, at, spec.intermediate, spec.mlp_bias)
    experts, width = spec.moe.experts, spec.moe.intermediate
    out: dict[str, Shape] = {f"{at}gate.weight": (experts, spec.hidden)}
    if stacked:
        out[f"{at}experts.gate_up_proj"] = (experts, 2 * width, spec.hidden)
        out[f"{at}experts.down_proj"] = (experts, spec.hidden, width)
        return out
    for e in range(experts):
        out |= _gated(spec, f"{at}experts.{e}.", width, bias=False)
    return out


def _gated(spec: ModelSpec, at: str, width: int, bias: bool) -> dict[str, Shape]:
    rows = {"gate_proj": width, "up_proj": width, "down_proj": spec.hidden}
    if spec.architecture == "Phi3ForCausalLM":
        rows = {"gate_up_proj": 2 * width, "down_proj": spec.hidden}
    out: dict[str, Shape] = {
        f"{at}{name}.weight": (n, width if name == "down_proj" else spec.hidden) for name, n in rows.items()
    }
    if bias:
        out |= {f"{at}{name}.bias": (n,) for name, n in rows.items()}
    return out
