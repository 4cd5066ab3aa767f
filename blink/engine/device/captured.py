"""An engine on a device: what it offers is graphs, one for each shape of a step.

A driver on the device picks the graph and runs it; the host captures them at the start and is out of the way after
that. Every graph works on the same step buffers, reads ``control`` for what it has to do, does nothing for rows and
tokens past those that ``control`` names, and ends with ``control.done = control.step``.
"""

from __future__ import annotations

import bisect
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from blink.engine.seam.batch import GRAPH_ORDER, Kind
from blink.gpu.cuda import Device, Stream
from blink.gpu.graphs import Graph, capture, destroy_graph


class CapturedEngine(Protocol):
    """Makes the graphs of a model. Everything is loaded and allocated before."""

    exact: bool
    """Whether the graph that a step runs in changes no bit of an answer."""

    def tune(self, kind: Kind, size: int) -> None:
        """Choose what the graph of such a step will need chosen. Called before its capture."""

    def enqueue(self, kind: Kind, size: int, stream: Stream) -> None:
        """Launch on ``stream`` the work of a step: DECODE of up to ``size`` rows, or PREFILL of ``size`` tokens.

        Called while ``stream`` captures, so only kernels, copies and fills of fixed shape; memory is allocated before.
        """

    def close(self) -> None:
        """Free the memory. No graph of this engine may run."""


@dataclass(frozen=True)
class Graphs:
    """The captured steps ``graphs`` and their ``shapes``, in the order of their numbers.

    ``capture_s`` has the seconds that each capture took.
    """

    graphs: Sequence[Graph]
    shapes: Sequence[tuple[Kind, int]]
    capture_s: Sequence[float]

    @cached_property
    def _first(self) -> Mapping[Kind, int]:
        return {kind: number for number, (kind, _) in reversed([*enumerate(self.shapes)])}

    def number(self, kind: Kind, bucket: int) -> int:
        """Of the graph for a bucket of ``kind``; kernels/drivers/loop.cuh has it as graph_of()."""
        return self._first[kind] + bucket

    def tightest(self, kind: Kind, size: int) -> int:
        """Index, among the buckets of ``kind``, of the smallest that holds ``size``. Raises ValueError."""
        sizes = [n for k, n in self.shapes if k is kind]
        if size > sizes[-1]:
            raise ValueError(f"no graph for {kind.name} of {size}")
        return bisect.bisect_left(sizes, size)

    def close(self) -> None:
        """Release the graphs; what was made of them stays."""
        for graph in self.graphs:
            destroy_graph(graph)


def capture_all(device: Device, engine: CapturedEngine, decode: Sequence[int], prefill: Sequence[int]) -> Graphs:
    """Capture ``engine`` for every bucket of rows ``decode`` and of packed tokens ``prefill``, both ascending."""
    sizes = {Kind.DECODE: decode, Kind.PREFILL: prefill}
    shapes = [(kind, n) for kind in GRAPH_ORDER for n in sizes[kind]]
    graphs, seconds = [], []
    for kind, size in shapes:
        engine.tune(kind, size)
        started = time.perf_counter()
        graphs.append(capture(device, lambda stream, k=kind, n=size: engine.enqueue(k, n, stream)))  # type: ignore[misc]
        seconds.append(time.perf_counter() - started)
    return Graphs(graphs, shapes, seconds)
