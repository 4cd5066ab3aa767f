"""The conditional driver: WHILE(decide → SWITCH(captured steps)), one graph that the host launches once."""

from __future__ import annotations

import ctypes

from blink.backend.gpu.loop import THREADS, GpuLoop
from blink.backend.gpu.resident import ResidentDriver
from blink.engine.device.captured import Graphs
from blink.gpu.cuda import launch
from blink.gpu.graphs import (
    Exec,
    add_child,
    capture_into,
    condition,
    destroy_graph,
    instantiate,
    new_graph,
    switch_node,
    while_node,
)


class ConditionalLoop(GpuLoop):
    """See kernels/drivers/conditional.cu. While a batch runs, nothing of the driver occupies the device."""

    def _build(self, graphs: Graphs) -> Exec:
        device = self.device
        kernels = device.kernels("drivers/conditional.cu", ["blink_turn", "blink_publish"], controls_graphs=True)
        turn, publish = kernels["blink_turn"], kernels["blink_publish"]
        whole = new_graph()
        again = condition(device, whole, 1)
        body = while_node(device, whole, again)
        pick = condition(device, body, len(graphs.graphs))
        arguments = [*self._arguments, ctypes.c_uint64(int(again)), ctypes.c_uint64(int(pick))]
        capture_into(device, body, lambda stream: launch(turn, 1, THREADS, arguments, stream))
        for case, graph in zip(switch_node(device, body, pick, len(graphs.graphs)), graphs.graphs, strict=True):
            capture_into(device, case, lambda stream: launch(publish, 1, THREADS, self._arguments[:1], stream))
            add_child(case, graph)
        made = instantiate(device, whole)
        destroy_graph(whole)
        return made


class ConditionalDriver(ResidentDriver):
    """The scheduler on the device, turned by a :class:`ConditionalLoop`."""

    loop_type = ConditionalLoop
