from __future__ import annotations

import io

from blink.model import progress


def test_at_most_one_line_a_second_and_none_for_short_work(monkeypatch):
    now = 100.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    out = io.StringIO()
    p = progress.Progress("copying", 10 << 20, out)
    for _ in range(9):
        p.advance(1 << 20)
        now += 0.1
    assert out.getvalue() == ""
    now += 0.2
    p.advance(1 << 20)
    p.advance(0)
    assert out.getvalue() == "copying: 10 of 10 MiB (100 %)\n"
    now += 1.0
    p.advance(0)
    assert len(out.getvalue().splitlines()) == 2


def test_an_unknown_total(monkeypatch):
    out = io.StringIO()
    p = progress.Progress("hashing", 0, out)
    monkeypatch.setattr(p, "_next", 0.0)
    p.advance(3 << 20)
    assert out.getvalue() == "hashing: 3 MiB\n"
