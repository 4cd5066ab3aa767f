"""A blocking ring client for the operator's partition."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from blink.config import ApplianceConfig
from blink.operate.smoke.check import CheckError, Deadline
from blink.ring.client import Handle, RingClient, SamplingParams, SubmitRequest
from blink.ring.layout import REASON_TEXT, Reason, State
from blink.ring.lease import PartitionLease
from blink.ring_access import open_transport

POLL_S = 0.0005
UP_S = 10.0
"""Time to attach, and for requests of an earlier operator to end."""


@dataclass
class Answer:
    """A finished request: its tokens and the states that were seen on the way, in order, each once."""

    tokens: list[int] = field(default_factory=list)
    states: list[State] = field(default_factory=list)
    reason: Reason | None = None


class Operator:
    """Submits requests on the operator's partition and waits for them."""

    def __init__(self, config: ApplianceConfig, lease: PartitionLease) -> None:
        self.client = RingClient(open_transport(config, config.operator_partition), lease=lease)

    def wait_up(self, deadline: Deadline) -> None:
        """Wait for the link to the ring."""
        give_up = time.monotonic() + UP_S
        while down := self.client.health().down:
            deadline.left(f"the ring ({down})")
            self._refuse_stall()
            if time.monotonic() > give_up:
                raise CheckError(f"waited {UP_S:g} s for the ring: {down}", "`blink status`, and the backend's log")
            self._cycle()

    def ask(self, prompts: Sequence[Sequence[int]], max_tokens: int, deadline: Deadline) -> list[Answer]:
        """Greedy answers of exactly ``max_tokens`` tokens to all ``prompts``, submitted together."""
        self.wait_up(deadline)
        answers: dict[Handle, Answer] = {}
        for prompt in prompts:
            request = SubmitRequest(
                np.array(prompt, np.uint32), max_tokens, SamplingParams(seed=0, temperature=0), ignore_eos=True
            )
            answers[self.client.submit(request)] = Answer()
        try:
            while any(a.reason is None for a in answers.values()):
                deadline.left("a request to complete")
                self._refuse_stall()
                self._take(answers)
                time.sleep(POLL_S)
        except CheckError:
            for handle in answers:
                self.client.cancel(handle)
            self._cycle()
            raise
        for answer in answers.values():
            if answer.reason is not Reason.LENGTH or len(answer.tokens) != max_tokens:
                reason = answer.reason or Reason.NONE
                raise CheckError(
                    f"the request ended after {len(answer.tokens)} of {max_tokens} tokens: {REASON_TEXT[reason]}",
                    "a draining or failing backend: `blink status` and its log",
                )
        return list(answers.values())

    def wait_free(self, slots: int, deadline: Deadline) -> None:
        """Wait until ``slots`` slots are free."""
        while self.client.health().free_slots < slots:
            deadline.left("the slot to become empty")
            self._cycle()

    def _take(self, answers: Mapping[Handle, Answer]) -> None:
        for update in self.client.poll(time.monotonic()):
            answer = answers.get(update.handle)
            if answer is None:  # of a check that gave up
                continue
            answer.tokens += update.tokens
            answer.reason = update.reason
            if not answer.states or answer.states[-1] != update.state:
                answer.states.append(update.state)
            if update.error is not None:
                raise CheckError(f"the request died: {update.error}", "the backend went away: its log says why")

    def _refuse_stall(self) -> None:
        if self.client.health().stalled:
            raise CheckError(
                "the scheduler's beat stands while a request waits",
                "the backend was killed, stopped or hangs: look at its process and its log",
            )

    def _cycle(self) -> None:
        self.client.poll(time.monotonic())
        time.sleep(POLL_S)

    def close(self) -> None:
        """Give the link up."""
        self.client.close()
