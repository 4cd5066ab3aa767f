"""From fields to ring requests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from blink.frontend.errors import ApiError
from blink.frontend.parameters import (
    COMPLETION_MAX_TOKENS,
    Defaults,
    answer_options,
    build_requests,
    completion_prompts,
    derived_seed,
)
from blink.frontend.protocol import ChatBody, CompletionBody
from blink.ring.header import Header
from blink.ring.layout import Geometry
from blink.ring.request import SubmitRequest

HEADER = Header(
    Geometry(64, 2, 1 << 20, 1 << 20), epoch=1, lanes=4, queue_cap=16, vocab=1000, max_context=100, ext_words=200,
    page_tokens=16, pages=64, fingerprint=bytes(32),
)  # fmt: skip


def chat(**fields: Any) -> ChatBody:
    return ChatBody.model_validate({"model": "m", "messages": [{}], **fields})


def text(**fields: Any) -> CompletionBody:
    return CompletionBody.model_validate({"model": "m", "prompt": "x", **fields})


def submit(body: ChatBody | CompletionBody, prompts: list[list[int]], header: Header = HEADER) -> list[SubmitRequest]:
    return build_requests(body, prompts, header, Defaults(), 600)


def refused(body: ChatBody | CompletionBody, prompts: list[list[int]], header: Header = HEADER) -> ApiError:
    with pytest.raises(ApiError) as e:
        submit(body, prompts, header)
    assert e.value.status == 400
    return e.value


def test_every_field_reaches_the_ring() -> None:
    body = chat(
        temperature=0.5, top_p=0.25, top_k=7, min_p=0.125, frequency_penalty=1.0, presence_penalty=-1.0,
        repetition_penalty=1.5, seed=-1, logit_bias={3: -100.0}, stop_token_ids=[5, 5, 6],
        ignore_eos=True, min_tokens=2, max_completion_tokens=9, logprobs=True, top_logprobs=4,
    )  # fmt: skip
    (request,) = submit(body, [[1, 2]])
    s = request.sampling
    assert (s.temperature, s.top_p, s.top_k, s.min_p, s.frequency, s.presence, s.repetition) == (
        0.5, 0.25, 7, 0.125, 1.0, -1.0, 1.5,
    )  # fmt: skip
    assert (s.seed, s.logit_bias) == ((1 << 64) - 1, {3: -100.0})
    assert (request.stop_ids, request.ignore_eos, request.min_tokens) == ((5, 6), True, 2)
    assert (request.max_tokens, request.logprobs, request.deadline_ms) == (9, 4, 600_000)
    assert request.prompt.tolist() == [1, 2]


def test_defaults_come_from_the_checkpoint_and_the_request_wins() -> None:
    config = {
        "temperature": 0.6,
        "top_p": 0.9,
        "top_k": 20,
        "repetition_penalty": 1.1,
        "min_p": "no",
        "do_sample": True,
    }
    defaults = Defaults.from_generation_config(config)
    assert defaults == Defaults(0.6, 0.9, 20, 0.0, 1.1)
    (request,) = build_requests(chat(temperature=0.0, top_k=-1), [[1]], HEADER, defaults, 1)
    s = request.sampling
    assert (s.temperature, s.top_p, s.top_k, s.repetition) == (0.0, 0.9, 0, 1.1)
    assert Defaults.from_generation_config({"temperature": -1, "top_p": None, "top_k": True}) == Defaults()


def test_max_tokens_by_default() -> None:
    assert submit(chat(), [[1] * 30])[0].max_tokens == 70
    assert submit(text(), [[1] * 30])[0].max_tokens == COMPLETION_MAX_TOKENS
    assert submit(text(), [[1] * 95])[0].max_tokens == 5


@pytest.mark.parametrize(("prompt", "asked"), [(100, None), (101, None), (90, 11), (5000, 1)])
def test_a_context_overflow_names_both_numbers(prompt: int, asked: int | None) -> None:
    """vllm 765, 276, 13067."""
    for body in (chat(max_tokens=asked), text(max_tokens=asked)):
        error = refused(body, [[1] * prompt])
        assert error.code == "context_length_exceeded"
        assert f"{prompt} tokens" in error.message
        assert "100 tokens" in error.message


def test_an_answer_that_fits_exactly() -> None:
    assert submit(text(max_tokens=10), [[1] * 90])[0].max_tokens == 10


def test_what_the_output_arena_cannot_hold() -> None:
    header = replace(HEADER, max_context=1_000_000)
    assert refused(chat(max_tokens=500_000), [[1]], header).param == "max_tokens"
    (request,) = submit(chat(logprobs=True, top_logprobs=20), [[1]], header)  # not asked for, so it is what fits
    assert request.output_bytes <= HEADER.geometry.output_bytes


def test_what_would_never_fit_is_refused_and_not_told_to_retry() -> None:
    header = replace(HEADER, max_context=1_000_000)
    assert refused(chat(n=4, max_tokens=100_000), [[1]], header).param == "n"
    assert refused(text(max_tokens=1), [[1] * 140_000, [2] * 140_000], header).param == "n"
    assert len(submit(chat(n=2, max_tokens=100_000), [[1]], header)) == 2


def test_answers_of_several_prompts() -> None:
    requests = submit(text(n=2, seed=7), [[1], [2, 3]])
    assert [r.prompt.tolist() for r in requests] == [[1], [1], [2, 3], [2, 3]]
    assert [r.sampling.seed for r in requests] == [7, derived_seed(7, 1)] * 2


def test_seeds() -> None:
    seeds = [derived_seed(7, i) for i in range(100)]
    assert seeds[0] == 7
    assert len(set(seeds)) == 100
    assert all(0 <= s < 1 << 64 for s in seeds)
    assert submit(text(seed=7, n=3), [[1]])[1].sampling.seed == submit(text(seed=7, n=2), [[1]])[1].sampling.seed
    unseeded = {submit(text(), [[1]])[0].sampling.seed for _ in range(20)}
    assert len(unseeded) == 20  # vllm 21310


@pytest.mark.parametrize(
    ("fields", "prompt", "param"),
    [
        ({"stop_token_ids": [1000]}, [1], "stop_token_ids"),
        ({"logit_bias": {1000: 1.0}}, [1], "logit_bias"),
        ({"n": HEADER.share + 1}, [1], "n"),
        ({"min_tokens": 5, "max_tokens": 4}, [1], "min_tokens"),
        ({}, [], "prompt"),
        ({}, [1000], "prompt"),
        ({"logit_bias": dict.fromkeys(range(150), 1.0)}, [1], "logit_bias"),
    ],
)
def test_what_the_ring_cannot_carry_names_its_field(fields: dict[str, Any], prompt: list[int], param: str) -> None:
    assert refused(text(**fields), [prompt]).param == param


@pytest.mark.parametrize(
    ("prompt", "parsed"),
    [("a", ["a"]), (["a", "b"], ["a", "b"]), ([1, 2], [[1, 2]]), ([[1], [2, 3]], [[1], [2, 3]]), ("", [""])],
)
def test_prompts(prompt: object, parsed: object) -> None:
    assert completion_prompts(prompt) == parsed


@pytest.mark.parametrize(
    "prompt", [None, 3, {}, [], [[]], [1, "a"], [[1], "a"], [True], [-1], [1.5], [1 << 32], [[1], []]]
)
def test_what_is_no_prompt(prompt: object) -> None:
    with pytest.raises(ApiError, match="prompt"):
        completion_prompts(prompt)


def test_how_tokens_become_text() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert answer_options(chat(tools=tools)).tools
    assert not answer_options(chat(tools=tools, tool_choice="none")).tools
    assert answer_options(chat()).own_text
    assert not answer_options(text()).own_text
