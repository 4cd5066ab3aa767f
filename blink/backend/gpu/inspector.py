"""Inspecting and trying every graph of an appliance, and remembering what was seen.

``blink backend --prepare`` does it when an appliance is provisioned; a start compares, and does it again where anything
has changed since.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path

from blink.backend.gpu.assembly import Assembly, assemble, open_device, require_free
from blink.backend.gpu.inspection import (
    GraphRecord,
    Inspection,
    differences,
    identity,
    inspection_path,
    read_inspection,
)
from blink.backend.gpu.trial import answer
from blink.backend.setup import Setup
from blink.errors import BlinkError
from blink.gpu.graphs import destroy_exec, instantiate
from blink.gpu.nodes import node_counts, require_runnable
from blink.output import write_json
from blink.registry import DRIVERS

log = logging.getLogger("blink.backend")


def check(setup: Setup, json_path: Path | None = None) -> int:
    """Say whether the inspection is up to date, and where not, in what: also to ``json_path``. Changes nothing."""
    wrong = differences(read_inspection(inspection_path(setup)), identity(open_device(setup), setup))
    if str(json_path) != "-":
        print(f"{inspection_path(setup)}: {'would be made: ' + ', '.join(wrong) if wrong else 'up to date'}")
    if json_path is not None:
        write_json(json_path, {"differs": wrong})
    return 0


def inspect(setup: Setup) -> int:
    """Inspect the graphs, unless that is up to date."""
    device, path = open_device(setup), inspection_path(setup)
    if not differences(read_inspection(path), identity(device, setup)):
        return check(setup)
    require_free(device, setup)
    assembly = assemble(device, setup)
    try:
        inspection = _look(setup, assembly)
        inspection.write(path)
    except OSError as e:
        raise BlinkError(f"{path}: {e.strerror}", "name a writable directory as engine.cache_dir") from None
    finally:
        assembly.close()
    nodes = sum(sum(record.nodes.values()) for record in inspection.graphs)
    print(
        f"{path}: made; {len(inspection.graphs)} graphs of {nodes} nodes, captured in "
        f"{sum(r.capture_ms for r in inspection.graphs) / 1000:.2f} s, instantiated in "
        f"{sum(r.instantiate_ms for r in inspection.graphs) / 1000:.2f} s, in "
        f"{sum(r.bytes for r in inspection.graphs) / 2**20:.0f} MiB"
    )
    return 0


def verify(setup: Setup, assembly: Assembly) -> None:
    """At a start: see that the graphs are those that were inspected and answer as they did, or inspect them anew.

    Raises BlinkError where a graph is unfit, or where the same kernels on the same GPU answer otherwise than before.
    """
    path, now = inspection_path(setup), identity(assembly.device, setup)
    inspection = read_inspection(path)
    wrong = differences(inspection, now)
    if inspection is None or wrong:
        log.info("%s is made anew: %s", path, ", ".join(wrong))
        inspection = _look(setup, assembly)
        try:
            inspection.write(path)
        except OSError as e:
            log.warning("%s: %s; the next start inspects the graphs again", path, e.strerror)
        return
    found = answer(assembly.hosted, setup.scheduling)
    if found != inspection.answer:
        raise BlinkError(
            f"the engine answers {list(found)}, and {list(inspection.answer)} when {path} was made, on the same GPU",
            "suspect the GPU's memory (nvidia-smi -q -d ECC); to accept the new answer, remove that file",
        )


def _look(setup: Setup, assembly: Assembly) -> Inspection:
    records = _records(assembly, on_device=DRIVERS[setup.config.engine.driver].on_device)
    lanes = setup.config.engine.lanes
    found, padded = answer(assembly.hosted, setup.scheduling), answer(assembly.hosted, setup.scheduling, lanes)
    # An engine that is not exact may round otherwise in another bucket, which greedy answers of some models show.
    if found != padded and assembly.engine.exact:
        raise BlinkError(
            f"the engine answers {list(found)} alone and {list(padded)} in the graph for {lanes} rows",
            "report it, it is a defect of the engine",
        )
    return Inspection(identity(assembly.device, setup), tuple(records), found)


def _records(assembly: Assembly, *, on_device: bool) -> list[GraphRecord]:
    """Look at every node, and make every graph executable once. CUDA takes memory in blocks that several graphs
    share, so they are released together, and only the sum of their bytes means anything."""
    graphs, device = assembly.graphs, assembly.device
    records, made = [], []
    for graph, (kind, size), seconds in zip(graphs.graphs, graphs.shapes, graphs.capture_s, strict=True):
        counts = node_counts(graph)
        if on_device:
            require_runnable(f"{kind.name} of {size}", counts)
        before, started = device.free_memory(), time.perf_counter()
        made.append(instantiate(device, graph))
        took, taken = time.perf_counter() - started, max(0, before - device.free_memory())
        records.append(GraphRecord(kind.name, size, dict(counts), 1000 * seconds, 1000 * took, taken))
    for each in made:
        destroy_exec(each)
    return records
