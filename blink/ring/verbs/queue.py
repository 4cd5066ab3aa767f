"""One queue pair with its staging: work waits here until queue and staging have room, and ends in order."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from blink.ring.transport import Bytes, Completion
from blink.ring.verbs.error_texts import explain
from blink.ring.verbs.fabric import FabricError, Op, QueuePair
from blink.ring.verbs.staging import Staging

PIECE = 256 << 10  # longest write: longer payload is split, so that it never waits for all of the staging
SIGNAL_EVERY = 16  # a write in the middle of a long chain that gives its queue entries back


class LinkDown(Exception):  # noqa: N818 - an event more than an error
    """The queue pair failed; the text says why."""


@dataclass(slots=True)
class _Work:
    """A write of ``data`` or a read (data None). ``ticket`` is set on what completes something for the client."""

    remote: int
    rkey: int
    length: int
    ticket: int | None
    data: bytes | None = None


@dataclass(slots=True)
class _Posted:
    wr_id: int
    ticket: int | None
    at: int
    length: int


class WorkQueuePair:
    """Posts to ``qp``, whose operations all are reads, or all are writes.

    ``depth`` is how many operations it takes. An operation posted while others are outstanding waits for the next
    :meth:`poll`, which posts a burst as one list.
    """

    def __init__(self, qp: QueuePair, staging: Staging, depth: int, *, read: bool) -> None:
        self._qp, self._staging, self._depth, self._read = qp, staging, depth, read
        self._waiting: deque[_Work] = deque()
        self._posted: deque[_Posted] = deque()
        self._lent = 0  # reads whose bytes the client may still look at
        self._next_id = self._since_signal = 0

    @property
    def outstanding(self) -> int:
        """Operations posted or waiting."""
        return len(self._posted) + len(self._waiting)

    def write(self, chain: list[tuple[int, bytes]], rkey: int, ticket: int) -> None:
        """Write each (remote address, bytes); the completion of the last is that of ``ticket``. Raises LinkDown."""
        works = [
            _Work(remote, rkey, len(part), None, part)
            for address, data in chain
            for remote, part in split(address, data)
        ]
        works[-1].ticket = ticket
        self._enqueue(works)

    def read(self, remote: int, rkey: int, length: int, ticket: int) -> None:
        """Read ``length`` bytes. Raises LinkDown, and ValueError for more than staging holds."""
        if length > self._staging.size // 2:
            raise ValueError(f"a read of {length} bytes, and at most {self._staging.size // 2} fit")
        self._enqueue([_Work(remote, rkey, length, ticket)])

    def _enqueue(self, works: list[_Work]) -> None:
        self._waiting.extend(works)
        if not self._posted:
            self._pump()

    def poll(self) -> list[Completion]:
        """What ended since the last call; posts what waits. Raises LinkDown."""
        for _ in range(self._lent):
            self._staging.give_back()
        self._lent = 0
        done: list[Completion] = []
        try:
            for wr_id, status in self._qp.poll():
                if status:
                    raise LinkDown(explain(status))
                self._complete(wr_id, done)
        except FabricError as e:
            raise LinkDown(str(e)) from None
        if self._waiting:
            self._pump()
        return done

    def _complete(self, wr_id: int, done: list[Completion]) -> None:
        """``wr_id`` ended, and with it all that was posted before: a reliable connection keeps the order."""
        while self._posted:
            posted = self._posted.popleft()
            data: Bytes | None = None
            if self._read:
                data = self._staging.view(posted.at, posted.length)
                self._lent += 1
            else:
                self._staging.give_back()
            if posted.ticket is not None:
                done.append(Completion(posted.ticket, True, data))
            if posted.wr_id == wr_id:
                return
        raise LinkDown("the device completed an operation that was not posted")

    def _pump(self) -> None:
        ops: list[Op] = []
        while self._waiting and len(self._posted) < self._depth:
            work = self._waiting[0]
            at = self._staging.take(work.length)
            if at is None:
                break
            self._waiting.popleft()
            if work.data is not None:
                self._staging.bytes[at : at + work.length] = memoryview(work.data)
            self._next_id += 1
            self._since_signal += 1
            # Without one, a queue full of unsignaled writes would never be known to be empty.
            last = len(self._posted) + 1 >= self._depth
            signaled = work.ticket is not None or self._since_signal >= SIGNAL_EVERY or last
            if signaled:
                self._since_signal = 0
            self._posted.append(_Posted(self._next_id, work.ticket, at, work.length))
            ops.append(Op(self._next_id, self._staging.address + at, work.remote, work.rkey, work.length, signaled))
        if ops and not ops[-1].signaled:  # staging is full in the middle of a chain
            self._since_signal = 0
            op = ops[-1]
            ops[-1] = Op(op.wr_id, op.local, op.remote, op.rkey, op.length)
        if ops:
            try:
                self._qp.post(ops, self._staging.lkey, read=self._read)
            except FabricError as e:
                raise LinkDown(str(e)) from None


def split(address: int, data: bytes) -> list[tuple[int, bytes]]:
    """``data`` for ``address`` in parts of at most PIECE bytes that end where words of 8 bytes do."""
    if len(data) <= PIECE:
        return [(address, data)]
    parts, at = [], 0
    while at < len(data):
        end = min(len(data), at + PIECE - (address + at) % 8)
        parts.append((address + at, data[at:end]))
        at = end
    return parts
