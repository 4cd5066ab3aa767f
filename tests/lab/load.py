"""Streams that run one after the other in several threads, each compared with what it said when nothing was wrong."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections import Counter
from dataclasses import dataclass, field

from tests.lab.deployed import Deployed, Stream

RETRY_S = 1.0  # after a refusal
END_S = 240.0


@dataclass(frozen=True)
class Kind:
    """A request whose answer is always the same."""

    prompt: str
    tokens: int
    seed: int = 1
    temperature: float = 1.0

    def start(self, lab: Deployed, leave_at: int | None = None) -> Stream:
        """Ask for it."""
        return lab.start_stream(
            seed=self.seed, tokens=self.tokens, prompt=self.prompt, temperature=self.temperature, leave_at=leave_at
        )


# Short and long prompts, of several prefill steps, and answers; the greedy one repeats itself, the others do not.
KINDS = (
    Kind("The ring", 200),
    Kind("The ring", 60, temperature=0.0),
    Kind("A slot", 20, seed=2),
    Kind("Tokens, pages and lanes. " * 12, 120, seed=3),
    Kind("One doorbell covers many commits. " * 20, 40, seed=4),
    Kind("Go", 400, seed=5),
)


@dataclass
class Tally:
    """What came of the streams. ``wrong`` names every one whose tokens were not the expected ones, and hangs.

    ``refused`` are HTTP 429 and 503, ``unanswered`` connections that ended before there was a status.
    """

    complete: int = 0
    left: int = 0
    tokens: int = 0
    refused: int = 0
    unanswered: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


class Load:
    """``clients`` threads of streams of KINDS; one in five hangs up midway. ``tally`` is of the time since ``turn``."""

    def __init__(self, lab: Deployed, clients: int) -> None:
        self._lab, self._clients = lab, clients
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self.expected: dict[Kind, list[str]] = {}
        self.tally = Tally()

    def learn(self) -> None:
        """Record every kind's answer, one at a time. Fails where one does not end as it should."""
        for kind in KINDS:
            stream = kind.start(self._lab).wait_end(END_S)
            assert (stream.error, stream.finish, len(stream.tokens)) == (None, "length", kind.tokens)
            self.expected[kind] = stream.tokens

    def start(self) -> None:
        """Begin."""
        self._threads = [threading.Thread(target=self._run, args=(i,), daemon=True) for i in range(self._clients)]
        for thread in self._threads:
            thread.start()

    def turn(self) -> Tally:
        """The tally so far; a new one begins."""
        with self._lock:
            tally, self.tally = self.tally, Tally()
        return tally

    def stop(self) -> None:
        """Begin no more streams, and wait for those that run."""
        self._stop.set()
        deadline = time.monotonic() + 2 * END_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        hanging = sum(thread.is_alive() for thread in self._threads)
        assert not hanging, f"{hanging} streams hang"

    def _run(self, number: int) -> None:
        rng = random.Random(number)
        for index in itertools.count():
            if self._stop.is_set():
                return
            kind = rng.choice(KINDS)
            leave_at = rng.randrange(1, kind.tokens) if index % 5 == 4 else None
            stream = kind.start(self._lab, leave_at)
            ended = stream.done.wait(END_S)
            with self._lock:
                self._judge(self.tally, f"client {number}, stream {index}", kind, stream, ended)
            if stream.error is not None:
                self._stop.wait(RETRY_S)

    def _judge(self, tally: Tally, name: str, kind: Kind, stream: Stream, ended: bool) -> None:
        said, expected = list(stream.tokens), self.expected[kind]
        if said != expected[: len(said)]:
            at = next(i for i, (a, b) in enumerate(itertools.zip_longest(said, expected)) if a != b)
            tally.wrong.append(f"{name}: token {at} of {len(said)} of {kind} is not the expected one")
        elif not ended:
            tally.wrong.append(f"{name}: hangs after {len(said)} tokens of {kind}")
        elif stream.error is not None:
            if stream.status in (429, 503):
                tally.refused += 1
            elif stream.status == 0:
                tally.unanswered += 1
            else:
                tally.errors[f"connection: {stream.error}" if stream.broken else stream.error] += 1
        elif stream.finish == "length" and said == expected:
            tally.complete += 1
        elif stream.leave_at is not None and len(said) >= stream.leave_at:
            tally.left += 1
        else:
            tally.wrong.append(f"{name}: ended without a word after {len(said)} of {kind.tokens} tokens")
        tally.tokens += len(said)
