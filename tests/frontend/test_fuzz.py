"""Whatever is sent, the answer is never a 500 and never raw validation output."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from blink.frontend.protocol import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody
from blink.frontend.refused import REFUSED
from tests.appliance import Appliance
from tests.depth import examples

pytestmark = pytest.mark.e2e
FIELDS = sorted({*ChatBody.model_fields, *CompletionBody.model_fields, *REFUSED} - {"max_tokens", "n"})
NUMBERS = st.sampled_from([0, 1, -1, 2, 0.5, 1e300, 1 << 31, 1 << 32, 1 << 63, 1 << 64, -(1 << 63)])
SCALARS = st.none() | st.booleans() | NUMBERS | st.text(max_size=8)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
BOOLEANS = (
    "stream", "ignore_eos", "include_stop_str_in_output", "skip_special_tokens", "echo", "add_special_tokens",
    "parallel_tool_calls", "add_generation_prompt",
)  # fmt: skip
IN_RANGE: dict[str, st.SearchStrategy[Any]] = {  # values at the edges of what is honoured, which reach the ring
    "prompt": st.text(max_size=20) | st.lists(st.integers(0, 300), min_size=1, max_size=5),
    "messages": st.lists(
        st.fixed_dictionaries(
            {"role": st.sampled_from(["user", "assistant", "tool", "developer"]), "content": st.text(max_size=8)},
            optional={"name": JSON, "reasoning_content": JSON},
        ),
        min_size=1,
        max_size=3,
    ),
    "temperature": st.sampled_from([0, 1e-300, 1e-45, 1e-6, 0.5, 2]),
    "top_p": st.sampled_from([1e-300, 1e-45, 1e-6, 0.5, 1]),
    "top_k": st.sampled_from([-1, 0, 1, 400, (1 << 32) - 1]),
    "min_p": st.sampled_from([0, 1e-300, 0.5, 1]),
    "frequency_penalty": st.sampled_from([-2, 2]),
    "presence_penalty": st.sampled_from([-2, 2]),
    "repetition_penalty": st.sampled_from([0.01, 0.5, 10]),
    "logit_bias": st.dictionaries(st.sampled_from(["0", "70", "299"]), st.sampled_from([-100, 0, 100]), max_size=3),
    "seed": st.integers(-(1 << 63), (1 << 64) - 1),
    "stop": st.text(min_size=1, max_size=5) | st.lists(st.text(min_size=1, max_size=5), max_size=4),
    "stop_token_ids": st.lists(st.integers(0, 299), max_size=8),
    "min_tokens": st.integers(0, 2),
    "user": st.text(max_size=8),
    "chat_template_kwargs": st.dictionaries(st.sampled_from(["range", "x", "bos_token"]), JSON),
    **{name: st.booleans() for name in BOOLEANS},
}
ANYTHING = st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=4)
BODIES = st.fixed_dictionaries({}, optional=IN_RANGE) | ANYTHING


def check(response: httpx.Response) -> None:
    assert response.status_code in (200, 400, 404), response.text
    if response.status_code != 200:
        error = response.json()["error"]
        assert error["message"]
        assert "pydantic" not in response.text


@examples(120, suppress_health_check=list(HealthCheck))
@given(body=BODIES)
def test_generation(live: Appliance, body: dict[str, Any]) -> None:
    with live.client() as client:
        for path, base in (
            ("/v1/completions", {"prompt": "a"}),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
        ):
            check(client.post(path, content=json.dumps({"model": "tiny", **base, **body, "max_tokens": 2})))
        assert client.get("/health").status_code == 200


@examples(60, suppress_health_check=list(HealthCheck))
@given(
    body=st.dictionaries(st.sampled_from(sorted({*TokenizeBody.model_fields, *DetokenizeBody.model_fields})), JSON)
    | st.builds(lambda p: {"prompt": p}, st.text())
    | st.builds(lambda t: {"tokens": t}, st.lists(st.integers(0, 450)))
)
def test_tokenizing(live: Appliance, body: dict[str, Any]) -> None:
    with live.client() as client:
        for path in ("/tokenize", "/detokenize"):
            check(client.post(path, content=json.dumps(body)))


@examples(40, suppress_health_check=list(HealthCheck))
@given(data=st.binary(max_size=200))
def test_bytes(live: Appliance, data: bytes) -> None:
    with live.client() as client:
        for path in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"):
            assert client.post(path, content=data).status_code == 400


def test_nothing_was_logged_as_a_defect(live: Appliance) -> None:
    assert "Traceback" not in live.log("frontend")
    assert live.observe().requests_held == 0
