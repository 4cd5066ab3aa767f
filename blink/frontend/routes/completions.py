"""Chat and text completions: a stream of events, or a whole answer."""

from __future__ import annotations

from collections.abc import AsyncIterator

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from blink.frontend.answering import Answering
from blink.frontend.answers import ChatShape, CompletionShape, Shape
from blink.frontend.choice import Choice, Piece
from blink.frontend.encode import dumps
from blink.frontend.errors import CLIENT_CLOSED, ClientGone
from blink.frontend.middleware import record_of
from blink.frontend.parameters import answer_options, build_requests, completion_prompts
from blink.frontend.protocol import ChatBody, CompletionBody, GenerationBody, parse
from blink.frontend.routes.bodies import frontend_of, read_body, reads
from blink.frontend.sse import DONE, EventStream

router = APIRouter()


@router.post("/v1/chat/completions", openapi_extra=reads(ChatBody))
async def chat_completions(request: Request) -> Response:
    """A chat completion."""
    frontend, body = frontend_of(request), parse(ChatBody, await read_body(request))
    frontend.require_model(body.model)
    frontend.require_ready()
    prompt = await frontend.prompts.chat(body)
    shape = ChatShape(frontend.tokenizer, body.model, frontend.fingerprint, with_logprobs=bool(body.logprobs))
    return await _answer(request, body, [prompt], shape)


@router.post("/v1/completions", openapi_extra=reads(CompletionBody))
async def completions(request: Request) -> Response:
    """A text completion."""
    frontend, body = frontend_of(request), parse(CompletionBody, await read_body(request))
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
    answering = _submit(request, body, prompts)
    try:
        if body.stream:
            events = _events(body, answering, shape, await answering.next())
            return EventStream(events, close=answering.close, failed=answering.failed, gone=answering.hang_up)
        answers = await answering.whole()
    except ClientGone:
        answering.close()
        return Response(status_code=CLIENT_CLOSED)
    except BaseException:
        answering.close()
        raise
    answering.close()
    document = shape.document([shape.whole(answer.index, answer) for answer in answers])
    return JSONResponse(document | {"usage": answering.usage()})


def _submit(request: Request, body: GenerationBody, prompts: list[list[int]]) -> Answering:
    """Put every answer that ``body`` asks for into the ring, or none. Raises ApiError."""
    frontend, record, n = frontend_of(request), record_of(request), body.n or 1
    timeout_s = frontend.config.frontend.request_timeout_s
    requests = build_requests(body, prompts, frontend.require_ready(), frontend.defaults, timeout_s)
    options = answer_options(body)
    choices = [Choice(i, options, frontend.tokenizer, prompts[i // n]) for i in range(len(requests))]
    job = frontend.tracker.submit(requests)
    record.user = body.user
    return Answering(
        job, choices, sum(map(len, prompts)), timeout_s,
        record=record, receive=request.receive, times=bool(body.scheduler_times),
    )  # fmt: skip


async def _events(
    body: GenerationBody, answering: Answering, shape: Shape, pieces: list[Piece]
) -> AsyncIterator[bytes]:
    """The events of a stream whose first ``pieces`` came: chunks, the usage chunk if it was asked for, [DONE].

    Those of pieces that came together are sent together.
    """
    usage, continuous = "null" if body.include_usage else None, body.continuous_usage
    while pieces:
        if continuous:
            usage = dumps(answering.usage())
        yield "".join([shape.events(piece, usage) for piece in pieces]).encode()
        pieces = await answering.next()
    end = shape.event("", dumps(answering.usage())).encode() if body.include_usage else b""
    yield end + DONE
