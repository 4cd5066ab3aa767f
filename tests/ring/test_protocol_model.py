"""The slot protocol holds in every interleaving, and no rule of it is superfluous."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.depth import beyond_dev
from tests.ring.protocol_model import Result, Rules, Size, explore, mutant

ONE_SLOT = Size(slots=1, gens=2)
TWO_SLOTS = Size(slots=2, gens=1, cancels=0)


def check(result: Result, violation: str) -> None:
    steps = "\n".join(map(str, result.trace))
    assert result.violation == violation, f"{result.states} states; {result.violation or 'it held'}\n{steps}"


@pytest.mark.parametrize(
    "size",
    [
        Size(slots=1, gens=2, tokens=2, cuts=1, crashes=1),
        Size(slots=1, gens=2, cuts=2, crashes=1),
        Size(slots=1, gens=2, cuts=1, crashes=2),
        Size(slots=1, gens=3, cuts=1, crashes=1),
        Size(slots=2, gens=1, cuts=1, cancels=0),
        Size(slots=2, gens=1, crashes=1, cancels=0),
    ],
    ids=repr,
)
def test_the_protocol_holds(size: Size) -> None:
    check(explore(size), "")


@beyond_dev
@pytest.mark.parametrize(
    "size",
    [
        Size(slots=2, gens=1, cuts=1),
        Size(slots=2, gens=1, cuts=1, crashes=1, cancels=0),
        Size(slots=2, gens=2, crashes=1, cancels=0),
        Size(slots=1, gens=3, tokens=2, cuts=2, crashes=2, cancels=2),
    ],
    ids=repr,
)
def test_the_protocol_holds_in_larger_worlds(size: Size) -> None:
    check(explore(size), "")


STUCK = "10: stuck, a slot leaked"
NO_PROMPT = "3: claimed before the prompt had landed"
NO_RECORD = "3: claimed before the record had landed"


@pytest.mark.parametrize(
    ("rule", "size", "violation"),
    [
        ("gate", ONE_SLOT, NO_PROMPT),
        ("fence", replace(ONE_SLOT, cuts=1), NO_PROMPT),
        ("fence", replace(ONE_SLOT, crashes=1), NO_PROMPT),
        ("one_doorbell", TWO_SLOTS, STUCK),
        ("cumulative", TWO_SLOTS, NO_PROMPT),
        ("monotone", TWO_SLOTS, STUCK),
        ("roll_forward", replace(ONE_SLOT, crashes=1), STUCK),
        ("null_request", replace(ONE_SLOT, crashes=1), NO_PROMPT),
        ("reconcile_lost", replace(ONE_SLOT, cuts=1, crashes=1), STUCK),
        ("cancel_after_commit", replace(ONE_SLOT, crashes=1), "11: a cancel hit a request that nobody cancelled"),
    ],
)
def test_without_a_rule_it_breaks(rule: str, size: Size, violation: str) -> None:
    check(explore(size, mutant(rule)), violation)


def test_the_record_check_is_a_second_guard() -> None:
    """The doorbell alone is enough; the check turns a worker that breaks the doorbell's rules into a torn count."""
    check(explore(ONE_SLOT, mutant("check")), "")
    check(explore(ONE_SLOT, Rules(gate=False, check=False)), NO_RECORD)
    check(explore(TWO_SLOTS, Rules(cumulative=False, check=False)), NO_RECORD)
