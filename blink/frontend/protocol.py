"""The request bodies of the API: every field that is honoured, with its range.

What is known and not implemented is in ``refused.py``; every other field is ignored, as load generators send some.
null means that a field was not given, everywhere.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from blink.frontend.errors import bad, from_validation, unsupported
from blink.frontend.refused import refuse_unimplemented
from blink.ring.layout import LOGPROBS_MAX

MAX_CHOICES = 128
MAX_STOP_IDS = 56  # what the scheduler holds for one lane beside the EOS tokens; MAX_BIASES likewise
MAX_BIASES = 1024
MAX_STOPS = 16
MAX_STOP_CHARS = 1024
TEMPLATE_FIELDS = frozenset({"self", "messages", "tools", "documents", "add_generation_prompt"})

Token = Annotated[int, Field(ge=0, lt=1 << 32)]
Bias = Annotated[float, Field(ge=-100, le=100)]


class Body(BaseModel):
    """Base of every request body: no silent conversions, and unknown fields kept for ``refuse_unimplemented``."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False, frozen=True)


class StreamOptions(Body):
    """``stream_options``."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class GenerationBody(Body):
    """What chat and text completions have in common."""

    model: str
    max_tokens: Annotated[int, Field(ge=1, lt=1 << 32)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, lt=1 << 32)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Field(ge=0.01, le=10)] | None = None
    logit_bias: Annotated[dict[Token, Bias], Field(max_length=MAX_BIASES)] | None = None
    seed: Annotated[int, Field(ge=-(1 << 63), lt=1 << 64)] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    stop: Any = None
    stop_token_ids: Annotated[list[Token], Field(max_length=MAX_STOP_IDS)] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    min_tokens: Annotated[int, Field(ge=0, lt=1 << 16)] | None = None
    skip_special_tokens: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    scheduler_times: bool | None = None

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """``stop`` as a tuple. Raises ApiError."""
        return _stop_strings(self.stop)

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a usage chunk."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def continuous_usage(self) -> bool:
        """Whether every chunk of a stream carries the usage so far."""
        return bool(self.stream_options and self.stream_options.continuous_usage_stats)


class Function(Body):
    """``tools[].function``."""

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Body):
    """``tools[]``."""

    type: Literal["function"]
    function: Function


class ChatBody(GenerationBody):
    """Body of /v1/chat/completions."""

    messages: Annotated[list[dict[str, Any]], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1, lt=1 << 32)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=LOGPROBS_MAX)] | None = None
    tools: list[Tool] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class CompletionBody(GenerationBody):
    """Body of /v1/completions."""

    prompt: Any
    logprobs: Annotated[int, Field(ge=0, le=LOGPROBS_MAX)] | None = None
    echo: bool | None = None
    best_of: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    add_special_tokens: bool | None = None


class TokenizeBody(Body):
    """Body of /tokenize: ``prompt`` or ``messages``."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[dict[str, Any]], Field(min_length=1)] | None = None
    tools: list[Tool] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool | None = None


class DetokenizeBody(Body):
    """Body of /detokenize."""

    model: str | None = None
    tokens: list[Token]
    skip_special_tokens: bool | None = None


B = TypeVar("B", bound=Body)


def parse(kind: type[B], data: bytes) -> B:
    """The body ``data`` as ``kind``. Raises ApiError: not JSON, a value out of range, a field not implemented."""
    try:
        body = kind.model_validate_json(data)
    except ValidationError as e:
        raise from_validation(e) from None
    refuse_unimplemented(body.model_extra or {})
    if isinstance(body, GenerationBody):
        _check(body)
    return body


def _check(body: GenerationBody) -> None:
    """What one field means for another. Raises ApiError."""
    _stop_strings(body.stop)
    if body.stream_options is not None and not body.stream:
        raise bad("stream_options", "is only allowed with stream=true")
    if body.scheduler_times and body.stream and not body.include_usage:
        raise bad("scheduler_times", "is part of a stream's usage: set stream_options.include_usage too")
    if isinstance(body, ChatBody):
        if body.top_logprobs and not body.logprobs:
            raise bad("top_logprobs", "needs logprobs=true")
        limits = (body.max_tokens, body.max_completion_tokens)
        if None not in limits and limits[0] != limits[1]:
            raise bad("max_tokens", f"{limits[0]} contradicts max_completion_tokens={limits[1]}")
        _check_tools(body)
    elif isinstance(body, CompletionBody):
        if body.best_of is not None and body.best_of != (body.n or 1):
            raise unsupported("best_of", f"{body.best_of} differs from n={body.n or 1}; this server ranks no answers")
        if body.echo and body.logprobs is not None:
            raise unsupported("echo", "this server has no log probabilities of the prompt to go with logprobs")


def _check_tools(body: ChatBody) -> None:
    """Raise ApiError for a tool_choice other than none and auto, and for template variables that have a field."""
    choice = body.tool_choice
    if choice == "required" or isinstance(choice, dict):
        raise unsupported("tool_choice", "this server does not force tool calls; it implements none and auto")
    if choice not in (None, "none", "auto"):
        raise bad("tool_choice", "is not one of none, auto")
    for name in body.chat_template_kwargs or ():
        if name in TEMPLATE_FIELDS:
            raise bad(f"chat_template_kwargs.{name}", "is not a free variable of the template")


def _stop_strings(stop: object) -> tuple[str, ...]:
    """``stop``: null, a string or a list of strings. Raises ApiError."""
    if stop is None:
        return ()
    stops = [stop] if isinstance(stop, str) else stop
    if not isinstance(stops, list) or not all(isinstance(s, str) for s in stops):
        raise bad("stop", "is neither a string nor a list of strings")
    if len(stops) > MAX_STOPS:
        raise bad("stop", f"{len(stops)} strings are more than {MAX_STOPS}")
    for s in stops:
        if not 1 <= len(s) <= MAX_STOP_CHARS:
            raise bad("stop", f"a string of {len(s)} characters is not between 1 and {MAX_STOP_CHARS}")
    return tuple(stops)
