"""The persistent driver of the paper: a resident block that launches captured steps from the device."""

from __future__ import annotations

import numpy as np

from blink.backend.gpu.loop import GpuLoop
from blink.backend.gpu.loop_layout import RESIDENT, ResidentArguments
from blink.backend.gpu.resident import ResidentDriver
from blink.engine.device.captured import Graphs
from blink.gpu.graphs import Exec, capture, destroy_graph, instantiate
from blink.gpu.kernels import load
from blink.gpu.memory import DeviceMemory


class PersistentLoop(GpuLoop):
    """kernels/drivers/persistent.cu. The scheduler keeps part of one multiprocessor for itself, also during a batch."""

    launch_window = 120
    """What CUDA allows one execution of a graph to launch (CUDA programming guide, device graph launch)."""
    copies = 2
    """One may still be ending when its graph is launched again."""

    def _build(self, graphs: Graphs) -> Exec:
        device = self.device
        kernel = load(device, RESIDENT, controls_graphs=True)[RESIDENT.name]
        for graph in graphs.graphs:
            self._execs += [instantiate(device, graph, for_device=True) for _ in range(self.copies)]
        handles = np.array([int(e) for e in self._execs], np.uint64)
        self._table = DeviceMemory(device, handles.nbytes, "the table of graphs")
        self._table.write(0, handles.tobytes())
        arguments = ResidentArguments(
            self.scheduler.memory.address, loop=self.state.address, execs=self._table.address
        )  # fmt: skip
        scheduler = capture(device, lambda stream: kernel.enqueue(1, arguments, stream))
        made = instantiate(device, scheduler, for_device=True)
        destroy_graph(scheduler)
        return made

    def close(self) -> None:
        """See :meth:`GpuLoop.close`."""
        super().close()
        self._table.free()


class PersistentDriver(ResidentDriver):
    """The scheduler on the device, turned by a :class:`PersistentLoop`."""

    loop_type = PersistentLoop
