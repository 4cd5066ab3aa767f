"""Random use of an appliance that runs by itself on a GPU, judged by what each request must get.

The model is that of tests/kernels (an unbatched run of the hash engine), and knows nothing of lanes, pages or drivers.
Two honest workers use the real ring client; the third writes nonsense into its F.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from blink.backend.gpu.ring import DeviceRing, MappedRing
from blink.backend.scheduler.config import SchedulerConfig
from blink.engine.seam.batch import Control
from blink.instruments.synthetic import SyntheticAppliance
from blink.ring.client import Handle, RingClient, RingFull, SamplingParams, SubmitRequest, Update
from blink.ring.layout import Geometry, Reason
from tests.kernels.nonsense import misbehave, nonsense
from tests.kernels.ring_writer import Ring
from tests.kernels.world import Sent

VOCAB = 64
CONFIG = SchedulerConfig(
    lanes=6, records=14, page_tokens=4, pages=40, max_context=64, vocab=VOCAB, batch_tokens=24, eos=(5, 9),
    torn_ms=20, alive_ms=5000, ext_words=32,
)  # fmt: skip
GEOMETRY = Geometry(24, 3, 32768, 1 << 17)
HOSTILE = 2
STEPS_APART = 4  # of the scheduler between two requests, of which one at least scans between them, however they fall
PACE = 4  # steps between two actions, so that a scheduler with a small share of the GPU is not asked for more
STEPS_S = 30
ATTACHED_S = 10
FIRST_SEED = 1_000_000  # above what the hostile worker is likely to use


@dataclass
class Request:
    """What is known of a request from outside."""

    expected: Sent
    submit: SubmitRequest
    before: int
    """Steps that the scheduler had taken before the request was written."""
    rung: int | None = None
    """The same after its doorbell was, so that every scan from then on sees it; None until then."""
    got: list[int] = field(default_factory=list)
    cancelled: bool = False
    ended: Reason | None = None


class Storm:
    """Two clients of ``appliance`` and what they have asked for."""

    def __init__(self, appliance: SyntheticAppliance, seed: int) -> None:
        self.appliance = appliance
        self.rng = np.random.default_rng(seed)
        self.clients = [attach(appliance, p) for p in range(HOSTILE)]
        self.requests: list[Request] = []
        self.running: dict[tuple[int, Handle], Request] = {}
        self.mode = Control.RUN
        self._unrung: list[Request] = []
        self._shadow = Ring(GEOMETRY, CONFIG).writer(HOSTILE)
        self._gens: dict[int, int] = {}

    def submit(self, part: int, *, fails_at: int = 0, **options: Any) -> None:
        """A random request of worker ``part``; nothing where its share of the queue is used up."""
        rng, number = self.rng, FIRST_SEED + len(self.requests)
        length = int(rng.integers(1, 40))
        prompt = rng.integers(0, VOCAB, length).tolist()
        max_tokens = int(rng.integers(1, CONFIG.max_context - length + 1))
        seed = fails_at << 48 | number
        request = SubmitRequest(
            np.array(prompt, np.uint32), max_tokens, SamplingParams(seed=seed),
            stop_ids=options.get("stop", ()), ignore_eos=options.get("ignore_eos", False),
            min_tokens=options.get("min_tokens", 0), logprobs=options.get("logprobs"),
            deadline_ms=options.get("deadline_ms", 0),
        )  # fmt: skip
        before = self._steps()
        try:
            handle = self.clients[part].submit(request)
        except RingFull:
            return
        known = {**options, "eos": CONFIG.eos, "vocab": VOCAB}
        expected = Sent(part, handle.slot, handle.gen, number, seed, prompt, max_tokens, known, 0, fails_at or None)
        made = Request(expected, request, before)
        self.requests.append(made)
        self._unrung.append(made)
        self.running[part, handle] = made

    def act(self) -> None:
        """One random action of someone, and time for the scheduler to see it."""
        rng, draw, taken = self.rng, self.rng.random(), self._steps()
        if draw < 0.5:
            for _ in range(rng.integers(1, 7)):
                self._submit_anything()
        elif draw < 0.7 and self.running:
            part, handle = list(self.running)[int(rng.integers(0, len(self.running)))]
            self.running[part, handle].cancelled = True
            self.clients[part].cancel(handle)
        elif draw < 0.85:
            misbehave(self._shadow, nonsense(rng), self._gens)
            self._write_f(self._shadow.f.tobytes())
        self.poll()
        deadline = time.monotonic() + STEPS_S
        while self._steps() < taken + PACE:
            assert time.monotonic() < deadline, f"the scheduler took less than {PACE} steps in {STEPS_S} s"
            self.poll()

    def _write_f(self, content: bytes) -> None:
        """Replace all of the hostile worker's F."""
        at, ring = HOSTILE * GEOMETRY.f_stride, self.appliance.ring
        if isinstance(ring, MappedRing):
            ring.objects.f[at : at + len(content)] = memoryview(content)
        else:
            assert isinstance(ring, DeviceRing)
            ring.f_memory.write(at, content)

    def _submit_anything(self) -> None:
        rng = self.rng
        self.submit(
            int(rng.integers(0, HOSTILE)),
            ignore_eos=bool(rng.random() < 0.7),
            min_tokens=int(rng.integers(0, 6)),
            stop=tuple(rng.integers(0, VOCAB, rng.integers(0, 3)).tolist()),
            **({"logprobs": int(rng.integers(0, 21))} if rng.random() < 0.2 else {}),
            **({"deadline_ms": int(rng.integers(1, 30))} if rng.random() < 0.1 else {}),
            fails_at=int(rng.integers(1, 60)) if rng.random() < 0.05 else 0,
        )

    def poll(self) -> None:
        """Ring for what was submitted, read what the scheduler has published, and judge it."""
        updates = [(part, update) for part, c in enumerate(self.clients) for update in c.poll(time.monotonic())]
        if self._unrung:
            steps = self._steps()
            for request in self._unrung:
                request.rung = steps
            self._unrung.clear()
        for part, update in updates:
            self._judge(part, update)

    def _steps(self) -> int:
        return self.appliance.scheduler.counters()["STEPS"]

    def _judge(self, part: int, update: Update) -> None:
        assert update.error is None, update.error
        request = self.running[part, update.handle]
        expected = request.expected
        request.got += update.tokens
        assert request.got == expected.expected[: len(request.got)], f"request {expected.seed} got a wrong answer"
        if request.submit.logprobs is not None:
            n = request.submit.logprobs
            assert update.logprobs == [
                (-t / 8, [((t + 1 + k) % VOCAB, -k / 4) for k in range(n)]) for t in update.tokens
            ]
        if update.reason is None:
            return
        request.ended = update.reason
        del self.running[part, update.handle]
        whole = request.got == expected.expected
        match update.reason:
            case Reason.CANCELLED:
                assert request.cancelled
            case Reason.DEADLINE:
                assert request.submit.deadline_ms
            case Reason.ERR_DRAINING:
                assert self.mode is not Control.RUN
                assert not request.got
            case Reason.ERR_STOPPED:
                assert self.mode is Control.STOP
            case reason:
                assert reason is expected.end, f"request {expected.seed} ended with {reason!r}, not {expected.end!r}"
                assert whole, f"request {expected.seed} lacks tokens"

    def settle(self, timeout_s: float = 30) -> None:
        """Poll until every request has ended."""
        deadline = time.monotonic() + timeout_s
        while self.running:
            self.poll()
            assert time.monotonic() < deadline, f"{len(self.running)} requests never ended"

    def check_order(self) -> None:
        """First come, first served: nobody began to run before someone who came clearly earlier."""
        began: dict[int, int] = {}
        for step, seed in self.appliance.engine.traced():
            began.setdefault(seed, step)
        ran = [r for r in self.requests if r.expected.seed in began]
        assert len(ran) > len(self.requests) / 3
        latest = dict.fromkeys(range(HOSTILE), 0)
        for request in ran:
            step, part = began[request.expected.seed], request.expected.part
            assert step >= latest[part], f"request {request.expected.seed} overtook one of its own worker"
            latest[part] = step
        for earlier in ran:
            for later in ran:
                if earlier.rung is not None and later.before - earlier.rung >= STEPS_APART:
                    assert began[earlier.expected.seed] <= began[later.expected.seed], "overtaken"


def attach(appliance: SyntheticAppliance, part: int) -> RingClient:
    """A client that has found the scheduler alive."""
    client, deadline = appliance.client(part), time.monotonic() + ATTACHED_S
    while client.health().down:
        client.poll(time.monotonic())
        assert time.monotonic() < deadline, client.health().down
    return client


def run(client: RingClient, request: SubmitRequest, timeout_s: float = 30) -> tuple[list[int], Reason]:
    """The answer to one request."""
    handle, got, deadline = client.submit(request), [], time.monotonic() + timeout_s
    while True:
        for update in client.poll(time.monotonic()):
            assert update.handle == handle
            assert update.error is None, update.error
            got += update.tokens
            if update.reason is not None:
                return got, update.reason
        assert time.monotonic() < deadline, f"no end after {timeout_s} s: {client.health()}"
