"""Streams over HTTP, timed as a client sees them."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np

from blink.config import ApplianceConfig
from blink.errors import BlinkError
from blink.operate.http import client_options

STALL_S = 120.0
"""Longest wait for one chunk; a long prompt on a slow machine takes its time."""


@dataclass(frozen=True)
class Stream:
    """One answer. Times are seconds of one monotonic clock; ``first`` and ``last`` are chunks with text."""

    sent: float
    first: float
    last: float
    tokens: int

    @property
    def ttft(self) -> float:
        """Time to first token, in seconds."""
        return self.first - self.sent

    @property
    def tpot(self) -> float:
        """Time per output token after the first, in seconds."""
        return (self.last - self.first) / max(self.tokens - 1, 1)


@dataclass(frozen=True)
class Load:
    """Streams that ran ``concurrency`` at a time."""

    concurrency: int
    streams: tuple[Stream, ...]

    @property
    def decode_rate(self) -> float:
        """Tokens per second, over all streams, while decoding: the first token of each stream is not counted.

        Streams run in waves of ``concurrency``; a wave decodes from its earliest first token to its last token.
        """
        tokens, seconds = 0, 0.0
        for i in range(0, len(self.streams), self.concurrency):
            wave = self.streams[i : i + self.concurrency]
            tokens += sum(s.tokens - 1 for s in wave)
            seconds += max(s.last for s in wave) - min(s.first for s in wave)
        return tokens / seconds

    def percentile(self, name: str, q: float) -> float:
        """Percentile ``q`` of the property ``name`` (ttft or tpot) over the streams, in seconds."""
        return float(np.percentile([getattr(s, name) for s in self.streams], q))


def measure(config: ApplianceConfig, prompts: Sequence[list[int]], *, concurrency: int, max_tokens: int) -> Load:
    """Send every prompt of token ids, in waves of ``concurrency``, and take ``max_tokens`` tokens of each.

    Raises BlinkError where a stream fails or ends early.
    """
    return asyncio.run(_measure(config, prompts, concurrency, max_tokens))


async def _measure(config: ApplianceConfig, prompts: Sequence[list[int]], concurrency: int, max_tokens: int) -> Load:
    model = config.model.served_name
    streams: list[Stream] = []
    async with httpx.AsyncClient(**client_options(config.frontend), timeout=STALL_S) as client:
        for i in range(0, len(prompts), concurrency):
            wave = prompts[i : i + concurrency]
            streams += await asyncio.gather(*(_stream(client, model, p, max_tokens) for p in wave))
    return Load(concurrency, tuple(streams))


async def _stream(client: httpx.AsyncClient, model: str, prompt: list[int], max_tokens: int) -> Stream:
    body: dict[str, Any] = {
        "model": model,
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    sent = time.monotonic()
    first = last = 0.0
    tokens = 0
    try:
        async with client.stream("POST", "/v1/completions", json=body) as response:
            if response.status_code != 200:
                raise BlinkError(
                    f"the frontend answered {response.status_code}: {(await response.aread())[:200]!r}",
                    "`blink smoke` names the hop that fails",
                )
            async for line in response.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                chunk = json.loads(line[6:])
                if "error" in chunk:
                    raise BlinkError(f"a stream failed: {chunk['error'].get('message')}", "see the backend's log")
                if any(c.get("text") for c in chunk["choices"]):
                    last = time.monotonic()
                    first = first or last
                if chunk.get("usage"):
                    tokens = chunk["usage"]["completion_tokens"]
    except httpx.HTTPError as e:
        raise BlinkError(f"{client.base_url}: {e or type(e).__name__}", "start the frontend, then try again") from None
    if tokens != max_tokens or not first:
        raise BlinkError(f"a stream ended after {tokens} of {max_tokens} tokens", "see the backend's log")
    return Stream(sent, first, last, tokens)
