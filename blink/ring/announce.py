"""How a backend hands its ring to blink-ringd: one message with two descriptors over a local socket.

The message is ANNOUNCE with the ring's header page, and the descriptors of the G and F objects. The reply is one byte
0, or 1 and a text. The connection then stands for the backend's life: its end is the end of the ring.
"""

from __future__ import annotations

import enum
import logging
import os
import socket
import struct
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Protocol

from blink.errors import BlinkError
from blink.ring.layout import PAGE

SOCKET = "ringd.sock"  # in instance.run_dir
ANNOUNCE = struct.Struct("<8sHH")  # magic, version, kind of memory
MAGIC = b"BLNKRING"
VERSION = 1
MESSAGE = ANNOUNCE.size + PAGE
RETRY_S = 0.5
REPLY_S = 30.0  # registering pins every page of the ring

log = logging.getLogger("blink.backend")


class Kind(enum.IntEnum):
    """What the two descriptors are."""

    FILE = 1  # memfd, or a file of a tmpfs
    DMABUF = 2  # memory of a GPU


def announce(path: Path, header: bytes, g_fd: int, f_fd: int, kind: Kind = Kind.FILE) -> socket.socket:
    """Announce a ring to the ringd at ``path``; the ring is registered until the socket returned is closed.

    ``header`` is its header page. Raises BlinkError where nobody listens or ringd refuses.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.settimeout(REPLY_S)
        connection.connect(str(path))
        socket.send_fds(connection, [ANNOUNCE.pack(MAGIC, VERSION, kind) + header], [g_fd, f_fd])
        reply = connection.recv(4096)
        if reply[:1] != b"\0":
            raise BlinkError(f"blink-ringd refuses the ring: {reply[1:].decode(errors='replace')}", "see its log")
        connection.settimeout(None)
        return connection
    except OSError as e:
        connection.close()
        raise BlinkError(f"blink-ringd at {path}: {e.strerror or 'no answer'}", "start it: frontends wait") from None
    except BlinkError:
        connection.close()
        raise


class AnnouncedRing(Protocol):
    """A ring in memory that another process can have."""

    @property
    def kind(self) -> Kind:
        """What its descriptors are."""

    def header_page(self) -> bytes:
        """Its header, PAGE bytes."""

    def descriptors(self) -> tuple[int, int]:
        """New descriptors of G and F, which the caller closes."""


class Announcer:
    """Keeps a published ring announced, across restarts of ringd, until the block ends.

    The thread sleeps in a read of the socket; it costs nothing while nothing happens, and a stopped backend stays
    announced.
    """

    def __init__(self, run_dir: Path, ring: AnnouncedRing) -> None:
        self._path, self._kind = run_dir / SOCKET, ring.kind
        self._header = ring.header_page()
        self._fds = ring.descriptors()
        self._stop = threading.Event()
        self._socket: socket.socket | None = None
        self._thread = threading.Thread(target=self._run, name="announcer", daemon=True)

    def __enter__(self) -> Announcer:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        self._stop.set()
        if self._socket is not None:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(RETRY_S + REPLY_S)
        for fd in self._fds:
            os.close(fd)

    def _run(self) -> None:
        said = ""
        while not self._stop.is_set():
            try:
                with announce(self._path, self._header, *self._fds, self._kind) as connection:
                    self._socket, said = connection, ""
                    log.info("blink-ringd has the ring")
                    if not self._stop.is_set():
                        connection.recv(1)  # returns when ringd or this backend ends
                if not self._stop.is_set():
                    log.warning("blink-ringd went away; frontends have no link until it is back")
            except BlinkError as e:
                if str(e) != said:
                    said = str(e)
                    log.warning("%s", e)
            except OSError:
                pass
            self._stop.wait(RETRY_S)
