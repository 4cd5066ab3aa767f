"""The endpoints."""

from __future__ import annotations

import platform
from collections.abc import AsyncIterator
from typing import Any, cast

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

import blink
from blink.drained import drain_reason
from blink.frontend.answers import ChatShape, CompletionShape, Shape, Whole
from blink.frontend.choice import Choice, Piece
from blink.frontend.encode import dumps
from blink.frontend.errors import CLIENT_CLOSED, ApiError, ClientGone, bad
from blink.frontend.generation import Generation
from blink.frontend.metrics import CONTENT_TYPE
from blink.frontend.middleware import record_of
from blink.frontend.parameters import answer_options, completion_prompts, submit_requests
from blink.frontend.protocol import Body, ChatBody, CompletionBody, DetokenizeBody, GenerationBody, TokenizeBody, parse
from blink.frontend.service import Frontend
from blink.frontend.sse import DONE, EventStream, HangUp
from blink.frontend.tracker import latencies_ms
from blink.ring.health import phase_name

MAX_BODY_BYTES = 8 << 20

router = APIRouter()


def _frontend(request: Request) -> Frontend:
    return cast(Frontend, request.app.state.frontend)


def _reads(kind: type[Body]) -> dict[str, Any]:
    """The part of the OpenAPI description that FastAPI cannot see, since bodies are parsed here."""
    schema = {"application/json": {"schema": kind.model_json_schema()}}
    return {"requestBody": {"required": True, "content": schema}}


async def _read(request: Request) -> bytes:
    """The request's body. Raises ApiError 413 as soon as it is too large, before the rest of it is read."""
    too_large = ApiError(413, f"the body is larger than {MAX_BODY_BYTES} bytes", code="request_too_large")
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > MAX_BODY_BYTES:
        raise too_large
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > MAX_BODY_BYTES:
            raise too_large
    return bytes(data)


@router.post("/v1/chat/completions", openapi_extra=_reads(ChatBody))
async def chat_completions(request: Request) -> Response:
    """A chat completion."""
    frontend, body = _frontend(request), parse(ChatBody, await _read(request))
    frontend.require_model(body.model)
    frontend.require_ready()
    prompt = await frontend.prompts.chat(body)
    shape = ChatShape(frontend.tokenizer, body.model, frontend.fingerprint, with_logprobs=bool(body.logprobs))
    return await _answer(request, body, [prompt], shape)


@router.post("/v1/completions", openapi_extra=_reads(CompletionBody))
async def completions(request: Request) -> Response:
    """A text completion."""
    frontend, body = _frontend(request), parse(CompletionBody, await _read(request))
    frontend.require_model(body.model)
    frontend.require_ready()
    given = completion_prompts(body.prompt)
    prompts = await frontend.prompts.texts(given, add_special_tokens=body.add_special_tokens is not False)
    echo: list[str] = []
    if body.echo:
        skip = body.skip_special_tokens is not False
        echo = [t for p in given for t in [frontend.prompts.echo(p, skip_special=skip)] * (body.n or 1)]
    asked = body.logprobs is not None
    shape = CompletionShape(frontend.tokenizer, body.model, frontend.fingerprint, with_logprobs=asked, echo=echo)
    return await _answer(request, body, prompts, shape)


