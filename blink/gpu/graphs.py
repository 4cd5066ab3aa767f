"""CUDA graphs: capturing work, conditional nodes, and instantiating for launch from the host or the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cuda.bindings import driver as cu

from blink.gpu.cuda import Device, Stream, call

Graph = Any
Exec = Any

_MODE = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL


def capture(device: Device, work: Callable[[Stream], object]) -> Graph:
    """The graph of what ``work`` launches on the stream it is given."""
    stream = device.stream
    call(cu.cuStreamBeginCapture(stream, _MODE), "beginning a capture")
    work(stream)
    return call(cu.cuStreamEndCapture(stream), "ending a capture")


def capture_into(device: Device, graph: Graph, work: Callable[[Stream], None]) -> None:
    """Add what ``work`` launches to ``graph``, beside what is there."""
    stream = device.stream
    call(cu.cuStreamBeginCaptureToGraph(stream, graph, None, None, 0, _MODE), "beginning a capture")
    work(stream)
    call(cu.cuStreamEndCapture(stream), "ending a capture")


def new_graph() -> Graph:
    """An empty graph."""
    return call(cu.cuGraphCreate(0), "making a graph")


def condition(device: Device, graph: Graph, initial: int) -> Any:
    """A handle for a conditional node of ``graph``; it is ``initial`` whenever the graph is launched."""
    flags = cu.CU_GRAPH_COND_ASSIGN_DEFAULT
    return call(cu.cuGraphConditionalHandleCreate(graph, device.context, initial, flags), "making a condition")


def while_node(device: Device, graph: Graph, handle: Any) -> Graph:
    """Adds WHILE(``handle`` is not 0) to the empty ``graph``; the body, to be filled."""
    kind = cu.CUgraphConditionalNodeType.CU_GRAPH_COND_TYPE_WHILE
    return _conditional(device, graph, kind, handle, size=1, after=[])[0]


def switch_node(device: Device, graph: Graph, handle: Any, cases: int) -> list[Graph]:
    """Adds SWITCH(``handle``) after all that is in ``graph``, a chain; the bodies. Past the last: none of them runs."""
    after = _last_of_chain(graph)
    kind = cu.CUgraphConditionalNodeType.CU_GRAPH_COND_TYPE_SWITCH
    return _conditional(device, graph, kind, handle, size=cases, after=[after])


def _conditional(device: Device, graph: Graph, kind: Any, handle: Any, *, size: int, after: list[Any]) -> list[Graph]:
    params = cu.CUgraphNodeParams()
    params.type = cu.CUgraphNodeType.CU_GRAPH_NODE_TYPE_CONDITIONAL
    params.conditional.handle = handle
    params.conditional.type = kind
    params.conditional.size = size
    params.conditional.ctx = device.context
    call(cu.cuGraphAddNode(graph, after, None, len(after), params), "adding a conditional node")
    return list(params.conditional.phGraph_out)


def _last_of_chain(graph: Graph) -> Any:
    nodes = nodes_of(graph)
    # Kernels captured on one stream are a chain, in the order in which they were launched.
    return nodes[-1]


def nodes_of(graph: Graph) -> list[Any]:
    """Every node of ``graph``, not of its children."""
    error, _, count = cu.cuGraphGetNodes(graph)
    call((error,), "counting a graph's nodes")
    error, nodes, _ = cu.cuGraphGetNodes(graph, count)
    call((error,), "listing a graph's nodes")
    return list(nodes)[:count]


def add_child(graph: Graph, child: Graph) -> None:
    """Add a copy of ``child`` to ``graph``, beside what is there."""
    call(cu.cuGraphAddChildGraphNode(graph, None, 0, child), "adding a captured graph")


def instantiate(device: Device, graph: Graph, *, for_device: bool = False) -> Exec:
    """An executable copy of ``graph``, uploaded. ``for_device``: kernels may launch it as well."""
    flags = cu.CUgraphInstantiate_flags.CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH if for_device else 0
    made = call(cu.cuGraphInstantiate(graph, int(flags)), "instantiating a graph")
    call(cu.cuGraphUpload(made, device.stream), "uploading a graph")
    device.synchronize()
    return made


def destroy_graph(graph: Graph) -> None:
    """Release a graph; executable copies of it stay."""
    call(cu.cuGraphDestroy(graph), "destroying a graph")


def destroy_exec(made: Exec) -> None:
    """Release an executable graph that does not run."""
    call(cu.cuGraphExecDestroy(made), "destroying a graph")
