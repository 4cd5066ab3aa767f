"""Kernels loaded on a device, launched with the arguments that they are declared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from blink.gpu.arguments import Arguments, Entry
from blink.gpu.cuda import Device, Kernel, Stream, launch


class Loaded:
    """The kernel of ``entry``; ``handle`` is the driver's."""

    def __init__(self, entry: Entry, handle: Kernel) -> None:
        self.entry, self.handle = entry, handle

    def enqueue(
        self, grid: int | tuple[int, int, int], arguments: Arguments | None, stream: Stream, *, shared: int = 0,
        dependent: bool = False,
    ) -> None:  # fmt: skip
        """Launch it, or capture its launch; see :func:`blink.gpu.cuda.launch`. Raises TypeError for other arguments."""
        if type(arguments) is not (self.entry.arguments or type(None)):
            raise TypeError(f"{self.entry.name} takes {self.entry.arguments}, not {type(arguments)}")
        packed = [] if arguments is None else [arguments.packed()]
        launch(self.handle, grid, self.entry.threads, packed, stream, shared=shared, dependent=dependent)


def load(
    device: Device, *entries: Entry, controls_graphs: bool = False, specific: bool = False,
    defines: Mapping[str, int] | None = None,
) -> dict[str, Loaded]:  # fmt: skip
    """The kernels ``entries``, all of one source, by name; see :meth:`blink.gpu.cuda.Device.kernels`."""
    (source,) = {entry.source for entry in entries}
    names: Sequence[str] = [entry.name for entry in entries]
    handles = device.kernels(
        source, names, controls_graphs=controls_graphs, specific=specific, defines=defines
    )  # fmt: skip
    return {entry.name: Loaded(entry, handles[entry.name]) for entry in entries}
