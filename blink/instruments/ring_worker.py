"""One frontend worker on one core, with the synthetic ring and the readers of its streams on another."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from multiprocessing.context import SpawnProcess
from pathlib import Path

from blink.config import ApplianceConfig
from blink.errors import BlinkError
from blink.instruments import ring_sse
from blink.instruments.ring_setup import MODEL, START_S, configure, folder, ringd, running
from blink.instruments.ring_synthetic import Board, serve, write_model

PROMPT_TOKENS = 64


def missing() -> str | None:
    """Why no worker can be measured on this machine, or None."""
    absent = [name for name in ("tokenizers", "fastapi", "uvicorn", "httpx") if find_spec(name) is None]
    if absent:
        return f"no frontend is installed here (Python package {absent[0]})"
    if len(os.sched_getaffinity(0)) < 2:
        return "this machine has one core, and the readers need one that the worker does not use"
    return None


def cores() -> tuple[int, int]:
    """The core of what is measured and the core of everything else; the same on a machine with one."""
    usable = sorted(os.sched_getaffinity(0))
    return usable[-1], usable[0]


@contextmanager
def pinned(core: int) -> Iterator[None]:
    """Within the block this process runs on ``core``."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def measure(transport: str, device: str | None, *, streams: int, max_tokens: int, offered: float) -> ring_sse.Reading:
    """Run ``streams`` streams of ``max_tokens`` tokens each through a frontend of its own.

    The ring gets ``offered`` tokens/s; with 0, the next token of each stream once every stream has read its last.
    """
    worker_core, other_core = cores()
    with ExitStack() as stack:
        stack.enter_context(pinned(other_core))
        root = Path(stack.enter_context(folder()))
        context = PROMPT_TOKENS + max_tokens
        config = configure(root, transport, streams=streams, max_context=context, device=device)
        fingerprint = write_model(config.model.path)
        board = Board(root / "board", streams, max_tokens)
        stack.enter_context(ringd(config, other_core))
        filler = stack.enter_context(
            running(
                serve, config, root / "board", prompt_tokens=PROMPT_TOKENS, max_tokens=max_tokens, rate=offered,
                on_core=other_core, fingerprint=fingerprint,
            )
        )  # fmt: skip
        worker = stack.enter_context(running(_serve_http, config, root / "log", worker_core))
        _wait_healthy(config.frontend.port, (filler, worker), root / "log")
        assert worker.pid is not None
        return ring_sse.read(
            board, port=config.frontend.port, worker=worker.pid, model=MODEL, streams=streams,
            prompt_tokens=PROMPT_TOKENS, max_tokens=max_tokens,
        )  # fmt: skip


def _serve_http(config: ApplianceConfig, log: Path, on_core: int) -> None:
    """A process's work: the frontend as `blink frontend` runs it, on one core, with its log in a file."""
    from blink.frontend.server import main  # noqa: PLC0415 - only this process needs the frontend's packages

    os.sched_setaffinity(0, {on_core})
    with log.open("wb") as file:
        os.dup2(file.fileno(), sys.stderr.fileno())
    sys.exit(main(config))


def _wait_healthy(port: int, processes: Sequence[SpawnProcess], log: Path) -> None:
    import httpx  # noqa: PLC0415 - a machine without a frontend may lack it

    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and all(p.is_alive() for p in processes):
        try:
            if httpx.get(f"http://127.0.0.1:{port}/health", trust_env=False, timeout=2).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.1)
    text = log.read_text() if log.exists() else ""
    ended = [what for what, p in zip(("engine", "frontend"), processes, strict=True) if not p.is_alive()]
    why = f"its {ended[0]} ended" if ended else f"waited {START_S:g} s for its frontend"
    raise BlinkError(f"the benchmark: {why}; the frontend's log: {text[-500:] or 'empty'}", "see the cause above")
