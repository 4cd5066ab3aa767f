"""``blink bench load``: requests at a rate, or so many at once, to any server that speaks OpenAI's API.

Open loop (``rate``): arrivals are a Poisson process that does not wait for answers, and latencies run from the moment
that a request was due, so a late client cannot hide a queue. Closed loop (``at_once``): each answer is followed by the
next request. Requests of the first ``warm_up_s`` are not counted; those due in the window after it are, and load goes
on until the last of them has its answer.

Where every server is Blink, the scheduler's own times of the same requests stand beside the client's (docs/api.md,
``scheduler_times``).
"""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from blink.errors import BlinkError
from blink.instruments import machine
from blink.output import write_json

PERCENTILES = (50, 99)
STALL_S = 600.0
POLL_S = 0.02


@dataclass(frozen=True)
class Work:
    """What is asked for: lengths are log-normal with these means and the shape ``sigma`` (0: all are equal), cut at
    four times the mean; prompts are random token ids from ``ids``."""

    prompt_tokens: int
    answer_tokens: int
    sigma: float
    ids: tuple[int, int]
    seed: int


@dataclass
class Sent:
    """One request: when it was due and answered, in seconds from the start, and how many tokens came."""

    due: float
    prompt: int
    wanted: int
    first: float = 0.0
    last: float = 0.0
    tokens: int = 0
    error: str = ""
    scheduler: tuple[float, float] | None = None  # its first and last token, in seconds from its own first sight
    late: float = field(default=0.0)

    @property
    def done(self) -> bool:
        """Whether all tokens came."""
        return self.tokens == self.wanted and not self.error


def run(
    urls: Sequence[str], model: str, work: Work, *, rate: float | None, at_once: int | None, warm_up_s: float,
    seconds: float, key: str | None, json_path: Path | None,
) -> int:  # fmt: skip
    """Measure and print; returns the exit code, 1 where a counted request failed."""
    started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    load = _Load(urls, model, work, window=(warm_up_s, warm_up_s + seconds), key=key)
    try:
        asyncio.run(load.open_loop(rate) if rate else load.closed_loop(at_once or 1))
    except httpx.HTTPError as e:
        raise BlinkError(f"{urls[0]}: {e or type(e).__name__}", "start the server, then try again") from None
    document = {
        "command": shlex.join(["blink", *sys.argv[1:]]),
        "started": started,
        "client": machine.hardware(),
        "versions": machine.versions(),
        **load.summary(),
    }
    if str(json_path) != "-":
        print(render(document))
    if json_path is not None:
        write_json(json_path, document)
    return 1 if document["errors"] else 0


def render(document: dict[str, Any]) -> str:
    """``document`` as text."""
    lines = [f"{name:<22}{document[name]}" for name in ("command", "started", "client", "versions")]
    for name in ("requests", "completed", "errors", "requests_per_s", "tokens_per_s", "mean_prompt", "mean_answer"):
        lines.append(f"{name:<22}{document[name]}")
    for name in ("ttft_ms", "scheduler_ttft_ms", "tpot_ms", "scheduler_tpot_ms", "late_ms"):
        values = document[name]
        lines.append(f"{name:<22}" + ("  ".join(f"{k} {v:.2f}" for k, v in values.items()) if values else "none"))
    return "\n".join(lines)


