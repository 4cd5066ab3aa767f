"""Linear layers."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]


class Linear:
    """y = x Wᵀ + b, with W f32 [outputs, inputs]; made empty, then filled by blocks of rows."""

    def __init__(self, outputs: int, inputs: int) -> None:
        self.weight: F32 = np.empty((outputs, inputs), np.float32)
        self.bias: F32 | None = None

    @classmethod
    def of(cls, weight: F32) -> Linear:
        """From one matrix."""
        linear = cls(*weight.shape)
        linear.fill(0, weight)
        return linear

    def fill(self, start: int, rows: F32) -> None:
        """Set W[start : start + len(rows)]."""
        self.weight[start : start + len(rows)] = rows

    def __call__(self, x: F32) -> F32:
        """x f32 [rows, inputs] → f32 [rows, outputs]."""
        y: F32 = x @ self.weight.T
        if self.bias is not None:
            y += self.bias
        return y

    def rows(self, index: npt.NDArray[np.int32]) -> F32:
        """Rows of W, f32 [len(index), inputs]: what makes a tied LM head an embedding table."""
        return self.weight[index]
