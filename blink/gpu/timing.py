"""How long work takes on a device."""

from __future__ import annotations

from collections.abc import Callable

from cuda.bindings import driver as cu

from blink.gpu.cuda import Device, Stream, call
from blink.gpu.graphs import capture, destroy_exec, destroy_graph, instantiate


def milliseconds(device: Device, work: Callable[[Stream], object], *, launches: int = 2, rounds: int = 3) -> float:
    """Of one run of what ``work`` launches, as a graph: the median of ``rounds`` of ``launches`` in a row."""
    graph = capture(device, work)
    made = instantiate(device, graph)
    begin, end = (call(cu.cuEventCreate(0), "making an event") for _ in range(2))
    times = []
    for _ in range(rounds + 1):  # the first one warms up
        call(cu.cuEventRecord(begin, device.stream), "recording an event")
        for _ in range(launches):
            call(cu.cuGraphLaunch(made, device.stream), "launching a graph")
        call(cu.cuEventRecord(end, device.stream), "recording an event")
        call(cu.cuEventSynchronize(end), "waiting for a graph")
        times.append(float(call(cu.cuEventElapsedTime(begin, end), "reading a time")) / launches)
    for event in (begin, end):
        call(cu.cuEventDestroy(event), "releasing an event")
    destroy_exec(made)
    destroy_graph(graph)
    return sorted(times[1:])[rounds // 2]
