"""The engine against recorded answers of transformers (data/references.json; `make parity` compares live)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from blink.model.spec import ModelSpec
from tests.engine.checkpoints import CONFIGS, engine_context, spec, tensors
from tests.engine.harness import Harness

RECORD = json.loads((Path(__file__).parent / "data/references.json").read_text())


def test_every_architecture_is_recorded():
    assert set(RECORD["architectures"]) == set(CONFIGS)


@pytest.mark.parametrize("chunk", [None, 3])
@pytest.mark.parametrize("name", CONFIGS)
def test_architecture(name, chunk):
    case = RECORD["architectures"][name]
    h = Harness(spec(name), tensors(name), context=engine_context(name), threads=1)
    assert h.generate(0, case["prompt"], len(case["tokens"]), chunk) == case["tokens"]


@pytest.mark.parametrize("name", CONFIGS)
def test_logits(name):
    case = RECORD["architectures"][name]
    h = Harness(spec(name), tensors(name), context=engine_context(name), threads=1)
    seen = []
    logits = h.engine.model.logits
    h.engine.model.logits = lambda x: seen.append(logits(x)) or seen[-1]
    h.prefill(0, case["prompt"])
    np.testing.assert_allclose(seen[0][0, : len(case["logits"])], case["logits"], rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("case", RECORD["smollm2"], ids=lambda c: c["text"].split()[0])
def test_smollm2(smollm2_engine, case):
    smollm2_engine.reset(0)
    assert smollm2_engine.generate(0, case["prompt"], len(case["tokens"])) == case["tokens"]


def test_smollm2_is_what_was_recorded(smollm2):
    assert ModelSpec.from_config(smollm2.config).parameters() == 134_515_008
    for case in RECORD["smollm2"]:
        assert smollm2.tokenizer().encode(case["text"]) == case["prompt"]
