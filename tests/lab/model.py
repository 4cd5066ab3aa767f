"""The lab's model: python -m tests.lab.model FOLDER

The tests' random checkpoint, prepared, with answers that transformers recorded, so that the golden check of the smoke
tests compares two implementations here too. To record them again, prepare FOLDER, then follow scripts/record_golden.py.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from blink.errors import BlinkError
from blink.model.manifest import read_manifest
from blink.operate.smoke.golden import FOLDER_FILE, find_golden
from tests.tiny_model import prepare_tiny

SEED = 2  # of several, the one whose greedy answers have the clearest leads
GOLDEN = Path(__file__).parent / "golden.json"


def make(folder: Path) -> None:
    """Prepare the model in ``folder``, which is replaced. BlinkError where the recorded answers are for another one."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        prepared = prepare_tiny(Path(scratch), seed=SEED)
        shutil.copy(GOLDEN, prepared / FOLDER_FILE)
        find_golden(prepared, bytes.fromhex(read_manifest(prepared).fingerprint))
        shutil.rmtree(folder, ignore_errors=True)
        prepared.rename(folder)


if __name__ == "__main__":
    try:
        make(Path(sys.argv[1]))
    except BlinkError as error:
        sys.exit(str(error))
