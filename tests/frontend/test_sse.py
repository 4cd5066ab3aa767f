"""Streams that fail, and readers that leave."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.types import Message

from blink.frontend import sse
from blink.frontend.errors import ApiError, ClientGone
from blink.frontend.sse import EventStream, HangUp, event


class Ends:
    """What a stream reports."""

    def __init__(self) -> None:
        self.closed, self.gone, self.errors = 0, 0, list[ApiError]()

    def close(self) -> None:
        self.closed += 1

    def leave(self) -> None:
        self.gone += 1


async def some(*items: bytes | Exception) -> AsyncIterator[bytes]:
    for item in items:
        if isinstance(item, Exception):
            raise item
        yield item


def run(events: AsyncIterator[bytes], send: Any = None) -> tuple[list[Message], Ends]:
    sent, ends = list[Message](), Ends()

    async def record(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        raise AssertionError("a stream does not read")

    response = EventStream(events, close=ends.close, failed=ends.errors.append, gone=ends.leave)
    asyncio.run(response({"type": "http"}, receive, send or record))
    return sent, ends


def test_an_event_is_one_line_also_where_unicode_would_end_it() -> None:
    text = "".join(map(chr, range(0x100))) + "\u2028\u2029é日"
    line, end = event({"text": text}).decode().split("\n", 1)
    assert end == "\n"
    assert line.splitlines() == [line]
    assert json.loads(line.removeprefix("data: ")) == {"text": text}
    assert "é日" in line, "escapes cost bytes"


def test_a_stream_that_ends_well() -> None:
    sent, ends = run(some(b"data: 1\n\n", sse.DONE))
    assert b"".join(m.get("body", b"") for m in sent) == b"data: 1\n\ndata: [DONE]\n\n"
    assert [m.get("more_body") for m in sent[1:]] == [True, True, False]
    assert (ends.closed, ends.gone, ends.errors) == (1, 0, [])


def test_a_stream_that_fails_says_so_and_does_not_say_done() -> None:
    error = ApiError(503, "link: cut", code="backend_unavailable")
    sent, ends = run(some(b"data: 1\n\n", error))
    assert sent[-2]["body"] == event(error.body())
    assert sent[-1] == {"type": "http.response.body", "body": b"", "more_body": False}
    assert not any(b"[DONE]" in m.get("body", b"") for m in sent)
    assert (ends.closed, ends.errors) == (1, [error])


def test_a_client_that_left() -> None:
    sent, ends = run(some(b"data: 1\n\n", ClientGone()))
    assert len(sent) == 2
    assert (ends.closed, ends.gone) == (1, 1)


def test_a_client_that_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "SEND_TIMEOUT_S", 0.01)

    async def stuck(message: Message) -> None:
        if message["type"] == "http.response.body":
            await asyncio.sleep(60)

    _, ends = run(some(b"data: 1\n\n"), stuck)
    assert (ends.closed, ends.gone) == (1, 1)


def test_hang_up_is_told_once_and_not_after_close() -> None:
    async def watch(*, close_first: bool) -> int:
        messages: asyncio.Queue[Message] = asyncio.Queue()
        calls: list[int] = []
        watcher = HangUp(messages.get, lambda: calls.append(1))
        if close_first:
            watcher.close()
        for kind in ("http.request", "http.disconnect", "http.disconnect"):
            messages.put_nowait({"type": kind})
        for _ in range(10):
            await asyncio.sleep(0)
        return len(calls)

    assert asyncio.run(watch(close_first=False)) == 1
    assert asyncio.run(watch(close_first=True)) == 0


@pytest.mark.parametrize(("seconds", "said"), [(0.2, "1"), (1.0, "1"), (1.2, "2")])
def test_a_client_is_never_told_to_retry_at_once_or_too_early(seconds: float, said: str) -> None:
    assert ApiError(429, "queue full", retry_after=seconds).response().headers["Retry-After"] == said
