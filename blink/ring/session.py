"""One epoch of the ring as its worker uses it: submit, cancel, beat, ring, read what changed."""

from __future__ import annotations

from collections.abc import Callable

from blink.ring.doorbell import Doorbell
from blink.ring.health import Pulse
from blink.ring.layout import F_HEAD, G_HEAD, STATUS
from blink.ring.partition import Partition
from blink.ring.reader import Reader, status_words
from blink.ring.request import SubmitRequest
from blink.ring.stream import Chain, Handle, Life, Outbox, Stream
from blink.ring.transport import Bytes, Region
from blink.ring.words import Activity, Bell, after
from blink.ring.work import WorkQueue

ALIVE_S = 0.5  # between increments of the alive word
_G_HEAD = G_HEAD.dtype()


class Session:
    """Work on the attached ``partition``, whose alive word is ``alive``. A cut of the link does not end a session.

    ``lose`` is called with the reason where the ring in place is another. Only the doorbell of a link that is up is
    rung here: before, recovery writes it.
    """

    def __init__(
        self, partition: Partition, alive: int, work: WorkQueue, outbox: Outbox, lose: Callable[[str], None]
    ) -> None:
        self.partition, self.pulse = partition, Pulse()
        self._work, self._outbox, self._lose = work, outbox, lose
        self._reader = Reader(partition, work, outbox, self.cancel)
        self._doorbell = Doorbell()
        self._cancels: list[Stream] = []
        self._alive = alive
        self._now = self._alive_at = 0.0
        self._alive_in_flight = self._status_in_flight = False

    def submit(self, request: SubmitRequest) -> Handle:
        """Post ``request``. Raises ArenaFullError with nothing taken."""
        stream = self.partition.occupy(request)
        stream.posted()
        self._doorbell.expect(stream)
        self._work.write(stream.chain, lambda: self._committed(stream))
        assert stream.handle is not None
        return stream.handle

    def find(self, handle: Handle) -> Stream | None:
        """The stream of ``handle``, until its slot is free."""
        stream = self.partition.streams.get(handle.slot)
        return stream if stream is not None and stream.handle == handle else None

    def cancel(self, stream: Stream) -> None:
        """Ask the scheduler to end ``stream``. Idempotent, also after the end."""
        if stream.cancel():
            self._cancels.append(stream)

    def cycle(self, now: float) -> bool:
        """Post what is due at monotonic time ``now``; whether that asks for an answer."""
        self._now = now
        self._post_cancels()
        if now >= self._alive_at and not self._alive_in_flight:
            self._alive_at, self._alive_in_flight = now + ALIVE_S, True
            self._alive += 1
            self._work.write([(F_HEAD.offset("alive"), self._alive.to_bytes(8, "little"))], self._alive_written)
        self.ring()
        if self._status_in_flight:
            return False
        self._status_in_flight = True
        geometry = self.partition.geometry
        slab = STATUS.size * geometry.slots_per_part if self.partition.streams else 0
        self._work.read(Region.G, 0, geometry.status_off + slab, self._status)
        return True

    def ring(self) -> None:
        """Write the doorbell if a chain has completed that it does not cover."""
        value = self._doorbell.next()
        if value is not None:
            self._doorbell.in_flight = True
            self._work.write(_bell(value), self._rung)

    def fail_all(self, error: str) -> None:
        """End every stream for its user with ``error``."""
        for stream in self.partition.streams.values():
            if stream.awaited:
                self._outbox.fail(stream, error)

    # What the link reports

    def cut(self) -> None:
        """The link was lost, and with it all work. Nothing is freed: it may land until a new connection fences it."""
        self._doorbell.in_flight = self._status_in_flight = self._alive_in_flight = False
        self._cancels.clear()
        for stream in self.partition.streams.values():
            stream.cut()

    def repaired(self, db: int) -> Chain:
        """Every known commit is whole now, so the doorbell may cover them all: its write, unless ``db`` does so."""
        for stream in list(self.partition.streams.values()):
            stream.committed()
            self.partition.settle(stream)
        self._doorbell.all_covered()
        return _bell(self.partition.seq) if after(self.partition.seq, db) else ()

    def resume(self, now: float) -> None:
        """The link is up, as of ``now``."""
        self._reader.forget()
        self._cancels = [s for s in self.partition.streams.values() if s.unwanted]
        self.pulse.resume(now)

    # What completes

    def _post_cancels(self) -> None:
        cancels, self._cancels = self._cancels, []
        for stream in cancels:
            if not stream.in_ring:  # a cancel must not outlive a commit that never landed
                self._cancels.append(stream)
            elif stream.life is not Life.FINISHED:
                stream.posted()
                write = self.partition.cancel_write(stream.slot, stream.gen)
                self._work.write([write], lambda s=stream: self._landed(s))  # type: ignore[misc]

    def _committed(self, stream: Stream) -> None:
        stream.committed()
        self._landed(stream)

    def _landed(self, stream: Stream) -> None:
        stream.landed()
        self.partition.settle(stream)

    def _alive_written(self) -> None:
        self._alive_in_flight = False

    def _rung(self) -> None:
        self._doorbell.in_flight = False

    def _status(self, data: Bytes) -> None:
        self._status_in_flight = False
        head = data[: G_HEAD.size].view(_G_HEAD)[0]
        if int(head["epoch"]) != self.partition.header.epoch:
            return self._lose("the ring in place has another epoch")
        self.pulse.beat(int(head["beat"]), Activity(head["activity"]), self._now)
        if len(data) > G_HEAD.size:
            geometry = self.partition.geometry
            self._reader.slab(status_words(data, geometry.slots_per_part, geometry.status_off))
        return None


def _bell(seq: int) -> Chain:
    return [(F_HEAD.offset("db"), Bell.pack(seq=seq).to_bytes(8, "little"))]
