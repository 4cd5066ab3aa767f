"""docs/protocol.md against the code: layout tables, states and reasons, and the tests it names."""

from __future__ import annotations

import re
from pathlib import Path

from blink.cstruct import Struct
from blink.ring.layout import REASON_TEXT, STRUCTS, Reason, State

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "protocol.md").read_text()


def layout_table(struct: Struct) -> str:
    """The documentation of ``struct``, in Markdown."""
    lines = [f"### {struct.name}, {struct.size} bytes", "", "| offset | type | field | |", "| --- | --- | --- | --- |"]
    for f in struct.fields:
        kind = f.type if f.count == 1 else f"{f.type}[{f.count}]"
        lines.append(f"| {f.offset:02X} | {kind} | {f.name} | {f.about} |")
    return "\n".join(lines) + "\n"


def reason_table() -> str:
    """Reasons, in Markdown."""
    lines = ["### Reasons", "", "| value | name | |", "| --- | --- | --- |"]
    return "\n".join([*lines, *(f"| {r.value} | {r.name} | {REASON_TEXT[r]} |" for r in Reason)]) + "\n"


def test_layout_tables_are_current() -> None:
    stale = [table for table in map(layout_table, STRUCTS) if table not in TEXT]
    assert not stale, "paste this:\n" + "\n".join(stale)


def test_every_packed_word_is_described() -> None:
    section = TEXT.split("## Words")[1].split("## States")[0]
    for field in (f for struct in STRUCTS for f in struct.fields):
        if field.word:
            assert f"| {field.name} | {field.word.describe()} |" in section


def test_reasons_are_current() -> None:
    assert reason_table() in TEXT, "paste this:\n" + reason_table()


def test_every_state_is_explained() -> None:
    for state in State:
        assert state.name in TEXT


def test_every_test_it_names_exists() -> None:
    named = re.findall(r"(tests/[\w/]+\.py)(?:::(\w+))?", TEXT)
    assert len(named) > 20
    for file, function in named:
        source = (ROOT / file).read_text()
        assert not function or f"def {function}(" in source, f"{file}::{function} is named, but not there"


def test_every_invariant_has_a_row() -> None:
    section = TEXT.split("## Invariants")[1].split("## Layout")[0]
    assert [int(n) for n in re.findall(r"^\| (\d+) \|", section, re.M)] == list(range(1, 16))
