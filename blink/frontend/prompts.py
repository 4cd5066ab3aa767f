"""Prompts: chat templates, tokenizing, and the text of a prompt that is echoed."""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import Callable, Sequence
from typing import TypeVar

from blink.errors import BlinkError
from blink.frontend.errors import ApiError, bad, overloaded, unsupported
from blink.frontend.messages import template_messages
from blink.frontend.protocol import ChatBody, TokenizeBody
from blink.frontend.toolcalls import OPEN, makes_calls
from blink.model.chat import ChatTemplate
from blink.model.tokenizer import Tokenizer

INLINE_CHARS = 2048  # a text up to that long is tokenized at once; a longer one in a thread
MAX_PREPARING = 64  # long prompts in preparation at once; beyond it 429

T = TypeVar("T")


class PromptBuilder:
    """Text to token ids for one model; ``template`` is None for a model that has no chat."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate | None) -> None:
        self._tokenizer, self._template = tokenizer, template
        self._preparing = 0

    async def chat(self, body: ChatBody | TokenizeBody) -> list[int]:
        """Token ids of a conversation. Raises ApiError."""
        template, messages = self._template, template_messages(body.messages or [])
        if template is None:
            raise ApiError(400, "messages: this model has no chat template; use /v1/completions", param="messages")
        tools = None
        if body.tools and not (isinstance(body, ChatBody) and body.tool_choice == "none"):
            if not makes_calls(template.source):
                raise unsupported("tools", f"this model's chat template does not make tool calls as {OPEN} JSON")
            tools = [tool.model_dump(exclude_unset=True) for tool in body.tools]

        def build() -> list[int]:
            try:
                text = template.render(
                    messages,
                    tools=tools,
                    add_generation_prompt=body.add_generation_prompt is not False,
                    **body.chat_template_kwargs or {},
                )
            except BlinkError as e:
                raise bad("messages", str(e)) from None
            # The template writes BOS itself, so the tokenizer must not add another.
            return self._tokenizer.encode(text, add_special_tokens=False)

        size = sum(len(str(m.get("content"))) for m in messages) + (INLINE_CHARS if tools else 0)
        return await self._run(size, build)

    async def texts(self, prompts: Sequence[str | list[int]], *, add_special_tokens: bool = True) -> list[list[int]]:
        """Token ids of each prompt; one that is token ids already stays as it is."""

        def build() -> list[list[int]]:
            return [self._encode(p, add_special_tokens) if isinstance(p, str) else p for p in prompts]

        return await self._run(sum(len(p) for p in prompts if isinstance(p, str)), build)

    def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        ids, bos = self._tokenizer.encode(text, add_special_tokens=add_special_tokens), self._tokenizer.bos_id
        if add_special_tokens and bos is not None and ids[:2] == [bos, bos]:
            return ids[1:]  # the text came out of a chat template and begins with BOS already
        return ids

    async def _run(self, size: int, build: Callable[[], T]) -> T:
        """``build`` here, or off the event loop where ``size`` characters would hold up every other stream."""
        if size <= INLINE_CHARS:
            return build()
        if self._preparing >= MAX_PREPARING:
            raise overloaded(f"too many requests: {self._preparing} prompts are being tokenized")
        self._preparing += 1
        try:
            return await asyncio.to_thread(build)
        finally:
            self._preparing -= 1

    def echo(self, prompt: str | list[int], *, skip_special: bool) -> str:
        """The text of a prompt, up to its last whole code point: the answer completes what is open."""
        if isinstance(prompt, str):
            return prompt
        t = self._tokenizer
        data = b"".join(t.token_bytes(i) for i in prompt if not (skip_special and t.is_special(i)))
        return codecs.getincrementaldecoder("utf-8")("replace").decode(data)
