"""The small kernels of the native engine against NumPy, and the check of a step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.bindings.driver", reason="needs cuda-bindings")

from blink.engine.device.buffers import DeviceBuffers
from blink.engine.native.layout import NO_ROTARY, Epilogue, Rotary, StepLimits
from blink.engine.native.linear import Norm, SmallLinear
from blink.engine.native.ops import CheckedBuffers, Ops
from blink.engine.native.random import RandomSource
from blink.engine.native.shape import Matrix, padded
from blink.engine.native.weights import Linear
from blink.engine.reference.forward import rms_norm
from blink.engine.seam.batch import STEP, Kind
from blink.model.rope import RopeTable
from blink.model.spec import RopeSpec
from tests.gpu.native import DTYPES, EPSILON, Bench, rounded, to_numbers

pytestmark = pytest.mark.gpu

LANES, TOKENS, PAGE, PAGES, CONTEXT, VOCAB = 6, 40, 8, 24, 32, 50
LIMITS = {"vocab": VOCAB, "context": CONTEXT, "page_tokens": PAGE, "pages": PAGES, "lanes": LANES, "lane_pages": 4}


class Step:
    """Step buffers on the device with a good step of three rows in them, and the kernels."""

    def __init__(self, device: Any, dtype: str = "float16") -> None:
        self.device, self.dtype, self.bench = device, dtype, Bench(device)
        self.real = DeviceBuffers(device, {"lanes": LANES, "tokens": TOKENS, "lane_pages": 4})
        self.checked = CheckedBuffers(device, self.real)
        self.ops = Ops(device, dtype, self.checked)
        table = np.zeros((LANES, 4), np.int32)
        table[[5, 0, 2]] = [[3, 4, 0, 0], [7, 0, 0, 0], [8, 9, 10, 0]]
        self.fill(row_lane=[5, 0, 2], row_start=[0, 10, 11, 31], row_kv_len=[10, 5, 24], row_sample=[1, 0, 1])
        positions = [*range(10), 4, *range(4, 24)]
        pages = [[3, 4]] * 10 + [[7]] + [[8, 9, 10]] * 20
        entries = [p[at // PAGE] * PAGE + at % PAGE for at, p in zip(positions, pages, strict=True)]
        self.fill(positions=positions, kv_index=entries, token_ids=[(7 * i) % VOCAB for i in range(31)])
        self.fill(block_table=table.reshape(-1), out_token=[9] * LANES)
        self.control(rows=3, tokens=31, step=7)

    def control(self, **values: int) -> None:
        control = np.zeros(1, STEP.dtype())
        for name, value in values.items():
            control[name] = value
        self.real.memory.write(self.real.offset("control"), control.view(np.uint8).reshape(-1))

    def fill(self, **arrays: Any) -> None:
        for name, values in arrays.items():
            self.set(name, 0, values)

    def set(self, name: str, index: int, values: Any) -> None:
        raw = np.array(values, np.int64).astype(np.int32).reshape(-1)
        self.real.memory.write(self.real.offset(name) + 4 * index, raw.view(np.uint8))

    def check(self, kind: Kind = Kind.PREFILL, size: int = TOKENS) -> tuple[int, int, int]:
        """Run first and last kernel: (rows, tokens) that the others see, and the error."""
        limits = StepLimits(rows=min(size, LANES), tokens=size, decode=kind is Kind.DECODE, **LIMITS)
        self.ops.check(limits, self.device.stream)
        self.ops.done(self.device.stream)
        self.device.synchronize()
        seen = self.checked.state.read(0, STEP.size).view(STEP.dtype())[0]
        control = self.real.read("control")[0]
        assert control["done"] == control["step"]
        return int(seen["rows"]), int(seen["tokens"]), int(control["error"])

    def close(self) -> None:
        self.bench.close()
        self.checked.close()
        self.real.close()


@pytest.fixture
def step(gpu: Any) -> Iterator[Step]:
    made = Step(gpu)
    yield made
    made.close()


def test_a_good_step_is_passed_on(step: Step) -> None:
    assert step.check() == (3, 31, 0)
    assert step.real.read("out_token").tolist() == [-1, -1, -1, 9, 9, 9]


@pytest.mark.parametrize(
    ("name", "index", "value"),
    [
        ("token_ids", 30, VOCAB), ("token_ids", 0, -1), ("positions", 3, CONTEXT), ("positions", 10, -1),
        ("positions", 12, 4), ("positions", 11, 1 << 30), ("kv_index", 5, PAGE * PAGES), ("kv_index", 5, -1),
        ("row_lane", 1, LANES), ("row_lane", 1, -1), ("row_start", 0, 1), ("row_start", 1, 99), ("row_start", 2, 10),
        ("row_start", 3, 30), ("row_start", 3, 1 << 30), ("row_start", 1, -1), ("row_kv_len", 2, 23),
        ("row_kv_len", 0, 1 << 30), ("block_table", 5 * 4 + 1, PAGES), ("block_table", 2 * 4 + 2, -1),
    ],
)  # fmt: skip
def test_a_corrupted_step_is_an_error_and_the_next_one_runs(step: Step, name: str, index: int, value: int) -> None:
    kept = step.real.read(name).reshape(-1)[index]
    step.set(name, index, value)
    assert step.check() == (0, 0, 1)
    assert step.real.read("out_token")[:3].tolist() == [-1, -1, -1]
    step.set(name, index, kept)
    assert step.check() == (3, 31, 0)


@pytest.mark.parametrize(
    ("rows", "tokens"), [(0, 0), (LANES + 1, 31), (3, TOKENS + 1), (3, 0), (3, 2), (1 << 31, 31), (2, 31), (4, 31)]
)
def test_impossible_counts(step: Step, rows: int, tokens: int) -> None:
    step.control(rows=rows, tokens=tokens, step=7)
    assert step.check() == (0, 0, 1)


def test_a_step_larger_than_its_graph_is_an_error(step: Step) -> None:
    assert step.check(size=30) == (0, 0, 1)
    assert step.check(Kind.DECODE, size=LANES) == (0, 0, 1), "decode rows have one token"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [60, 64, 2048])
def test_embedding_and_norms(gpu: Any, dtype: str, width: int) -> None:
    step, rng = Step(gpu, dtype), np.random.default_rng(1)
    step.check()
    table = rounded(rng.standard_normal((VOCAB, width)), dtype)
    weight = rng.uniform(0.5, 1.5, width).astype(np.float32)
    x, w = step.bench.put(np.full((TOKENS, width), np.nan, np.float32)), step.bench.put(weight)
    y, last = (step.bench.put(np.zeros((TOKENS, padded(width)), "u2")) for _ in range(2))
    stream, ids = gpu.stream, [(7 * i) % VOCAB for i in range(31)]
    step.ops.embed(step.bench.matrix(table, dtype), x, TOKENS, stream)
    for to, rows, only_last in ((y, TOKENS, False), (last, LANES, True)):
        step.ops.norm(
            x, w, 1e-5, to, width=width, stride=padded(width), rows=rows, stream=stream, last=only_last
        )  # fmt: skip
    gpu.synchronize()
    hidden = step.bench.get(x, (TOKENS, width))
    np.testing.assert_array_equal(hidden[:31], table[ids])
    assert (hidden[31:] == 0).all()
    expected = rms_norm(table[ids], weight, 1e-5)
    tolerance = {"rtol": 1.01 * EPSILON[dtype], "atol": 1e-6}
    got = to_numbers(step.bench.get(y, (TOKENS, padded(width)), "u2"), dtype)
    np.testing.assert_allclose(got[:31, :width], expected, **tolerance)
    assert (got[:, width:] == 0).all()
    ends = to_numbers(step.bench.get(last, (TOKENS, padded(width)), "u2"), dtype)
    np.testing.assert_allclose(ends[:3, :width], expected[[9, 10, 30]], **tolerance)
    step.close()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("head_dim", "dim", "normed"), [(16, 16, True), (24, 12, False), (128, 128, True), (96, 72, False)]
)
def test_rotation_and_the_cache(gpu: Any, dtype: str, head_dim: int, dim: int, normed: bool) -> None:
    heads, kv_heads, rng = 6, 2, np.random.default_rng(2)
    step = Step(gpu, dtype)
    step.check()
    width = (heads + 2 * kv_heads) * head_dim
    qkv = rounded(rng.standard_normal((TOKENS, width)), dtype)
    table = RopeTable(RopeSpec("default", 10000.0, dim, CONTEXT), CONTEXT)
    norms = rng.uniform(0.5, 1.5, (2, head_dim)).astype(np.float32)
    put, size = step.bench.put, PAGES * PAGE * kv_heads * head_dim
    at = step.bench.put(step_bits(qkv, dtype))
    keys, values = (put(np.zeros(size, "u2")) for _ in range(2))
    q_norm, k_norm = (put(norms[0]), put(norms[1])) if normed else (0, 0)
    rotary = Rotary(
        cos=put(table.cos), sin=put(table.sin), q_norm=q_norm, k_norm=k_norm, eps=1e-6, dim=dim, heads=heads,
        kv_heads=kv_heads, head_dim=head_dim, page_tokens=PAGE, keys=keys, values=values,
        positions=step.real.address("positions"), kv_index=step.real.address("kv_index"),
    )  # fmt: skip
    step.ops.rotate(rotary, at, width, TOKENS, gpu.stream)
    gpu.synchronize()
    q, k, v = np.split(qkv[:31].reshape(31, -1, head_dim), [heads, heads + kv_heads], axis=1)
    if normed:
        q, k = rms_norm(q, norms[0], 1e-6), rms_norm(k, norms[1], 1e-6)
    q, k = q.copy(), k.copy()
    positions, entries = step.real.read("positions")[:31], step.real.read("kv_index")[:31]
    table.rotate(q, positions)
    table.rotate(k, positions)
    tolerance = {"rtol": 1.01 * EPSILON[dtype], "atol": 2e-6}
    got = to_numbers(step.bench.get(at, (TOKENS, width), "u2"), dtype)
    np.testing.assert_allclose(got[:31, : heads * head_dim], q.reshape(31, -1), **tolerance)
    np.testing.assert_array_equal(got[31:], qkv[31:])
    for memory, expected in ((keys, k), (values, v)):
        cache = to_numbers(step.bench.get(memory, (PAGES, kv_heads, PAGE, head_dim), "u2"), dtype)
        np.testing.assert_allclose(cache[entries // PAGE, :, entries % PAGE], expected, **tolerance)
        assert np.count_nonzero(cache.any((1, 3))) == 31, "only the step's entries are written"
    step.close()


def step_bits(x: np.ndarray, dtype: str) -> np.ndarray:
    """x as 16-bit numbers, not padded."""
    from blink.engine.native.weights import to_real

    return to_real(x, dtype)


@pytest.mark.parametrize("rows", [1, 2, 8, 16, 31])
@pytest.mark.parametrize("width", [60, 576])
def test_what_a_product_does_itself_has_the_same_bits(gpu: Any, width: int, rows: int) -> None:
    """A norm before it and a rotation after it, against the kernels for these alone."""
    heads, kv_heads, head_dim, dtype, rng = 6, 2, 32, "float16", np.random.default_rng(rows)
    step, outputs = Step(gpu, dtype), (heads + 2 * kv_heads) * head_dim
    put, small, stream = step.bench.put, SmallLinear(gpu, dtype), gpu.stream
    table = RopeTable(RopeSpec("default", 10000.0, head_dim, CONTEXT), CONTEXT)
    x, weight = put(rng.standard_normal((rows, width)).astype(np.float32)), put(np.ones(width, np.float32))
    linear = Linear(step.bench.matrix(rng.standard_normal((outputs, width)) / 8, dtype), put(np.ones(outputs, "f4")))
    count, normed = put(np.array([rows], np.uint32)), put(np.zeros((rows, padded(width)), "u2"))
    step.checked.state.write(STEP.offset("tokens"), np.array([rows], np.uint32).view(np.uint8))
    step.ops.norm(x, weight, 1e-5, normed, width=width, stride=padded(width), rows=rows, stream=stream)
    made = []
    for alone in (True, False):
        size = PAGES * PAGE * kv_heads * head_dim
        qkv, keys, values = put(np.zeros((rows, outputs), "u2")), *(put(np.zeros(size, "u2")) for _ in range(2))
        rotary = replace(
            NO_ROTARY, cos=put(table.cos), sin=put(table.sin), eps=1e-6, dim=head_dim, heads=heads, kv_heads=kv_heads,
            head_dim=head_dim, page_tokens=PAGE, keys=keys, values=values, positions=step.real.address("positions"),
            kv_index=step.real.address("kv_index"),
        )  # fmt: skip
        shape = {"y_stride": outputs, "rows": rows, "count": count, "stream": stream}
        if alone:
            small.enqueue(linear, Epilogue.STORE, normed, qkv, **shape)
            step.ops.rotate(rotary, qkv, outputs, rows, stream)
        else:
            of = Norm(x, weight, 1e-5) if small.takes_norm(linear.matrix, rows) else normed
            small.enqueue(linear, Epilogue.ROTATE, of, qkv, rotary=rotary, **shape)
        gpu.synchronize()
        queries = step.bench.get(qkv, (rows, outputs), "u2")[:, : heads * head_dim]
        made.append([queries, *(step.bench.get(at, (size,), "u2") for at in (keys, values))])
    for alone, together in zip(*made, strict=True):
        assert alone.any()
        np.testing.assert_array_equal(alone, together)
    if rows <= 2:
        stored = [put(np.zeros((rows, outputs), "u2")) for _ in range(2)]
        for to, of in zip(stored, (normed, Norm(x, weight, 1e-5)), strict=True):
            small.enqueue(linear, Epilogue.SILU, of, to, **shape)
        gpu.synchronize()
        np.testing.assert_array_equal(*(step.bench.get(at, (rows, outputs), "u2") for at in stored))
    step.close()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [91, 96])
def test_swiglu_and_biases(gpu: Any, dtype: str, width: int) -> None:
    step, rng = Step(gpu, dtype), np.random.default_rng(3)
    step.check()
    both = rounded(rng.standard_normal((TOKENS, 2 * width)), dtype)
    at, to = step.bench.reals(both, dtype), step.bench.put(np.zeros((TOKENS, padded(width)), "u2"))
    bias, x = rng.standard_normal(width).astype(np.float32), rng.standard_normal((TOKENS, width)).astype(np.float32)
    wide = step.bench.put(x)
    step.ops.swiglu(
        at, to, width=width, both_stride=padded(2 * width), stride=padded(width), size=TOKENS, on=gpu.stream
    )  # fmt: skip
    gpu.synchronize()
    got = to_numbers(step.bench.get(to, (TOKENS, padded(width)), "u2"), dtype)
    gate, up = both[:31, :width].astype(np.float64), both[:31, width:]
    product = gate / (1 + np.exp(-gate)) * up
    np.testing.assert_allclose(got[:31, :width], product, rtol=1.01 * EPSILON[dtype], atol=1e-6)
    assert (got[31:] == 0).all()
    for y, stride, is_wide in ((wide, width, True), (to, padded(width), False)):
        step.ops.bias(
            y, step.bench.put(bias), wide=is_wide, width=width, stride=stride, rows=TOKENS, count=step.checked.tokens,
            stream=gpu.stream,
        )  # fmt: skip
    gpu.synchronize()
    np.testing.assert_array_equal(step.bench.get(wide, x.shape)[:31], (x + bias)[:31])
    np.testing.assert_array_equal(step.bench.get(wide, x.shape)[31:], x[31:])
    sums = to_numbers(step.bench.get(to, (TOKENS, padded(width)), "u2"), dtype)[:31, :width]
    np.testing.assert_allclose(sums, got[:31, :width] + bias, rtol=1.01 * EPSILON[dtype], atol=1e-6)
    step.close()


def test_random_weights_are_seeded(gpu: Any) -> None:
    bench = Bench(gpu)
    made = []
    for seed, name in ((1, "a"), (1, "a"), (2, "a"), (1, "b")):
        matrix = Matrix(300, 60, bench.put(np.zeros((300, 64), "u2")))
        RandomSource(gpu, seed, "float16").matrix(matrix, 0, name, 300)
        gpu.synchronize()
        made.append(to_numbers(bench.get(matrix.address, (300, 64), "u2"), "float16"))
    np.testing.assert_array_equal(made[0], made[1])
    assert (made[0][:, 60:] == 0).all()
    assert abs(made[0][:, :60].mean()) < 0.005
    assert made[0][:, :60].std() == pytest.approx(60**-0.5, rel=0.02)
    for other in made[2:]:
        assert abs(np.corrcoef(made[0][:, :60].ravel(), other[:, :60].ravel())[0, 1]) < 0.05
    bench.close()
