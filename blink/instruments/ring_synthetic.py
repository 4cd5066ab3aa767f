"""A ring that a counting engine fills: the real scheduler core, tokens that say where they belong, no model.

Token i of the answer to a prompt of L tokens and seed s is (L + s + i) modulo COUNT. Its text has WIDTH characters
of which the first, MARK, stands nowhere else in a response, so a reader can count tokens without parsing and later
tell a lost, doubled or misdelivered token from its text.
"""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import closing
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from blink import core
from blink.backend.host_loop import HostLoop
from blink.backend.scheduler.config import SchedulerConfig
from blink.backend.scheduler.host import Scheduler
from blink.config import ApplianceConfig
from blink.engine.seam.batch import Kind
from blink.engine.seam.buffers import BatchBuffers
from blink.model.manifest import build_manifest
from blink.model.progress import Progress
from blink.ring.layout import F_HEAD
from blink.ring.shm import RingObjects
from blink.ring.words import MASK32
from blink.ring_access import announced

COUNT = 10_000
EOS = COUNT
VOCAB = COUNT + 1
MARK = "~"
WIDTH = 5
GATHER_S = 0.02


def text(token: int) -> str:
    """The text of a token that the engine produces."""
    return f"{MARK}{token:04d}"


def answer(prompt_tokens: int, seed: int, count: int) -> str:
    """The text of the first ``count`` tokens that answer any prompt of that length."""
    return "".join(text((prompt_tokens + seed + i) % COUNT) for i in range(count))


def write_model(folder: Path) -> bytes:
    """A prepared folder without weights, for a frontend; returns its fingerprint."""
    from tokenizers import Tokenizer, decoders, models  # noqa: PLC0415 - a machine without a frontend has none

    folder.mkdir()
    words = {text(i): i for i in range(COUNT)} | {"<eos>": EOS}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<eos>"))  # noqa: S106 - a vocabulary entry
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({"eos_token_id": EOS}))
    manifest = build_manifest(
        folder, source="synthetic", revision="", identity="synthetic", progress=Progress("synthetic model", 0)
    )
    manifest.write(folder)
    return bytes.fromhex(manifest.fingerprint)


class CountingEngine:
    """Answers every sampled row with the number of its next position and its request's seed, added."""

    def __init__(self, buffers: BatchBuffers) -> None:
        self._b = buffers
        self.made = 0  # tokens so far

    def run(self) -> None:
        """Execute the batch in the buffers."""
        b, control = self._b, self._b.control[0]
        rows = int(control["rows"])
        self.made += int(b.row_sample[:rows].sum())
        seeds = b.lane_params["seed"][b.row_lane[:rows]].astype(np.int64)
        b.out_token[:rows] = (b.row_kv_len[:rows] + seeds) % COUNT
        control["error"] = 0
        control["done"] = control["step"]

    def close(self) -> None:
        """Nothing to release."""


class Pace(Protocol):
    """When the next decode step may run."""

    def __call__(self, made: int, rows: int) -> None:
        """Return when it may; ``made`` tokens were produced so far, and the step makes ``rows`` more."""


class PacedEngine(CountingEngine):
    """A counting engine whose steps wait for ``pace``, and which notes when each token came into being.

    Until every stream has begun, steps are slow, so that the first ones do not run far ahead of the last, and each has
    read its last token when the measurement begins.

    ``stamps`` (float64 seconds, shape [seeds, answer tokens]) takes the times of requests with a prompt of
    ``prompt_tokens`` and seeds below its length.
    """

    def __init__(self, buffers: BatchBuffers, pace: Pace, stamps: npt.NDArray[np.float64], prompt_tokens: int) -> None:
        super().__init__(buffers)
        self._pace, self._stamps, self._prompt_tokens = pace, stamps, prompt_tokens
        self._begun = 0

    def run(self) -> None:
        """Execute the batch in the buffers when its time has come."""
        b, control = self._b, self._b.control[0]
        rows = int(control["rows"])
        if self._begun < len(self._stamps):
            time.sleep(GATHER_S)
            self._begun += int(b.row_sample[:rows][b.row_kv_len[:rows] == self._prompt_tokens].sum())
        else:
            self._pace(self.made, rows)
        seeds = b.lane_params["seed"][b.row_lane[:rows]]
        self._stamps[seeds, b.row_kv_len[:rows] - self._prompt_tokens] = time.monotonic()
        super().run()


