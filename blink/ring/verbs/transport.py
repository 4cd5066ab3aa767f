"""The transport of a frontend on another machine: one-sided RDMA through pyverbs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from blink.ring import handshake as hs
from blink.ring.transport import Channel, Completion, LinkState, Region
from blink.ring.verbs.attempt import Attempt
from blink.ring.verbs.connection import Connection, Request
from blink.ring.verbs.fabric import Fabric
from blink.ring.verbs.queue import LinkDown

WATCH_S = 0.1  # how often the lease is looked at
LAST_WORDS_S = 0.2  # how long a ring whose backend has ended is read on: its memory outlives it by a second
CLOSE_S = 2.0


class VerbsTransport:
    """A worker's, or an observer's, link to one partition; see :class:`blink.ring.transport.Transport`.

    Writes, reads of the status and reads of tokens have a queue pair each. ``open_fabric`` opens the device.
    """

    def __init__(self, request: Request, open_fabric: Callable[[], Fabric]) -> None:
        self.partition = request.partition
        self._request, self._open_fabric = request, open_fabric
        self._state, self._detail = LinkState.DOWN, "not connected yet"
        self._attempt: Attempt | None = None
        self._connection: Connection | None = None  # the one in use, or a dead one until the next attempt
        self._tickets = 0
        self._watch = 0.0
        self._control = b""
        self._ended: float | None = None  # when ringd said that the ring is gone
        self._last_words = ""

    @property
    def state(self) -> LinkState:
        """State of the link."""
        self._collect()
        return self._state

    @property
    def detail(self) -> str:
        """Why the link is not up."""
        self._collect()
        return self._detail

    @property
    def connection(self) -> Connection | None:
        """What is connected, for diagnosis; None unless the link is up."""
        return self._connection if self.state is LinkState.UP else None

    def reconnect(self) -> None:
        """Drop the link and begin to connect in the background."""
        # Attempt after attempt keeps the reason of the last one: it says more than that there is another.
        self._drop(self._detail or f"shaking hands with {self._peer}", LinkState.CONNECTING)
        old, self._connection = self._connection, None
        self._attempt = Attempt(self._request, self._open_fabric, old)

    @property
    def _peer(self) -> str:
        config = self._request.config
        return f"blink-ringd at {config.ringd_address} port {config.ringd_port}"

    def _collect(self) -> None:
        """Take in what the attempt has come to."""
        attempt = self._attempt
        if attempt is None:
            return
        if attempt.failure:
            self._detail = attempt.failure
        if not attempt.done:
            return
        self._attempt, connection = None, attempt.take()
        if connection is None:
            self._state = LinkState.DOWN
            return
        self._connection, self._control, self._ended = connection, b"", None
        self._watch = time.monotonic() + WATCH_S
        self._state, self._detail = LinkState.UP, ""

    def _drop(self, why: str, state: LinkState = LinkState.DOWN) -> None:
        """Stop using the link. The lease goes at once, the device's resources with the next attempt or the close."""
        if self._attempt is not None:
            self._attempt.cancel()
            self._attempt = None
        if self._connection is not None:
            self._connection.cut()
        self._state, self._detail = state, why

    def size(self, region: Region) -> int:
        """Bytes of ``region`` that ringd gave; see :class:`blink.ring.transport.Transport`."""
        assert self._connection is not None
        return self._connection.region(region).length

    def _place(self, region: Region, offset: int, length: int) -> tuple[int, int]:
        assert self._connection is not None
        place = self._connection.region(region)
        if offset < 0 or length < 0 or offset + length > place.length or (offset | length) % 4:
            raise ValueError(f"[{offset}, +{length}) of {region.name} is outside it or not aligned to 4 bytes")
        return place.address + offset, place.rkey

    def post_write(self, writes: Sequence[tuple[int, bytes]]) -> int:
        """Write every ``(offset in F_p, bytes)`` as one chain. Raises ValueError outside F_p."""
        self._tickets += 1
        connection = self._connection
        if self._state is LinkState.UP and connection is not None:
            chain, rkey = [], 0
            for offset, data in writes:
                address, rkey = self._place(Region.F, offset, len(data))
                chain.append((address, data))
            assert connection.writes is not None  # an observer's F is empty
            try:
                connection.writes.write(chain, rkey, self._tickets)
            except LinkDown as e:
                self._drop(str(e))
        return self._tickets

    def post_read(self, region: Region, offset: int, length: int, channel: Channel = Channel.STATUS) -> int:
        """Read ``length`` bytes of ``region``. Raises ValueError outside the region."""
        self._tickets += 1
        connection = self._connection
        if self._state is LinkState.UP and connection is not None:
            address, rkey = self._place(region, offset, length)
            try:
                connection.reads[channel].read(address, rkey, length, self._tickets)
            except LinkDown as e:
                self._drop(str(e))
        return self._tickets

    def poll(self) -> list[Completion]:
        """What completed since the last call; looks every WATCH_S whether ringd has said something."""
        if self.state is not LinkState.UP or self._connection is None:
            return []
        done: list[Completion] = []
        try:
            for queue in self._connection.queues:
                done += queue.poll()
        except LinkDown as e:
            if self._ended is None:
                self._drop(str(e))
            else:
                self._drop(self._last_words, LinkState.GONE)
            return []
        now = time.monotonic()
        if self._ended is not None and now - self._ended >= LAST_WORDS_S:
            self._drop(self._last_words, LinkState.GONE)
        elif self._ended is None and now >= self._watch:
            self._watch = now + WATCH_S
            self._listen(self._connection, now)
        return done

    def _listen(self, connection: Connection, now: float) -> None:
        try:
            data = connection.lease.recv(4096)
        except BlockingIOError:
            return
        except OSError as e:
            return self._drop(f"the connection to {self._peer} broke ({e.strerror})")
        if not data:
            return self._drop(f"{self._peer} closed the connection; it was stopped, or its log says why")
        self._control += data
        try:
            if len(self._control) < hs.HEAD_SIZE:
                return None
            _, length = hs.parse_head(self._control[: hs.HEAD_SIZE], hs.Frame.NOTICE)
            if len(self._control) < hs.HEAD_SIZE + length:
                return None
            kind, text = connection.session.read_notice(self._control[hs.HEAD_SIZE : hs.HEAD_SIZE + length])
        except hs.HandshakeError as e:
            return self._drop(f"{self._peer} sent {e}")
        if kind is hs.Ended.RING:
            self._ended, self._last_words = now, text
        else:
            self._drop(text)
        return None

    def close(self) -> None:
        """Give the link up and free every resource of the device. Idempotent."""
        attempt = self._attempt
        self._drop("closed")
        if attempt is not None:
            attempt.join(CLOSE_S)
        if self._connection is not None:
            self._connection.close()
            self._connection = None
