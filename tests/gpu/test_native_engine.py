"""The native engine against the reference engine, in any company, and with steps that cannot be run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.bindings.driver", reason="needs cuda-bindings")

from blink.engine.device.buffers import step_buffer_bytes
from blink.engine.native.memory import CODE, needs
from blink.errors import BlinkError
from blink.gpu.memory import DeviceMemory
from tests.engine.checkpoints import CONFIGS, engine_context, prompt, spec, tensors
from tests.gpu.native import DTYPES, EPSILON
from tests.gpu.native_harness import NativeHarness, rounded_tensors
from tests.gpu.native_reference import Reference

pytestmark = pytest.mark.gpu

DENSE = [n for n in CONFIGS if "moe" not in n and n != "llama-odd-sizes"]
Make = Callable[..., NativeHarness]
LARGEST, TYPICAL = 96, 24
"""Roundings by which one logit may be off, and the root mean square of all, against the logits' own. On their way
everything is rounded to 16 bits six times a layer, and the checkpoints' matrices make errors grow by half in each."""


def tolerance(expected: np.ndarray, dtype: str) -> float:
    """One rounding of a logit of ordinary size."""
    return float(EPSILON[dtype] * max(1.0, np.sqrt(np.square(expected).mean())))


def near(logits: np.ndarray, expected: np.ndarray, dtype: str = "float16") -> None:
    """What rounding explains, and no more: a wrong position, page or norm is off by as much as logits differ."""
    off, one = logits - expected, tolerance(expected, dtype)
    assert np.abs(off).max() < LARGEST * one
    assert np.sqrt(np.square(off).mean()) < TYPICAL * one


@pytest.fixture
def make(gpu: Any) -> Iterator[Make]:
    """Harnesses of a checkpoint by name."""
    made: list[NativeHarness] = []

    def one(name: str, weights: Any = None, **options: Any) -> NativeHarness:
        options = {"context": engine_context(name)} | options
        made.append(NativeHarness(gpu, spec(name), weights or tensors(name), **options))
        return made[-1]

    yield one
    for harness in made:
        harness.close()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", DENSE)
def test_logits_are_the_references(make: Make, name: str, dtype: str) -> None:
    """Prompts whole and in chunks, then decode, fed with the reference's tokens; greedy choices where it is clear."""
    weights, ids = tensors(name), prompt(name, 37)
    native = make(name, weights, dtype=dtype)
    reference = Reference(spec(name), rounded_tensors(weights, dtype), context=engine_context(name), threads=1)
    for lane, chunk in ((0, 37), (1, 9)):
        token = reference.prefill(lane, ids, chunk)
        for i in range(20):
            got = native.prefill(lane, ids, chunk) if i == 0 else native.feed({lane: [fed]})[0]  # noqa: F821
            expected = reference.last[-1]
            near(native.logits(1)[0], expected, dtype)
            assert expected.max() - expected[got] < 2 * LARGEST * tolerance(expected, dtype)
            fed = token
            token = reference.feed({lane: [fed]})[0]
    reference.engine.close()


@pytest.mark.parametrize("name", ["llama", "qwen3", "phi3-partial"])
def test_every_layer(make: Make, gpu: Any, name: str) -> None:
    """Models cut off after each layer."""
    whole, weights = spec(name), tensors(name)
    for layers in range(1, whole.layers + 1):
        cut = replace(whole, layers=layers, windows=whole.windows[:layers])
        native = NativeHarness(gpu, cut, weights)
        reference = Reference(cut, rounded_tensors(weights, "float16"), threads=1)
        for harness in (native, reference):
            harness.prefill(0, prompt(name, 21))
        near(native.logits(1), reference.last)
        native.close()
        reference.engine.close()


@pytest.mark.parametrize("rows", [2, 8, 16, 20, 32])
def test_rows_of_one_step(make: Make, rows: int) -> None:
    """Every row of a step has the logits that it should, whichever kernels do it."""
    native, reference = make("llama"), Reference(spec("llama"), rounded_tensors(tensors("llama"), "float16"), lanes=32)
    prompts = {lane: prompt("llama", 3 + lane % 5, seed=lane) for lane in range(rows)}
    for harness in (native, reference):
        harness.feed(prompts)
    for step in range(3):
        near(native.logits(rows), reference.last)
        tokens = {lane: [5 + lane + step] for lane in range(rows)}
        for harness in (native, reference):
            harness.feed(tokens)
    reference.engine.close()


def seeded(harness: NativeHarness, lane: int, seed: int) -> None:
    harness.params(lane, temperature=1.0, seed=seed)
    harness.buffers.lane_params[lane]["prompt_len"] = 12