async def _answer(request: Request, body: GenerationBody, prompts: list[list[int]], shape: Shape) -> Response:
    """Submit, then a stream or a whole answer. Nothing is sent before the first token, so a failure has its status."""
    frontend, record = _frontend(request), record_of(request)
    timeout_s = frontend.config.frontend.request_timeout_s
    header = frontend.require_ready()
    requests = submit_requests(body, prompts, header, frontend.defaults, timeout_s)
    options, n = answer_options(body, frontend.eos_ids), body.n or 1
    choices = [Choice(i, options, frontend.tokenizer, prompts[i // n]) for i in range(len(requests))]
    job = frontend.tracker.submit(requests)
    generation = Generation(job, choices, sum(map(len, prompts)), timeout_s, times=bool(body.scheduler_times))
    hang_up = HangUp(request.receive, job.hang_up)
    record.user, record.prompt_tokens = body.user, generation.prompt_tokens

    def close() -> None:
        hang_up.close()
        job.close("error")
        record.gone = record.gone or job.gone
        record.latencies_ms = latencies_ms(job.tracks)
        record.output_tokens = sum(c.tokens for c in choices)
        record.finish = record.finish or ",".join(c.finish or "unfinished" for c in choices)

    def failed(error: ApiError) -> None:
        record.finish = f"error {error.status}"

    try:
        if body.stream:
            events = _events(body, generation, shape, await generation.next())
            return EventStream(events, close=close, failed=failed, gone=job.hang_up)
        wholes = [Whole() for _ in choices]
        while pieces := await generation.next():
            for piece in pieces:
                wholes[piece.index].add(piece)
    except ClientGone:
        close()
        return Response(status_code=CLIENT_CLOSED)
    except BaseException:
        close()
        raise
    close()
    document = shape.document([shape.whole(i, w) for i, w in enumerate(wholes)])
    return JSONResponse(document | {"usage": generation.usage()})


async def _events(
    body: GenerationBody, generation: Generation, shape: Shape, pieces: list[Piece]
) -> AsyncIterator[bytes]:
    """The events of a stream whose first ``pieces`` came: chunks, the usage chunk if it was asked for, [DONE].

    Those of pieces that came together are sent together.
    """
    usage, continuous = "null" if body.include_usage else None, body.continuous_usage
    while pieces:
        if continuous:
            usage = dumps(generation.usage())
        yield "".join([shape.events(piece, usage) for piece in pieces]).encode()
        pieces = await generation.next()
    end = shape.event("", dumps(generation.usage())).encode() if body.include_usage else b""
    yield end + DONE


def _model(frontend: Frontend, name: str) -> dict[str, Any]:
    header = frontend.client.header
    return {
        "id": name,
        "object": "model",
        "created": frontend.started,
        "owned_by": "blink",
        "max_model_len": header.max_context if header else frontend.config.engine.max_context,
    }


@router.get("/v1/models")
async def models(request: Request) -> Response:
    """The names under which the model is served."""
    frontend = _frontend(request)
    return JSONResponse({"object": "list", "data": [_model(frontend, name) for name in frontend.names]})


@router.get("/v1/models/{name:path}")
async def model(request: Request, name: str) -> Response:
    """One of them."""
    frontend = _frontend(request)
    frontend.require_model(name)
    return JSONResponse(_model(frontend, name))


@router.post("/tokenize", openapi_extra=_reads(TokenizeBody))
async def tokenize(request: Request) -> Response:
    """Token ids of a prompt or of a conversation."""
    frontend, body = _frontend(request), parse(TokenizeBody, await _read(request))
    frontend.require_model(body.model)
    if (body.prompt is None) == (body.messages is None):
        raise bad("prompt", "give either prompt or messages")
    if body.prompt is not None:
        add = body.add_special_tokens is not False
        tokens = (await frontend.prompts.texts([body.prompt], add_special_tokens=add))[0]
    else:
        tokens = await frontend.prompts.chat(body)
    header = frontend.client.header
    document: dict[str, Any] = {
        "count": len(tokens),
        "max_model_len": header.max_context if header else frontend.config.engine.max_context,
        "tokens": tokens,
    }
    if body.return_token_strs:
        document["token_strs"] = [frontend.tokenizer.token_bytes(t).decode("utf-8", "replace") for t in tokens]
    return JSONResponse(document)


@router.post("/detokenize", openapi_extra=_reads(DetokenizeBody))
async def detokenize(request: Request) -> Response:
    """The text of token ids."""
    frontend, body = _frontend(request), parse(DetokenizeBody, await _read(request))
    frontend.require_model(body.model)
    vocab = frontend.tokenizer.vocab_size
    if body.tokens and max(body.tokens) >= vocab:
        raise bad("tokens", f"token {max(body.tokens)} is not below the vocabulary of {vocab}")
    return JSONResponse({"prompt": frontend.tokenizer.decode(body.tokens, bool(body.skip_special_tokens))})


@router.get("/health")
async def health(request: Request) -> Response:
    """200 while requests are served, else 503 with the hop that is down."""
    frontend = _frontend(request)
    ring, trouble = frontend.client.health(), frontend.trouble()
    document = {
        "status": "ok" if trouble is None else "unavailable",
        "hop": trouble[0] if trouble else None,
        "reason": trouble[1] if trouble else None,
        "partition": frontend.partition,
        "epoch": f"{ring.epoch:016x}",
        "phase": None if ring.phase is None else phase_name(ring.phase),
        "beat_age_s": None if ring.beat_age_s is None else round(ring.beat_age_s, 3),
        "free_slots": ring.free_slots,
        "outstanding": ring.outstanding,
    }
    return JSONResponse(document, 200 if trouble is None else 503)


@router.get("/ready")
async def ready(request: Request) -> Response:
    """200 while load balancers should send requests, else 503: it cannot serve, or it is drained and still serves.

    ``running`` counts the requests in flight of all workers, for whoever waits until none is.
    """
    frontend = _frontend(request)
    trouble, drained = frontend.trouble(), drain_reason(frontend.config)
    status = "unavailable" if trouble is not None else "ok" if drained is None else "drained"
    hop, reason = trouble or (None, drained)
    document = {"status": status, "hop": hop, "reason": reason, "running": frontend.metrics.in_flight()}
    return JSONResponse(document, 200 if status == "ok" else 503)


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Prometheus metrics."""
    frontend = _frontend(request)
    counters, drained = await frontend.counters(), drain_reason(frontend.config) is not None
    text = frontend.metrics.render(frontend.client.health(), frontend.client.header, counters, drained=drained)
    return Response(text, headers={"Content-Type": CONTENT_TYPE})


@router.get("/version")
async def version() -> Response:
    """The version of Blink."""
    return JSONResponse({"version": blink.__version__, "python": platform.python_version()})
