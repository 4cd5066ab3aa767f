"""A frontend worker's end of the ring: submit, cancel, poll, health.

Nothing here waits. Work is posted to the transport and continued when its completion arrives; one ``poll`` is one
bounded cycle. The order payload → completion → doorbell and every step of recovery are those of docs/protocol.md.
"""

from __future__ import annotations

import enum

from blink.errors import BlinkError
from blink.ring.arena import ArenaFullError
from blink.ring.doorbell import Doorbell
from blink.ring.header import Header
from blink.ring.health import Pulse, RingHealth
from blink.ring.layout import F_HEAD, G_HEAD, PAGE
from blink.ring.lease import PartitionLease
from blink.ring.partition import Partition
from blink.ring.reader import Reader, status_words
from blink.ring.recovery import Chain, Survey, reconcile, take_over
from blink.ring.request import SamplingParams, SubmitRequest
from blink.ring.stream import Handle, Outbox, Stream, TokenLogprob, Update
from blink.ring.transport import Bytes, LinkState, Region, Transport
from blink.ring.words import after, pack_checked
from blink.ring.work import WorkQueue

RETRY_S = 0.1  # between attempts to connect
REFUSED_RETRY_S = 1.0  # after a ring that does not fit
ANSWER_S = 10.0  # a status read or a recovery step without an answer for that long is a dead link
ALIVE_S = 0.5  # between increments of the alive word
ROUNDS = 8  # most batches of completions that one poll handles
_G_HEAD = G_HEAD.dtype()


class RingFull(BlinkError):  # noqa: N818 - a condition the caller answers with 429
    """Slots, arenas or this worker's share of the queue are used up."""


class RingUnavailable(BlinkError):  # noqa: N818 - a condition the caller answers with 503
    """The ring takes no requests now; the text says which hop is down."""


