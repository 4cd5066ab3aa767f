"""The frontend runs where neither the backend nor what loads weights is installed."""

from __future__ import annotations

import subprocess
import sys

ONLY_ELSEWHERE = ("safetensors", "gguf", "huggingface_hub", "httpx", "openai", "torch")


def test_the_frontend_needs_nothing_of_the_backend() -> None:
    code = (
        "import sys\n"
        f"for name in {ONLY_ELSEWHERE}: sys.modules[name] = None\n"
        "import blink.frontend.server\n"
        "print([m for m in sys.modules if m.startswith(('blink.backend', 'blink.engine'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout.strip(), done.returncode) == ("[]", 0), done.stderr
