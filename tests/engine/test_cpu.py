"""The compiled operations against NumPy in float64."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from blink.engine.reference.cpu import Cpu
from blink.engine.reference.linear import Linear


@pytest.fixture(scope="module", params=[1, 2, 5])
def cpu(request):
    c = Cpu(request.param)
    yield c
    c.close()


def matrix(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(("outputs", "inputs"), [(1, 1), (16, 8), (17, 33), (95, 64), (640, 128)])
@pytest.mark.parametrize("cuts", [(), (5,), (16,), (3, 40)])
def test_linear(cpu, outputs, inputs, cuts):
    rng = np.random.default_rng(outputs)
    w, bias, x = matrix(rng, outputs, inputs), matrix(rng, outputs), matrix(rng, 23, inputs)
    linear = Linear(outputs, inputs, cpu)
    edges = [0, *[c for c in cuts if c < outputs], outputs]
    for a, b in itertools.pairwise(edges):
        linear.fill(a, w[a:b])
    linear.bias = bias
    y = linear(x)
    np.testing.assert_allclose(y, x.astype(np.float64) @ w.T.astype(np.float64) + bias, rtol=1e-5, atol=1e-4)
    for rows in range(1, 14):
        assert np.array_equal(linear(x[3 : 3 + rows]), y[3 : 3 + rows]), "the same bits for any number of rows"
    index = np.array([outputs - 1, 0, outputs // 2], np.int32)
    assert np.array_equal(linear.rows(index), w[index])


def test_linear_takes_a_strided_input(cpu):
    rng = np.random.default_rng(0)
    linear = Linear(20, 12, cpu)
    linear.fill(0, matrix(rng, 20, 12))
    x = matrix(rng, 5, 24)[:, ::2]
    assert np.array_equal(linear(x), linear(x.copy()))


@pytest.mark.parametrize("dim", [8, 16, 24, 64])
@pytest.mark.parametrize("window", [0, 1, 7])
def test_attend(cpu, dim, window):
    rng = np.random.default_rng(dim)
    heads, kv_heads, page_tokens = 6, 2, 4
    tables = rng.permutation(16).astype(np.int32).reshape(2, 8)
    keys, values = matrix(rng, 64, kv_heads, dim), matrix(rng, 64, kv_heads, dim)
    positions = np.array([30, 0, 3, 4, 5, 17], np.int32)
    rows = np.array([0, 1, 1, 1, 1, 0], np.int32)
    q = matrix(rng, len(rows), heads, dim)
    got = cpu.attend(
        q, keys, values, positions=positions, rows=rows, tables=tables, page_tokens=page_tokens, window=window
    )  # fmt: skip
    for t, (row, p) in enumerate(zip(rows, positions, strict=True)):
        seen = np.arange(max(0, p - window + 1) if window else 0, p + 1)
        entries = tables[row, seen // page_tokens] * page_tokens + seen % page_tokens
        for h in range(heads):
            k, v = (a[entries, h // 3].astype(np.float64) for a in (keys, values))
            s = np.exp(k @ q[t, h] / np.sqrt(dim))
            np.testing.assert_allclose(got[t, h], (s / s.sum()) @ v, rtol=1e-5, atol=1e-5)


def test_attend_survives_large_scores(cpu):
    one = np.ones((1, 1), np.int32)
    zero = np.zeros(1, np.int32)
    keys = np.full((4, 1, 8), 100, np.float32)
    keys[0] *= -1
    values = np.arange(32, dtype=np.float32).reshape(4, 1, 8)
    q = np.full((1, 1, 8), 100, np.float32)
    got = cpu.attend(q, keys, values, positions=zero + 1, rows=zero, tables=0 * one, page_tokens=4, window=0)
    assert np.array_equal(got[0, 0], values[1, 0])


def test_a_pool_serves_many_short_loops():
    """Loops of every size, back to back, with helpers that are awake, asleep and late."""
    c = Cpu(4)
    rng = np.random.default_rng(1)
    x = matrix(rng, 3, 7)
    for outputs in [*range(1, 200, 13)] * 20:
        linear = Linear(outputs, 7, c)
        w = matrix(rng, outputs, 7)
        linear.fill(0, w)
        np.testing.assert_allclose(linear(x), x @ w.T, rtol=1e-4, atol=1e-5)
    c.close()
