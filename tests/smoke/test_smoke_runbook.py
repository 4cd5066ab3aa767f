"""The runbook quotes what the code says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = " ".join(path.read_text() for path in sorted((ROOT / "blink").rglob("*.py")))
# A message may be split over lines of the source: join adjacent string literals.
SOURCE = re.sub(r'"\s*\n\s*f?"', "", SOURCE)
HEADING = re.compile(r"^### `(.+)`$", re.MULTILINE)
SYMPTOMS = HEADING.findall((ROOT / "docs" / "runbook.md").read_text())


@pytest.mark.parametrize("symptom", SYMPTOMS)
def test_every_symptom_is_said_by_the_code(symptom: str) -> None:
    if symptom.startswith("state "):
        symptom = f'"{symptom.split()[1]}"'
    for part in symptom.split("…"):
        assert part.strip(" :,") in SOURCE
