"""Golden answers: greedy tokens of a known model, recorded from another implementation than the one under test."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blink.errors import BlinkError

SHIPPED = Path(__file__).parent / "golden"
FOLDER_FILE = "blink-golden.json"


@dataclass(frozen=True)
class Case:
    """A prompt and the greedy answer to it, as token ids."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]


@dataclass(frozen=True)
class Golden:
    """The record of one model; ``origin`` says what computed it."""

    origin: str
    cases: tuple[Case, ...]


def find_golden(model: Path, fingerprint: bytes) -> Golden | None:
    """The record of the model with ``fingerprint``: its folder's blink-golden.json, else the one that Blink ships.

    The file is {"fingerprint": hex, "origin": text, "cases": [{"prompt": [id…], "answer": [id…]}…]}. Raises BlinkError
    where it is not, or is for another model.
    """
    for path in (model / FOLDER_FILE, SHIPPED / f"{fingerprint.hex()}.json"):
        if path.exists():
            return _read(path, fingerprint)
    return None


def _read(path: Path, fingerprint: bytes) -> Golden:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        recorded = document["fingerprint"]
        golden = Golden(
            str(document["origin"]), tuple(Case(_ids(c["prompt"]), _ids(c["answer"])) for c in document["cases"])
        )
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise BlinkError(f"{path} is not a golden record ({type(e).__name__}: {e})", "record it again") from None
    if recorded != fingerprint.hex():
        raise BlinkError(f"{path} is for the model with fingerprint {recorded}", "record it again for this model")
    if not golden.cases:
        raise BlinkError(f"{path} has no case", "record at least one")
    return golden


def _ids(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or not value or not all(type(i) is int and i >= 0 for i in value):
        raise ValueError(f"{value!r} is not a list of token ids")
    return tuple(value)
