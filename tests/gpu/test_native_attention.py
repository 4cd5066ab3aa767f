"""Attention on the device against attention in float64, and against itself in other company."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.bindings.driver", reason="needs cuda-bindings")

from blink.engine.device.buffers import DeviceBuffers
from blink.engine.native.attention import Attention
from blink.engine.native.shape import AttentionShape
from blink.engine.seam.batch import Kind
from tests.gpu.native_step import describe, fill, from_bits, run, to_bits, upload

pytestmark = pytest.mark.gpu

NAN_BITS = {False: 0x7E00, True: 0x7FC0}


@dataclass(frozen=True)
class Row:
    """A row of a step: ``length`` positions, of which the last ``tokens`` are new; the first of a row of ``full``.

    The keys of its first ``broken`` positions are NaN. Keys and values of its first ``unseen`` ones are NaN, but only
    on the device, since no query is to see them.
    """

    length: int
    tokens: int = 1
    seed: int = 0
    full: int = 0
    broken: int = 0
    unseen: int = 0


@dataclass(frozen=True)
class Case:
    """A step to compute; ``place`` chooses lanes and pages, ``size`` the bucket."""

    kind: Kind
    rows: tuple[Row, ...]
    heads: int = 8
    kv_heads: int = 2
    head_dim: int = 128
    page_tokens: int = 64
    window: int = 0
    bf16: bool = False
    place: int = 0
    size: int = 0
    lanes: int = 0

    @property
    def width(self) -> int:
        return self.heads * self.head_dim


@contextmanager
def made(gpu: Any, case: Case) -> Iterator[tuple[Attention, dict[str, int]]]:
    """Attention of ``case``, its inputs on the device, and what to pass to ``enqueue``. Unused KV is NaN."""
    rng = np.random.default_rng(case.place)
    lanes = case.lanes or len(case.rows) + 3
    lane_pages = -(-max(r.length for r in case.rows) // case.page_tokens) + 2
    used = [-(-r.length // case.page_tokens) for r in case.rows]
    pages = sum(used) + 5
    tokens = sum(r.tokens for r in case.rows)
    dims = {"lanes": lanes, "tokens": max(tokens, lanes, case.size), "lane_pages": lane_pages}
    buffers = DeviceBuffers(gpu, dims)
    row_lanes = rng.permutation(lanes)[: len(case.rows)]
    describe(
        buffers, case.kind, lanes=row_lanes, tokens=[r.tokens for r in case.rows],
        lengths=[r.length for r in case.rows],
    )  # fmt: skip
    order, table = rng.permutation(pages), np.full((lanes, lane_pages), -(1 << 20), np.int32)
    shape = (pages, case.kv_heads, case.page_tokens, case.head_dim)
    pools = [np.full(shape, NAN_BITS[case.bf16], np.uint16) for _ in "kv"]
    q = np.zeros((tokens, case.width + 2 * case.kv_heads * case.head_dim), np.uint16)
    at = token = 0
    for row, lane, count in zip(case.rows, row_lanes, used, strict=True):
        own = order[at : at + count]
        table[lane, :count] = own
        new_q, *kv = inputs(case, row)
        for pool, values in zip(pools, kv, strict=True):
            values[:, : row.unseen] = NAN_BITS[case.bf16]
            for p, page in enumerate(own):
                part = values[:, p * case.page_tokens : (p + 1) * case.page_tokens]
                pool[page, :, : part.shape[1]] = part
        q[token : token + row.tokens, : case.width] = new_q.reshape(row.tokens, -1)
        at, token = at + count, token + row.tokens
    fill(buffers, block_table=table)
    attention = Attention(
        gpu, buffers,
        AttentionShape(
            case.heads, case.kv_heads, case.head_dim, pages, case.page_tokens, lane_pages * case.page_tokens,
            case.head_dim**-0.5, "bfloat16" if case.bf16 else "float16",
        ),
    )  # fmt: skip
    out_stride = -(-case.width // 32) * 32
    memory = {name: upload(gpu, array) for name, array in zip("kvq", (*pools, q), strict=True)}
    out = upload(gpu, np.full((dims["tokens"], out_stride), NAN_BITS[case.bf16], np.uint16))
    arguments = {
        **{name: m.address for name, m in memory.items()},
        "q_stride": q.shape[1], "out": out.address, "out_stride": out_stride, "window": case.window,
    }  # fmt: skip
    arguments["_out"] = out
    try:
        yield attention, arguments
    finally:
        attention.close()
        for m in (*memory.values(), out, buffers):
            m.close() if isinstance(m, DeviceBuffers) else m.free()


def inputs(case: Case, row: Row) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A row's q [tokens][heads][dim], k and v [kv_heads][length][dim], as bits; the same wherever the row is."""
    full = row.full or row.length
    rng = np.random.default_rng((row.seed, full, case.head_dim))
    q = rng.normal(size=(full, case.heads, case.head_dim))[row.length - row.tokens : row.length]
    k, v = (rng.normal(size=(case.kv_heads, full, case.head_dim))[:, : row.length] for _ in "kv")
    k[:, : row.broken] = np.nan
    return to_bits(3 * q, case.bf16), to_bits(k, case.bf16), to_bits(v + 0.5, case.bf16)


