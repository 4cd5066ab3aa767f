"""Checks over HTTP: health, models, an answer, a stream, a client that hangs up."""

from __future__ import annotations

import time
from typing import Any

import httpx

from blink.operate.http import base_url, client_options
from blink.operate.smoke import calls
from blink.operate.smoke.check import Check, CheckError, Deadline
from blink.operate.smoke.context import Context
from blink.ring.layout import Counter, Reason

PROMPT = "The capital of France is"
ANSWER_TOKENS = 12
HANG_UP_AFTER = 3
HANG_UP_TOKENS = 2000
FREE_STEPS = 16
"""Decode steps within which a cancelled request must end; a model so fast that they pass sooner has FREE_S."""
FREE_S = 2.0
STUCK = "the backend is overloaded, stopped or hung: `blink status`"


def health(context: Context, deadline: Deadline) -> str:
    """The frontend answers, and says that it can serve."""
    calls.answer(calls.call(context.http, deadline, "GET", "/health"))
    return f"GET {base_url(context.config.frontend)}/health: 200"


def models(context: Context, deadline: Deadline) -> str:
    """The served model has its configured name."""
    document = calls.answer(calls.call(context.http, deadline, "GET", "/v1/models"))
    names = [m.get("id") for m in document.get("data", [])]
    wanted = context.config.model.served_name
    if wanted not in names:
        raise CheckError(
            f"/v1/models lists {names}, not {wanted!r}", "the frontend runs with another configuration: restart it"
        )
    return f"serves {wanted}"


def auth(context: Context, deadline: Deadline) -> str:
    """A request without a key is refused; made only where keys are configured."""
    with httpx.Client(**client_options(context.config.frontend, authenticate=False)) as client:
        response = calls.call(client, deadline, "GET", "/v1/models")
    if response.status_code != 401:
        raise CheckError(
            f"a request without a key was answered with {response.status_code}, not 401",
            "the frontend runs without frontend.api_keys_file: restart it",
        )
    return "a request without a key is refused"


def _request(context: Context, **fields: Any) -> calls.Json:
    return {
        "model": context.config.model.served_name,
        "prompt": PROMPT,
        "max_tokens": ANSWER_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        **fields,
    }


def completion(context: Context, deadline: Deadline) -> str:
    """A whole answer, with the usage and the reason that were asked for."""
    document = calls.answer(calls.call(context.http, deadline, "POST", "/v1/completions", _request(context)))
    _expect_usage(document.get("usage"))
    choice = document["choices"][0]
    if choice["finish_reason"] != "length":
        raise CheckError(f"finish_reason is {choice['finish_reason']!r}, not 'length'", "a defect of the frontend")
    context.text = choice["text"]
    return f"{ANSWER_TOKENS} tokens: {choice['text']!r}"


def stream(context: Context, deadline: Deadline) -> str:
    """The same answer as a stream: chunks in order, one reason, one usage, then [DONE] and nothing else."""
    body = _request(context, stream=True, stream_options={"include_usage": True})
    text, chunks, done = "", 0, False
    reasons: list[str] = []
    usages: list[calls.Json] = []
    ids: set[str] = set()
    with calls.stream(context.http, deadline, "/v1/completions", body) as response:
        for event in calls.events(response, deadline):
            if done:
                raise CheckError(f"an event after [DONE]: {event!r}", "a defect of the frontend")
            if event == "[DONE]":
                done = True
                continue
            chunk = _chunk(event)
            ids.add(str(chunk.get("id")))
            if chunk.get("usage"):
                usages.append(chunk)
            for choice in chunk["choices"]:
                if reasons or usages:
                    raise CheckError(f"text after the end: {chunk!r}", "a defect of the frontend")
                chunks += 1
                text += choice["text"]
                if choice["finish_reason"] is not None:
                    reasons.append(choice["finish_reason"])
    if not done or reasons != ["length"] or len(usages) != 1 or usages[0]["choices"] or len(ids) != 1:
        raise CheckError(
            f"the stream had reasons {reasons}, {len(usages)} usage chunks, ids {ids}, [DONE] {done}; "
            "wanted one reason 'length', one usage chunk without choices, one id and [DONE]",
            "a defect of the frontend, or a proxy that cut the stream",
        )
    _expect_usage(usages[0]["usage"])
    if context.text is not None and text != context.text:
        raise CheckError(
            f"the greedy stream says {text!r}, and the whole answer was {context.text!r}",
            "the detokenizer of the stream differs, or the engine is not deterministic: see check `determinism`",
        )
    return f"{chunks} chunks, usage, [DONE]" + (", equal to the whole answer" if context.text is not None else "")


def cancel(context: Context, deadline: Deadline) -> str:
    """A client that hangs up in the middle of its stream frees its slot, long before the answer would have ended."""
    before = context.observer.observe()
    limit = min(before.header.max_context // 2, HANG_UP_TOKENS)
    body = _request(context, max_tokens=limit, stream=True)
    with calls.stream(context.http, deadline, "/v1/completions", body) as response:
        for event, _ in zip(calls.events(response, deadline), range(HANG_UP_AFTER), strict=False):
            _chunk(event)
    hung_up, start = context.observer.observe(), time.monotonic()
    while True:
        seen = context.observer.observe()
        steps = seen.counter(Counter.DECODE_STEPS) - hung_up.counter(Counter.DECODE_STEPS)
        seconds = time.monotonic() - start
        if seen.finished.get(Reason.CANCELLED, 0) > before.finished.get(Reason.CANCELLED, 0):
            break
        if steps > FREE_STEPS and seconds > FREE_S:
            raise CheckError(
                f"{steps} decode steps and {seconds:.1f} s after its client hung up, no request was cancelled",
                "the frontend does not notice a client that leaves, or a proxy before it keeps the connection open",
            )
        deadline.left("a request to be cancelled")
        time.sleep(0.001)
    return f"freed {seconds * 1000:.0f} ms and {steps} decode steps after the client hung up"


def _chunk(event: calls.Json | str) -> calls.Json:
    if isinstance(event, str):
        raise CheckError(f"an event is neither a chunk nor [DONE]: {event!r}", "a defect of the frontend")
    if "error" in event:
        raise CheckError(f"the stream ended with {event['error'].get('message')!r}", "`blink status` and the logs")
    return event


def _expect_usage(usage: Any) -> None:
    tokens = usage.get("completion_tokens") if isinstance(usage, dict) else None
    if tokens != ANSWER_TOKENS or usage["total_tokens"] != usage["prompt_tokens"] + tokens:
        raise CheckError(f"usage is {usage}, for {ANSWER_TOKENS} requested tokens", "a defect of the frontend")


CHECKS = (
    Check[Context]("http-health", "frontend", "GET /health answers 200", 10, "the frontend is hung: its log", health),
    Check[Context]("http-models", "frontend", "the served name is listed", 10, "the frontend is hung: its log", models),
    Check[Context]("http-auth", "frontend", "no answer without a key", 10, "the frontend is hung: its log", auth),
    Check[Context]("http-completion", "frontend", "an answer, with usage and reason", 60, STUCK, completion),
    Check[Context]("http-stream", "frontend", "a stream: order, usage, [DONE], same text", 60, STUCK, stream),
    Check[Context]("http-cancel", "frontend", "a client that hangs up frees its slot", 60, STUCK, cancel),
)
