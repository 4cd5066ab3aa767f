"""docs/architecture.md names every part, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "architecture.md").read_text()


def mapped(folder: str) -> set[str]:
    """The names in the first column of the table of what is in ``folder``."""
    table = TEXT.split(f"| in `{folder}/` | owns |\n")[1].split("\n\n")[0]
    return {name for row in table.splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1])}


def parts(folder: str) -> set[str]:
    """The folders in ``folder`` that have sources, and its Python files."""
    inside = [path for path in (ROOT / folder).iterdir() if path.name != "__pycache__"]
    folders = {path.name for path in inside if path.is_dir() and any(p.suffix != ".pyc" for p in path.rglob("*.*"))}
    return folders | {path.stem for path in inside if path.suffix == ".py"} - {"__init__", "__main__"}


@pytest.mark.parametrize("folder", ["blink", "kernels"])
def test_the_map_has_every_part(folder: str) -> None:
    assert mapped(folder) == parts(folder)
