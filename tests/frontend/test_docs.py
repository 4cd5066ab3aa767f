"""docs/api.md names every field."""

from __future__ import annotations

from pathlib import Path

import pytest

from blink.frontend.protocol import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody
from blink.frontend.refused import REFUSED

TEXT = (Path(__file__).parents[2] / "docs" / "api.md").read_text()
FIELDS = {f for kind in (ChatBody, CompletionBody, TokenizeBody, DetokenizeBody) for f in kind.model_fields}


@pytest.mark.parametrize("field", sorted({*FIELDS, *REFUSED} - {"stream_options"}))
def test_every_field_is_documented(field: str) -> None:
    assert f"`{field}`" in TEXT
