"""Linear layers on a GPU: every kernel against NumPy, and the same bits whatever the number of rows."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.bindings.driver", reason="needs cuda-bindings")

from blink.engine.native.cublaslt import CublasLt
from blink.engine.native.layout import Epilogue
from blink.engine.native.linear import SmallLinear
from blink.engine.native.shape import Matrix, padded
from blink.engine.native.weights import Linear
from tests.gpu.native import DTYPES, EPSILON, Bench, rounded, to_numbers

pytestmark = pytest.mark.gpu

SHAPES = [(96, 64), (200, 576), (317, 60), (1536, 4096)]
ROWS = (1, 3, 8, 9, 16, 20, 32, 33, 70)


class Products(Bench):
    """Device memory of one test, and the kernels by dtype."""

    def __init__(self, device: Any, kernels: dict[str, SmallLinear]) -> None:
        super().__init__(device)
        self.kernels = kernels


@pytest.fixture(scope="module")
def kernels(gpu: Any) -> dict[str, SmallLinear]:
    """Loaded once, which takes long under compute-sanitizer."""
    return {dtype: SmallLinear(gpu, dtype) for dtype in DTYPES}


@pytest.fixture
def bench(gpu: Any, kernels: dict[str, SmallLinear]) -> Iterator[Products]:
    made = Products(gpu, kernels)
    yield made
    made.close()


def run(
    bench: Products, dtype: str, w: Matrix, x: np.ndarray, epilogue: Epilogue, *, bias: np.ndarray | None = None,
    bucket: int | None = None, start: np.ndarray | None = None,
) -> np.ndarray:  # fmt: skip
    """What the kernels for ``bucket`` rows make of x; f32 [rows, outputs]. ``start`` is what y has before."""
    rows, silu = len(x), epilogue is Epilogue.SILU
    outputs = w.outputs // 2 if silu else w.outputs
    wide = epilogue in (Epilogue.RESIDUAL, Epilogue.LOGITS)
    stride = outputs if wide else padded(outputs)
    y = (
        np.full((bucket or rows, stride), np.nan, np.float32)
        if wide
        else np.full((bucket or rows, stride), 0x7FFF, "u2")
    )
    if start is not None:
        y[:rows] = start
    at, count = bench.put(y), bench.put(np.array([rows], np.uint32))
    linear = Linear(w, 0 if bias is None else bench.put(bias))
    full = np.full((bucket or rows, x.shape[1]), np.nan, np.float32)
    full[:rows] = x
    bench.kernels[dtype].enqueue(
        linear, epilogue, bench.reals(full, dtype), at, y_stride=stride, rows=bucket or rows, count=count,
        stream=bench.device.stream,
    )  # fmt: skip
    bench.device.synchronize()
    out = bench.get(at, y.shape, y.dtype)
    untouched = out[rows:]
    assert np.isnan(untouched).all() if wide else (untouched == 0x7FFF).all(), "rows past the last were written"
    got = out[:rows, :outputs]
    return got if wide else to_numbers(got, dtype)


@cache
def weights(outputs: int, inputs: int, dtype: str) -> np.ndarray:
    rng = np.random.default_rng(outputs * inputs)
    return rounded(rng.standard_normal((outputs, inputs)) * inputs**-0.5, dtype)


def case(outputs: int, inputs: int, rows: int, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(rows).standard_normal((rows, inputs))
    return weights(outputs, inputs, dtype), rounded(x, dtype)


def close(got: np.ndarray, expected: np.ndarray, dtype: str, roundings: int = 1) -> None:
    """Sums in float32 of exact products are off by 1e-5 here; what is stored in 16 bits, by its rounding as well."""
    np.testing.assert_allclose(got, expected, rtol=roundings * EPSILON[dtype], atol=2e-5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("rows", ROWS)
def test_products(bench: Products, dtype: str, shape: tuple[int, int], rows: int) -> None:
    w, x = case(*shape, rows, dtype)
    exact, matrix = x.astype(np.float64) @ w.astype(np.float64).T, bench.matrix(w, dtype)
    close(run(bench, dtype, matrix, x, Epilogue.STORE), exact, dtype)
    np.testing.assert_allclose(run(bench, dtype, matrix, x, Epilogue.LOGITS), exact, atol=2e-5)
    bias = np.linspace(-1, 1, len(w), dtype=np.float32)
    start = np.arange(exact.size, dtype=np.float32).reshape(exact.shape) / exact.size
    added = run(bench, dtype, matrix, x, Epilogue.RESIDUAL, bias=bias, start=start)
    np.testing.assert_allclose(added, start + exact + bias, atol=2e-5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(192, 64), (182, 60), (1024, 4096)], ids=str)
@pytest.mark.parametrize("rows", ROWS)
def test_swiglu(bench: Products, dtype: str, shape: tuple[int, int], rows: int) -> None:
    w, x = case(*shape, rows, dtype)
    bias = np.linspace(-1, 1, len(w), dtype=np.float32)
    both = x.astype(np.float64) @ w.astype(np.float64).T + bias
    gate, up = np.split(both, 2, axis=1)
    got = run(bench, dtype, bench.matrix(w, dtype), x, Epilogue.SILU, bias=bias)
    close(got, gate / (1 + np.exp(-gate)) * up, dtype)


@pytest.mark.parametrize("epilogue", [e for e in Epilogue if e is not Epilogue.ROTATE])
@pytest.mark.parametrize("shape", [(200, 576), (1536, 4096)], ids=str)
def test_a_row_has_the_same_bits_in_any_company(bench: Products, shape: tuple[int, int], epilogue: Epilogue) -> None:
    w, x = case(*shape, 70, "float16")
    matrix = bench.matrix(w, "float16")
    outputs = len(w) // 2 if epilogue is Epilogue.SILU else len(w)
    start = np.ones((70, outputs), np.float32) if epilogue is Epilogue.RESIDUAL else None

    def some(rows: slice, bucket: int) -> np.ndarray:
        at = None if start is None else start[rows]
        return run(bench, "float16", matrix, x[rows], epilogue, bucket=bucket, start=at)

    alone = np.concatenate([some(slice(i, i + 1), 1) for i in range(20)])
    for last, bucket in ((8, 8), (20, 32), (16, 16), (3, 16), (12, 64), (70, 70)):
        np.testing.assert_array_equal(some(slice(0, last), bucket)[:20], alone[:last])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(96, 64), (200, 576), (1536, 4096)], ids=str)
@pytest.mark.parametrize("rows", [33, 64, 200, 2048])
def test_products_of_many_rows(bench: Products, dtype: str, shape: tuple[int, int], rows: int) -> None:
    w, x = case(*shape, rows, dtype)
    exact = x.astype(np.float64) @ w.astype(np.float64).T
    cublas = CublasLt(bench.device, dtype)
    matrix, at = bench.matrix(w, dtype), bench.reals(x, dtype)
    stored, added = bench.put(np.zeros((rows, padded(len(w))), "u2")), bench.put(np.ones(exact.shape, np.float32))
    stream = bench.device.stream
    cublas.multiply(matrix, at, stored, rows=rows, y_stride=padded(len(w)), stream=stream)
    cublas.multiply(matrix, at, added, rows=rows, y_stride=len(w), wide=True, add=True, stream=stream)
    bench.device.synchronize()
    close(to_numbers(bench.get(stored, (rows, padded(len(w))), "u2")[:, : len(w)], dtype), exact, dtype)
    np.testing.assert_allclose(bench.get(added, exact.shape), exact + 1, atol=4e-5)
    cublas.close()


@pytest.mark.parametrize("dtype", DTYPES)
def test_algorithms_are_chosen_once_and_kept(bench: Products, dtype: str, tmp_path: Path) -> None:
    """By time, so a choice is not to be foretold; but what was chosen multiplies rightly, and again after a restart."""
    rows, file = 40, tmp_path / "products.json"
    w, x = case(1536, 4096, rows, dtype)
    exact = x.astype(np.float64) @ w.astype(np.float64).T
    matrices, at = [bench.matrix(w, dtype), bench.matrix(rounded(-w, dtype), dtype)], bench.reals(x, dtype)
    y = bench.put(np.zeros(exact.shape, np.float32))

    def product(cublas: CublasLt) -> np.ndarray:
        cublas.multiply(matrices[0], at, y, rows=rows, y_stride=len(w), wide=True, stream=bench.device.stream)
        bench.device.synchronize()
        return bench.get(y, exact.shape)

    first = CublasLt(bench.device, dtype, file)
    product(first)
    first.tune(matrices, at, y, rows=rows, y_stride=len(w), wide=True, add=True)
    assert not file.exists()
    first.choices.save()
    chosen, got = file.read_text(), product(first)
    np.testing.assert_allclose(got, exact, atol=4e-5)
    first.close()
    again = CublasLt(bench.device, dtype, file)
    again.tune(matrices, at, y, rows=rows, y_stride=len(w), wide=True, add=True)
    again.choices.save()
    assert file.read_text() == chosen
    np.testing.assert_array_equal(product(again), got)
    again.close()
