"""A frontend reduced to its words: writes F and reads G through NumPy views, so that a test can also write nonsense."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from blink import core
from blink.backend.scheduler.config import SchedulerConfig
from blink.ring import layout
from blink.ring.layout import Flag, Geometry, Reason, State
from blink.ring.words import W0, Bell, Cancel, Commit

MASK = 0xFFFFFFFF
PAGE = layout.PAGE
CANARY = 0xA5
CHAIN = ("prompt", "request", "commit")


def region(size: int) -> np.ndarray:
    """Zeroed u8 memory of ``size`` bytes on a page boundary, with a page of canaries on either side."""
    raw = np.full(size + 3 * layout.PAGE, CANARY, np.uint8)
    start = -raw.ctypes.data % layout.PAGE + (layout.PAGE if raw.ctypes.data % layout.PAGE == 0 else 0)
    inner = raw[start : start + size]
    inner[:] = 0
    return inner


def canaries_intact(inner: np.ndarray) -> bool:
    """Whether nothing wrote beside a :func:`region`."""
    raw = inner.base
    start = inner.ctypes.data - raw.ctypes.data
    return bool((raw[:start] == CANARY).all() and (raw[start + len(inner) :] == CANARY).all())


@dataclass(frozen=True)
class Status:
    """A slot's w0, unpacked."""

    gen: int
    state: State
    reason: Reason
    count: int


class Ring:
    """G and F of one epoch in private memory, with the header that a scheduler of ``config`` needs."""

    def __init__(
        self, geometry: Geometry, config: SchedulerConfig, allocate: Callable[[int], np.ndarray] = region
    ) -> None:
        self.geometry, self.config = geometry, config
        self.g, self.f = allocate(geometry.g_bytes), allocate(geometry.f_bytes)
        self.header = self.g[: layout.PAGE].view(layout.HEADER.dtype())
        fields = {
            "magic": layout.MAGIC, "version": layout.VERSION, "epoch": 7, "slots": geometry.slots,
            "parts": geometry.parts, "lanes": config.lanes, "queue_cap": config.records,
            "g_off": geometry.g_off, "g_stride": geometry.g_stride, "f_off": 0, "f_stride": geometry.f_stride,
            "out_off": geometry.out_off, "out_len": geometry.output_bytes,
            "in_off": geometry.in_off, "in_len": geometry.input_bytes, "vocab": config.vocab,
            "max_context": config.max_context, "ext_words": config.ext_words,
            "page_tokens": config.page_tokens, "pages": config.pages,
        }  # fmt: skip
        for name, value in fields.items():
            self.header[name] = value

    def writer(self, part: int) -> Writer:
        """The words of worker ``part``."""
        return Writer(self, part)

    def intact(self) -> bool:
        """Whether nothing wrote outside both objects."""
        return canaries_intact(self.g) and canaries_intact(self.f)


