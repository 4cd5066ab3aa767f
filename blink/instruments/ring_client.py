"""What one ring client can submit and carry, without HTTP: the scheduler steps between the timed parts."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from blink.errors import BlinkError
from blink.instruments.ring_synthetic import COUNT, SyntheticRing
from blink.ring.client import RingClient
from blink.ring.request import SamplingParams, SubmitRequest
from blink.ring.stream import Handle, Update
from blink.ring.words import MASK32

PROMPT_TOKENS = 64
TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Work:
    """``per_s`` by the clock; ``cpu_us`` of this process for each."""

    per_s: float
    cpu_us: float


class Stopwatch:
    """Adds up wall clock and CPU time of the parts between :meth:`start` and :meth:`stop`."""

    def __init__(self) -> None:
        self.wall = self.cpu = 0.0

    def start(self) -> None:
        """Begin a part."""
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def stop(self) -> None:
        """End it."""
        self.wall += time.perf_counter() - self._wall
        self.cpu += time.process_time() - self._cpu

    def work(self, count: int) -> Work:
        """What ``count`` operations took."""
        return Work(count / self.wall, 1e6 * self.cpu / count)


class ClientRun:
    """A client on the ring of ``world``, both turned by this thread."""

    def __init__(self, world: SyntheticRing, client: RingClient, streams: int) -> None:
        self._world, self._client, self._streams = world, client, streams
        self._until("the ring", lambda: not client.health().down, step=True)

    def _until(self, what: str, condition: Callable[[], bool], *, step: bool) -> list[Update]:
        updates, deadline = list[Update](), time.monotonic() + TIMEOUT_S
        while not condition():
            if step:
                self._world.step()
            updates += self._client.poll(now := time.monotonic())
            if now > deadline:
                raise BlinkError(f"waited {TIMEOUT_S:g} s for {what}", f"hop: {self._client.health().down or 'none'}")
        return updates

    def _submit(self, max_tokens: int) -> list[Handle]:
        prompt = np.full(PROMPT_TOKENS, 7, np.uint32)
        requests = (
            SubmitRequest(prompt, max_tokens, SamplingParams(seed=seed), ignore_eos=True)
            for seed in range(self._streams)
        )
        return [self._client.submit(request) for request in requests]

    def submissions(self, rounds: int) -> Work:
        """Submit as many requests as there are streams, ``rounds`` times, each until the doorbell covers them all."""
        watch = Stopwatch()
        for _ in range(rounds):
            target = self._world.rung() + self._streams & MASK32
            watch.start()
            self._submit(1)
            self._until("the doorbell", lambda t=target: self._world.rung() == t, step=False)  # type: ignore[misc]
            watch.stop()
            self._until("the requests to end", lambda: not self._client.health().outstanding, step=True)
        return watch.work(rounds * self._streams)

    def tokens(self, per_poll: int, polls: int) -> Work:
        """Take ``per_poll`` tokens of every stream at a time, ``polls`` times. Raises BlinkError where one is wrong."""
        watch, world, count = Stopwatch(), self._world, per_poll * polls
        first = world.published
        said: dict[Handle, list[int]] = {handle: [] for handle in self._submit(count)}
        begun = first + self._streams
        updates = self._until("the first tokens", lambda: world.published >= begun, step=True)
        early = got = _take(updates, said)
        while got < self._streams * count:
            for _ in range(per_poll):
                world.step()
            updates, deadline = [], time.monotonic() + TIMEOUT_S
            watch.start()
            while sum(len(u.tokens) for u in updates) < world.published - first - got and time.monotonic() < deadline:
                updates += self._client.poll(time.monotonic())
            watch.stop()
            got += _take(updates, said)
            if got < world.published - first:
                raise BlinkError(f"{world.published - first - got} tokens did not come", "this is a defect")
        self._until("the requests to end", lambda: not self._client.health().outstanding, step=True)
        for seed, tokens in enumerate(said.values()):
            if tokens != [(PROMPT_TOKENS + seed + i) % COUNT for i in range(count)]:
                raise BlinkError(f"request {seed} has wrong tokens", "this is a defect")
        return watch.work(got - early)


def _take(updates: list[Update], said: dict[Handle, list[int]]) -> int:
    for update in updates:
        said[update.handle] += update.tokens
    return sum(len(u.tokens) for u in updates)
