"""A whole appliance as real processes, for tests: a configuration, a backend, a frontend."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, TypeVar

import httpx

from blink.cli import main
from blink.config import ApplianceConfig, load_config
from blink.operate.status import observer, status
from blink.ring.observe import Observation
from tests.ports import free_port

START_S = 60.0  # on a machine that does much else
ENGINE = {"lanes": 4, "queue": 8, "page_tokens": 8, "pages": 256, "max_context": 1024, "batch_tokens": 64, "threads": 1}
RING = {"slots": 64, "input_mib": 1, "output_mib": 1}
T = TypeVar("T")
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For clients that use none: httpx makes one with every client otherwise, which takes it 20 ms."""


def wait_for(what: str, condition: Callable[[], T], timeout_s: float = START_S, *, every_s: float = 0.01) -> T:
    """The first true value of ``condition()``, asked ``every_s``; fails naming ``what`` after ``timeout_s``."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited {timeout_s:g} s for {what}"
        time.sleep(every_s)
    return value


class Appliance:
    """Processes of one appliance under ``root``; :meth:`close` ends them whatever their state."""

    def __init__(self, root: Path, folder: Path, **sections: Mapping[str, Any]) -> None:
        root.mkdir(parents=True, exist_ok=True)
        ring_dir = Path("/dev/shm") / f"blink-test-{os.getpid()}-{root.name}"
        self.port = free_port()
        tables: dict[str, dict[str, Any]] = {
            "instance": {"name": "test", "run_dir": root / "run", "ring_dir": ring_dir},
            "ring": dict(RING),
            "model": {"path": folder, "served_name": "tiny"},
            "engine": dict(ENGINE),
            "frontend": {"port": self.port, "link_timeout_s": 5.0},
        }
        for name, values in sections.items():
            tables[name] |= values
        self.ring_dir = Path(tables["instance"]["ring_dir"])
        self.config_path = root / "blink.toml"
        self.config_path.write_text(to_toml(tables))
        self.logs = {half: root / f"{half}.log" for half in ("backend", "frontend")}
        self._running: list[subprocess.Popen[bytes]] = []
        self._newest: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def config(self) -> ApplianceConfig:
        """What the processes read."""
        return load_config(self.config_path)

    def start(self, half: str) -> subprocess.Popen[bytes]:
        """Start ``blink backend`` or ``blink frontend``, without waiting for it."""
        command = [sys.executable, "-m", "blink", half, "--config", str(self.config_path)]
        with self.logs[half].open("ab") as log:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self._running.append(process)
        self._newest[half] = process
        return process

    @contextmanager
    def stopped(self, half: str) -> Iterator[None]:
        """A half that does not run while the block does: SIGSTOP, then SIGCONT."""
        self._newest[half].send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._newest[half].send_signal(signal.SIGCONT)

    def backend(self) -> subprocess.Popen[bytes]:
        """Start the backend and wait until the scheduler serves."""
        process = self.start("backend")
        self._wait_up(process, "backend", lambda: status(self.config)["state"] == "up")
        return process

    def frontend(self) -> subprocess.Popen[bytes]:
        """Start the frontend and wait until it can answer requests."""
        process = self.start("frontend")
        self._wait_up(process, "frontend", self.healthy)
        return process

    def _wait_up(self, process: subprocess.Popen[bytes], half: str, up: Any) -> None:
        def up_or_dead() -> bool:
            assert process.poll() is None, f"{half} ended with {process.returncode}: {self.log(half)}"
            return bool(up())

        wait_for(f"the {half}", up_or_dead, every_s=0.03)

    def healthy(self) -> bool:
        """Whether GET /health answers 200."""
        try:
            return self.client(timeout=5).get("/health").status_code == 200
        except httpx.HTTPError:
            return False

    def client(self, timeout: float = 60) -> httpx.Client:
        """An HTTP client of the frontend."""
        url = f"http://127.0.0.1:{self.port}"
        return httpx.Client(base_url=url, timeout=timeout, trust_env=False, verify=NO_TLS)

    def log(self, half: str) -> str:
        """What a half has written."""
        return self.logs[half].read_text() if self.logs[half].exists() else ""

    def observe(self) -> Observation:
        """The ring now."""
        seen = observer(self.config)
        try:
            return seen.observe()
        finally:
            seen.close()

    def command(self, *arguments: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        """Run ``blink ARGUMENTS --config …`` to its end."""
        return run_blink(*arguments, "--config", str(self.config_path), timeout=timeout)

    def call(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """The same as a call in this process, for what ends by itself and is not asked as a process."""
        return call_blink(*arguments, "--config", str(self.config_path))

    def close(self) -> None:
        """Kill what runs and remove the ring."""
        for process in self._running:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait(10)
        shutil.rmtree(self.ring_dir, ignore_errors=True)


def run_blink(*arguments: str, timeout: float = 120, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "blink", *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        **options,
    )


def call_blink(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Call the command line, which starts in no time then; it must neither serve nor look at its own process."""
    out, err = io.StringIO(), io.StringIO()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        with redirect_stdout(out), redirect_stderr(err):
            code = main(arguments)
    except SystemExit as e:
        code = e.code if isinstance(e.code, int) else 1
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


@contextmanager
def appliance(root: Path, folder: Path, **sections: Mapping[str, Any]) -> Iterator[Appliance]:
    """An appliance that is closed at the end of the block."""
    a = Appliance(root, folder, **sections)
    try:
        yield a
    finally:
        a.close()


def to_toml(tables: Mapping[str, Mapping[str, Any]]) -> str:
    """TOML text of flat ``tables``."""
    lines = []
    for name, values in tables.items():
        lines.append(f"[{name}]")
        for key, value in values.items():
            lines.append(f"{key} = {json.dumps(value) if isinstance(value, int | float) else repr(str(value))}")
    return "\n".join(lines) + "\n"
