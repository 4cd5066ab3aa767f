"""A frontend worker's end of the ring: submit, cancel, poll, health.

Nothing here waits. Work is posted to the transport and continued when its completion arrives; one ``poll`` is one
bounded cycle. The order payload → completion → doorbell is that of docs/protocol.md.
"""

from __future__ import annotations

from collections.abc import Callable

from blink.errors import BlinkError
from blink.ring.arena import ArenaFullError
from blink.ring.counters import Counters, parse_counters
from blink.ring.header import Header
from blink.ring.health import Pulse, RingHealth
from blink.ring.layout import F_HEAD, G_HEAD, HEADER, STATUS
from blink.ring.lease import PartitionLease
from blink.ring.link import Link, Stage
from blink.ring.reader import Reader, status_words
from blink.ring.request import SamplingParams, SubmitRequest
from blink.ring.stream import Handle, Outbox, Stream, TokenLogprob, Update
from blink.ring.transport import Bytes, Region, Transport
from blink.ring.work import WorkQueue

ALIVE_S = 0.5  # between increments of the alive word
ROUNDS = 8  # most batches of completions that one poll handles
_G_HEAD = G_HEAD.dtype()


class RingFull(BlinkError):  # noqa: N818 - a condition the caller answers with 429
    """Slots, arenas or this worker's share of the queue are used up."""


class RingUnavailable(BlinkError):  # noqa: N818 - a condition the caller answers with 503
    """The ring takes no requests now; the text says which hop is down."""


