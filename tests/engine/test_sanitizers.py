"""The compiled operations under AddressSanitizer with UndefinedBehaviorSanitizer, and under ThreadSanitizer."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_no_sanitizer_complains(tmp_path, sanitizer):
    program = tmp_path / "check"
    flags = ["-std=c++20", "-O1", "-g", "-ffp-contract=fast", f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all"]
    source = [f"-I{HERE.parents[1] / 'kernels'}", HERE / "cpu_engine_check.cpp", "-pthread", "-o", program]
    subprocess.run(["g++", *flags, *source], check=True, timeout=120)
    # ThreadSanitizer of this age needs a fixed address layout.
    done = subprocess.run(["setarch", "-R", program], check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "106 checks good\n"
    assert "WARNING" not in done.stderr
