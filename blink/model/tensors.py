"""Which tensors, of which shapes, a model of each architecture has under HuggingFace's names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from blink.errors import BlinkError
from blink.model.spec import ModelSpec

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Vector:
    """The tensor ``name``, of shape [length]."""

    name: str
    length: int

    def shapes(self) -> Iterator[tuple[str, Shape]]:
        """The tensor, with its shape."""
        yield self.name, (self.length,)


@dataclass(frozen=True)
class Stack:
    """A matrix [outputs, inputs] as the tensors that it is stacked of: their names and outputs, in order.

    With ``bias`` each of them has a vector of biases beside it.
    """

    parts: tuple[tuple[str, int], ...]
    inputs: int
    bias: bool = False

    @property
    def outputs(self) -> int:
        """Of all parts."""
        return sum(outputs for _, outputs in self.parts)

    @property
    def biases(self) -> tuple[Vector, ...]:
        """Of each part, in order."""
        return tuple(Vector(n.removesuffix("weight") + "bias", rows) for n, rows in self.parts) if self.bias else ()

    def shapes(self) -> Iterator[tuple[str, Shape]]:
        """Every tensor, with its shape."""
        for name, outputs in self.parts:
            yield name, (outputs, self.inputs)
        for bias in self.biases:
            yield from bias.shapes()


@dataclass(frozen=True)
class Gated:
    """SwiGLU: the outputs of ``gate_up`` are gate's, then up's."""

    gate_up: Stack
    down: Stack

    def shapes(self) -> Iterator[tuple[str, Shape]]:
        """Every tensor, with its shape."""
        yield from self.gate_up.shapes()
        yield from self.down.shapes()


@dataclass(frozen=True)
class AllExperts:
    """The experts of a layer as newer checkpoints have them: in two tensors, of these names and shapes.

    ``gate_up`` is [experts, 2 width, hidden], ``down`` [experts, hidden, width].
    """

    gate_up: tuple[str, Shape]
    down: tuple[str, Shape]

    def shapes(self) -> Iterator[tuple[str, Shape]]:
        """Every tensor, with its shape."""
        yield self.gate_up
        yield self.down


@dataclass(frozen=True)
class Experts:
    """A router, and the experts: each by itself, or all together."""

    router: Stack
    experts: tuple[Gated, ...] | AllExperts

    def shapes(self) -> Iterator[tuple[str, Shape]]:
        """Every tensor, with its shape."""
        yield from self.router.shapes()
        for part in (self.experts,) if isinstance(self.experts, AllExperts) else self.experts:
            yield from part.shapes()


@dataclass(frozen=True)
class LayerTensors:
    """What one layer is made of. ``q_norm`` and ``k_norm`` are None where there are none."""

    input_norm: Vector
    qkv: Stack
    output: Stack
    q_norm: Vector | None
    k_norm: Vector | None
    post_norm: Vector
    feed_forward: Gated | Experts

    def shapes(self) -> Iterator[tuple[str, Shape]]:
        """Every tensor, with its shape."""
        for norm in (self.input_norm, self.post_norm, self.q_norm, self.k_norm):
            if norm is not None:
                yield from norm.shapes()
        for part in (self.qkv, self.output, self.feed_forward):
            yield from part.shapes()


@dataclass(frozen=True)
class ModelTensors:
    """What a model is made of; ``head`` is the embedding where they are tied."""

    embedding: Stack
    head: Stack
    layers: tuple[LayerTensors, ...]
    norm: Vector

    def shapes(self) -> Iterator[tuple[str, Shape]]:
        """Every tensor that an engine reads, with its shape; a tied head twice."""
        yield from self.embedding.shapes()
        yield from self.norm.shapes()
        yield from self.head.shapes()
        for layer in self.layers:
            yield from layer.shapes()


def model_tensors(spec: ModelSpec, found: Mapping[str, object] | None = None) -> ModelTensors:
    """The tensors of ``spec``, by their part in the model.

    ``found``, whose keys are the names of a checkpoint's tensors, tells which of two spellings its experts have.
    """
    embedding = Stack((("model.embed_tokens.weight", spec.vocab),), spec.hidden)
    return ModelTensors(
        embedding=embedding,
        head=embedding if spec.tied_embeddings else Stack((("lm_head.weight", spec.vocab),), spec.hidden),
        layers=tuple(_layer(spec, i, found or {}) for i in range(spec.layers)),
        norm=Vector("model.norm.weight", spec.hidden),
    )


def check_tensors(where: Path, spec: ModelSpec, found: Mapping[str, Shape]) -> None:
    """Raise BlinkError, naming ``where``, for the first tensor that is missing or has another shape.

    Further tensors are allowed: checkpoints carry buffers, and a tied output matrix, that nobody reads.
    """
    for name, shape in model_tensors(spec, found).shapes():
        if name not in found:
            raise BlinkError(f"{where} has no tensor {name}", "use a whole checkpoint of the model that it describes")
        if tuple(found[name]) != shape:
            raise BlinkError(
                f"{where}: tensor {name} has shape {list(found[name])}, and its configuration asks for {list(shape)}",
                "use weights and configuration of one model",
            )


def _layer(spec: ModelSpec, i: int, found: Mapping[str, object]) -> LayerTensors:
    at = f"model.layers.{i}."
    attention = at + "self_attn."
    qkv: tuple[tuple[str, int], ...] = (("q", spec.q_width), ("k", spec.kv_width), ("v", spec.kv_width))
    if _fused(spec):
        qkv = (("qkv", spec.q_width + 2 * spec.kv_width),)
    q_norm, k_norm = (Vector(f"{attention}{x}_norm.weight", spec.head_dim) if spec.qk_norm else None for x in "qk")
    return LayerTensors(
        input_norm=Vector(at + "input_layernorm.weight", spec.hidden),
        qkv=_stack(attention, qkv, spec.hidden, spec.attention_bias),
        output=_stack(attention, (("o", spec.hidden),), spec.q_width, spec.attention_bias),
        q_norm=q_norm,
        k_norm=k_norm,
        post_norm=Vector(at + "post_attention_layernorm.weight", spec.hidden),
        feed_forward=_feed_forward(spec, i, at + "mlp.", found),
    )


def _feed_forward(spec: ModelSpec, i: int, at: str, found: Mapping[str, object]) -> Gated | Experts:
    if spec.moe is None or not spec.is_moe_layer(i):
        return _gated(spec, at, spec.intermediate, spec.mlp_bias)
    count, width = spec.moe.experts, spec.moe.intermediate
    router, stacked = Stack(((f"{at}gate.weight", count),), spec.hidden), f"{at}experts.gate_up_proj"
    if stacked in found:
        down = (f"{at}experts.down_proj", (count, spec.hidden, width))
        return Experts(router, AllExperts((stacked, (count, 2 * width, spec.hidden)), down))
    return Experts(router, tuple(_gated(spec, f"{at}experts.{e}.", width, bias=False) for e in range(count)))


def _gated(spec: ModelSpec, at: str, width: int, bias: bool) -> Gated:
    gate_up = (("gate_up", 2 * width),) if _fused(spec) else (("gate", width), ("up", width))
    return Gated(_stack(at, gate_up, spec.hidden, bias), _stack(at, (("down", spec.hidden),), width, bias))


def _fused(spec: ModelSpec) -> bool:
    """Whether queries, keys and values are one tensor, and gate and up."""
    return spec.architecture == "Phi3ForCausalLM"


def _stack(at: str, parts: tuple[tuple[str, int], ...], inputs: int, bias: bool) -> Stack:
    return Stack(tuple((f"{at}{name}_proj.weight", outputs) for name, outputs in parts), inputs, bias)
