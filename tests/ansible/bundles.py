"""Several releases of Blink, compiled once: the real bundles, and copies of them with an edited wheel."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

from tests.ansible.playbook import BIN, ROOT

HALVES = ("backend", "frontend")
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
Edits = Mapping[str, tuple[str, str]]


class Bundles:
    """Bundles of both halves for ``python``, packed from this checkout by scripts/bundle."""

    def __init__(self, root: Path, python: str = PYTHON) -> None:
        self.root, self._python, self._arch = root, python, os.uname().machine
        environment = os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}"}
        for half in HALVES:
            subprocess.run(
                [ROOT / "scripts/bundle", root / f"{half}.tar", python, self._arch, f"{half}.txt"],
                cwd=ROOT, env=environment, check=True, capture_output=True, timeout=280,
            )  # fmt: skip
        # The checkout may have changed between the two.
        shutil.copy(*(self._wheel(half) for half in HALVES))

    def _wheel(self, half: str) -> Path:
        return next((self.root / f"{half}.tar.d/wheels").glob("blink_serve-*.whl"))

    def release(self, name: str, edits: Edits | None = None) -> str:
        """A set for ``release_set``; ``edits`` are by file of the package: what, and what instead."""
        folder = self.root / name
        halves = folder / "halves"
        halves.mkdir(parents=True)
        for half in HALVES:
            wheel = self._wheel(half)
            changed = folder / wheel.name
            _edit(wheel, changed, edits or {})
            unpacked = self.root / f"{half}.tar.d"
            lines = (unpacked / "requirements.txt").read_text().splitlines()
            digest = hashlib.sha256(changed.read_bytes()).hexdigest()
            text = "\n".join([*lines[:-1], f"./wheels/{wheel.name} --hash=sha256:{digest}"]) + "\n"
            staged = folder / half
            (staged / "wheels").mkdir(parents=True)
            (staged / "requirements.txt").write_text(text)
            for file in (unpacked / "wheels").iterdir():
                (staged / "wheels" / file.name).hardlink_to(changed if file.name == wheel.name else file)
            bundle = halves / f"{half}.txt-{self._python}-{self._arch}.tar"
            subprocess.run(["tar", "-C", staged, "-cf", bundle, "requirements.txt", "wheels"], check=True, timeout=60)
            shutil.rmtree(staged)
            bundle.with_name(f"{bundle.name}.id").write_text(hashlib.sha256(text.encode()).hexdigest()[:16] + "\n")
            changed.unlink()
        return str(folder)


def _edit(wheel: Path, dest: Path, edits: Edits) -> None:
    left = dict(edits)
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(dest, "w", zipfile.ZIP_DEFLATED) as new:
        for item in old.infolist():
            data = old.read(item)
            if item.filename in left:
                what, instead = left.pop(item.filename)
                assert what in data.decode(), f"{item.filename} has no {what!r}"
                data = data.decode().replace(what, instead, 1).encode()
            new.writestr(item, data)
    assert not left, f"the package has no {', '.join(left)}"