@pytest.mark.parametrize("exact", [False, True])
def test_batch_mates_change_no_bit(make: Make, exact: bool) -> None:
    """Alone, and beside others in other lanes, pages and buckets: as far as the engine promises the same bits."""
    ids = prompt("llama", 12)
    alone = make("llama", exact=exact)
    seeded(alone, 0, 99)
    alone.bucket = 64
    expected = [alone.prefill(0, ids)]
    bits = [alone.logits(1)[0]]
    alone.bucket = 0
    for _ in range(25):
        expected += alone.feed({0: expected[-1:]})
        bits.append(alone.logits(1)[0])
    for others in (3, 12, 25) if exact else (3, 7):
        crowd = make("llama", exact=exact, seed=others)
        mates = range(others)
        seeded(crowd, 30, 99)
        for lane in mates:
            crowd.params(lane, temperature=1.0, seed=lane)
        crowd.bucket = 128 if exact else 64
        packed = {lane: prompt("llama", 1 + lane, seed=lane) for lane in (0, 1, 2)}
        token = crowd.feed(packed | {30: ids})[-1]
        np.testing.assert_array_equal(crowd.logits(4)[3], bits[0])
        for lane in mates[3:]:
            crowd.feed({lane: prompt("llama", 4, seed=lane)})
        crowd.bucket = 0
        for i in range(25):
            assert token == expected[i]
            now = {lane: [7 + (lane * i) % 60] for lane in mates[: 1 + i % others]}
            token = crowd.feed(now | {30: [token]})[-1]
            np.testing.assert_array_equal(crowd.logits(len(now) + 1)[-1], bits[i + 1])


def test_a_token_outside_the_vocabulary_is_an_error_and_the_next_step_runs(make: Make) -> None:
    native, ids = make("llama"), prompt("llama", 3)
    expected = native.feed({0: ids})
    for buffer, value in (("token_ids", 1 << 30), ("kv_index", -1), ("row_kv_len", 1 << 30), ("row_lane", 77)):
        array = getattr(native.buffers, buffer)
        kept = array[0].copy()
        array[0] = value
        native.buffers.control[0]["step"] += 1
        native.run()
        assert native.buffers.control[0]["error"] == 1
        assert native.buffers.out_token[0] == -1
        array[0] = kept
        native.buffers.control[0]["step"] += 1
        native.run()
        assert native.buffers.control[0]["error"] == 0
        assert native.buffers.out_token[0] == expected[0]


def test_a_row_that_is_not_finite_fails_alone(make: Make) -> None:
    """Token 9's embedding is broken: its row has no token, its batch-mates have theirs."""
    weights = tensors("llama")
    ids = [t for t in prompt("llama", 12) if t != 9]
    expected = make("llama", weights).feed({0: ids})
    broken = {**weights, "model.embed_tokens.weight": weights["model.embed_tokens.weight"].copy()}
    broken["model.embed_tokens.weight"][9] = np.nan
    native = make("llama", broken)
    assert native.feed({0: [5, 9, 6], 2: ids, 1: [9]}) == [-1, *expected, -1]
    native.reset(0)
    assert native.feed({0: ids}) == expected, "pages that held NaN serve the next request"


def test_it_takes_what_it_says_it_needs(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside what the driver takes for code, and what rounding adds."""
    taken, take = [], DeviceMemory.__init__  # what is free says nothing: other processes may use the GPU

    def counted(self: DeviceMemory, device: Any, size: int, what: str) -> None:
        taken.append(size)
        take(self, device, size, what)

    monkeypatch.setattr(DeviceMemory, "__init__", counted)
    harness = NativeHarness(gpu, spec("llama"), tensors("llama"))
    try:
        said = needs(spec("llama"), harness.settings)
        steps, *engine = taken
        assert steps == step_buffer_bytes(harness.settings.dims)
        assert sum(engine) == pytest.approx(sum(said.values()) - CODE, abs=1 << 14)
    finally:
        harness.close()


@pytest.mark.parametrize("name", ["qwen3-moe", "llama-odd-sizes"])
def test_what_is_not_supported_is_refused_by_name(make: Make, name: str) -> None:
    with pytest.raises(BlinkError, match=r"mixtures of experts|head_dim .* not 10"):
        make(name)


@pytest.mark.parametrize("change", ["missing", "shape", "type"])
def test_a_checkpoint_that_does_not_fit(make: Make, change: str) -> None:
    weights, name = tensors("llama"), "model.layers.1.mlp.up_proj.weight"
    match change:
        case "missing":
            del weights[name]
        case "shape":
            weights[name] = weights[name][:-1]
        case "type":
            weights[name] = weights[name].astype(np.int8)
    with pytest.raises(BlinkError, match=name):
        make("llama", weights)
