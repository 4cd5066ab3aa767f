"""The conditional driver: WHILE(decide → SWITCH(captured steps)), one graph that the host launches once."""

from __future__ import annotations

from blink.backend.gpu.loop import GpuLoop
from blink.backend.gpu.loop_layout import PUBLISH, TURN, PublishArguments, TurnArguments
from blink.backend.gpu.resident import ResidentDriver
from blink.engine.device.captured import Graphs
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
from blink.gpu.kernels import load


class ConditionalLoop(GpuLoop):
    """See kernels/drivers/conditional.cu. While a batch runs, nothing of the driver occupies the device."""

    def _build(self, graphs: Graphs) -> Exec:
        device = self.device
        kernels = load(device, TURN, PUBLISH, controls_graphs=True)
        turn, publish = kernels[TURN.name], kernels[PUBLISH.name]
        memory = self.scheduler.memory.address
        whole = new_graph()
        again = condition(device, whole, 1)
        body = while_node(device, whole, again)
        pick = condition(device, body, len(graphs.graphs))
        arguments = TurnArguments(memory, loop=self.state.address, again=int(again), pick=int(pick))
        capture_into(device, body, lambda stream: turn.enqueue(1, arguments, stream))
        for case, graph in zip(switch_node(device, body, pick, len(graphs.graphs)), graphs.graphs, strict=True):
            capture_into(device, case, lambda stream: publish.enqueue(1, PublishArguments(memory), stream))
            add_child(case, graph)
        made = instantiate(device, whole)
        destroy_graph(whole)
        return made


class ConditionalDriver(ResidentDriver):
    """The scheduler on the device, turned by a :class:`ConditionalLoop`."""

    loop_type = ConditionalLoop
