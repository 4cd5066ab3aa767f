"""Vocabularies, their recorded encodings, and chat templates from llama.cpp's sources.

They come with the source distribution of llama-cpp-python, which is fetched once (75 MB) and kept in the user's cache;
BLINK_LLAMA_CPP_MODELS names a folder to use instead.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path

VERSION = "0.3.36"


def models() -> Path:
    """The folder ``models`` of llama.cpp."""
    given = os.environ.get("BLINK_LLAMA_CPP_MODELS")
    if given:
        return Path(given)
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "blink-parity"
    root = cache / f"llama_cpp_python-{VERSION}"
    found = root / "vendor" / "llama.cpp" / "models"
    if not found.exists():
        cache.mkdir(parents=True, exist_ok=True)
        archive = cache / f"llama_cpp_python-{VERSION}.tar.gz"
        if not archive.exists():
            subprocess.run(
                [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "llama-cpp-python",
                 "--dest", cache, f"llama-cpp-python=={VERSION}"],
                check=True, timeout=600,
            )  # fmt: skip
        with tarfile.open(archive) as tar:
            wanted = [m for m in tar if "/vendor/llama.cpp/models/" in m.name]
            tar.extractall(cache, members=wanted, filter="data")
    return found
