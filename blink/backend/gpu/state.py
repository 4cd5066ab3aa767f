"""The scheduler's private memory on a device: made once for an epoch, it outlives every driver that turns it."""

from __future__ import annotations

from blink.backend.gpu.loop_layout import INIT, InitArguments
from blink.backend.gpu.ring import RingForDevice
from blink.backend.scheduler.binding import check_state, counters_of, state_size
from blink.backend.scheduler.config import SchedulerConfig
from blink.engine.device.buffers import DeviceBuffers
from blink.engine.seam.batch import Control
from blink.gpu.cuda import Device
from blink.gpu.kernels import load
from blink.gpu.memory import DeviceMemory, mapped_words


class DeviceScheduler:
    """The scheduler of one epoch over ``ring``, whose header is written.

    ``buffers`` have the dimensions ``config.dims``. Both must outlive the scheduler. Raises
    ValueError naming the wrong field of ``config``.
    """

    def __init__(self, device: Device, config: SchedulerConfig, ring: RingForDevice, buffers: DeviceBuffers) -> None:
        packed = config.pack()
        size = state_size(packed, ring.geometry)
        self.device, self.config, self.buffers = device, config, buffers
        self.memory = DeviceMemory(device, size, "the scheduler")
        self._control, address = mapped_words(1)
        arguments = InitArguments(
            memory=self.memory.address, config=packed, g=ring.g, f=ring.f, batch=buffers.pointers, control=address
        )
        load(device, INIT)[INIT.name].enqueue(1, arguments, device.stream)
        device.synchronize()

    def request(self, control: Control) -> None:
        """Ask the scheduler to run, drain or stop: one store to memory that the device reads in every scan."""
        self._control[0] = control

    def counters(self) -> dict[str, int]:
        """Every counter by name, as of one moment; see :meth:`blink.backend.scheduler.host.Scheduler.counters`."""
        copy = self.memory.read(0, self.memory.size)
        return counters_of(copy.ctypes.data)

    def check_integrity(self) -> None:
        """Raise AssertionError unless every page, lane and record is in exactly one place.

        Call while no driver runs and no request does: pages that lanes hold are listed in the step buffers, on the
        device, and cannot be followed from here.
        """
        copy = self.memory.read(0, self.memory.size)
        counters = counters_of(copy.ctypes.data)
        assert counters["LANES_TAKEN"] == counters["LANES_RETURNED"], "requests run"
        check_state(copy.ctypes.data)

    def close(self) -> None:
        """Free the memory. No driver may run."""
        self.memory.free()