class RingClient:
    """Operations of the worker that drives one partition.

    ``fingerprint`` (32 bytes), if given, must be the ring's: the identity of model and tokenizer. ``lease`` is released
    by :meth:`close`. Streams fail once the link has been down for ``link_timeout_s``. Not thread-safe. Call
    :meth:`poll` at least every second, also without requests: it beats for the worker.
    """

    def __init__(
        self, transport: Transport, *, fingerprint: bytes | None = None, lease: PartitionLease | None = None,
        link_timeout_s: float = 30.0,
    ) -> None:  # fmt: skip
        self._lease = lease
        self._work, self._outbox, self._pulse = WorkQueue(transport), Outbox(), Pulse()
        self._link = Link(
            transport, self._work, self._outbox, fingerprint, link_timeout_s,
            on_up=self._came_up, on_down=self._went_down, on_end=self._epoch_ended,
        )  # fmt: skip
        self._reader: Reader | None = None
        self._now = self._alive_at = 0.0
        self._alive_in_flight = self._status_in_flight = False
        self._cancels: list[Stream] = []

    @property
    def header(self) -> Header | None:
        """Limits of the attached ring; None while there is none."""
        return self._link.header

    def submit(self, request: SubmitRequest) -> Handle:
        """Post ``request``; its news come from :meth:`poll`.

        Raises RingFull when it should be tried later, RingUnavailable when the ring takes nothing now, and ValueError
        naming a field that the ring cannot carry.
        """
        partition = self._link.partition
        if not self._link.up or partition is None or partition.inherited:
            raise RingUnavailable(self.health().down, "retry when the appliance is ready")
        request.check(partition.header)
        if len(partition.streams) >= partition.header.share:
            raise RingFull(f"all {partition.header.share} places in the queue are taken", "retry later")
        try:
            stream = partition.occupy(request)
        except ArenaFullError as e:
            raise RingFull(str(e), "retry later") from None
        stream.tickets += 1
        self._link.doorbell.expect(stream)
        self._work.write(stream.chain, lambda: self._committed(stream))
        assert stream.handle is not None
        return stream.handle

    def cancel(self, handle: Handle) -> None:
        """Ask the scheduler to end a request; its last update says what won. Idempotent, also after the end."""
        stream = self._link.partition.streams.get(handle.slot) if self._link.partition else None
        if stream is not None and stream.handle == handle:
            self._cancel(stream)

    def poll(self, now: float) -> list[Update]:
        """One bounded cycle at monotonic time ``now`` in seconds; returns the news of every request that has any."""
        self._now = now
        self._link.keep(now)
        if self._link.up:
            self._post_cycle()
        for _ in range(ROUNDS):
            if self._link.stage is Stage.DOWN or not self._work.progress():
                break
            if self._link.up:
                self._link.ring()
        return self._outbox.take()

    def health(self) -> RingHealth:
        """Which hop works, and how much room there is."""
        link, partition = self._link, self._link.partition
        if not link.up:
            down = f"link: {link.trouble}"
        elif partition is not None and partition.inherited:
            down = f"frontend: {partition.inherited} requests of the previous frontend process have not ended yet"
        else:
            down = self._pulse.trouble()
        return RingHealth(
            link_up=link.up,
            epoch=link.header.epoch if link.header else 0,
            beat_age_s=self._pulse.age,
            stalled=link.up and self._pulse.stalled,
            phase=self._pulse.phase,
            free_slots=partition.slots.free if partition else 0,
            outstanding=len(partition.streams) if partition else 0,
            down=down,
        )

    def read_counters(self, then: Callable[[Counters], None]) -> bool:
        """Read the scheduler's counters; a later :meth:`poll` hands them to ``then``, unless the link is lost first.

        False, and nothing is read, while there is no link.
        """
        if not self._link.up:
            return False
        self._work.read(Region.H, 0, HEADER.size, lambda data: then(Counters(parse_counters(data))))
        return True

    def close(self) -> None:
        """Drop the link and the lease. Requests in flight stay in the ring until their partition is taken over."""
        self._link.close()
        if self._lease is not None:
            self._lease.release()

    # One cycle

    def _post_cycle(self) -> None:
        partition = self._link.partition
        assert partition is not None
        self._post_cancels()
        if self._now >= self._alive_at and not self._alive_in_flight:
            self._alive_at, self._alive_in_flight = self._now + ALIVE_S, True
            self._link.alive += 1
            self._work.write([(F_HEAD.offset("alive"), self._link.alive.to_bytes(8, "little"))], self._alive_written)
        self._link.ring()
        if not self._status_in_flight:
            self._status_in_flight = True
            self._link.expect_answer()
            geometry = partition.geometry
            slab = STATUS.size * geometry.slots_per_part if partition.streams else 0
            self._work.read(Region.G, 0, geometry.status_off + slab, self._status)

    def _post_cancels(self) -> None:
        partition = self._link.partition
        assert partition is not None
        cancels, self._cancels = self._cancels, []
        for stream in cancels:
            if not stream.in_ring:  # a cancel must not outlive a commit that never landed
                self._cancels.append(stream)
            elif not stream.finished:
                stream.tickets += 1
                self._work.write([partition.cancel_write(stream)], lambda s=stream: self._landed(s))  # type: ignore[misc]

    def _cancel(self, stream: Stream) -> None:
        if not stream.cancelled and not stream.finished:
            stream.cancelled = True
            self._cancels.append(stream)

    def _committed(self, stream: Stream) -> None:
        stream.in_ring, stream.chain = True, []
        self._landed(stream)

    def _landed(self, stream: Stream) -> None:
        stream.tickets -= 1
        assert self._link.partition is not None
        self._link.partition.settle(stream)

    def _alive_written(self) -> None:
        self._alive_in_flight = False

    def _status(self, data: Bytes) -> None:
        self._status_in_flight = False
        partition = self._link.partition
        assert partition is not None
        assert self._reader is not None
        head = data[: G_HEAD.size].view(_G_HEAD)[0]
        if int(head["epoch"]) != partition.header.epoch:
            return self._link.lose("the ring in place has another epoch")
        self._pulse.beat(int(head["beat"]), int(head["phase"]), int(head["budget_ms"]), self._now)
        if len(data) > G_HEAD.size:
            geometry = partition.geometry
            self._reader.slab(status_words(data, geometry.slots_per_part, geometry.status_off))
        return None

    # What the link reports

    def _came_up(self) -> None:
        partition = self._link.partition
        assert partition is not None
        if self._reader is None:
            self._reader = Reader(partition, self._work, self._outbox, self._cancel)
        self._reader.forget()
        self._cancels = [s for s in partition.streams.values() if s.cancelled and not s.finished]
        self._pulse.resume(self._now)

    def _went_down(self) -> None:
        self._status_in_flight = self._alive_in_flight = False
        self._cancels.clear()

    def _epoch_ended(self) -> None:
        self._reader, self._pulse = None, Pulse()
        self._cancels.clear()


__all__ = [
    "Handle",
    "RingClient",
    "RingFull",
    "RingHealth",
    "RingUnavailable",
    "SamplingParams",
    "SubmitRequest",
    "TokenLogprob",
    "Update",
]
