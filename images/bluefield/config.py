"""Rendering bf.cfg."""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
from pathlib import Path

import jinja2

from blink.errors import BlinkError
from images.bluefield.settings import Settings

TEMPLATE = Path(__file__).with_name("bf.cfg.j2")
#: The vendor's scripts take no larger one.
MOST_BYTES = 128 << 10


def template_sha256() -> str:
    """What identifies the template, free of any secret; a card records it in /etc/blink-image.json."""
    return hashlib.sha256(TEMPLATE.read_bytes()).hexdigest()


def render(settings: Settings) -> str:
    """The bf.cfg of a card. Raises BlinkError where the vendor's scripts would not take it."""
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 - shell, not HTML; every value has the form that settings.py demands
    )
    environment.filters["quote"] = shlex.quote
    text = environment.from_string(TEMPLATE.read_text()).render(card=settings, template_sha256=template_sha256())
    if len(text.encode()) > MOST_BYTES:
        raise BlinkError(
            f"bf.cfg of {settings.hostname}: {len(text.encode())} bytes, and a card takes {MOST_BYTES}",
            "give fewer authorized_keys",
        )
    # The installer ignores a file that bash cannot parse, and the card would come up with nothing of ours.
    parsed = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True, check=False, timeout=60)
    if parsed.returncode:
        raise BlinkError(f"bf.cfg of {settings.hostname}: bash cannot parse it", "this is a defect of images/bluefield")
    return text


def write_private(path: Path, text: str) -> None:
    """Write ``text`` to ``path`` with mode 0600, from its first byte on."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
