"""Results that commands write for other programs."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from blink.errors import BlinkError


def with_json(parser: argparse.ArgumentParser) -> None:
    """Add ``--json``, the path that :func:`write_json` takes."""
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the result as JSON; - is stdout")


def write_text(path: Path, text: str) -> None:
    """Write ``text`` to ``path``; "-" is stdout. Raises BlinkError where that fails."""
    if str(path) == "-":
        print(text, end="")
        return
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as e:
        raise BlinkError(f"{path}: {e.strerror}", "name a file that can be written") from None


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Write ``document`` as indented JSON; see :func:`write_text`."""
    write_text(path, json.dumps(document, indent=2) + "\n")
