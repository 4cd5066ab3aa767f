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
from blink.model.tensors import AllExperts, Experts, Gated, LayerTensors, Stack, Vector, model_tensors

F32 = npt.NDArray[np.float32]
Tensors = Mapping[str, npt.NDArray[Any]]


class WeightLoader:
    """Takes tensors one at a time, so that where ``tensors`` loads lazily no more than one is in memory twice."""

    def __init__(self, spec: ModelSpec, tensors: Tensors, cpu: Cpu) -> None:
        self.spec, self.tensors, self.cpu = spec, tensors, cpu

    def load(self) -> Weights:
        """All weights. Raises BlinkError naming a tensor that is missing or has the wrong shape or type."""
        made = model_tensors(self.spec, self.tensors)
        embedding = self._linear(made.embedding)
        head = embedding if made.head is made.embedding else self._linear(made.head)
        layers = tuple(self._layer(layer) for layer in made.layers)
        return Weights(embedding, layers, self._vector(made.norm), head)

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

    def _vector(self, vector: Vector) -> F32:
        return self._tensor(vector.name, (vector.length,)).copy()

    def _linear(self, stack: Stack) -> Linear:
        linear = Linear(stack.outputs, stack.inputs, self.cpu)
        start = 0
        for name, outputs in stack.parts:
            linear.fill(start, self._tensor(name, (outputs, stack.inputs)))
            start += outputs
        if stack.bias:
            linear.bias = np.concatenate([self._vector(bias) for bias in stack.biases])
        return linear

    def _layer(self, layer: LayerTensors) -> Layer:
        return Layer(
            input_norm=self._vector(layer.input_norm),
            qkv=self._linear(layer.qkv),
            output=self._linear(layer.output),
            post_norm=self._vector(layer.post_norm),
            feed_forward=self._feed_forward(layer.feed_forward),
            q_norm=self._vector(layer.q_norm) if layer.q_norm else None,
            k_norm=self._vector(layer.k_norm) if layer.k_norm else None,
        )

    def _feed_forward(self, made: Gated | Experts) -> FeedForward:
        if isinstance(made, Gated):
            return self._mlp(made)
        moe = self.spec.moe
        assert moe is not None
        router = self._linear(made.router)
        if isinstance(made.experts, AllExperts):
            gate_up, down = self._tensor(*made.experts.gate_up), self._tensor(*made.experts.down)
            experts = [Mlp(self._packed(gate_up[e]), self._packed(down[e])) for e in range(moe.experts)]
        else:
            experts = [self._mlp(expert) for expert in made.experts]
        return Moe(router, experts, moe.top_k, moe.norm_topk)

    def _mlp(self, made: Gated) -> Mlp:
        return Mlp(self._linear(made.gate_up), self._linear(made.down))

    def _packed(self, weight: F32) -> Linear:
        outputs, inputs = weight.shape
        linear = Linear(outputs, inputs, self.cpu)
        linear.fill(0, weight)
        return linear
