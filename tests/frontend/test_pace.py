"""How often the ring is polled."""

from __future__ import annotations

from blink.frontend.poller import BUSY_S, FLOOR_S, IDLE_S, Pace


def test_it_backs_off_to_a_ceiling_and_news_brings_it_back() -> None:
    pace = Pace()
    pauses = [pace.next(news=False, urgent=0, outstanding=1) for _ in range(20)]
    assert pauses == sorted(pauses)
    assert pauses[0] <= 2 * FLOOR_S
    assert pauses[-1] == BUSY_S
    assert pace.next(news=True, urgent=0, outstanding=1) == FLOOR_S


def test_it_does_not_back_off_while_a_request_waits_for_its_first_token() -> None:
    pace = Pace()
    for _ in range(20):
        pace.next(news=False, urgent=0, outstanding=3)
    assert {pace.next(news=False, urgent=1, outstanding=3) for _ in range(20)} == {FLOOR_S}


def test_without_requests_it_only_keeps_the_beat() -> None:
    assert Pace().next(news=False, urgent=0, outstanding=0) == IDLE_S < 1.0  # RingClient wants a poll every second
