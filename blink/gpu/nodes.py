"""What a captured graph consists of, and whether the drivers can run it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from cuda.bindings import driver as cu

from blink.errors import BlinkError
from blink.gpu.cuda import call
from blink.gpu.graphs import Graph, nodes_of

RUNNABLE = frozenset({"KERNEL", "MEMCPY", "MEMSET", "GRAPH"})
"""Node types that the body of a conditional node and a graph launched from the device both may have (CUDA programming
guide, conditional graph nodes, device graph launch)."""
_PREFIX = "CU_GRAPH_NODE_TYPE_"


def node_counts(graph: Graph) -> Counter[str]:
    """Nodes of ``graph`` by type, those of child graphs included; the child's own node counts as GRAPH."""
    found: Counter[str] = Counter()
    for node in nodes_of(graph):
        kind = call(cu.cuGraphNodeGetType(node), "reading the type of a graph's node")
        found[cu.CUgraphNodeType(kind).name.removeprefix(_PREFIX)] += 1
        if kind == cu.CUgraphNodeType.CU_GRAPH_NODE_TYPE_GRAPH:
            found += node_counts(call(cu.cuGraphChildGraphNodeGetGraph(node), "reading a child graph"))
    return found


def require_runnable(name: str, counts: Mapping[str, int]) -> None:
    """Raise BlinkError naming the graph and the type of a node that no driver on the device can run."""
    for kind in sorted(counts):
        if kind not in RUNNABLE:
            raise BlinkError(
                f"the graph for {name} has {counts[kind]} nodes of type {kind}, which cannot run without the host",
                "report it, it is a defect of the engine",
            )
