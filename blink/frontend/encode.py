"""JSON of an event: one line, also for readers that end lines where Unicode would.

Server-sent events end lines at CR and LF alone, but clients that use ``str.splitlines``, as httpx does, would cut a
text with another separator in it in two.
"""

from __future__ import annotations

import json
from typing import Any

_SEPARATORS = {code: f"\\u{code:04x}" for code in (0x85, 0x2028, 0x2029)}  # JSON escapes those below 0x20 itself
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def dumps(value: Any) -> str:
    """``value`` as JSON without spaces or line separators; other characters as they are."""
    text = _encode(value)
    return text if text.isascii() else text.translate(_SEPARATORS)