def reference(case: Case, row: Row) -> np.ndarray:
    """Attention of a row in float64, [tokens][heads * dim]."""
    q, k, v = (from_bits(x, case.bf16) for x in inputs(case, row))
    position = np.arange(row.length)
    own = position[row.length - row.tokens :, None]
    seen = position <= own
    if case.window:
        seen &= position > own - case.window
    out = np.empty((row.tokens, case.heads, case.head_dim))
    for h in range(case.heads):
        kv = h // (case.heads // case.kv_heads)
        score = np.where(seen, q[:, h] @ k[kv].T * case.head_dim**-0.5, -np.inf)
        weight = np.exp(score - score.max(-1, keepdims=True))
        out[:, h] = weight / weight.sum(-1, keepdims=True) @ v[kv]
    return out.reshape(row.tokens, -1)


def attend(gpu: Any, case: Case, times: int = 1) -> list[np.ndarray]:
    """Each row's output as bits, u16 [tokens][heads * dim]; also checks that nothing else was written."""
    tokens = sum(r.tokens for r in case.rows)
    with made(gpu, case) as (attention, arguments):
        out = arguments.pop("_out")
        size = case.size or (len(case.rows) if case.kind is Kind.DECODE else tokens)
        run(gpu, lambda stream: attention.enqueue(case.kind, size, **arguments, stream=stream), times)
        got = out.read(0, out.size).view(np.uint16).reshape(-1, arguments["out_stride"])
    assert (got[tokens:] == NAN_BITS[case.bf16]).all(), "rows past the step's were written"
    assert (got[:, case.width :] == NAN_BITS[case.bf16]).all(), "columns past the heads were written"
    ends = np.cumsum([r.tokens for r in case.rows])
    return [got[e - r.tokens : e, : case.width] for e, r in zip(ends, case.rows, strict=True)]


def check(gpu: Any, case: Case) -> None:
    bound = 8e-3 if case.bf16 else 1e-3
    for row, bits in zip(case.rows, attend(gpu, case, times=2), strict=True):
        want, got = reference(case, row), from_bits(bits, case.bf16)
        error = np.linalg.norm(got - want, axis=-1) / np.linalg.norm(want, axis=-1)
        assert error.max() < bound, f"{row}: {error.max()} at token {error.argmax()}"


DECODE = Case(Kind.DECODE, tuple(Row(n, seed=n) for n in (1, 2, 15, 16, 17, 63, 64, 65, 255, 256, 257, 511, 700, 1500)))
PREFILL = Case(
    Kind.PREFILL,
    (Row(1), Row(5, 5), Row(64, 64), Row(65, 65), Row(130, 1), Row(300, 44), Row(400, 400, 1), Row(1000, 129)),
)


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("step", [DECODE, PREFILL], ids=["decode", "prefill"])
def test_equals_float64(gpu: Any, step: Case, bf16: bool) -> None:
    check(gpu, replace(step, bf16=bf16))


@pytest.mark.parametrize("head_dim", [8, 32, 40, 64, 72, 80, 96, 112])
@pytest.mark.parametrize("step", [DECODE, PREFILL], ids=["decode", "prefill"])
def test_head_dimensions(gpu: Any, step: Case, head_dim: int) -> None:
    check(gpu, replace(step, head_dim=head_dim))


@pytest.mark.parametrize(
    ("heads", "kv_heads"), [(1, 1), (4, 4), (9, 3), (14, 2), (32, 8), (40, 10), (16, 2), (9, 1), (32, 2), (33, 1)]
)
@pytest.mark.parametrize("step", [DECODE, PREFILL], ids=["decode", "prefill"])
def test_groups_of_heads(gpu: Any, step: Case, heads: int, kv_heads: int) -> None:
    check(gpu, replace(step, heads=heads, kv_heads=kv_heads, head_dim=64))


