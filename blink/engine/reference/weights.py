"""From a checkpoint's tensors, under their HuggingFace names, to the weights that the forward pass reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from blink.engine.reference.cpu import Cpu
from blink.engine.reference.forward import Layer, Weights
from blink.engine.reference.linear import Linear
from blink.engine.reference.mlp import FeedForward, Mlp, Moe
from blink.errors import BlinkError
from blink.model.safetensors_file import to_float32
from blink.model.spec import ModelSpec

F32 = npt.NDArray[np.float32]
Tensors = Mapping[str, npt.NDArray[Any]]


class WeightLoader:
    """Takes tensors one at a time, so that where ``tensors`` loads lazily no more than one is in memory twice."""

    def __init__(self, spec: ModelSpec, tensors: Tensors, cpu: Cpu) -> None:
        self.spec, self.tensors, self.cpu = spec, tensors, cpu

    def load(self) -> Weights:
        """All weights. Raises BlinkError naming a tensor that is missing or has the wrong shape or type."""
        spec = self.spec
        embedding = self._linear([("model.embed_tokens.weight", spec.vocab)], spec.hidden)
        head = embedding if spec.tied_embeddings else self._linear([("lm_head.weight", spec.vocab)], spec.hidden)
        layers = tuple(self._layer(i, f"model.layers.{i}.") for i in range(spec.layers))
        return Weights(embedding, layers, self._vector("model.norm.weight", spec.hidden), head)

    def _tensor(self, name: str, shape: tuple[int, ...]) -> F32:
        try:
            tensor = self.tensors[name]
        except KeyError:
            raise BlinkError(f"tensor {name} is missing from the checkpoint", "prepare the model again") from None
        if tensor.shape != shape:
            raise BlinkError(
                f"tensor {name} has shape {list(tensor.shape)}, config.json asks for {list(shape)}",
                "prepare the model again from one consistent checkpoint",
            )
        if tensor.dtype not in (np.float32, np.float16, np.uint16):
            raise BlinkError(
                f"tensor {name} has type {tensor.dtype} (supported: float32, float16, and uint16 for bfloat16's bits)",
                "prepare the model from an unquantized checkpoint",
            )
        return to_float32(tensor)

    def _vector(self, name: str, length: int) -> F32:
        return self._tensor(name, (length,)).copy()

    def _linear(self, parts: list[tuple[str, int]], inputs: int, bias: bool = False) -> Linear:
        """A matrix of the stacked ``parts``, each (tensor name, outputs), with their biases."""
        linear = Linear(sum(outputs for _, outputs in parts), inputs, self.cpu)
        start = 0
        for name, outputs in parts:
            linear.fill(start, self._tensor(name, (outputs, inputs)))
            start += outputs
        if bias:
            names = [(name.removesuffix("weight") + "bias", outputs) for name, outputs in parts]
            linear.bias = np.concatenate([self._tensor(name, (outputs,)) for name, outputs in names])
        return linear

    def _layer(self, i: int, at: str) -> Layer:
        spec = self.spec
        if spec.architecture == "Phi3ForCausalLM":
            parts = [(at + "self_attn.qkv_proj.weight", spec.q_width + 2 * spec.kv_width)]
        else:
            widths = {"q": spec.q_width, "k": spec.kv_width, "v": spec.kv_width}
            parts = [(f"{at}self_attn.{n}_proj.weight", width) for n, width in widths.items()]
        return Layer(
            input_norm=self._vector(at + "input_layernorm.weight", spec.hidden),
            qkv=self._linear(parts, spec.hidden, spec.attention_bias),
            output=self._linear([(at + "self_attn.o_proj.weight", spec.hidden)], spec.q_width, spec.attention_bias),
            post_norm=self._vector(at + "post_attention_layernorm.weight", spec.hidden),
            feed_forward=self._feed_forward(i, at + "mlp."),
            q_norm=self._vector(at + "self_attn.q_norm.weight", spec.head_dim) if spec.qk_norm else None,
            k_norm=self._vector(at + "self_attn.k_norm.weight", spec.head_dim) if spec.qk_norm else None,
        )

    def _feed_forward(self, i: int, at: str) -> FeedForward:
        spec = self.spec
        if spec.moe is None or not spec.moe.layers[i]:
            return self._mlp(at, spec.intermediate)
        router = self._linear([(at + "gate.weight", spec.moe.experts)], spec.hidden)
        if at + "experts.gate_up_proj" in self.tensors:
            experts = self._stacked_experts(at + "experts.")
        else:
            width = spec.moe.intermediate
            experts = [self._mlp(f"{at}experts.{e}.", width) for e in range(spec.moe.experts)]
        return Moe(router, experts, spec.moe.top_k, spec.moe.norm_topk)

    def _mlp(self, at: str, width: int) -> Mlp:
        spec = self.spec
        if spec.architecture == "Phi3ForCausalLM":
            parts = [(at + "gate_up_proj.weight", 2 * width)]
        else:
            parts = [(at + "gate_proj.weight", width), (at + "up_proj.weight", width)]
        return Mlp(
            self._linear(parts, spec.hidden, spec.mlp_bias),
            self._linear([(at + "down_proj.weight", spec.hidden)], width, spec.mlp_bias),
        )

    def _stacked_experts(self, at: str) -> list[Mlp]:
        """Experts saved as two tensors of three dimensions, as newer checkpoints have them."""
        assert self.spec.moe is not None
        experts, width, hidden = self.spec.moe.experts, self.spec.moe.intermediate, self.spec.hidden
        gate_up = self._tensor(at + "gate_up_proj", (experts, 2 * width, hidden))
        down = self._tensor(at + "down_proj", (experts, hidden, width))
        return [Mlp(self._packed(gate_up[e]), self._packed(down[e])) for e in range(experts)]

    def _packed(self, weight: F32) -> Linear:
        outputs, inputs = weight.shape
        linear = Linear(outputs, inputs, self.cpu)
        linear.fill(0, weight)
        return linear
