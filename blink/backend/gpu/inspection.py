"""The inspection of the graphs: what was captured, from what, and what it answered.

Written once, compared at every start. CUDA graphs cannot be stored, so a start captures them anew. The inspection says
for which model, kernels, driver, GPU and settings they have been looked at and tried. Where all of that is the same, a
start need only see that the graphs are.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from blink.backend.gpu.engines import choices_path
from blink.backend.setup import Setup
from blink.gpu.cuda import Device
from blink.gpu.devices import driver_version, uuid_of
from blink.gpu.toolchain import CUDA_VERSION, cache_folder, keep, source_hash
from blink.model.manifest import sha256_of

_SETTINGS = ("kind", "lanes", "page_tokens", "pages", "max_context", "batch_tokens", "driver", "exact", "random_seed")


@dataclass(frozen=True)
class GraphRecord:
    """One graph: ``kind`` and ``size`` of its steps, ``nodes`` by type, and what making it took."""

    kind: str
    size: int
    nodes: dict[str, int]
    capture_ms: float
    instantiate_ms: float
    bytes: int


@dataclass(frozen=True)
class Inspection:
    """``identity`` by field, a record for each graph, and the tokens that the engine answered to the trial's prompt."""

    identity: dict[str, Any]
    graphs: tuple[GraphRecord, ...]
    answer: tuple[int, ...]

    def write(self, path: Path) -> None:
        """Put it at ``path`` in one step."""
        keep(path, (json.dumps(asdict(self), indent=1) + "\n").encode())


def read_inspection(path: Path) -> Inspection | None:
    """The inspection at ``path``, or None where there is none that can be read."""
    try:
        document = json.loads(path.read_text())
        records = tuple(GraphRecord(**record) for record in document["graphs"])
        return Inspection(dict(document["identity"]), records, tuple(document["answer"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def inspection_path(setup: Setup) -> Path:
    """Where that of this appliance is kept."""
    return cache_folder(setup.config.engine.cache_dir) / f"graphs-{setup.config.instance.name}.json"


def identity(device: Device, setup: Setup) -> dict[str, Any]:
    """All that the graphs depend on."""
    decode, prefill = setup.scheduling.buckets
    settings = {name: getattr(setup.config.engine, name) for name in _SETTINGS}
    return {
        "model": setup.model.fingerprint.hex(),
        "kernels": source_hash(),
        "toolchain": ".".join(map(str, CUDA_VERSION)),
        "driver": driver_version(),
        "gpu": device.name,
        "gpu_uuid": uuid_of(device.handle),
        "products": _digest(choices_path(setup)),
        "engine": {**settings, "dtype": setup.settings.dtype},
        "decode_buckets": list(decode),
        "prefill_buckets": list(prefill),
    }


def _digest(path: Path) -> str | None:
    try:
        return sha256_of(path)
    except OSError:
        return None


def differences(old: Inspection | None, now: dict[str, Any]) -> list[str]:
    """Names of the fields in which ``now`` differs from what ``old`` was made for; "nothing is there" without one."""
    if old is None:
        return ["nothing is there"]
    found = [name for name in now if name != "engine" and old.identity.get(name) != now[name]]
    settings = old.identity.get("engine", {})
    return found + [f"engine.{name}" for name, value in now["engine"].items() if settings.get(name) != value]
