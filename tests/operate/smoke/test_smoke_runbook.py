"""The runbook quotes what the code says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import uvicorn.supervisors.multiprocess as uvicorn_supervisor

ROOT = Path(__file__).parents[3]
FOLDERS = ("blink", "images", "playbooks", "roles", "scripts")
SOURCE = " ".join(
    path.read_text(errors="replace")
    for folder in FOLDERS
    for path in sorted((ROOT / folder).rglob("*"))
    if path.is_file() and path.suffix not in (".pyc", ".so")
)
# It supervises the frontend's workers, and what it says of them is in the runbook too.
SOURCE += Path(uvicorn_supervisor.__file__).read_text()
# A message may be split over lines of the source: join adjacent string literals, and folded lines of YAML.
SOURCE = re.sub(r"\s+", " ", re.sub(r'"\s*\n\s*f?"', "", SOURCE))
HEADING = re.compile(r"^### `(.+)`$", re.MULTILINE)
SYMPTOMS = HEADING.findall((ROOT / "docs" / "runbook.md").read_text())


@pytest.mark.parametrize("symptom", SYMPTOMS)
def test_every_symptom_is_said_by_the_code(symptom: str) -> None:
    if symptom.startswith("state "):
        symptom = f'"{symptom.split()[1]}"'
    for part in symptom.split("…"):
        assert part.strip(" :,") in SOURCE
