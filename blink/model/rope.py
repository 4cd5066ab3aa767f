"""Rotary position embedding: inverse frequencies of every kind, and tables of cosine and sine.

The arithmetic of the tables is HuggingFace's: float32 inverse frequencies times float32 positions. Checkpoints were
trained with that rounding, which at position 100 000 is worth 0.01 rad against exact angles.

Two kinds depend on the length of the sequence in HuggingFace's code: ``longrope`` (short or long factors) and
``dynamic``. A paged cache holds keys rotated once, so here the length that counts is the context that the engine is
built for, as in other serving systems: all requests see the same frequencies, whatever their length.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from blink.model.spec import RopeSpec

F32 = npt.NDArray[np.float32]


def inverse_frequencies(rope: RopeSpec, context: int) -> F32:
    """Radians per position of each rotated pair, f32 [rope.dim / 2], for sequences up to ``context`` tokens."""
    theta = rope.theta
    if rope.kind == "dynamic":
        stretch = rope.factor * max(context, rope.original_context) / rope.original_context - (rope.factor - 1)
        theta *= stretch ** (rope.dim / (rope.dim - 2))
    exponents = np.arange(0, rope.dim, 2, dtype=np.float32) / np.float32(rope.dim)
    wavelengths = np.power(np.float32(theta), exponents)
    plain: F32 = np.float32(1) / wavelengths
    if rope.kind == "linear":
        return plain / np.float32(rope.factor)
    if rope.kind == "llama3":
        return _llama3(rope, plain)
    if rope.kind == "yarn":
        return _yarn(rope, wavelengths)
    if rope.kind == "longrope":
        factors = rope.long_factor if context > rope.original_context else rope.short_factor
        scaled: F32 = np.float32(1) / (np.array(factors, np.float32) * wavelengths)
        return scaled
    return plain


def _llama3(rope: RopeSpec, plain: F32) -> F32:
    """Long wavelengths are stretched by ``factor``, short ones kept, those between blended."""
    wavelength = 2 * math.pi / plain.astype(np.float64)
    low, high = rope.low_freq_factor, rope.high_freq_factor
    blend = np.clip((rope.original_context / wavelength - low) / (high - low), 0, 1)
    result: F32 = ((1 - blend) * plain / rope.factor + blend * plain).astype(np.float32)
    return result


def _yarn(rope: RopeSpec, wavelengths: F32) -> F32:
    """YaRN (Peng et al., 2023), "NTK by parts": interpolate pairs that turn seldom, keep those that turn often."""

    def pair(turns: float) -> float:
        return rope.dim * math.log(rope.original_context / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = pair(rope.beta_fast), pair(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.dim - 1)
    if low == high:
        high += 0.001
    ramp = np.clip((np.arange(rope.dim // 2, dtype=np.float32) - np.float32(low)) / np.float32(high - low), 0, 1)
    result: F32 = (ramp / (np.float32(rope.factor) * wavelengths) + (1 - ramp) / wavelengths).astype(np.float32)
    return result


class RopeTable:
    """Cosine and sine for every position below ``context``, f32, shape [context, rope.dim / 2] each."""

    def __init__(self, rope: RopeSpec, context: int) -> None:
        self.dim = rope.dim
        angles = np.arange(context, dtype=np.float32)[:, None] * inverse_frequencies(rope, context)
        scale = np.float32(rope.attention_factor)
        self.cos: F32 = np.cos(angles) * scale
        self.sin: F32 = np.sin(angles) * scale

    def rotate(self, x: F32, positions: npt.NDArray[np.int32]) -> None:
        """Rotate ``x``, f32 [tokens, heads, head_dim], in place by ``positions``, i32 [tokens].

        Dimension i of the first half of the rotated part pairs with i of its second half.
        """
        cos, sin = self.cos[positions][:, None], self.sin[positions][:, None]
        half = self.dim // 2
        first, second = x[:, :, :half], x[:, :, half : self.dim]
        kept = first * sin
        first *= cos
        first -= second * sin
        second *= cos
        second += kept
