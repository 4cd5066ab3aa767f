"""A request as the frontend states it, and as the bytes of a request record and its extension."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from blink.core import U32, crc32c, words_hash
from blink.ring.header import Header
from blink.ring.layout import LOGPROBS_MAX, REQUEST, STOP_INLINE, Flag, logprob_stride

_DTYPE = REQUEST.dtype()
_CRC_WORDS = REQUEST.offset("crc") // 4


@dataclass(frozen=True)
class SamplingParams:
    """How tokens are drawn; ``temperature`` 0 is greedy, ``top_k`` 0 keeps all, ``logit_bias`` is token id → bias."""

    seed: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    frequency: float = 0.0
    presence: float = 0.0
    repetition: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class SubmitRequest:
    """One request: ``prompt`` is u32, shape [n]; ``logprobs`` is the number of alternatives, None for no logprobs."""

    prompt: U32
    max_tokens: int
    sampling: SamplingParams
    stop_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    min_tokens: int = 0
    logprobs: int | None = None
    deadline_ms: int = 0

    def words(self) -> U32:
        """Prompt and extension as they stand in the input arena, u32, shape [prompt + extension]; read-only.

        They are made once, since the fields do not change.
        """
        return self._words

    @cached_property
    def _words(self) -> U32:
        words = self._joined().view()
        words.flags.writeable = False
        return words

    def _joined(self) -> U32:
        more, bias = self.stop_ids[STOP_INLINE:], self.sampling.logit_bias
        prompt = np.ascontiguousarray(self.prompt, np.uint32)
        if not more and not bias:
            return prompt
        ids = np.fromiter(bias.keys(), np.uint32, len(bias))
        values = np.fromiter(bias.values(), np.float32, len(bias)).view(np.uint32)
        head = np.array([len(more), len(bias), *more], np.uint32)
        return np.concatenate([prompt, head, np.stack([ids, values], axis=1).ravel()])

    @property
    def output_bytes(self) -> int:
        """Bytes of the output extent: the tokens, padded to 8 bytes, and the logprob records behind them."""
        records = 0 if self.logprobs is None else self.max_tokens * logprob_stride(self.logprobs)
        return self.records_at + records

    @property
    def records_at(self) -> int:
        """Offset of the logprob records within the output extent."""
        return -(-4 * self.max_tokens // 8) * 8

    def check(self, header: Header) -> None:
        """Raise ValueError naming the field that the ring cannot carry."""
        s, n = self.sampling, len(self.prompt)
        numbers = (s.temperature, s.top_p, s.min_p, s.frequency, s.presence, s.repetition)
        for wrong, text in (
            (n == 0, "prompt: it is empty"),
            (self.max_tokens < 1, f"max_tokens: {self.max_tokens} is below 1"),
            (
                n + self.max_tokens > header.max_context,
                f"max_tokens: {n} prompt tokens and {self.max_tokens} more exceed the context of {header.max_context}",
            ),
            (
                self.logprobs is not None and not 0 <= self.logprobs <= LOGPROBS_MAX,
                f"logprobs: {self.logprobs} is not between 0 and {LOGPROBS_MAX}",
            ),
            (not 0 <= self.min_tokens <= 0xFFFF, f"min_tokens: {self.min_tokens} is not between 0 and 65535"),
            (not 0 <= self.deadline_ms < 1 << 32, f"deadline_ms: {self.deadline_ms} is not a 32-bit number"),
            (not 0 <= s.seed < 1 << 64, f"seed: {s.seed} is not a 64-bit number"),
            (not 0 <= s.top_k < 1 << 32, f"top_k: {s.top_k} is not a 32-bit number"),
            (not all(map(math.isfinite, numbers)), "sampling: a parameter is not finite"),
            (not all(map(math.isfinite, s.logit_bias.values())), "logit_bias: a bias is not finite"),
            (
                not all(0 <= t < header.vocab for t in (*self.stop_ids, *s.logit_bias)),
                f"stop_ids, logit_bias: a token id is not below the vocabulary of {header.vocab}",
            ),
            (n and int(self.prompt.max()) >= header.vocab, f"prompt: a token id is not below {header.vocab}"),
        ):
            if wrong:
                raise ValueError(text)
        extension = len(self.words()) - n
        if extension > header.ext_words:
            raise ValueError(f"stop_ids, logit_bias: {extension} words of extension exceed {header.ext_words}")

    def encode(self, gen: int, seq: int, words: U32, prompt_off: int, out_off: int) -> bytes:
        """The request record; ``words`` (see :meth:`words`) stand at ``prompt_off``, the answer goes to ``out_off``."""
        record, s, n = np.zeros((), _DTYPE), self.sampling, len(self.prompt)
        record["gen"], record["seq"] = gen, seq
        record["prompt_off"], record["prompt_len"], record["max_tokens"] = prompt_off, n, self.max_tokens
        record["out_off"], record["out_cap"] = out_off, self.max_tokens
        flags = Flag.IGNORE_EOS if self.ignore_eos else Flag(0)
        if self.logprobs is not None:
            flags |= Flag.LOGPROBS
            record["lp_off"], record["lp_n"] = out_off + self.records_at, self.logprobs
        record["flags"] = flags
        for name in ("temperature", "top_p", "top_k", "min_p", "frequency", "presence", "repetition", "seed"):
            record[name] = getattr(s, name)
        inline = self.stop_ids[:STOP_INLINE]
        record["n_stop"], record["stop"][: len(inline)] = len(inline), inline
        record["min_tokens"], record["deadline_ms"] = self.min_tokens, self.deadline_ms
        if len(words) > n:
            record["ext_off"], record["ext_words"] = prompt_off + 4 * n, len(words) - n
        record["prompt_hash"] = words_hash(words)
        return _sealed(record)


def null_request(gen: int, seq: int) -> bytes:
    """A record that is consistent and asks for nothing: it completes a commit whose payload may be incomplete."""
    record = np.zeros((), _DTYPE)
    record["gen"], record["seq"] = gen, seq
    return _sealed(record)


def _sealed(record: np.ndarray[tuple[()], np.dtype[np.void]]) -> bytes:
    record["crc"] = crc32c(np.frombuffer(record.tobytes(), np.uint32)[:_CRC_WORDS])
    return record.tobytes()