class Stage(enum.Enum):
    """How far the client is with its link."""

    DOWN = "down"
    HEADER = "reading the ring's header"
    SURVEY = "reading what is in the ring"
    REPAIR = "completing interrupted requests"
    RING = "ringing the doorbell"
    UP = "up"


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
        self._transport, self._fingerprint, self._lease = transport, fingerprint, lease
        self._link_timeout = link_timeout_s
        self._work = WorkQueue(transport)
        self._outbox = Outbox()
        self._pulse = Pulse()
        self._stage, self._why = Stage.DOWN, ""
        self._now = 0.0
        self._retry_at = self._alive_at = self._deadline = 0.0
        self._cut_at: float | None = None
        self._header: Header | None = None
        self._partition: Partition | None = None
        self._reader: Reader | None = None
        self._doorbell = Doorbell(0)
        self._survey: dict[Region, Bytes] = {}
        self._repairs = 0
        self._alive = 0
        self._alive_in_flight = self._status_in_flight = False
        self._cancels: list[Stream] = []

    # Requests

    @property
    def header(self) -> Header | None:
        """Limits of the attached ring; None while there is none."""
        return self._header

    def submit(self, request: SubmitRequest) -> Handle:
        """Post ``request``; its news come from :meth:`poll`.

        Raises RingFull when it should be tried later, RingUnavailable when the ring takes nothing now, and ValueError
        naming a field that the ring cannot carry.
        """
        partition = self._partition
        if self._stage is not Stage.UP or partition is None or partition.inherited:
            raise RingUnavailable(self.health().down or self._stage.value, "retry when the appliance is ready")
        request.check(partition.header)
        if len(partition.streams) >= partition.share:
            raise RingFull(f"all {partition.share} places in the queue are taken", "retry later")
        try:
            stream = partition.occupy(request)
        except ArenaFullError as e:
            raise RingFull(str(e), "retry later") from None
        stream.tickets += 1
        self._doorbell.expect(stream)
        self._work.write(stream.chain, lambda: self._committed(stream))
        assert stream.handle is not None
        return stream.handle

    def cancel(self, handle: Handle) -> None:
        """Ask the scheduler to end a request; its last update says what won. Idempotent, also after the end."""
        stream = self._partition.streams.get(handle.slot) if self._partition else None
        if stream is not None and stream.handle == handle:
            self._cancel(stream)

    def _cancel(self, stream: Stream) -> None:
        if not stream.cancelled and not stream.finished:
            stream.cancelled = True
            self._cancels.append(stream)

    def _committed(self, stream: Stream) -> None:
        stream.in_ring = True
        stream.chain = []
        self._landed(stream)

    def _landed(self, stream: Stream) -> None:
        stream.tickets -= 1
        assert self._partition is not None
        self._partition.settle(stream)

    # The cycle

    def poll(self, now: float) -> list[Update]:
        """One bounded cycle at monotonic time ``now`` in seconds; returns the news of every request that has any."""
        if now - self._now > 1.0:  # nobody polled, so nothing could have been answered
            self._deadline += now - self._now
        self._now = now
        self._keep_link()
        if self._stage is Stage.UP:
            self._post_cycle()
        for _ in range(ROUNDS):
            if self._stage is Stage.DOWN or not self._work.progress():
                break
            if self._stage is Stage.UP:
                self._ring()
        return self._outbox.take()

    def _post_cycle(self) -> None:
        partition = self._partition
        assert partition is not None
        cancels, self._cancels = self._cancels, []
        for stream in cancels:
            if not stream.in_ring:  # a cancel must not outlive a commit that never landed
                self._cancels.append(stream)
            elif not stream.finished:
                stream.tickets += 1
                self._work.write([partition.cancel_write(stream)], lambda s=stream: self._landed(s))  # type: ignore[misc]
        if self._now >= self._alive_at and not self._alive_in_flight:
            self._alive_at, self._alive_in_flight = self._now + ALIVE_S, True
            self._alive += 1
            self._work.write([(F_HEAD.offset("alive"), self._alive.to_bytes(8, "little"))], self._alive_written)
        self._ring()
        if not self._status_in_flight:
            self._status_in_flight, self._deadline = True, self._now + ANSWER_S
            geometry = partition.geometry
            length = geometry.status_off + (16 * geometry.slots_per_part if partition.streams else 0)
            self._work.read(Region.G, 0, length, self._status)

    def _alive_written(self) -> None:
        self._alive_in_flight = False

    def _ring(self) -> None:
        value = self._doorbell.next()
        if value is not None:
            self._write_doorbell(value)

    def _write_doorbell(self, value: int) -> None:
        self._doorbell.in_flight = True

        def rung() -> None:
            self._doorbell.in_flight = False
            self._doorbell.rung = value
            if self._stage is Stage.RING:
                self._go_up()

        self._work.write([(F_HEAD.offset("db"), pack_checked(value).to_bytes(8, "little"))], rung)

    def _status(self, data: Bytes) -> None:
        self._status_in_flight = False
        assert self._header is not None
        assert self._partition is not None
        assert self._reader is not None
        head = data[: G_HEAD.size].view(_G_HEAD)[0]
        if int(head["epoch"]) != self._header.epoch:
            return self._lose_link("the ring in place has another epoch")
        self._pulse.beat(int(head["beat"]), int(head["phase"]), int(head["budget_ms"]), self._now)
        if len(data) > G_HEAD.size:
            geometry = self._partition.geometry
            self._reader.slab(status_words(data, geometry.slots_per_part, geometry.status_off))
        return None

    # The link

    def _keep_link(self) -> None:
        state = self._transport.state
        if self._stage is not Stage.DOWN:
            if state is not LinkState.UP:
                self._lose_link(self._transport.detail)
            elif self._work and self._now > self._deadline:
                self._lose_link(f"no answer from the link for {ANSWER_S:.0f} s while {self._stage.value}")
        if self._stage is Stage.DOWN:
            if self._transport.state is LinkState.GONE:
                self._end_epoch(self._transport.detail)
            if self._cut_at is not None and self._now - self._cut_at > self._link_timeout:
                self._fail_all(f"the link was down for {self._link_timeout:.0f} s ({self._why})")
            if self._now >= self._retry_at:
                self._connect()

    def _lose_link(self, why: str) -> None:
        """Note a cut. Nothing is freed: what is in flight may still land until the next connection fences it."""
        self._stage, self._why = Stage.DOWN, why
        self._cut_at = self._now if self._cut_at is None else self._cut_at
        self._work.void()
        self._cancels.clear()
        self._status_in_flight = self._alive_in_flight = False
        self._doorbell.in_flight = False
        if self._partition is not None:
            for stream in self._partition.streams.values():
                stream.tickets, stream.fetch = 0, None

    def _connect(self) -> None:
        self._retry_at = self._now + RETRY_S
        if self._transport.state is not LinkState.CONNECTING:
            self._transport.reconnect()
        if self._transport.state is LinkState.UP:
            self._enter(Stage.HEADER)
            self._work.read(Region.H, 0, PAGE, self._check_header)
        else:
            self._why = self._transport.detail

    def _enter(self, stage: Stage) -> None:
        self._stage, self._deadline = stage, self._now + ANSWER_S

    def _refuse(self, why: str) -> None:
        self._lose_link(why)
        self._retry_at = self._now + REFUSED_RETRY_S

    def _check_header(self, data: Bytes) -> None:
        try:
            header = Header.decode(data, "ring header")
        except BlinkError as e:
            return self._refuse(str(e))
        if header.epoch == 0:
            return self._refuse("the backend is starting: its ring has no epoch yet")
        if self._transport.partition >= header.geometry.parts:
            return self._refuse(f"partition {self._transport.partition} of {header.geometry.parts}")
        if self._fingerprint is not None and header.fingerprint != self._fingerprint:
            return self._refuse(
                f"the backend serves model {header.fingerprint.hex()[:12]}, this frontend has "
                f"{self._fingerprint.hex()[:12]}: deploy the same model to both"
            )
        if self._header is None or header != self._header:
            self._end_epoch("the backend was restarted")
        self._header = header
        self._survey = {}
        geometry, n = header.geometry, header.geometry.slots_per_part
        self._enter(Stage.SURVEY)
        self._work.read(Region.G, 0, geometry.status_off + 16 * n, lambda d: self._surveyed(Region.G, d))
        self._work.read(Region.F, 0, geometry.cmd_off + 16 * n, lambda d: self._surveyed(Region.F, d))
        return None

    def _surveyed(self, region: Region, data: Bytes) -> None:
        self._survey[region] = data.copy()
        if len(self._survey) < 2:
            return
        assert self._header is not None
        survey = Survey.parse(self._header, self._survey[Region.G], self._survey[Region.F])
        if survey.epoch != self._header.epoch:
            return self._refuse("the ring in place has another epoch than its header")
        if self._partition is None:
            self._partition, plan = take_over(self._header, survey)
            self._reader = Reader(self._partition, self._work, self._outbox, self._cancel)
            self._alive = survey.alive
        else:
            plan = reconcile(self._partition, survey)
        self._doorbell.rung = survey.db
        self._repairs = len(plan)
        self._enter(Stage.REPAIR)
        for stream, chain in plan:
            self._repair(stream, chain)
        if not plan:
            self._repaired()
        return None

    def _repair(self, stream: Stream, chain: Chain) -> None:
        def landed() -> None:
            self._repairs -= 1
            if not self._repairs:
                self._repaired()

        self._work.write(chain, landed)

    def _repaired(self) -> None:
        """Every known commit is whole now, so the doorbell may cover them all."""
        partition = self._partition
        assert partition is not None
        for stream in list(partition.streams.values()):
            stream.in_ring, stream.chain = True, []
            partition.settle(stream)
        if after(partition.seq, self._doorbell.rung):
            self._enter(Stage.RING)
            self._write_doorbell(partition.seq)
        else:
            self._go_up()

    def _go_up(self) -> None:
        assert self._partition is not None
        assert self._reader is not None
        self._doorbell.all_rung(self._partition.seq)
        self._cancels = [s for s in self._partition.streams.values() if s.cancelled and not s.finished]
        self._reader.forget()
        self._pulse.resume(self._now)
        self._cut_at, self._why = None, ""
        self._enter(Stage.UP)

    def _end_epoch(self, why: str) -> None:
        """Forget the partition: its ring is gone for good."""
        if self._partition is not None:
            self._fail_all(f"{why} while this request was in flight")
        self._partition = self._reader = self._header = None
        self._cancels.clear()
        self._pulse = Pulse()

    def _fail_all(self, error: str) -> None:
        if self._partition is None:
            return
        for stream in self._partition.streams.values():
            if not stream.lost and not stream.finished:
                stream.cancelled = True
                self._outbox.fail(stream, error)

    # State

    def health(self) -> RingHealth:
        """Which hop works, and how much room there is."""
        up, partition = self._stage is Stage.UP, self._partition
        if self._stage is Stage.DOWN:
            down = f"link: {self._why or 'not connected yet'}"
        elif not up:
            down = f"link: {self._stage.value}" + (f", after: {self._why}" if self._why else "")
        elif partition is not None and partition.inherited:
            down = f"frontend: {partition.inherited} requests of the previous frontend process have not ended yet"
        else:
            down = self._pulse.trouble()
        return RingHealth(
            link_up=up,
            epoch=self._header.epoch if self._header else 0,
            beat_age_s=self._pulse.age,
            stalled=up and self._pulse.stalled,
            phase=self._pulse.phase,
            free_slots=partition.slots.free if partition else 0,
            outstanding=len(partition.streams) if partition else 0,
            down=down,
        )

    def close(self) -> None:
        """Drop the link and the lease. Requests in flight stay in the ring until their partition is taken over."""
        self._transport.close()
        self._work.void()
        self._stage, self._why, self._retry_at = Stage.DOWN, "closed", float("inf")
        if self._lease is not None:
            self._lease.release()


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
