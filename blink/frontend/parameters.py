"""From a request's fields to what the ring carries: prompts, limits, sampling, seeds."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from blink.frontend.choice import AnswerOptions
from blink.frontend.errors import ApiError, bad, from_ring_check
from blink.frontend.protocol import ChatBody, CompletionBody, GenerationBody
from blink.ring.header import Header
from blink.ring.layout import EXTENT_ALIGN, logprob_stride
from blink.ring.request import SamplingParams, SubmitRequest

COMPLETION_MAX_TOKENS = 16  # OpenAI's default for /v1/completions
TINY = float(np.finfo(np.float32).tiny)  # the ring carries float32, in which a smaller top_p would be 0
_U64 = (1 << 64) - 1


@dataclass(frozen=True)
class Defaults:
    """Sampling where the request says nothing: the checkpoint's generation_config.json, else OpenAI's."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition: float = 1.0

    @classmethod
    def from_generation_config(cls, config: Mapping[str, Any]) -> Defaults:
        """Values that are absent, or outside what the API accepts, stay OpenAI's."""

        def number(key: str, low: float, high: float, otherwise: float) -> float:
            value = config.get(key)
            known = isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high
            return float(value) if known else otherwise  # type: ignore[arg-type]

        return cls(
            temperature=number("temperature", 0, 2, 1.0),
            top_p=number("top_p", TINY, 1, 1.0),
            top_k=int(number("top_k", 0, 1 << 20, 0)),
            min_p=number("min_p", 0, 1, 0.0),
            repetition=number("repetition_penalty", 0.01, 10, 1.0),
        )


def derived_seed(seed: int, index: int) -> int:
    """The seed of answer ``index`` of a request seeded with ``seed``: itself for the first, SplitMix64 for the others.

    A function of both alone, so a seeded answer does not depend on how many are asked for beside it.
    """
    if index == 0:
        return seed & _U64
    z = (seed + index * 0x9E3779B97F4A7C15) & _U64
    z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & _U64
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) & _U64
    return z ^ z >> 31


def completion_prompts(prompt: object) -> list[str | list[int]]:
    """``prompt`` as a list of texts and token lists: it may be either, or a list of either. Raises ApiError."""
    if isinstance(prompt, str):
        return [prompt]
    if isinstance(prompt, list) and prompt:
        if all(_is_token(t) for t in prompt):
            return [prompt]
        if all(isinstance(p, str) for p in prompt):
            return list(prompt)
        if all(isinstance(p, list) and p and all(_is_token(t) for t in p) for p in prompt):
            return list(prompt)
    raise bad("prompt", "is neither text, nor token ids, nor a list of either, or it is empty")


