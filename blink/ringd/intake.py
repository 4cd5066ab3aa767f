"""The side of ringd that faces the backend: takes a ring's memory over a local socket, and notices its owner's end."""

from __future__ import annotations

import asyncio
import logging
import os
import pwd
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np

from blink.errors import BlinkError
from blink.ring.announce import ANNOUNCE, MAGIC, MESSAGE, VERSION, Kind
from blink.ring.header import Header
from blink.ring.layout import HEADER

ANNOUNCE_S = 5.0
_CREDENTIALS = struct.Struct("iII")  # struct ucred: pid, uid, gid

log = logging.getLogger("blink.ringd")


class Announcement:
    """A backend's ring: ``header``, descriptors, and the connection that stands for its life."""

    def __init__(self, connection: socket.socket, pid: int) -> None:
        """Read the message that has arrived. Raises BlinkError where it is none."""
        self.pid = pid
        try:
            message, fds, flags, _ = socket.recv_fds(connection, MESSAGE + 1, 8)
        except OSError as e:
            raise BlinkError(f"the backend's announcement: {e.strerror}", "start the backend again") from None
        try:
            if flags & socket.MSG_CTRUNC or len(message) != MESSAGE or len(fds) != 2:
                raise BlinkError(
                    f"an announcement of {len(message)} bytes and {len(fds)} descriptors", "start blink backend"
                )
            magic, version, kind = ANNOUNCE.unpack_from(message)
            if magic != MAGIC or version != VERSION:
                raise BlinkError(f"an announcement of version {version}", "run backend and ringd from one release")
            try:
                self.kind = Kind(kind)
            except ValueError:
                raise BlinkError(f"memory of kind {kind}", "run backend and ringd from one release") from None
            page = np.frombuffer(message, np.uint8, offset=ANNOUNCE.size)
            self.header = Header.decode(page[: HEADER.size], "the announced ring")
            if self.header.epoch == 0:
                raise BlinkError("the announced ring has no epoch", "announce it after it is published")
        except BaseException:
            for fd in fds:
                os.close(fd)
            raise
        self.g_fd, self.f_fd = fds


class Intake:
    """Listens at ``path`` for backends of user ``user`` (or the own one).

    ``arrived`` gets each announcement and raises BlinkError to refuse it; ``ended`` gets the one whose backend is gone.
    """

    def __init__(
        self, path: Path, user: str | None, arrived: Callable[[Announcement], None],
        ended: Callable[[Announcement], None],
    ) -> None:  # fmt: skip
        self._path, self._arrived, self._ended = path, arrived, ended
        self._uids = {os.geteuid()}
        if user is not None:
            try:
                self._uids.add(pwd.getpwnam(user).pw_uid)
            except KeyError:
                raise BlinkError(f"rdma.backend_user: no user {user}", "create it, or name the backend's") from None
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener: socket.socket | None = None

    def listen(self) -> None:
        """Begin to accept. Raises BlinkError where the socket cannot be made."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.unlink(missing_ok=True)
            listener.bind(str(self._path))
            self._path.chmod(0o666 if len(self._uids) > 1 else 0o600)  # who connects is checked by its credentials
            listener.listen(4)
        except OSError as e:
            listener.close()
            raise BlinkError(f"{self._path}: {e.strerror}", "make instance.run_dir writable for blink-ringd") from None
        self._listener = listener
        asyncio.get_running_loop().add_reader(listener.fileno(), self._accept)

    def close(self) -> None:
        """Stop listening and hang up on the backend, which announces its ring again to the next ringd. Idempotent."""
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener.fileno())
            self._listener.close()
            self._listener = None
            with suppress(OSError):
                self._path.unlink(missing_ok=True)
        for task in self._tasks:
            task.cancel()

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        task = asyncio.get_running_loop().create_task(self._serve(connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, connection: socket.socket) -> None:
        with connection:
            connection.setblocking(False)
            credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            pid, uid, _ = _CREDENTIALS.unpack(credentials)
            if uid not in self._uids:
                log.warning("process %d of user %d is no backend of this appliance: turned away", pid, uid)
                _reply(connection, f"user {uid} may not announce a ring: set rdma.backend_user")
                return
            try:
                async with asyncio.timeout(ANNOUNCE_S):
                    await _readable(connection.fileno())
                announcement = Announcement(connection, pid)
                self._arrived(announcement)
            except TimeoutError:
                log.warning("process %d connected and announced nothing", pid)
                return
            except BlinkError as e:
                log.warning("the ring of process %d: %s", pid, e)
                _reply(connection, str(e))
                return
            try:
                _reply(connection, "")
                await _end_of(connection, pid)
            finally:
                self._ended(announcement)


def _reply(connection: socket.socket, refusal: str) -> None:
    with suppress(OSError):
        connection.send(b"\1" + refusal.encode()[:4000] if refusal else b"\0")


async def _readable(*fds: int) -> None:
    """Wait until one of ``fds`` is readable."""
    loop = asyncio.get_running_loop()
    event = asyncio.Event()
    for fd in fds:
        loop.add_reader(fd, event.set)
    try:
        await event.wait()
    finally:
        for fd in fds:
            loop.remove_reader(fd)


async def _end_of(connection: socket.socket, pid: int) -> None:
    """Wait for the end of the backend: of its connection, or of its process, whose children may hold the former."""
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:  # gone already, or in another PID namespace
        pidfd = -1
    try:
        await _readable(connection.fileno(), *([pidfd] if pidfd >= 0 else []))
    finally:
        if pidfd >= 0:
            os.close(pidfd)
