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
from blink.engine.native.random import RandomSource
from blink.engine.native.shape import Matrix, matrices
from blink.engine.native.sizes import FLOAT, weights_nbytes
from blink.engine.seam.engine import DType
from blink.errors import BlinkError
from blink.gpu.cuda import Device
from blink.model.progress import Progress
from blink.model.safetensors_file import to_float32
from blink.model.spec import ModelSpec
from blink.model.tensors import check_tensors

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
            self.embedding = self._matrix("model.embed_tokens.weight", spec.vocab, spec.hidden)
            self.head = self.embedding
            if not spec.tied_embeddings:
                self.head = self._matrix("lm_head.weight", spec.vocab, spec.hidden)
            self.layers = [self._layer(f"model.layers.{i}.") for i in range(spec.layers)]
            self.norm = self._vector("model.norm.weight", spec.hidden)
            device.synchronize()
        except BaseException:
            self._arena.close()
            raise

    def close(self) -> None:
        """Free them."""
        self._arena.close()

    def _layer(self, at: str) -> Layer:
        spec, shapes = self._spec, matrices(self._spec)
        attention, mlp = at + "self_attn.", at + "mlp."
        widths = {"q": spec.q_width, "k": spec.kv_width, "v": spec.kv_width}
        qkv = [(f"{attention}{n}_proj.weight", width) for n, width in widths.items()]
        gate_up = [(f"{mlp}{n}_proj.weight", spec.intermediate) for n in ("gate", "up")]
        if spec.architecture == "Phi3ForCausalLM":
            qkv, gate_up = [(attention + "qkv_proj.weight", shapes["qkv"].outputs)], [
                (mlp + "gate_up_proj.weight", 2 * spec.intermediate)
            ]  # fmt: skip
        return Layer(
            input_norm=self._vector(at + "input_layernorm.weight", spec.hidden),
            qkv=self._linear(qkv, spec.hidden, spec.attention_bias),
            output=self._linear([(attention + "o_proj.weight", spec.hidden)], spec.q_width, spec.attention_bias),
            post_norm=self._vector(at + "post_attention_layernorm.weight", spec.hidden),
            gate_up=self._linear(gate_up, spec.hidden, spec.mlp_bias),
            down=self._linear([(mlp + "down_proj.weight", spec.hidden)], spec.intermediate, spec.mlp_bias),
            q_norm=self._vector(attention + "q_norm.weight", spec.head_dim) if spec.qk_norm else 0,
            k_norm=self._vector(attention + "k_norm.weight", spec.head_dim) if spec.qk_norm else 0,
        )

    def _linear(self, parts: list[tuple[str, int]], inputs: int, bias: bool) -> Linear:
        """The stacked ``parts``, each (tensor name, outputs), and their biases."""
        matrix = Matrix(sum(outputs for _, outputs in parts), inputs)
        matrix, row = dataclasses.replace(matrix, address=self._arena.take(matrix.nbytes)), 0
        biases = self._arena.take(FLOAT * matrix.outputs) if bias else 0
        for name, outputs in parts:
            self._source.matrix(matrix, row, name, outputs)
            if bias:
                self._source.vector(biases + FLOAT * row, name.removesuffix("weight") + "bias", outputs)
            row += outputs
        return Linear(matrix, biases)

    def _matrix(self, name: str, outputs: int, inputs: int) -> Matrix:
        return self._linear([(name, outputs)], inputs, bias=False).matrix

    def _vector(self, name: str, length: int) -> int:
        address = self._arena.take(FLOAT * length)
        self._source.vector(address, name, length)
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
