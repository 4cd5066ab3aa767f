"""A worker's link to its partition: connect, check the ring, recover, notice a loss.

Every stage posts work and goes on when its completion arrives; :meth:`Link.keep` is called once a cycle and does what
depends on time. Recovery follows docs/protocol.md.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence

from blink.errors import BlinkError
from blink.ring.header import Header
from blink.ring.layout import COMMAND, PAGE, STATUS
from blink.ring.recovery import Survey
from blink.ring.stream import Chain
from blink.ring.transport import Bytes, LinkState, Region, Transport
from blink.ring.work import WorkQueue

RETRY_S = 0.1  # between attempts to connect
REFUSED_RETRY_S = 1.0  # after a ring that does not fit
ANSWER_S = 10.0  # a status read or a recovery step without an answer for that long is a dead link


class Stage(enum.Enum):
    """How far a link is."""

    DOWN = "down"
    HEADER = "reading the ring's header"
    SURVEY = "reading what is in the ring"
    REPAIR = "completing interrupted requests"
    RING = "ringing the doorbell"
    UP = "up"


class Link:
    """The link, and the ``header`` of the ring at its other end; None while no epoch is attached.

    Before the link comes up, ``on_survey`` gets what was found in the ring, and says which chains complete what was
    interrupted; when they have landed, ``on_repaired`` gets the doorbell as found, and says what is to be rung, or
    nothing. ``on_up`` is called whenever the link has come up, ``on_down`` whenever it was lost and with it all work
    outstanding. ``on_overdue`` gets, once a cycle, why a link has been down for more than ``timeout_s``; ``on_end``,
    why an epoch has ended.
    """

    def __init__(
        self, transport: Transport, work: WorkQueue, fingerprint: bytes | None, timeout_s: float, *,
        on_survey: Callable[[Header, Survey], Sequence[Chain]], on_repaired: Callable[[int], Chain],
        on_up: Callable[[], None], on_down: Callable[[], None],
        on_overdue: Callable[[str], None], on_end: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._transport, self._work = transport, work
        self._fingerprint, self._timeout = fingerprint, timeout_s
        self._on_survey, self._on_repaired = on_survey, on_repaired
        self._on_up, self._on_down, self._on_overdue, self._on_end = on_up, on_down, on_overdue, on_end
        self.stage = Stage.DOWN
        self.header: Header | None = None
        self._why = ""
        self._now = self._retry_at = self._deadline = 0.0
        self._cut_at: float | None = None
        self._awaited = False  # a connection that was asked for: an UP before it is the old link's
        self._survey: dict[Region, Bytes] = {}
        self._repairs = 0

    @property
    def up(self) -> bool:
        """Whether requests can be posted."""
        return self.stage is Stage.UP

    @property
    def trouble(self) -> str:
        """Why the link is not up, in words; empty when it is."""
        match self.stage:
            case Stage.UP:
                return ""
            case Stage.DOWN:
                return self._why or "not connected yet"
        return str(self.stage.value) + (f", after: {self._why}" if self._why else "")

    def expect_answer(self) -> None:
        """Note that work was posted which a working link answers soon."""
        self._deadline = self._now + ANSWER_S

    def keep(self, now: float) -> None:
        """Notice a loss, say where it lasts, and connect."""
        if now - self._now > 1.0:  # nobody polled, so nothing could have been answered
            self._deadline += now - self._now
        self._now = now
        if self.stage is not Stage.DOWN:
            if self._transport.state is not LinkState.UP:
                self.lose(self._transport.detail)
            elif self._work and now > self._deadline:
                self.lose(f"no answer from the link for {ANSWER_S:.0f} s while {self.stage.value}")
        if self.stage is Stage.DOWN:
            if self._transport.state is LinkState.GONE:
                self._end_epoch(self._transport.detail)
            if self._cut_at is not None and now - self._cut_at > self._timeout:
                self._on_overdue(f"the link was down for {self._timeout:.0f} s ({self._why})")
            if now >= self._retry_at:
                self._connect()

    def lose(self, why: str) -> None:
        """Note a loss. Nothing is freed: what is in flight may still land until the next connection fences it."""
        self.stage, self._why = Stage.DOWN, why
        self._cut_at = self._now if self._cut_at is None else self._cut_at
        self._work.void()
        self._on_down()

    def close(self) -> None:
        """Give the link up for good."""
        self._transport.close()
        self._work.void()
        self.stage, self._why, self._retry_at = Stage.DOWN, "closed", float("inf")

    def _connect(self) -> None:
        self._retry_at = self._now + RETRY_S
        if not self._awaited:
            self._transport.reconnect()
        state = self._transport.state
        self._awaited = state is LinkState.CONNECTING
        if state is LinkState.UP:
            self._enter(Stage.HEADER)
            self._work.read(Region.H, 0, PAGE, self._check_header)
        else:
            self._why = self._transport.detail

    def _enter(self, stage: Stage) -> None:
        self.stage = stage
        self.expect_answer()

    def _refuse(self, why: str) -> None:
        self.lose(why)
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
        sizes = {Region.G: header.geometry.g_stride, Region.F: header.geometry.f_stride}
        for region, size in sizes.items():
            if self._transport.size(region) < size:
                return self._refuse(
                    f"{region.name} has {self._transport.size(region)} bytes at the other end, and {size} by its header"
                )
        if header != self.header:
            self._end_epoch("the backend was restarted")
        self.header, self._survey = header, {}
        geometry, n = header.geometry, header.geometry.slots_per_part
        self._enter(Stage.SURVEY)
        self._work.read(Region.G, 0, geometry.status_off + STATUS.size * n, lambda d: self._surveyed(Region.G, d))
        self._work.read(Region.F, 0, geometry.cmd_off + COMMAND.size * n, lambda d: self._surveyed(Region.F, d))
        return None

    def _surveyed(self, region: Region, data: Bytes) -> None:
        self._survey[region] = data.copy()
        if len(self._survey) < 2:
            return
        assert self.header is not None
        survey = Survey.parse(self.header, self._survey[Region.G], self._survey[Region.F])
        if survey.epoch != self.header.epoch:
            return self._refuse("the ring in place has another epoch than its header")
        plan = self._on_survey(self.header, survey)
        self._repairs = len(plan)
        self._enter(Stage.REPAIR)
        for chain in plan:
            self._repair(chain, survey.db)
        if not plan:
            self._repaired(survey.db)
        return None

    def _repair(self, chain: Chain, db: int) -> None:
        def landed() -> None:
            self._repairs -= 1
            if not self._repairs:
                self._repaired(db)

        self._work.write(chain, landed)

    def _repaired(self, db: int) -> None:
        bell = self._on_repaired(db)
        if bell:
            self._enter(Stage.RING)
            self._work.write(bell, self._go_up)
        else:
            self._go_up()

    def _go_up(self) -> None:
        self._cut_at, self._why = None, ""
        self._enter(Stage.UP)
        self._on_up()

    def _end_epoch(self, why: str) -> None:
        """Forget the ring: it is gone for good."""
        if self.header is not None:
            self.header = None
            self._on_end(f"{why} while this request was in flight")
