"""What a client may ask about the model and its tokens."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from blink.frontend.errors import bad
from blink.frontend.protocol import DetokenizeBody, TokenizeBody, parse
from blink.frontend.routes.bodies import frontend_of, read_body, reads
from blink.frontend.service import Frontend

router = APIRouter()


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
    frontend = frontend_of(request)
    return JSONResponse({"object": "list", "data": [_model(frontend, name) for name in frontend.names]})


@router.get("/v1/models/{name:path}")
async def model(request: Request, name: str) -> Response:
    """One of them."""
    frontend = frontend_of(request)
    frontend.require_model(name)
    return JSONResponse(_model(frontend, name))


@router.post("/tokenize", openapi_extra=reads(TokenizeBody))
async def tokenize(request: Request) -> Response:
    """Token ids of a prompt or of a conversation."""
    frontend, body = frontend_of(request), parse(TokenizeBody, await read_body(request))
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


@router.post("/detokenize", openapi_extra=reads(DetokenizeBody))
async def detokenize(request: Request) -> Response:
    """The text of token ids."""
    frontend, body = frontend_of(request), parse(DetokenizeBody, await read_body(request))
    frontend.require_model(body.model)
    vocab = frontend.tokenizer.vocab_size
    if body.tokens and max(body.tokens) >= vocab:
        raise bad("tokens", f"token {max(body.tokens)} is not below the vocabulary of {vocab}")
    return JSONResponse({"prompt": frontend.tokenizer.decode(body.tokens, bool(body.skip_special_tokens))})
