"""What lies between the matrices; see kernels/native/layers.cu and native/step.cu."""

from __future__ import annotations

from blink.engine.device.buffers import DeviceBuffers
from blink.engine.native.layout import (
    CHECK,
    DONE,
    HEADS_PER_BLOCK,
    LAYERS,
    NUMBERS_PER_THREAD,
    ROW_THREADS,
    STEP_STATE,
    BiasArguments,
    CheckArguments,
    DoneArguments,
    EmbedArguments,
    NormArguments,
    Rotary,
    RotateArguments,
    StepLimits,
    SwigluArguments,
)
from blink.engine.native.shape import Matrix, defines
from blink.engine.seam.batch import STEP
from blink.engine.seam.engine import DType
from blink.gpu.cuda import Device, Stream
from blink.gpu.kernels import load
from blink.gpu.memory import DeviceMemory


class CheckedBuffers:
    """The step buffers as later kernels see them: with the checked copy in place of the control block.

    Offers ``dims``, :meth:`address` and ``pointers`` as :class:`blink.engine.device.buffers.DeviceBuffers` does.
    """

    def __init__(self, device: Device, buffers: DeviceBuffers) -> None:
        self.real, self.dims = buffers, buffers.dims
        self.state = DeviceMemory(device, STEP_STATE.size, "the step's state")
        self.pointers = buffers.pointers.copy()
        self.pointers[0] = self.state.address + STEP_STATE.offset("checked")
        self.rows = self.address("control") + STEP.offset("rows")
        self.tokens = self.address("control") + STEP.offset("tokens")

    def address(self, name: str) -> int:
        """Device address of one buffer. Raises KeyError."""
        return int(self.pointers[0]) if name == "control" else self.real.address(name)

    def close(self) -> None:
        """Free the copy."""
        self.state.free()


class Ops:
    """Launches of the small kernels. ``count`` is the device address of how many tokens or rows there are."""

    def __init__(self, device: Device, dtype: DType, buffers: CheckedBuffers) -> None:
        self._kernels = load(device, *LAYERS, defines=defines(dtype)) | load(device, CHECK, DONE)
        self._buffers = buffers

    def check(self, limits: StepLimits, stream: Stream) -> None:
        """Begin a step of up to ``limits.rows`` rows: look at every index once, so that no other kernel needs to."""
        arguments = CheckArguments(self._buffers.real.pointers, limits, self._buffers.state.address)
        self._kernels["native_check"].enqueue(limits.rows, arguments, stream)

    def done(self, stream: Stream) -> None:
        """End a step."""
        arguments = DoneArguments(control=self._buffers.real.address("control"), state=self._buffers.state.address)
        self._kernels["native_done"].enqueue(1, arguments, stream, dependent=True)

    def embed(self, table: Matrix, x: int, size: int, stream: Stream) -> None:
        """x f32 [size, inputs]: the tokens' rows of ``table``, then zeros."""
        arguments = EmbedArguments(
            table=table.address, stride=table.stride, ids=self._buffers.address("token_ids"),
            count=self._buffers.tokens, x=x, width=table.inputs,
        )  # fmt: skip
        self._kernels["native_embed"].enqueue(size, arguments, stream, dependent=True)

    def norm(
        self, x: int, weight: int, eps: float, y: int, *, width: int, stride: int, rows: int, stream: Stream,
        last: bool = False,
    ) -> None:  # fmt: skip
        """RMSNorm of x f32 [tokens, width] to 16 bits; with ``last`` of each row's last token only."""
        b = self._buffers
        arguments = NormArguments(
            x=x, weight=weight, eps=eps, y=y, width=width, stride=stride, count=b.rows if last else b.tokens,
            ends=b.address("row_start") if last else 0,
        )  # fmt: skip
        self._kernels["native_norm"].enqueue(rows, arguments, stream, dependent=True)

    def rotate(self, rotary: Rotary, qkv: int, stride: int, size: int, stream: Stream) -> None:
        """Norm and rotate queries in place, keys into the cache, and take the values there."""
        groups = -(-(rotary.heads + 2 * rotary.kv_heads) // HEADS_PER_BLOCK)
        arguments = RotateArguments(rotary, qkv=qkv, stride=stride, count=self._buffers.tokens)
        self._kernels["native_rotate"].enqueue((size, groups, 1), arguments, stream, dependent=True)

    def swiglu(self, both: int, y: int, *, width: int, both_stride: int, stride: int, size: int, on: Stream) -> None:
        """y = silu(gate) · up, of [tokens, gate and up]."""
        arguments = SwigluArguments(
            both=both, y=y, width=width, both_stride=both_stride, stride=stride, count=self._buffers.tokens
        )
        grid = (size, -(-width // (NUMBERS_PER_THREAD * ROW_THREADS)), 1)
        self._kernels["native_swiglu"].enqueue(grid, arguments, on, dependent=True)

    def bias(
        self, y: int, bias: int, *, wide: bool, width: int, stride: int, rows: int, count: int, stream: Stream
    ) -> None:  # fmt: skip
        """y += bias, y of 16 bits or, if ``wide``, f32."""
        arguments = BiasArguments(
            y=0 if wide else y, wide=y if wide else 0, bias=bias, width=width, stride=stride, count=count
        )
        self._kernels["native_bias"].enqueue(rows, arguments, stream, dependent=True)
