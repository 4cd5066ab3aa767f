"""Turning the scheduler core on a CPU thread, over a ring in host memory.

Every decision is the core's; this module lays out its memory, calls it and reads its counters.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from blink.backend.scheduler.binding import check_state, counters_of, library, state_size
from blink.backend.scheduler.config import SchedulerConfig
from blink.engine.seam.batch import DECISION, Control, Kind
from blink.engine.seam.buffers import BatchBuffers
from blink.ring.layout import Geometry


@dataclass(frozen=True)
class Decision:
    """What the driver does next; for PREFILL and DECODE, the batch in the step buffers."""

    kind: Kind
    graph: int
    rows: int
    tokens: int


class Scheduler:
    """The scheduler core over a ring in host memory.

    ``g`` and ``f`` are the ring's objects, u8, header written; ``buffers`` has the dimensions ``config.dims``. All of
    them are kept and must not move. :attr:`state` is the address of the scheduler's memory, 64-byte aligned. Raises
    ValueError naming the wrong field of ``config``.
    """

    threads = 1
    """How many run each step together, as those of a GPU's block do; on a CPU one is the fastest."""

    def __init__(
        self,
        config: SchedulerConfig,
        geometry: Geometry,
        g: npt.NDArray[np.uint8],
        f: npt.NDArray[np.uint8],
        buffers: BatchBuffers,
    ) -> None:
        if len(g) < geometry.g_bytes or len(f) < geometry.f_bytes:
            raise ValueError(f"ring: {len(g)} and {len(f)} bytes are less than the geometry's objects")
        wrong_dims = {name: buffers.dims[name] for name, size in config.dims.items() if buffers.dims[name] != size}
        if wrong_dims:
            raise ValueError(f"buffers: {wrong_dims} do not match {config.dims}")
        self.config, self.geometry = config, geometry
        packed = config.pack()
        self._memory = np.zeros(state_size(packed, geometry) + 64, np.uint8)
        self.state = self._memory.ctypes.data + -self._memory.ctypes.data % 64
        self._control = np.zeros(1, np.uint32)
        self._decision = np.zeros(1, DECISION.dtype())
        self._out = self._decision.ctypes.data
        self._keep = (g, f, buffers)
        library().blink_sched_init(
            self.state,
            packed.ctypes.data,
            g.ctypes.data,
            f.ctypes.data,
            buffers.pointers.ctypes.data,
            self._control.ctypes.data,
        )

    def step(self, now_ns: int = 0) -> Decision:
        """One step: what the frontend asked, what the engine finished, what runs next.

        While the batch of the last decision has not finished (``control.done``), returns that decision again.
        ``now_ns`` is the time; 0 takes the monotonic clock.
        """
        library().blink_sched_step(self.state, now_ns, self.threads, self._out)
        return self._decided()

    def begin(self, now_ns: int = 0) -> Decision | None:
        """The first half of a step for a driver that stays beside the running batch; None while it runs."""
        began = library().blink_sched_begin(self.state, now_ns, self.threads, self._out)
        return self._decided() if began else None

    def attend(self, now_ns: int = 0) -> None:
        """The second half, while the batch runs: publish what the last one produced, and scan the ring."""
        library().blink_sched_attend(self.state, now_ns, self.threads)

    def request(self, control: Control) -> None:
        """Ask the scheduler to run, drain or stop; callable from any thread."""
        self._control[0] = control

    def counters(self) -> dict[str, int]:
        """Every counter by name; ``FINISHED_`` + reason for the requests that ended with it. Call between steps."""
        return counters_of(self.state)

    def check_integrity(self) -> None:
        """Raise AssertionError unless every page, lane and record is in exactly one place. Call between steps."""
        check_state(self.state)

    def _decided(self) -> Decision:
        kind, graph, rows, tokens = self._decision[0].tolist()
        return Decision(Kind(kind), graph, rows, tokens)
