"""blink-ringd in a thread over a simulated device, with a ring announced to it; for tests."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from blink.config import ApplianceConfig, RdmaConfig
from blink.ring.announce import SOCKET, announce
from blink.ring.handshake import Access
from blink.ring.layout import PAGE
from blink.ring.transport import LinkState
from blink.ring.verbs.connection import Request
from blink.ring.verbs.fabric import Fabric
from blink.ring.verbs.transport import VerbsTransport
from blink.ringd.server import Daemon
from tests.appliance import wait_for
from tests.ports import free_port
from tests.ringd.simulated import Network, SimFabric

ROOT = Path(__file__).resolve().parents[2]
HOLDER = bytes(range(16))


def write_key(path: Path, secret: bytes | None = None) -> bytes:
    """A key file; its 32 bytes."""
    secret = secret or secrets.token_bytes(32)
    path.touch(mode=0o600)
    path.write_text(secret.hex())
    return secret


class Host:
    """The ring's machine: a daemon on 127.0.0.1 over ``network``, and the configuration that leads to it."""

    def __init__(self, root: Path, network: Network | None = None, **rdma: Any) -> None:
        self.root, self.network = root, network or Network()
        write_key(root / "key")
        self.rdma = RdmaConfig(
            ringd_address="127.0.0.1", ringd_port=free_port(), key_file=root / "key", next_key_file=root / "next",
            handshake_timeout_s=rdma.pop("handshake_timeout_s", 1.0), **rdma,
        )  # fmt: skip
        self.config = ApplianceConfig(
            instance={"run_dir": root / "run", "ring_dir": root / "ring"},
            ring={"transport": "verbs", "slots": 64, "partitions": 2}, rdma=self.rdma,
            model={"path": root, "served_name": "toy"},
        )  # fmt: skip
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._fabric = SimFabric(self.network, "10.0.0.1")
        self.daemon = Daemon(self.config, self.rdma, self._fabric)
        self._announcements: list[socket.socket] = []

    def call(self, function: Callable[[], Any]) -> Any:
        """Run ``function`` in the daemon's loop."""

        async def run() -> Any:
            result = function()
            return await result if asyncio.iscoroutine(result) else result

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(10)

    def start(self) -> None:
        """Let the daemon listen."""
        self.call(self.daemon.listen)

    def announce(self, directory: Path) -> socket.socket:
        """Announce the ring that is published in ``directory``, in the name of this process."""
        fds = [os.open(directory / name, os.O_RDWR) for name in ("G", "F")]
        try:
            connection = announce(self.config.instance.run_dir / SOCKET, (directory / "G").read_bytes()[:PAGE], *fds)
        finally:
            for fd in fds:
                os.close(fd)
        self._announcements.append(connection)
        return connection

    def transport(
        self, partition: int = 0, *, holder: bytes = HOLDER, access: Access = Access.WORKER,
        open_fabric: Callable[[], Fabric] | None = None,
    ) -> VerbsTransport:  # fmt: skip
        """A frontend's transport."""
        return VerbsTransport(
            Request(self.rdma, access, partition, holder),
            open_fabric or (lambda: SimFabric(self.network, "10.0.0.2")),
        )

    def sessions(self) -> int:
        """Connected frontends."""
        return int(self.call(lambda: self.daemon._frontends.sessions))

    def stop(self) -> None:
        """End the daemon."""
        self.call(self.daemon.close)

    def close(self) -> None:
        """End everything."""
        for connection in self._announcements:
            connection.close()
        self.stop()
        self._fabric.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


@contextmanager
def host(root: Path, **options: Any) -> Iterator[Host]:
    """A listening host."""
    h = Host(root, **options)
    try:
        h.start()
        yield h
    finally:
        h.close()


def connected(transport: VerbsTransport) -> VerbsTransport:
    """``transport``, up."""
    transport.reconnect()
    settle(transport)
    assert transport.state is LinkState.UP, transport.detail
    return transport


def settle(transport: VerbsTransport) -> LinkState:
    """Its state once it is not connecting any more."""
    wait_for("the handshake", lambda: transport.state is not LinkState.CONNECTING, 10)
    return transport.state


def read(transport: VerbsTransport, *args: Any) -> bytes | None:
    """One read; None where the link broke."""
    ticket = transport.post_read(*args)
    return finish(transport, ticket)


def finish(transport: VerbsTransport, ticket: int) -> bytes | None:
    """The bytes of ``ticket``, empty for a write; None where the link broke."""
    deadline = time.monotonic() + 5
    while transport.state is LinkState.UP:
        assert time.monotonic() < deadline, "waited 5 s for a completion"
        for done in transport.poll():
            if done.ticket == ticket:
                return b"" if done.data is None else done.data.tobytes()
    return None


@contextmanager
def scheduler(directory: Path, seconds: int = 60) -> Iterator[subprocess.Popen[str]]:
    """The scheduler core over a ring published in ``directory``, in a process of its own."""
    command = [sys.executable, "-m", "tests.ring.scheduler_process", str(directory), str(seconds)]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "published\n", process.stderr and process.stderr.read()
            yield process
        finally:
            process.kill()