def _is_token(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 32


def answer_options(body: GenerationBody) -> AnswerOptions:
    """How the tokens of ``body``'s answers become text."""
    chat = body if isinstance(body, ChatBody) else None
    return AnswerOptions(
        stops=body.stop_strings,
        include_stop=bool(body.include_stop_str_in_output),
        skip_special=body.skip_special_tokens is not False,
        min_tokens=body.min_tokens or 0,
        tools=chat is not None and bool(chat.tools) and chat.tool_choice != "none",
        parallel_calls=chat is None or chat.parallel_tool_calls is not False,
        own_text=chat is not None,
    )


def build_requests(
    body: GenerationBody, prompts: list[list[int]], header: Header, defaults: Defaults, deadline_s: float
) -> list[SubmitRequest]:
    """The ring requests of ``body``: answer j of prompt i is number i * n + j. Raises ApiError naming the field."""
    n = body.n or 1
    if len(prompts) * n > header.share:
        raise bad("n", f"{len(prompts) * n} answers at once are more than this server ever queues ({header.share})")
    _check_tokens("stop_token_ids", body.stop_token_ids or (), header)
    _check_tokens("logit_bias", body.logit_bias or (), header)
    seed = secrets.randbits(64) if body.seed is None else body.seed & _U64
    alternatives = _alternatives(body)
    requests = []
    for prompt in prompts:
        max_tokens = _max_tokens(body, len(prompt), alternatives, header)
        _check_tokens(prompt_field(body), prompt, header)
        ids = np.array(prompt, np.uint32)
        for j in range(n):
            request = SubmitRequest(
                ids,
                max_tokens,
                _sampling(body, defaults, derived_seed(seed, j)),
                stop_ids=tuple(dict.fromkeys(body.stop_token_ids or ())),
                ignore_eos=bool(body.ignore_eos),
                min_tokens=body.min_tokens or 0,
                logprobs=alternatives,
                deadline_ms=min(int(deadline_s * 1000), (1 << 32) - 1),
            )
            try:
                request.check(header)
            except ValueError as e:
                raise from_ring_check(e) from None
            requests.append(request)
    _check_room(requests, header)
    return requests


def _check_room(requests: list[SubmitRequest], header: Header) -> None:
    """Raise ApiError where an empty ring could not hold ``requests`` at once: no retry would help."""
    inputs = sum(_extent(request.words().nbytes) for request in requests)
    outputs = sum(_extent(request.output_bytes) for request in requests)
    if inputs > header.geometry.input_bytes:
        raise bad(
            "n", f"the prompts of all answers exceed the ring's input arena of {header.geometry.input_bytes} bytes"
        )
    if outputs > header.geometry.output_bytes:
        why = f"all answers of max_tokens={requests[0].max_tokens} exceed the ring's output arena"
        raise bad("n", f"{why} of {header.geometry.output_bytes} bytes")


def _extent(size: int) -> int:
    return -(-size // EXTENT_ALIGN) * EXTENT_ALIGN


def prompt_field(body: GenerationBody) -> str:
    """The field that holds the prompt."""
    return "messages" if isinstance(body, ChatBody) else "prompt"


def _check_tokens(field: str, tokens: Collection[int], header: Header) -> None:
    if tokens and max(tokens) >= header.vocab:
        raise bad(field, f"token {max(tokens)} is not below the vocabulary of {header.vocab}")


def _alternatives(body: GenerationBody) -> int | None:
    """Alternatives per token that the answer carries; None for no logprobs."""
    if isinstance(body, ChatBody):
        return (body.top_logprobs or 0) if body.logprobs else None
    return body.logprobs if isinstance(body, CompletionBody) else None


def _max_tokens(body: GenerationBody, prompt_tokens: int, alternatives: int | None, header: Header) -> int:
    """The limit of an answer: asked for, or by default what the context and the ring's output arena leave."""
    field = prompt_field(body)
    if prompt_tokens == 0:
        raise bad(field, "it has no tokens")
    left = header.max_context - prompt_tokens
    asked = body.max_tokens
    if isinstance(body, ChatBody) and asked is None:
        asked = body.max_completion_tokens
    if left < (asked or 1):
        more = "" if asked is None else f" and {asked} more are asked for"
        raise ApiError(
            400,
            f"{field}: the prompt has {prompt_tokens} tokens{more}, "
            f"but the context of this model is {header.max_context} tokens",
            param=field if left < 1 else "max_tokens",
            code="context_length_exceeded",
        )
    per_token = 4 + (0 if alternatives is None else logprob_stride(alternatives))
    room = (header.geometry.output_bytes - EXTENT_ALIGN) // per_token
    if asked is None:
        default = left if isinstance(body, ChatBody) else COMPLETION_MAX_TOKENS
        asked = max(min(default, left, room), body.min_tokens or 0)
    elif asked > room:
        raise bad("max_tokens", f"{asked} tokens with their logprobs exceed the ring's output arena ({room} tokens)")
    if (body.min_tokens or 0) > asked:
        raise bad("min_tokens", f"{body.min_tokens} exceeds max_tokens={asked}")
    return asked


def _sampling(body: GenerationBody, defaults: Defaults, seed: int) -> SamplingParams:
    def given(value: float | None, default: float) -> float:
        return default if value is None else value

    top_k = defaults.top_k if body.top_k is None else max(body.top_k, 0)
    return SamplingParams(
        seed=seed,
        temperature=given(body.temperature, defaults.temperature),
        top_p=max(given(body.top_p, defaults.top_p), TINY),
        top_k=top_k,
        min_p=given(body.min_p, defaults.min_p),
        frequency=given(body.frequency_penalty, 0.0),
        presence=given(body.presence_penalty, 0.0),
        repetition=given(body.repetition_penalty, defaults.repetition),
        logit_bias=dict(body.logit_bias or {}),
    )