@pytest.mark.parametrize("window", [1, 2, 31, 64, 100, 256, 300, 5000])
@pytest.mark.parametrize("step", [DECODE, PREFILL], ids=["decode", "prefill"])
def test_windows(gpu: Any, step: Case, window: int) -> None:
    check(gpu, replace(step, window=window, head_dim=64))


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("window", [1, 100, 128])
@pytest.mark.parametrize("step", [DECODE, PREFILL], ids=["decode", "prefill"])
def test_what_lies_before_the_window_is_not_read(gpu: Any, step: Case, window: int, head_dim: int) -> None:
    """Of no new token of the row: what is read and then masked would make a NaN of the values' sum."""
    rows = tuple(replace(r, unseen=max(0, r.length - r.tokens + 1 - window)) for r in step.rows)
    assert any(r.unseen % 128 for r in rows)
    check(gpu, replace(step, rows=rows, window=window, head_dim=head_dim))


@pytest.mark.parametrize("page_tokens", [1, 2, 8, 16, 32, 128])
@pytest.mark.parametrize("step", [DECODE, PREFILL], ids=["decode", "prefill"])
def test_page_sizes(gpu: Any, step: Case, page_tokens: int) -> None:
    check(gpu, replace(step, page_tokens=page_tokens, head_dim=64))


@pytest.mark.parametrize("seed", range(6))
def test_random_steps(gpu: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    lengths = (rng.pareto(1.0, int(rng.integers(1, 80))) * 60).astype(int) % 3000 + 1
    decode = tuple(Row(int(n), seed=int(n)) for n in lengths)
    check(gpu, replace(DECODE, rows=decode, heads=8, kv_heads=2, head_dim=64, place=seed))
    prefill = tuple(replace(r, tokens=int(rng.integers(1, r.length + 1))) for r in decode[:20])
    check(gpu, replace(PREFILL, rows=prefill, heads=8, kv_heads=2, head_dim=64, place=seed))


def test_a_long_context(gpu: Any) -> None:
    check(gpu, replace(DECODE, rows=(Row(20_000), Row(3)), heads=4, kv_heads=1))
    check(gpu, replace(PREFILL, rows=(Row(20_000, 70), Row(3)), heads=4, kv_heads=1))


@pytest.mark.parametrize("window", [0, 300])
def test_company_lane_pages_and_bucket_change_no_bit_of_decode(gpu: Any, window: int) -> None:
    case = replace(DECODE, window=window)
    together = attend(gpu, case)
    shuffled = attend(gpu, replace(case, rows=case.rows[::-1], place=1, size=40, lanes=300))[::-1]
    for row, a, b in zip(case.rows, together, shuffled, strict=True):
        (alone,) = attend(gpu, replace(case, rows=(row,), place=2))
        assert np.array_equal(a, alone), row
        assert np.array_equal(b, alone), row


@pytest.mark.parametrize("window", [0, 100])
def test_company_and_chunks_change_no_bit_of_prefill(gpu: Any, window: int) -> None:
    case = replace(PREFILL, window=window, heads=6)
    together = attend(gpu, case)
    shuffled = attend(gpu, replace(case, rows=case.rows[::-1], place=1, size=3000, lanes=300))[::-1]
    for row, a, b in zip(case.rows, together, shuffled, strict=True):
        assert np.array_equal(a, b), row
        chunks, at, rng = [], row.length - row.tokens, np.random.default_rng(row.length)
        while at < row.length:
            count = min(int(rng.integers(1, 120)), row.length - at)
            at += count
            part = Row(at, count, row.seed, full=row.length)  # the keys of later chunks are not there yet
            chunks += attend(gpu, replace(case, rows=(part,), place=3))
        assert np.array_equal(a, np.concatenate(chunks)), row


@pytest.mark.parametrize("broken", [1, 32, 128, 600])
@pytest.mark.parametrize("kind", [Kind.DECODE, Kind.PREFILL])
def test_a_row_that_is_not_finite_stays_so_and_alone(gpu: Any, kind: Kind, broken: int) -> None:
    """However its positions are divided, so that the row fails when it is sampled."""
    good = Row(300, 1)
    first, second = attend(gpu, Case(kind, (Row(600, 1, broken=broken), good)))
    assert np.isnan(from_bits(first, False)).all()
    assert np.array_equal(second, attend(gpu, Case(kind, (good,)))[0])
