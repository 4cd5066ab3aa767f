"""From a checkpoint's tensors to fused matrices of 16 bits in device memory, a piece at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from blink.engine.native.arena import Arena
from blink.engine.native.memory import weights_nbytes
from blink.engine.native.random import RandomSource
from blink.engine.native.shape import FLOAT, Matrix
from blink.engine.seam.engine import DType
from blink.errors import BlinkError
from blink.gpu.cuda import Device
from blink.model.progress import Progress
from blink.model.safetensors_file import to_float32
from blink.model.spec import ModelSpec
from blink.model.tensors import Gated, LayerTensors, Stack, Vector, check_tensors, model_tensors

Tensors = Mapping[str, npt.NDArray[Any]]
PIECE = 64 << 20
"""Bytes of a tensor that are converted and copied at once."""


@dataclass(frozen=True)
class Linear:
    """A matrix and, at device address ``bias``, its f32 biases; 0: it has none."""

    matrix: Matrix
    bias: int = 0


@dataclass(frozen=True)
class Layer:
    """One layer. Norms are device addresses of f32; q_norm and k_norm are 0 where there are none."""

    input_norm: int
    qkv: Linear
    output: Linear
    post_norm: int
    gate_up: Linear
    down: Linear
    q_norm: int
    k_norm: int


class Weights:
    """All weights of a model on ``device``: of ``tensors``, by HuggingFace name, or random ones of that seed.

    Tensors are read once, in order, and no more than :data:`PIECE` bytes of them are held at a time. ``embedding`` and
    ``head`` are one matrix where they are tied. Raises BlinkError naming a tensor that is missing or of the wrong shape
    or type.
    """

    def __init__(self, device: Device, spec: ModelSpec, tensors: Tensors | int, dtype: DType) -> None:
        self._spec, self._dtype = spec, dtype
        if not isinstance(tensors, int):
            check_tensors(Path("the checkpoint"), spec, {name: t.shape for name, t in tensors.items()})
        self._arena = Arena(device, weights_nbytes(spec), "weights")
        self._source: _Checkpoint | RandomSource
        if isinstance(tensors, int):
            self._source = RandomSource(device, tensors, dtype)
        else:
            progress = Progress("loading weights", 2 * spec.parameters())
            self._source = _Checkpoint(self._arena, tensors, dtype, progress)
        try:
            made = model_tensors(spec)
            self.embedding = self._linear(made.embedding).matrix
            self.head = self.embedding if made.head is made.embedding else self._linear(made.head).matrix
            self.layers = [self._layer(layer) for layer in made.layers]
            self.norm = self._vector(made.norm)
            device.synchronize()
        except BaseException:
            self._arena.close()
            raise

    def close(self) -> None:
        """Free them."""
        self._arena.close()

    def _layer(self, layer: LayerTensors) -> Layer:
        mlp = layer.feed_forward
        assert isinstance(mlp, Gated), "mixtures of experts are refused before"
        return Layer(
            input_norm=self._vector(layer.input_norm),
            qkv=self._linear(layer.qkv),
            output=self._linear(layer.output),
            post_norm=self._vector(layer.post_norm),
            gate_up=self._linear(mlp.gate_up),
            down=self._linear(mlp.down),
            q_norm=self._vector(layer.q_norm) if layer.q_norm else 0,
            k_norm=self._vector(layer.k_norm) if layer.k_norm else 0,
        )

    def _linear(self, stack: Stack) -> Linear:
        matrix = Matrix(stack.outputs, stack.inputs)
        matrix, row = dataclasses.replace(matrix, address=self._arena.take(matrix.nbytes)), 0
        biases = self._arena.take(FLOAT * matrix.outputs) if stack.bias else 0
        for name, outputs in stack.parts:
            self._source.matrix(matrix, row, name, outputs)
            row += outputs
        at = biases
        for bias in stack.biases:
            self._source.vector(at, bias.name, bias.length)
            at += FLOAT * bias.length
        return Linear(matrix, biases)

    def _vector(self, vector: Vector) -> int:
        address = self._arena.take(FLOAT * vector.length)
        self._source.vector(address, vector.name, vector.length)
        return address


class _Checkpoint:
    """Copies tensors to where they belong."""

    def __init__(self, arena: Arena, tensors: Tensors, dtype: DType, progress: Progress) -> None:
        self._arena, self._tensors, self._dtype, self._progress = arena, tensors, dtype, progress

    def matrix(self, to: Matrix, row: int, name: str, outputs: int) -> None:
        """Tensor ``name`` becomes rows ``row`` … ``row + outputs`` of ``to``."""
        tensor = self._tensor(name)
        rows = max(1, PIECE // (4 * to.inputs))
        for start in range(0, outputs, rows):
            piece = to_real(tensor[start : start + rows], self._dtype)
            if to.stride != to.inputs:
                piece = np.pad(piece, ((0, 0), (0, to.stride - to.inputs)))
            self._arena.write(to.address + 2 * to.stride * (row + start), np.ascontiguousarray(piece).view(np.uint8))
            self._progress.advance(piece.nbytes)

    def vector(self, address: int, name: str, length: int) -> None:
        """Tensor ``name`` as f32."""
        self._arena.write(address, np.ascontiguousarray(to_float32(self._tensor(name))).view(np.uint8))

    def _tensor(self, name: str) -> npt.NDArray[Any]:
        tensor = self._tensors[name]
        if tensor.dtype not in (np.float32, np.float16, np.uint16):
            raise BlinkError(
                f"tensor {name} has type {tensor.dtype} (supported: float32, float16, and uint16 for bfloat16's bits)",
                "prepare the model from an unquantized checkpoint",
            )
        return tensor


def to_real(tensor: npt.NDArray[Any], dtype: DType) -> npt.NDArray[np.uint16]:
    """Float32, float16 or bfloat16 (its bits in uint16) as the bits of ``dtype``: to nearest, ties to even."""
    if dtype == "bfloat16" and tensor.dtype == np.uint16:
        return tensor
    if dtype == "float16":
        with np.errstate(over="ignore"):
            half: npt.NDArray[np.uint16] = to_float32(tensor).astype(np.float16).view(np.uint16)
        return half
    bits = np.ascontiguousarray(to_float32(tensor)).view(np.uint32)
    rounded: npt.NDArray[np.uint16] = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    return np.where((bits & 0x7FFFFFFF) > 0x7F800000, np.uint16(0x7FC0), rounded)
