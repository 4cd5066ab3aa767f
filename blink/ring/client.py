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
from blink.ring.layout import HEADER
from blink.ring.lease import PartitionLease
from blink.ring.link import Link, Stage
from blink.ring.recovery import Survey, reconcile, take_over
from blink.ring.request import SamplingParams, SubmitRequest
from blink.ring.session import Session
from blink.ring.stream import Chain, Handle, Outbox, TokenLogprob, Update
from blink.ring.transport import Region, Transport
from blink.ring.work import WorkQueue

ROUNDS = 8  # most batches of completions that one poll handles


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
        self._work, self._outbox = WorkQueue(transport), Outbox()
        self._session: Session | None = None
        self._link = Link(
            transport, self._work, fingerprint, link_timeout_s,
            on_survey=self._recover, on_repaired=self._repaired, on_up=self._came_up, on_down=self._went_down,
            on_overdue=self._fail_all, on_end=self._epoch_ended,
        )  # fmt: skip
        self._now = 0.0

    @property
    def header(self) -> Header | None:
        """Limits of the attached ring; None while there is none."""
        return self._link.header

    def submit(self, request: SubmitRequest) -> Handle:
        """Post ``request``; its news come from :meth:`poll`.

        Raises RingFull when it should be tried later, RingUnavailable when the ring takes nothing now, and ValueError
        naming a field that the ring cannot carry.
        """
        session = self._session
        if not self._link.up or session is None or session.partition.inherited:
            raise RingUnavailable(self.health().down, "retry when the appliance is ready")
        header = session.partition.header
        request.check(header)
        if len(session.partition.streams) >= header.share:
            raise RingFull(f"all {header.share} places in the queue are taken", "retry later")
        try:
            return session.submit(request)
        except ArenaFullError as e:
            raise RingFull(str(e), "retry later") from None

    def cancel(self, handle: Handle) -> None:
        """Ask the scheduler to end a request; its last update says what won. Idempotent, also after the end."""
        stream = self._session.find(handle) if self._session else None
        if self._session is not None and stream is not None:
            self._session.cancel(stream)

    def poll(self, now: float) -> list[Update]:
        """One bounded cycle at monotonic time ``now`` in seconds; returns the news of every request that has any."""
        self._now = now
        self._link.keep(now)
        if self._link.up and self._session is not None and self._session.cycle(now):
            self._link.expect_answer()
        for _ in range(ROUNDS):
            if self._link.stage is Stage.DOWN or not self._work.progress():
                break
            if self._link.up and self._session is not None:
                self._session.ring()
        return self._outbox.take()

    def health(self) -> RingHealth:
        """Which hop works, and how much room there is."""
        link, session = self._link, self._session
        partition, pulse = (session.partition, session.pulse) if session else (None, Pulse())
        if not link.up:
            down = f"link: {link.trouble}"
        elif partition is not None and partition.inherited:
            down = f"frontend: {partition.inherited} requests of the previous frontend process have not ended yet"
        else:
            down = pulse.trouble()
        return RingHealth(
            link_up=link.up,
            epoch=link.header.epoch if link.header else 0,
            beat_age_s=pulse.age,
            stalled=link.up and pulse.stalled,
            phase=pulse.phase,
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

    # What the link reports

    def _recover(self, header: Header, survey: Survey) -> list[Chain]:
        if self._session is None:
            partition, plan = take_over(header, survey)
            self._session = Session(partition, survey.alive, self._work, self._outbox, self._link.lose)
        else:
            plan = reconcile(self._session.partition, survey)
        return [chain for _, chain in plan]

    def _repaired(self, db: int) -> Chain:
        return self._session.repaired(db) if self._session else ()

    def _came_up(self) -> None:
        if self._session:
            self._session.resume(self._now)

    def _went_down(self) -> None:
        if self._session:
            self._session.cut()

    def _fail_all(self, error: str) -> None:
        if self._session:
            self._session.fail_all(error)

    def _epoch_ended(self, error: str) -> None:
        self._fail_all(error)
        self._session = None


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
