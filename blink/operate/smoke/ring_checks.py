"""Checks through the ring: its identity, memory, a slot's life, the model's answers."""

from __future__ import annotations

import secrets
from contextlib import closing

import numpy as np

from blink.operate.smoke.check import Check, CheckError, Deadline
from blink.operate.smoke.context import Context
from blink.operate.smoke.golden import find_golden
from blink.ring.health import phase_name
from blink.ring.layout import Counter, Phase, State
from blink.ring.observe import Observer
from blink.ring.transport import Region
from blink.ring_access import open_transport

SCRATCH_BYTES = 4096
LIFE_TOKENS = 16
REPEAT_TOKENS = 12
STUCK = "the backend is stopped, hung or overloaded: `blink status`"


def ring(context: Context, deadline: Deadline) -> str:
    """The published ring is alive, has the configured geometry, and serves the configured model."""
    config, seen = context.config, context.observer.observe()
    wanted = config.ring.geometry()
    if seen.header.geometry != wanted:
        raise CheckError(
            f"the ring has {seen.header.geometry}, the configuration says {wanted}",
            "the backend runs with another configuration: restart it",
        )
    if seen.header.epoch == 0:
        raise CheckError("the ring's epoch is 0", "the backend has not published it yet, or died doing so")
    if seen.header.fingerprint != context.model.fingerprint:
        raise CheckError(
            f"the ring serves model {seen.header.fingerprint.hex()[:16]}…, "
            f"and {config.model.path} is {context.model.fingerprint.hex()[:16]}…",
            "the model folder changed under a running backend: restart backend and frontend",
        )
    if seen.phase in (Phase.DRAINING, Phase.STOPPED):
        raise CheckError(f"the scheduler is {phase_name(seen.phase)}", "the backend was told to stop: start it again")
    deadline.left("the scheduler's beat")
    age = context.observer.wait_for_beat()
    if age is None:
        raise CheckError(
            f"the scheduler's beat stands at {seen.beat} in phase {phase_name(seen.phase)}",
            "the backend was killed, stopped or hangs: look at its process and its log",
        )
    return f"epoch {seen.header.epoch:016x}, {seen.header.geometry.slots} slots, beat within {age * 1000:.1f} ms"


def scratch(context: Context, deadline: Deadline) -> str:
    """What is written to the operator's partition can be read back."""
    partition = context.lease.partition
    at = context.config.ring.geometry().in_off
    data = secrets.token_bytes(SCRATCH_BYTES)
    deadline.left("a connection to the ring")
    with closing(Observer(open_transport(context.config, partition))) as pad:
        deadline.left("a write to the ring")
        pad.write(at, data)
        deadline.left("a read from the ring")
        read = pad.read(Region.F, at, SCRATCH_BYTES)
    wrong = np.flatnonzero(read != np.frombuffer(data, np.uint8))
    if len(wrong):
        raise CheckError(
            f"{len(wrong)} of {SCRATCH_BYTES} bytes differ in partition {partition}, the first at {at + int(wrong[0])}",
            "two writers share this partition, or memory or link corrupt data",
        )
    return f"{SCRATCH_BYTES} bytes in partition {partition}"


def slot(context: Context, deadline: Deadline) -> str:
    """One request goes through a slot's whole life, and the slot is empty again."""
    operator = context.operator
    operator.wait_up(deadline)
    free = operator.client.health().free_slots
    before = context.observer.observe()
    answer = operator.ask([_prompt(context)], LIFE_TOKENS, deadline)[0]
    if answer.states[-1] is not State.DECODE_COMPLETED:
        raise CheckError(f"the slot was last seen as {answer.states[-1].name}", "a defect of the scheduler")
    operator.wait_free(free, deadline)
    after = context.observer.observe()
    done = after.counter(Counter.OUTPUT_TOKENS) - before.counter(Counter.OUTPUT_TOKENS)
    if done < LIFE_TOKENS or after.counter(Counter.CLAIMS) <= before.counter(Counter.CLAIMS):
        raise CheckError(
            f"the ring's counters grew by {done} output tokens for {LIFE_TOKENS}", "a defect of the scheduler"
        )
    return f"{' > '.join(s.name for s in answer.states)} > EMPTY, {LIFE_TOKENS} tokens"


def golden(context: Context, deadline: Deadline) -> str:
    """The model gives the recorded greedy answers; where there is no record, equal answers alone and in a batch."""
    record = find_golden(context.config.model.path, context.model.fingerprint)
    if record is None:
        prompt = _prompt(context)
        alone = context.operator.ask([prompt], REPEAT_TOKENS, deadline)[0].tokens
        batched = context.operator.ask([prompt, prompt[::-1] * 3, prompt], REPEAT_TOKENS, deadline)
        for answer in (batched[0].tokens, batched[2].tokens):
            if answer != alone:
                raise CheckError(
                    f"the greedy answer to one prompt is {alone} alone and {answer} in a batch",
                    "the engine computes a row differently in company, or memory is corrupt",
                )
        return "no golden record of this model; equal greedy answers alone and in a batch"
    answers = [context.operator.ask([c.prompt], len(c.answer), deadline)[0].tokens for c in record.cases]
    for case, tokens in zip(record.cases, answers, strict=True):
        if tuple(tokens) != case.answer:
            at = next(i for i, (a, b) in enumerate(zip(tokens, case.answer, strict=True)) if a != b)
            raise CheckError(
                f"token {at} of the greedy answer to {list(case.prompt)} is {tokens[at]}, "
                f"recorded is {case.answer[at]} ({record.origin})",
                "damaged weights (`blink model check`), or an engine that computes wrongly",
            )
    return f"{len(answers)} recorded greedy answers ({record.origin})"


def _prompt(context: Context) -> list[int]:
    """Some prompt in the model's vocabulary."""
    return context.model.tokenizer().encode("One slot's life:") or [0]


CHECKS = (
    Check[Context]("ring", "ring", "identity, geometry, model and heartbeat of the ring", 30, STUCK, ring),
    Check[Context]("scratch", "ring", "write and read in the operator's partition", 10, STUCK, scratch),
    Check[Context]("slot", "scheduler", "submit, prefill, decode, complete, release", 60, STUCK, slot),
    Check[Context]("golden", "engine", "greedy answers equal the recorded ones", 120, STUCK, golden),
)
