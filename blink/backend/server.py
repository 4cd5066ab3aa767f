"""``blink backend``: allocate, load, serve the ring, stop."""

from __future__ import annotations

import logging
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

from blink.backend.exclusive import RingLock
from blink.backend.setup import Setup
from blink.backend.shutdown import StopSignals
from blink.config import ApplianceConfig
from blink.errors import BlinkError
from blink.output import write_json
from blink.registry import ENGINES, require_engine


def main(config: ApplianceConfig) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit code. Raises BlinkError where this machine cannot serve."""
    _log()
    stop, half = StopSignals(), _half(config)
    with RingLock(config.instance.ring_dir):
        half.serve(Setup(config), stop)
    logging.getLogger("blink.backend").info("stopped")
    return 0


def check(config: ApplianceConfig) -> int:
    """Print the memory that ``config`` takes; returns the exit code. Changes nothing, and may run beside a backend.

    Raises BlinkError where this release or this machine cannot serve it: engine, transport, GPU, or shapes that the
    model does not have.
    """
    _half(config).check(Setup(config))
    return 0


def inspect_graphs(config: ApplianceConfig, *, check: bool, json_path: Path | None = None) -> int:
    """Capture, inspect and try every graph of ``config`` and write down what was seen, unless that is up to date.

    With ``check`` only say whether it is, also to ``json_path``: {"differs": [what]}. Returns the exit code. Raises
    BlinkError where a graph is unfit.
    """
    _log()
    if not config.engine.on_gpu:
        if str(json_path) != "-":
            print(f"engine.kind {config.engine.kind} has no graphs: nothing to do")
        if check and json_path is not None:
            write_json(json_path, {"differs": []})
        return 0
    graphs = _half(config).graphs
    if check:
        return int(graphs.check(Setup(config), json_path))
    with RingLock(config.instance.ring_dir):
        return int(graphs.inspect(Setup(config)))


def _log() -> None:
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s blink backend: %(message)s")


def _half(config: ApplianceConfig) -> ModuleType:
    """The module that serves ``config``. Each needs packages that the other does not."""
    kind = config.engine.kind
    require_engine(kind)
    try:
        return import_module("blink.backend.gpu.serve" if ENGINES[kind].on_gpu else "blink.backend.cpu")
    except ModuleNotFoundError as e:
        if not (e.name or "").startswith(("cuda", "nvidia")):
            raise
        raise BlinkError(
            f"engine.kind {kind} needs the Python package {e.name}",
            "install requirements/gpu.txt, or Blink with its extra gpu: pip install 'blink-serve[gpu]'",
        ) from None
