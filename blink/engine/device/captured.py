"""An engine on a device: what it offers is graphs, one for each shape of a step.

A driver on the device picks the graph and runs it; the host captures them at the start and is out of the way after
that. Every graph works on the same step buffers, reads ``control`` for what it has to do, does nothing for rows and
tokens past those that ``control`` names, and ends with ``control.done = control.step``.
"""

from __future__ import annotations

import bisect
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from blink.engine.seam.batch import Kind
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
    """The captured steps ``graphs`` and their ``shapes``: the decode buckets' first, then the prefill buckets', as the
    drivers number them. ``capture_s`` has the seconds that each capture took."""

    graphs: Sequence[Graph]
    shapes: Sequence[tuple[Kind, int]]
    capture_s: Sequence[float]

    @property
    def decode_count(self) -> int:
        """Number of decode buckets."""
        return sum(kind is Kind.DECODE for kind, _ in self.shapes)

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
    shapes = [(Kind.DECODE, n) for n in decode] + [(Kind.PREFILL, n) for n in prefill]
    graphs, seconds = [], []
    for kind, size in shapes:
        engine.tune(kind, size)
        started = time.perf_counter()
        graphs.append(capture(device, lambda stream, k=kind, n=size: engine.enqueue(k, n, stream)))  # type: ignore[misc]
        seconds.append(time.perf_counter() - started)
    return Graphs(graphs, shapes, seconds)
