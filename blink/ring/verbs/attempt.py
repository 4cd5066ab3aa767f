"""Connecting in a thread of its own, so that the event loop never waits for a handshake."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable
from contextlib import suppress

from blink.errors import BlinkError
from blink.ring.verbs.connection import Connection, Request, connect
from blink.ring.verbs.fabric import Fabric, FabricError

PAUSE_S = 0.5  # after a failure, within the attempt: a frontend asks a host that is down no more often

log = logging.getLogger("blink.ring")


class Attempt:
    """One attempt to connect, begun at once; ``old`` is closed first, in the same thread.

    Once ``done``, either :meth:`take` gives the connection or ``failure`` says why there is none; ``failure`` is set
    PAUSE_S earlier.
    """

    def __init__(self, request: Request, open_fabric: Callable[[], Fabric], old: Connection | None) -> None:
        self._request, self._open_fabric, self._old = request, open_fabric, old
        self.failure = ""
        self._connection: Connection | None = None
        self._lock = threading.Lock()
        self._cancelled = threading.Event()
        self._done = threading.Event()
        self._sock = socket.socket(_family(request), socket.SOCK_STREAM)
        self._thread = threading.Thread(target=self._run, name="ring handshake", daemon=True)
        self._thread.start()

    @property
    def done(self) -> bool:
        """Whether it has ended."""
        return self._done.is_set()

    def take(self) -> Connection | None:
        """The connection, which then is the caller's."""
        with self._lock:
            connection, self._connection = self._connection, None
        return connection

    def cancel(self) -> None:
        """Give up without waiting; what it has made or still makes is closed."""
        self._cancelled.set()
        with suppress(OSError):  # not connected yet, or not any more
            self._sock.shutdown(socket.SHUT_RDWR)
        connection = self.take()
        if connection is not None:
            connection.close()

    def join(self, timeout_s: float) -> None:
        """Wait for its thread."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            if self._old is not None:
                self._old.close()
            connection = connect(self._request, self._open_fabric(), self._sock)
            with self._lock:
                if not self._cancelled.is_set():
                    self._connection, connection = connection, None  # type: ignore[assignment]
            if connection is not None:
                connection.close()
        except (BlinkError, FabricError) as e:
            self.failure = str(e)
        except Exception as e:  # a defect must not look like an attempt that never ends
            log.exception("connecting to the ring failed")
            self.failure = f"on the frontend: {type(e).__name__}: {e}"
        if self.failure:
            self._sock.close()
            self._cancelled.wait(PAUSE_S)
        self._done.set()


def _family(request: Request) -> socket.AddressFamily:
    return socket.AF_INET6 if request.config.ringd_address.version == 6 else socket.AF_INET
