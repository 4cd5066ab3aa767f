"""Stop strings over the borders of tokens and chunks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from blink.frontend.stop_strings import StopMatcher, open_length
from tests.frontend.pieces import cut

# Few letters, so that stop strings overlap the text and each other all the time.
TEXT = st.text("ab", max_size=30)
STOPS = st.lists(st.text("ab", min_size=1, max_size=6), min_size=1, max_size=4)
CUTS = st.lists(st.integers(0, 30))


def naive(text: str, stops: list[str], include: bool) -> tuple[str, str | None]:
    """The answer by definition: try every end, and at each every stop string, the longest first."""
    for end in range(1, len(text) + 1):
        for stop in sorted(stops, key=len, reverse=True):
            if text[:end].endswith(stop):
                return text[: end if include else end - len(stop)], stop
    return text, None


@given(TEXT, STOPS, CUTS, st.booleans())
def test_equals_a_naive_search_of_the_whole_text(text: str, stops: list[str], cuts: list[int], include: bool) -> None:
    matcher = StopMatcher(stops, include=include)
    said = ""
    for piece in cut(text, cuts):
        said += matcher.feed(piece)
        if matcher.matched:
            break
    assert (said + matcher.flush(), matcher.matched) == naive(text, stops, include)


@given(TEXT, STOPS, CUTS)
def test_nothing_is_delivered_that_may_have_to_be_taken_back(text: str, stops: list[str], cuts: list[int]) -> None:
    """Whatever comes next, the text delivered so far begins the answer."""
    matcher, fed, said = StopMatcher(stops), "", ""
    for piece in cut(text, cuts):
        fed += piece
        said += matcher.feed(piece)
        if matcher.matched:
            return
        for stop in stops:
            assert naive(fed + stop, stops, include=False)[0].startswith(said)
        # and nothing is held back without need: what is held begins a stop string
        held = fed[len(said) :]
        assert not held or any(s.startswith(held) for s in stops)


def test_without_stops_everything_passes() -> None:
    assert StopMatcher([]).feed("anything") == "anything"


def test_nothing_follows_a_match() -> None:
    matcher = StopMatcher(["\n\n"])
    assert matcher.feed("one\n") == "one"
    assert matcher.feed("\ntwo") == ""
    assert (matcher.feed("three"), matcher.flush(), matcher.matched) == ("", "", "\n\n")


def test_open_length_is_short_of_a_whole_pattern() -> None:
    assert open_length("xxEN", ["END"]) == 2
    assert open_length("END", ["END"]) == 0
