"""The ring in shared memory: files ``G`` and ``F`` in the ring directory, a tmpfs.

A backend never changes a published ring: it makes new files and renames them into place, so a worker sees a restart as
another inode. The order (unlink G, rename F, rename G) lets a worker that opens G, then F, and then finds the same G
still in place know that the two belong together. A backend that died leaves its files; its lock on G is gone with it.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from blink import core
from blink.errors import BlinkError
from blink.ring.announce import Kind
from blink.ring.header import Header
from blink.ring.layout import HEADER, PAGE
from blink.ring.ownership import own, owned
from blink.ring.transport import Bytes, Channel, Completion, LinkState, Region

WATCH_S = 0.1  # how often a worker looks whether its ring is still the published one


class RingObjects:
    """The host's side: the memory of a ring, for the scheduler.

    ``g`` and ``f`` are u8 arrays over the mappings, shapes [g_bytes] and [f_bytes]; ``epoch`` is random, never zero.
    """

    kind = Kind.FILE

    def __init__(self, directory: Path, header: Header) -> None:
        """Make zeroed files under temporary names and write all of H but the epoch. Raises BlinkError."""
        self.directory, self.geometry, self.epoch = directory, header.geometry, header.epoch
        self._names = {name: directory / f".{name}.{header.epoch:016x}" for name in ("G", "F")}
        try:
            directory.mkdir(parents=True, exist_ok=True)
            for stale in (*directory.glob(".G.*"), *directory.glob(".F.*")):  # of a backend that died unpublished
                stale.unlink()
            self.g, self._lock = _create(self._names["G"], header.geometry.g_bytes, 0o640)
            own(self._lock)
            self.f, fd = _create(self._names["F"], header.geometry.f_bytes, 0o660)
            os.close(fd)
        except OSError as e:
            for path in self._names.values():
                with suppress(OSError):
                    path.unlink()
            raise BlinkError(f"{directory}: {e.strerror}", "give instance.ring_dir room in a writable tmpfs") from None
        self.g[:PAGE] = np.frombuffer(header.encode(), np.uint8)
        self.g[HEADER.offset("epoch") : HEADER.offset("epoch") + 8] = 0
        for p in range(self.geometry.parts):
            core.store_release(self._address(self.geometry.g_off + p * self.geometry.g_stride), self.epoch)

    def _address(self, offset: int) -> int:
        return self.g.ctypes.data + offset

    def publish(self) -> None:
        """Write the epoch and put both files into place, replacing a ring that was there."""
        core.store_release(self._address(HEADER.offset("epoch")), self.epoch)
        (self.directory / "G").unlink(missing_ok=True)
        for name in ("F", "G"):
            self._names[name].rename(self.directory / name)
            self._names[name] = self.directory / name

    def header_page(self) -> bytes:
        """H as it is now."""
        return self.g[:PAGE].tobytes()

    def descriptors(self) -> tuple[int, int]:
        """New descriptors of G and F, which the caller closes, for a process that shares the memory."""
        g_fd, f_fd = (os.open(self._names[name], os.O_RDWR | os.O_CLOEXEC) for name in ("G", "F"))
        return g_fd, f_fd

    def unlink(self) -> None:
        """Remove the files, unless another backend has replaced them: workers find the backend gone."""
        for name in ("G", "F"):
            path = self._names[name]
            try:
                if path.name.startswith(".") or _epoch_of(self.directory / "G") in (self.epoch, None):
                    path.unlink(missing_ok=True)
            except OSError:  # the directory itself is gone
                continue

    def close(self) -> None:
        """Drop the mappings and the ownership; nobody may use ``g`` and ``f`` afterwards. Idempotent."""
        self.g = self.f = np.empty(0, np.uint8)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _create(path: Path, size: int, mode: int) -> tuple[Bytes, int]:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        os.posix_fallocate(fd, 0, size)  # a full tmpfs fails here and not as SIGBUS later
        return np.frombuffer(mmap.mmap(fd, size), np.uint8), fd
    except BaseException:
        os.close(fd)
        raise


def _epoch_of(path: Path) -> int | None:
    try:
        with path.open("rb") as file:
            return int.from_bytes(file.read(PAGE)[HEADER.offset("epoch") :][:8], "little")
    except FileNotFoundError:
        return None


class ShmTransport:
    """A worker's link to a ring in ``directory``. G is mapped read-only.

    Operations take effect when they are posted and complete at the next :meth:`poll`. Payload is stored with relaxed
    word stores and aligned single words (commit, doorbell, cancel) with release ordering; reads that consist of whole
    64-bit words load each with acquire ordering, so a status precedes whatever is read after it.
    """

    def __init__(self, directory: Path, partition: int) -> None:
        self.directory, self.partition = directory, partition
        self._state, self._detail = LinkState.DOWN, f"backend not up: no ring was opened in {directory} yet"
        self._regions: dict[Region, Bytes] = {}
        self._base: dict[Region, int] = {}
        self._identity = (0, 0)
        self._g_fd = -1  # of the mapped G, to ask whether its owner lives
        self._watch = 0.0
        self._ended = ""  # why the ring is no longer in place
        self._tickets = 0
        self._done: list[Completion] = []
        self._lib = core.library()

    @property
    def state(self) -> LinkState:
        """State of the link; see :class:`LinkState`."""
        return self._state

    @property
    def detail(self) -> str:
        """Why the link is not up."""
        return self._detail

    def reconnect(self) -> None:
        """Map the ring that is in place now, if there is one."""
        self.close()
        try:
            g_fd = os.open(self.directory / "G", os.O_RDONLY | os.O_CLOEXEC)
            try:
                f_fd = os.open(self.directory / "F", os.O_RDWR | os.O_CLOEXEC)
                try:
                    self._map(g_fd, f_fd)
                finally:
                    os.close(f_fd)
            finally:
                os.close(g_fd)
        except FileNotFoundError:
            self._detail = f"backend not up: no ring in {self.directory}"
        except OSError as e:
            self._detail = f"{self.directory}: {e.strerror}; the frontend must read G and write F there"
        except BlinkError as e:
            self._detail = str(e)

    def _map(self, g_fd: int, f_fd: int) -> None:
        identity = _identity(os.fstat(g_fd))
        if os.fstat(g_fd).st_size < PAGE:
            raise BlinkError(f"{self.directory}/G is shorter than a header", "restart the backend")
        header = Header.decode(np.frombuffer(os.pread(g_fd, PAGE, 0), np.uint8), f"{self.directory}/G")
        geometry = header.geometry
        if self.partition >= geometry.parts:
            raise BlinkError(
                f"partition {self.partition} of a ring with {geometry.parts} partitions", "raise ring.partitions"
            )
        for fd, name, size in ((g_fd, "G", geometry.g_bytes), (f_fd, "F", geometry.f_bytes)):
            if os.fstat(fd).st_size < size:  # a load beyond the end would be SIGBUS
                raise BlinkError(f"{self.directory}/{name} is shorter than its header says", "restart the backend")
        g = np.frombuffer(mmap.mmap(g_fd, geometry.g_bytes, prot=mmap.PROT_READ), np.uint8)
        f = np.frombuffer(mmap.mmap(f_fd, geometry.f_bytes), np.uint8)
        if _identity((self.directory / "G").stat()) != identity:
            raise BlinkError(f"{self.directory} is being replaced", "wait for the backend")
        if not owned(g_fd):
            raise BlinkError(
                f"backend not up: the process that made the ring in {self.directory} is gone", "restart it"
            )
        g_at, f_at = geometry.g_off + self.partition * geometry.g_stride, self.partition * geometry.f_stride
        self._regions = {
            Region.H: g[:PAGE],
            Region.G: g[g_at : g_at + geometry.g_stride],
            Region.F: f[f_at : f_at + geometry.f_stride],
        }
        self._base = {region: array.ctypes.data for region, array in self._regions.items()}
        self._g_fd = os.dup(g_fd)
        self._identity, self._watch = identity, time.monotonic() + WATCH_S
        self._state, self._detail = LinkState.UP, ""

    def size(self, region: Region) -> int:
        """Bytes of ``region``; see :class:`Transport`."""
        return len(self._regions[region])

    def _address(self, region: Region, offset: int, length: int) -> int:
        if offset < 0 or length < 0 or offset + length > len(self._regions[region]) or (offset | length) % 4:
            raise ValueError(f"[{offset}, +{length}) of {region.name} is outside it or not aligned to 4 bytes")
        return self._base[region] + offset

    def post_write(self, writes: Sequence[tuple[int, bytes]]) -> int:
        """Store every ``(offset in F_p, bytes)``; see :class:`Transport`. Raises ValueError outside F_p."""
        self._tickets += 1
        if self._state is LinkState.UP:
            for offset, data in writes:
                address = self._address(Region.F, offset, len(data))
                if len(data) == 8 and not offset % 8:
                    self._lib.blink_store_release(address, int.from_bytes(data, "little"))
                else:
                    self._lib.blink_copy_to_ring(address, data, len(data))
            self._done.append(Completion(self._tickets, True))
        return self._tickets

    def post_read(self, region: Region, offset: int, length: int, channel: Channel = Channel.STATUS) -> int:
        """Copy ``length`` bytes out of ``region``; see :class:`Transport`. Raises ValueError outside the region."""
        self._tickets += 1
        if self._state is LinkState.UP:
            address = self._address(region, offset, length)
            data = np.empty(length, np.uint8)
            if (offset | length) % 8:
                self._lib.blink_copy_from_ring(data.ctypes.data, address, length)
            else:
                self._lib.blink_copy_words(data.ctypes.data, address, length // 8)
            self._done.append(Completion(self._tickets, True, data))
        return self._tickets

    def poll(self) -> list[Completion]:
        """What completed since the last call. Looks every WATCH_S whether the ring still is the backend's."""
        done, self._done = self._done, []
        if not done and self._state is LinkState.UP:
            if self._ended:
                why = self._ended
                self.close()
                self._state, self._detail = LinkState.GONE, why
            elif time.monotonic() >= self._watch:
                self._look()
        return done

    def _look(self) -> None:
        """See whether the ring is in place and its owner lives. If not, one more cycle may read its last words."""
        self._watch = time.monotonic() + WATCH_S
        try:
            if _identity((self.directory / "G").stat()) != self._identity:
                self._ended = "the backend was restarted"
            elif not owned(self._g_fd):
                self._ended = f"backend not up: the process that made the ring in {self.directory} is gone"
        except OSError:
            self._ended = f"backend not up: its ring in {self.directory} was removed"

    def close(self) -> None:
        """Drop the mappings. Idempotent."""
        self._state, self._detail = LinkState.DOWN, "closed"
        self._regions, self._base, self._done, self._ended = {}, {}, [], ""
        if self._g_fd >= 0:
            os.close(self._g_fd)
            self._g_fd = -1


def _identity(stat: os.stat_result) -> tuple[int, int]:
    return stat.st_dev, stat.st_ino