class Rate:
    """Steps at a rate of ``tokens_per_s`` for ``lanes`` lanes; a step that is late by an interval delays the rest."""

    def __init__(self, tokens_per_s: float, lanes: int) -> None:
        self._interval, self._due = lanes / tokens_per_s, 0.0

    def __call__(self, made: int, rows: int) -> None:
        """Sleep until the step is due."""
        now = time.monotonic()
        if now < self._due:
            time.sleep(self._due - now)
            now = time.monotonic()
        self._due = max(self._due + self._interval, now)


class Lockstep:
    """Steps as fast as the tokens are read: the next one runs when every token of the last one has been.

    ``read`` (i64, shape [1], shared) is the number of tokens that have been read.
    """

    def __init__(self, read: npt.NDArray[np.int64]) -> None:
        self._read = read

    def __call__(self, made: int, rows: int) -> None:
        """Sleep until everything was read."""
        while int(self._read[0]) < made:
            time.sleep(0.00005)


class SyntheticRing:
    """The memory of an unpublished ring for ``config`` and the scheduler over it; ``published`` counts its tokens."""

    def __init__(self, config: ApplianceConfig, fingerprint: bytes) -> None:
        e, geometry = config.engine, config.ring.geometry()
        self.scheduling = SchedulerConfig.for_engine(e, VOCAB, (EOS,), records=2 * e.lanes, claims_per_step=e.lanes)
        header = self.scheduling.header(geometry, queue_cap=e.lanes, fingerprint=fingerprint)
        self.ring = RingObjects(config.instance.ring_dir, header)
        self.buffers = BatchBuffers(self.scheduling.dims)
        self.scheduler = Scheduler(self.scheduling, geometry, self.ring.g, self.ring.f, self.buffers)
        self.engine = CountingEngine(self.buffers)
        self.published = 0

    def step(self) -> Kind:
        """One step of scheduler and engine; what a batch produced is published by the step after it."""
        kind = self.scheduler.step().kind
        self.published = self.engine.made
        if kind in (Kind.PREFILL, Kind.DECODE):
            self.engine.run()
        return kind

    def rung(self) -> int:
        """The sequence number that the first worker's doorbell has."""
        return core.load_acquire(self.ring.f.ctypes.data + F_HEAD.offset("db")) & MASK32

    def close(self) -> None:
        """Remove the ring."""
        self.ring.unlink()
        self.ring.close()


class Board:
    """What readers and the ring's filler share, in a file: ``read`` and ``stamps``."""

    def __init__(self, path: Path, streams: int, max_tokens: int) -> None:
        size = 64 + 8 * streams * max_tokens
        if not path.exists():
            path.write_bytes(bytes(size))
        raw = np.memmap(path, np.uint8, "r+", shape=(size,))
        self.read: npt.NDArray[np.int64] = raw[:8].view(np.int64)
        self.stamps: npt.NDArray[np.float64] = raw[64:].view(np.float64).reshape(streams, max_tokens)


def serve(
    config: ApplianceConfig, shared: Path, *, prompt_tokens: int, max_tokens: int, rate: float, on_core: int,
    fingerprint: bytes,
) -> None:  # fmt: skip
    """A process's work: publish a ring and fill it on ``on_core`` until SIGTERM; ``rate`` 0 is lockstep."""
    os.sched_setaffinity(0, {on_core})
    streams = config.engine.lanes
    board = Board(shared, streams, max_tokens)
    pace = Rate(rate, streams) if rate else Lockstep(board.read)
    with closing(SyntheticRing(config, fingerprint)) as world:
        engine = PacedEngine(world.buffers, pace, board.stamps, prompt_tokens)
        driver = HostLoop(world.scheduler, engine, drain_timeout_s=0.1)
        signal.signal(signal.SIGTERM, lambda *_: driver.stop())
        world.ring.publish()
        with announced(config, world.ring):
            driver.run()
