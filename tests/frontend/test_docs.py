"""docs/api.md names every field."""

from __future__ import annotations

from pathlib import Path

from blink.frontend.protocol import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody
from blink.frontend.refused import REFUSED

API = Path(__file__).parents[2] / "docs" / "api.md"


def test_every_field_is_documented() -> None:
    text = API.read_text()
    fields = {field for body in (ChatBody, CompletionBody, TokenizeBody, DetokenizeBody) for field in body.model_fields}
    # The page documents what stream_options has instead.
    assert [field for field in sorted({*fields, *REFUSED} - {"stream_options"}) if f"`{field}`" not in text] == []