class Writer:
    """Worker ``part``: F_p writable, G_p readable, and the field-by-field making of requests."""

    def __init__(self, ring: Ring, part: int) -> None:
        geo, n = ring.geometry, ring.geometry.slots_per_part
        self.ring, self.part, self.slots = ring, part, n
        f = ring.f[part * geo.f_stride : (part + 1) * geo.f_stride]
        g = ring.g[geo.g_off + part * geo.g_stride : geo.g_off + (part + 1) * geo.g_stride]
        self.f, self.g = f, g
        self.f_head = f[:64].view(layout.F_HEAD.dtype())
        self.cmd = f[geo.cmd_off : geo.cmd_off + 16 * n].view(layout.COMMAND.dtype())
        self.request = f[geo.request_off : geo.request_off + 128 * n].view(layout.REQUEST.dtype())
        self.g_head = g[:64].view(layout.G_HEAD.dtype())
        self.statuses = g[geo.status_off : geo.status_off + layout.STATUS.size * n].view(layout.STATUS.dtype())
        # Every slot has its own extents: the tests are about the scheduler, not about an allocator.
        self.in_bytes = geo.input_bytes // n // 64 * 64
        self.out_bytes = geo.output_bytes // n // 64 * 64
        self.seq = 0

    def in_off(self, slot: int) -> int:
        """Offset in F_p of the slot's input extent."""
        return self.ring.geometry.in_off + slot * self.in_bytes

    def out_off(self, slot: int) -> int:
        """Offset in G_p of the slot's output extent."""
        return self.ring.geometry.out_off + slot * self.out_bytes

    def make(
        self, slot: int, gen: int, seq: int, prompt: Any, max_tokens: int, /, *, ext: Any = (),
        logprobs: int | None = None, ignore_eos: bool = False, **fields: Any,
    ) -> np.void:  # fmt: skip
        """A valid request record for ``slot``, or with ``fields`` replaced, not so valid; sealed with hash and CRC."""
        prompt, ext = np.array(prompt, np.uint32), np.array(ext, np.uint32)
        r = np.zeros(1, layout.REQUEST.dtype())[0]
        values: dict[str, Any] = {
            "gen": gen, "seq": seq, "prompt_off": self.in_off(slot), "prompt_len": len(prompt),
            "max_tokens": max_tokens, "out_off": self.out_off(slot), "out_cap": max_tokens, "temperature": 1.0,
            "top_p": 1.0, "repetition": 1.0, "prompt_hash": core.words_hash(np.concatenate([prompt, ext])),
        }  # fmt: skip
        if ignore_eos:
            values["flags"] = int(Flag.IGNORE_EOS)
        if logprobs is not None:
            values["flags"] = values.get("flags", 0) | int(Flag.LOGPROBS)
            values["lp_n"], values["lp_off"] = logprobs, self.out_off(slot) + -(-4 * max_tokens // 64) * 64
        if len(ext):
            values["ext_off"], values["ext_words"] = self.in_off(slot) + 4 * len(prompt), len(ext)
        for name, value in (values | fields).items():
            r[name] = value
        if "crc" not in fields:
            r["crc"] = core.crc32c(np.frombuffer(r.tobytes(), np.uint32)[:31])
        return r

    def write_words(self, slot: int, words: Any) -> None:
        """Prompt and extension into the slot's input extent."""
        words = np.array(words, np.uint32)
        off = self.in_off(slot)
        self.f[off : off + 4 * len(words)] = words.view(np.uint8)

    def commit(self, slot: int, gen: int, seq: int) -> None:
        """The commit word."""
        self.cmd["commit"][slot] = Commit.pack(gen=gen, seq=seq)

    def ring_bell(self, seq: int) -> None:
        """The doorbell."""
        core.store_release(self.f_head.ctypes.data, Bell.pack(seq=seq))

    def cancel(self, slot: int, gen: int) -> None:
        """The cancel word."""
        self.cmd["cancel"][slot] = Cancel.pack(gen=gen)

    def next_gen(self, slot: int) -> int:
        """The generation after the one in the commit word."""
        return (Commit(self.cmd["commit"][slot]).gen + 1) & MASK

    def submit(self, slot: int, prompt: Any, max_tokens: int, /, **options: Any) -> tuple[int, int]:
        """Write everything and ring; returns (gen, seq)."""
        gen, self.seq = self.next_gen(slot), (self.seq + 1) & MASK
        self.write_words(slot, [*prompt, *options.get("ext", ())])
        self.request[slot] = self.make(slot, gen, self.seq, prompt, max_tokens, **options)
        self.commit(slot, gen, self.seq)
        self.ring_bell(self.seq)
        return gen, self.seq

    def submit_in_pieces(self, slot: int, prompt: Any, max_tokens: int, landed: Sequence[str]) -> Iterator[None]:
        """A submit of which only the pieces ``landed`` of its chain arrive, in that order, before the worker dies.

        Yields after each. A chain that landed as a whole is then rung.
        """
        gen, self.seq = self.next_gen(slot), (self.seq + 1) & MASK
        for piece in landed:
            match piece:
                case "prompt":
                    self.write_words(slot, prompt)
                case "request":
                    self.request[slot] = self.make(slot, gen, self.seq, prompt, max_tokens)
                case "commit":
                    self.commit(slot, gen, self.seq)
            yield
        if len(landed) == len(CHAIN):
            self.ring_bell(self.seq)
            yield

    def recover(self) -> Iterator[None]:
        """What a restarted worker does to get all its slots back (docs/protocol.md), from what stands in F and G.

        Yields after each word it writes, and while it waits.
        """
        bell = Bell(self.f_head["db"][0]).seq
        commits = {s: (Commit(w).gen, Commit(w).seq) for s, w in enumerate(self.cmd["commit"].tolist()) if w}
        for seq in [seq for _, seq in commits.values()] + [bell]:
            if 0 < (seq - self.seq) & MASK < 1 << 31:
                self.seq = seq
        for slot, (gen, seq) in commits.items():
            if self.ended(slot):
                continue
            self.cancel(slot, gen)
            yield
            if 0 < (seq - bell) & MASK < 1 << 31:
                null = np.zeros(1, layout.REQUEST.dtype())[0]
                null["gen"], null["seq"] = gen, seq
                null["crc"] = core.crc32c(np.frombuffer(null.tobytes(), np.uint32)[:31])
                self.request[slot] = null
                yield
        self.ring_bell(self.seq)
        yield
        while self.outstanding():
            yield

    def status(self, slot: int) -> Status:
        """The slot's status as published."""
        w0 = W0(self.statuses["w0"][slot])
        return Status(w0.gen, State(w0.state), Reason(w0.reason), w0.count)

    def tokens(self, slot: int) -> list[int]:
        """The answer as published: the first ``count`` tokens of the slot's output extent."""
        off = self.out_off(slot)
        return self.g[off : off + 4 * self.status(slot).count].view(np.uint32).tolist()

    def ended(self, slot: int) -> bool:
        """Whether the slot is terminal at the generation in its commit word."""
        status = self.status(slot)
        gen = Commit(self.cmd["commit"][slot]).gen
        return status.state is State.DECODE_COMPLETED and status.gen == gen & W0.gen.limit

    def outstanding(self) -> list[int]:
        """Slots with a commit that is not terminal."""
        return [s for s in range(self.slots) if Commit(self.cmd["commit"][s]).gen and not self.ended(s)]
