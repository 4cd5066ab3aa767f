"""Linear layers."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from blink.engine.reference.cpu import PANEL, Cpu, empty_panels

F32 = npt.NDArray[np.float32]


class Linear:
    """y = x Wᵀ + b, with W f32 [outputs, inputs] in panels; made empty, then filled by blocks of rows.

    A row of y has the same bits whatever the other rows of x are, and however many.
    """

    def __init__(self, outputs: int, inputs: int, cpu: Cpu) -> None:
        self.outputs, self.inputs = outputs, inputs
        self.bias: F32 | None = None
        self._cpu, self._panels = cpu, empty_panels(outputs, inputs)

    def fill(self, start: int, rows: F32) -> None:
        """Set W[start : start + len(rows)]."""
        assert start + len(rows) <= self.outputs
        assert rows.shape[1] == self.inputs
        self._cpu.pack(rows, start, self._panels)

    def __call__(self, x: F32) -> F32:
        """x f32 [rows, inputs] → f32 [rows, outputs]."""
        assert x.shape[1] == self.inputs
        y = self._cpu.linear(x, self._panels, self.outputs)
        if self.bias is not None:
            y += self.bias
        return y

    def rows(self, index: npt.NDArray[np.int32]) -> F32:
        """Rows of W, f32 [len(index), inputs]: what makes a tied LM head an embedding table."""
        return np.ascontiguousarray(self._panels[index // PANEL, :, index % PANEL])
