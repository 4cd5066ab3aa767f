"""The engines and the drivers by name, a line each: what configuration, backend, instruments and roles know of them.

A new engine is a line in :data:`ENGINES` and a folder (docs/development.md). Nothing named here is imported before it
is used, since each needs packages that others do not.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

from blink.errors import BlinkError


@dataclass(frozen=True)
class EngineEntry:
    """``package`` is as :mod:`blink.engine.seam.engine` describes; None: this release has no such engine."""

    package: str | None
    on_gpu: bool


@dataclass(frozen=True)
class DriverEntry:
    """``name`` in ``module`` is a :class:`blink.backend.gpu.driver.GpuDriver`.

    ``on_device``: it turns the scheduler on the GPU, without the host, so that graphs may have only nodes that can be
    run from there.
    """

    module: str
    name: str
    on_device: bool


ENGINES: dict[str, EngineEntry] = {
    "reference": EngineEntry("blink.engine.reference", on_gpu=False),
    "native": EngineEntry("blink.engine.native", on_gpu=True),
    "synthetic": EngineEntry("blink.engine.synthetic", on_gpu=True),
    "tensorrt": EngineEntry(None, on_gpu=True),
}
"""The values of engine.kind."""

DRIVERS: dict[str, DriverEntry] = {
    "conditional": DriverEntry("blink.backend.gpu.conditional", "ConditionalDriver", on_device=True),
    "persistent": DriverEntry("blink.backend.gpu.persistent", "PersistentDriver", on_device=True),
    "host": DriverEntry("blink.backend.gpu.from_host", "HostDriver", on_device=False),
}
"""The values of engine.driver: what turns the scheduler beside an engine on a GPU. docs/performance.md has the figures
that chose the default."""

ON_DEVICE = tuple(name for name, entry in DRIVERS.items() if entry.on_device)
"""The drivers that need no host."""


def require_engine(name: str) -> str:
    """The package of the engine of that name. Raises BlinkError where this release has none, KeyError for no name."""
    package = ENGINES[name].package
    if package is None:
        raise BlinkError(f"engine.kind {name} is not in this release", "set it to native or reference")
    return package


def engine_needs(name: str) -> Any:
    """``needs(spec, settings)`` of an engine; see :mod:`blink.engine.seam.engine`. Raises as :func:`require_engine`."""
    return import_module(require_engine(name)).needs


def engine_loader(name: str) -> Any:
    """``load(…)`` of an engine; see :mod:`blink.engine.seam.engine`. Raises as :func:`require_engine`."""
    return import_module(f"{require_engine(name)}.load").load


def driver_named(name: str) -> Any:
    """The :class:`blink.backend.gpu.driver.GpuDriver` of that name. Raises KeyError."""
    entry = DRIVERS[name]
    return getattr(import_module(entry.module), entry.name)
