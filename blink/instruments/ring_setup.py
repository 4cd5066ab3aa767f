"""An appliance of the benchmark's own: its configuration for one transport, and the processes it needs."""

from __future__ import annotations

import multiprocessing
import os
import secrets
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ipaddress import IPv4Address
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

from blink.config import ApplianceConfig, RdmaConfig
from blink.errors import BlinkError

MODEL = "synthetic"
SLOTS, PARTITIONS = 8192, 2  # 4096 slots and so 96 KiB of status for one worker; the other half is the operator's
PAGE_TOKENS = 1024  # a page of the counting engine costs nothing
SPARE_LANES = 4  # the scheduler keeps some pages free
START_S = 60.0  # imports take long on a busy machine


def folder() -> tempfile.TemporaryDirectory[str]:
    """A folder in a tmpfs for one measurement, named after the process that removes it."""
    return tempfile.TemporaryDirectory(prefix=f"blink-bench-{os.getpid()}-", dir="/dev/shm")


def configure(root: Path, transport: str, *, streams: int, max_context: int, device: str | None) -> ApplianceConfig:
    """An appliance in ``root`` (in a tmpfs) with room for ``streams`` requests of ``max_context`` tokens."""
    sections: dict[str, dict[str, Any]] = {
        "instance": {"name": "bench", "run_dir": root / "run", "ring_dir": root / "ring"},
        "ring": {"transport": transport, "slots": SLOTS, "partitions": PARTITIONS},
        "model": {"path": root / "model", "served_name": MODEL},
        "engine": {
            "lanes": streams,
            "page_tokens": PAGE_TOKENS,
            "max_context": max_context,
            "batch_tokens": 8192,
            "pages": (streams + SPARE_LANES) * -(-max_context // PAGE_TOKENS),
        },
        "frontend": {"port": _free_port(), "link_timeout_s": 5.0},
    }
    if transport == "verbs":
        key = root / "key"
        key.touch(0o600)
        key.write_text(secrets.token_hex(32))
        sections["rdma"] = {
            "device": device,
            "ringd_address": "127.0.0.1",
            "ringd_port": _free_port(),
            "key_file": key,
        }
    return ApplianceConfig.model_validate(sections)


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def missing(transport: str, device: str | None) -> str | None:
    """Why ``transport`` cannot be measured on this machine, or None."""
    if transport == "shm":
        return None
    from blink.ring.verbs.device import Device  # noqa: PLC0415 - only machines with RDMA need it

    try:
        Device(RdmaConfig(device=device, ringd_address=IPv4Address("127.0.0.1"), key_file=Path("unused"))).close()
    except BlinkError as e:
        return e.cause
    return None


@contextmanager
def ringd(config: ApplianceConfig, on_core: int) -> Iterator[None]:
    """Within the block a blink-ringd of the benchmark's own runs, where the transport needs one."""
    if config.ring.transport == "shm":
        yield
        return
    from blink.ring.announce import SOCKET  # noqa: PLC0415

    with running(_ringd, config, on_core) as process:
        deadline = time.monotonic() + START_S
        while not (config.instance.run_dir / SOCKET).exists():
            if not process.is_alive() or time.monotonic() > deadline:
                raise BlinkError("the benchmark's blink-ringd did not start", "see the cause above")
            time.sleep(0.05)
        yield


def _ringd(config: ApplianceConfig, on_core: int) -> None:
    from blink.ringd.server import main  # noqa: PLC0415

    os.sched_setaffinity(0, {on_core})
    main(config)


@contextmanager
def running(target: Callable[..., None], *args: Any, **kwargs: Any) -> Iterator[SpawnProcess]:
    """A process that ends with the block."""
    process = multiprocessing.get_context("spawn").Process(target=target, args=args, kwargs=kwargs)
    process.start()
    try:
        yield process
    finally:
        process.terminate()
        process.join(10)
        if process.is_alive():
            process.kill()
            process.join()