class _Load:
    def __init__(
        self, urls: Sequence[str], model: str, work: Work, *, window: tuple[float, float], key: str | None
    ) -> None:
        self._urls, self._model, self._work = [u.rstrip("/") for u in urls], model, work
        self._begin, self._end = window
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._rng = np.random.default_rng(work.seed)
        self._sent: list[Sent] = []
        self._arrivals: list[float] = []  # of every token
        self._start = 0.0
        self._blink = False

    def _now(self) -> float:
        return time.perf_counter() - self._start

    def _length(self, mean: int) -> int:
        sigma = self._work.sigma
        drawn = float(self._rng.lognormal(np.log(mean) - sigma**2 / 2, sigma)) if sigma else mean
        return int(min(max(1, round(drawn)), 4 * mean))

    def _request(self, due: float) -> tuple[Sent, bytes, str]:
        sent = Sent(due, self._length(self._work.prompt_tokens), self._length(self._work.answer_tokens))
        body = {
            "model": self._model, "prompt": self._rng.integers(*self._work.ids, sent.prompt).tolist(),
            "max_tokens": sent.wanted, "temperature": 0, "ignore_eos": True, "stream": True,
            "stream_options": {"include_usage": True},
        }  # fmt: skip
        if self._blink:
            body["scheduler_times"] = True
        self._sent.append(sent)
        return sent, json.dumps(body).encode(), self._urls[len(self._sent) % len(self._urls)]

    async def open_loop(self, rate: float) -> None:
        """Poisson arrivals at ``rate`` requests a second."""
        async with self._client() as client:
            await self._meet(client)
            self._start, due, tasks = time.perf_counter(), 0.0, set[asyncio.Task[None]]()
            while due < self._end or self._waiting():
                due += float(self._rng.exponential(1 / rate))
                request = self._request(due)
                await asyncio.sleep(max(0.0, due - self._now()))
                task = asyncio.create_task(self._stream(client, *request))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
            await _drop(tasks)

    async def closed_loop(self, at_once: int) -> None:
        """``at_once`` requests at any time."""

        async def worker(client: httpx.AsyncClient) -> None:
            while self._now() < self._end or self._waiting():
                await self._stream(client, *self._request(self._now()))

        async with self._client() as client:
            await self._meet(client)
            self._start = time.perf_counter()
            tasks = {asyncio.create_task(worker(client)) for _ in range(at_once)}
            while self._now() < self._end or self._waiting():
                await asyncio.sleep(POLL_S)
            await _drop(tasks)

    def _client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(headers=self._headers, timeout=STALL_S, limits=httpx.Limits(), trust_env=False)

    async def _meet(self, client: httpx.AsyncClient) -> None:
        """Find out whether every server is Blink: others may refuse a field that they do not know."""
        try:
            answers = [(await client.get(f"{url}/v1/models")).json()["data"] for url in self._urls]
            self._blink = all(model["owned_by"] == "blink" for models in answers for model in models)
        except (httpx.HTTPError, ValueError, KeyError, TypeError):
            self._blink = False  # whatever is wrong, the requests will say it

    def _counted(self) -> list[Sent]:
        return [s for s in self._sent if self._begin <= s.due < self._end]

    def _waiting(self) -> bool:
        return any(not s.done and not s.error for s in self._counted())

    async def _stream(self, client: httpx.AsyncClient, sent: Sent, body: bytes, url: str) -> None:
        sent.late = self._now() - sent.due
        headers = {"Content-Type": "application/json"}
        try:
            async with client.stream("POST", f"{url}/v1/completions", content=body, headers=headers) as response:
                if response.status_code != 200:
                    sent.error = f"HTTP {response.status_code}: {(await response.aread())[:120]!r}"
                    return
                tokens = 0
                async for line in response.aiter_lines():
                    if line.startswith("data: {"):
                        tokens = self._event(sent, json.loads(line[6:])) or tokens
                sent.tokens = tokens
                if not sent.done and not sent.error:
                    sent.error = f"ended after {tokens} of {sent.wanted} tokens"
        except httpx.HTTPError as e:
            sent.error = f"{type(e).__name__}: {e}"

    def _event(self, sent: Sent, chunk: dict[str, Any]) -> int:
        now = self._now()
        if "error" in chunk:
            sent.error = str(chunk["error"])[:120]
        if chunk.get("choices"):
            sent.first, sent.last = sent.first or now, now
            self._arrivals.append(now)
        usage = chunk.get("usage") or {}
        if times := (usage.get("scheduler_times") or [None])[0]:
            sent.scheduler = times["first_token_s"], times["last_token_s"]
        return int(usage.get("completion_tokens", 0))

    def summary(self) -> dict[str, Any]:
        """The figures. Throughput is of the window; tokens are events, which carry one unless they were delayed."""
        counted, seconds = self._counted(), self._end - self._begin
        done = [s for s in counted if s.done]
        inside = [(s.tokens, *s.scheduler) for s in done if s.scheduler]
        errors: dict[str, int] = {}
        for s in counted:
            if not s.done:
                errors[s.error or "unfinished"] = errors.get(s.error or "unfinished", 0) + 1
        return {
            "requests": len(counted),
            "completed": len(done),
            "errors": errors,
            "requests_per_s": round(sum(s.done and self._begin <= s.last < self._end for s in self._sent) / seconds, 3),
            "tokens_per_s": round(sum(self._begin <= t < self._end for t in self._arrivals) / seconds, 1),
            "mean_prompt": round(float(np.mean([s.prompt for s in done])), 1) if done else 0,
            "mean_answer": round(float(np.mean([s.tokens for s in done])), 1) if done else 0,
            "ttft_ms": _percentiles([s.first - s.due for s in done]),
            "scheduler_ttft_ms": _percentiles([first for _, first, _ in inside]),
            "tpot_ms": _percentiles([(s.last - s.first) / (s.tokens - 1) for s in done if s.tokens > 1]),
            "scheduler_tpot_ms": _percentiles([(last - first) / (n - 1) for n, first, last in inside if n > 1]),
            "late_ms": _percentiles([s.late for s in counted]),
        }


def _percentiles(seconds: Sequence[float]) -> dict[str, float]:
    if not seconds:
        return {}
    values = {f"p{q}": float(np.percentile(seconds, q)) for q in PERCENTILES}
    return {name: round(1000 * v, 3) for name, v in ({"mean": float(np.mean(seconds))} | values).items()}


async def _drop(tasks: set[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
