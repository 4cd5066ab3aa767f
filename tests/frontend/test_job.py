"""News of a request between the poller, which never waits, and the task that answers."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import cast

import numpy as np
import pytest

from blink.frontend.answering import Answering
from blink.frontend.choice import AnswerOptions, Choice, Piece
from blink.frontend.errors import ApiError, ClientGone, unavailable
from blink.frontend.job import Job, Track, latencies_ms
from blink.frontend.metrics import Metrics
from blink.frontend.tracker import RequestTracker, hop_of
from blink.ring.client import RingClient
from blink.ring.layout import Reason, State
from blink.ring.request import SamplingParams, SubmitRequest
from blink.ring.stream import Handle, TokenLogprob, Update
from blink.ring.words import Times
from tests.frontend.pieces import PieceTokenizer


def new_job() -> Job:
    return Job(RequestTracker(cast(RingClient, None), Metrics("m")).drop)


def update(*tokens: int, reason: Reason | None = None, logprobs: bool = False) -> Update:
    records = [TokenLogprob(-float(t), []) for t in tokens] if logprobs else None
    return Update(Handle(1, 0, 1), list(tokens), records, State.DECODE_PROCESSING, reason)


def test_news_that_wait_are_merged_by_answer() -> None:
    async def run() -> dict[int, Update]:
        job = new_job()
        job.put(1, update(1, logprobs=True))
        job.put(0, update(7))
        job.put(1, update(2, 3, logprobs=True))
        job.put(1, update(reason=Reason.LENGTH, logprobs=True))
        return await job.news()

    news = asyncio.run(run())
    assert list(news) == [1, 0]
    assert (news[1].tokens, news[1].reason) == ([1, 2, 3], Reason.LENGTH)
    assert [r.logprob for r in news[1].logprobs or ()] == [-1.0, -2.0, -3.0]
    assert news[0].tokens == [7]


def test_each_news_come_once_and_before_a_failure() -> None:
    async def run() -> list[object]:
        job, said = new_job(), list[object]()
        waiting = asyncio.create_task(job.news())
        await asyncio.sleep(0)
        job.put(0, update(1))
        said.append((await waiting)[0].tokens)
        job.put(0, update(2))
        job.fail(ClientGone())
        job.fail(unavailable("link", "down"))
        said.append((await job.news())[0].tokens)
        for _ in range(2):
            with pytest.raises(ClientGone):
                await job.news()
        return said

    assert asyncio.run(run()) == [[1], [2]]


class Slots:
    """A ring that only numbers what is submitted."""

    def __init__(self) -> None:
        self._slots = count()

    def submit(self, _: SubmitRequest) -> Handle:
        return Handle(1, next(self._slots), 1)


def test_first_tokens_are_handed_over_before_others() -> None:
    async def run() -> list[int]:
        tracker, order = RequestTracker(cast(RingClient, Slots()), Metrics("m")), list[int]()
        jobs = [tracker.submit([SubmitRequest(np.array([1], np.uint32), 8, SamplingParams(seed=1))]) for _ in range(3)]

        async def read(number: int) -> None:
            while True:
                await jobs[number].news()
                order.append(number)

        readers = [asyncio.create_task(read(number)) for number in range(3)]
        for numbers in ((0, 1), (0, 1, 2)):
            order.clear()
            tracker.dispatch([Update(jobs[n].tracks[0].handle, [5], None, State.DECODE_PROCESSING) for n in numbers])
            await asyncio.sleep(0.01)
        for reader in readers:
            reader.cancel()
        return order

    assert asyncio.run(run()) == [2, 0, 1]


def test_a_job_has_its_time() -> None:
    async def late() -> ApiError:
        job = new_job()
        job.limit(0.01)
        with pytest.raises(ApiError) as e:
            await job.news()
        return e.value

    async def closed() -> bool:
        job = new_job()
        job.limit(0.01)
        job.close("stop")
        waiting = asyncio.create_task(job.news())
        await asyncio.sleep(0.05)
        return waiting.cancel()

    assert (asyncio.run(late()).status, asyncio.run(closed())) == (504, True)


def test_text_that_came_with_a_failure_precedes_it() -> None:
    async def run() -> list[Piece]:
        job, said = new_job(), list[Piece]()
        job.put(0, update(0, 1))
        job.put(0, update(0, reason=Reason.ERR_STOPPED))
        choice = Choice(0, AnswerOptions(), PieceTokenizer([b"a", b"b"]))
        answering = Answering(job, [choice], 1, 5.0)
        said += await answering.next()
        with pytest.raises(ApiError) as e:
            await answering.next()
        assert e.value.status == 503
        job.close("error")
        return said

    assert [p.text for p in asyncio.run(run())] == ["aba"]


def test_the_schedulers_times_are_in_the_usage_at_the_end() -> None:
    async def run() -> list[object]:
        job, said = new_job(), list[object]()
        job.tracks = [Track(Handle(1, i, 1), job, i, 0.0) for i in (0, 1)]
        choices = [Choice(i, AnswerOptions(), PieceTokenizer([b"a", b"b"])) for i in (0, 1)]
        answering = Answering(job, choices, 1, 5.0, times=True)
        for index, news in ((1, update(0)), (0, update(1, reason=Reason.LENGTH)), (1, update(reason=Reason.LENGTH))):
            if index == 0:
                job.tracks[0].times = Times(1500, 9000)
            job.put(index, news)
            await answering.next()
            said.append(answering.usage().get("scheduler_times"))
        job.close("error")
        return said

    assert asyncio.run(run()) == [None, None, [{"first_token_s": 0.0015, "last_token_s": 0.009}, None]]


def test_latencies_are_the_longest_of_what_is_known() -> None:
    job = new_job()
    tracks = [Track(Handle(1, i, 1), job, i, 10.0) for i in range(3)]
    assert latencies_ms(tracks) == {}
    tracks[0].first, tracks[0].last, tracks[0].tokens = 10.5, 10.5, 1
    assert latencies_ms(tracks) == {"ttft_ms": 500}
    tracks[1].first, tracks[1].last, tracks[1].tokens = 10.25, 11.25, 5
    tracks[1].times = Times(200_000, 800_000)
    tracks[2].times = Times(0, 0)  # it ended without a token
    assert latencies_ms(tracks) == {"ttft_ms": 500, "tpot_ms": 250, "scheduler_ttft_ms": 200, "scheduler_tpot_ms": 150}


@pytest.mark.parametrize(
    ("cause", "hop"),
    [
        ("scheduler: stopped", ("scheduler", "stopped")),
        ("frontend: 2 requests", ("frontend", "2 requests")),
        ("backend not up: no ring", ("link", "backend not up: no ring")),
        ("the link was down for 3 s", ("link", "the link was down for 3 s")),
    ],
)
def test_a_failure_names_its_hop(cause: str, hop: tuple[str, str]) -> None:
    assert hop_of(cause) == hop
