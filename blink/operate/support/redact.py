"""Taking secrets out of text: the appliance's own by their value, others by their form."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

MASK = "[removed]"
# Shorter values would mask ordinary words.
_SHORTEST = 6

_FORMS = tuple(
    re.compile(pattern, flags)
    for pattern, flags in (
        (r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY-----|\Z)", re.DOTALL),
        # Password hashes (crypt), as in bf.cfg and /etc/shadow.
        (r"\$(?:1|5|6|7|y|gy|sha1|2[abxy]?|argon2\w*|scrypt)\$[^\s:'\"]+", 0),
        # What follows such a name up to the end of the line; a value may have blanks.
        (r"(?i)(?<=authorization: )[^\n]+", 0),
        (r"(?i)\bbearer\s+[^\s'\"]+", 0),
        (r"(?i)(?:pass(?:word|wd|phrase)?|secret|(?:auth|access|api|hf)[-_]?token|api[-_]?key|ring[-_]?key|private[-_]?key|credential)s?"
         r"['\"]?\s*[=:]\s*(?:'[^'\n]*'|\"[^\"\n]*\"|[^\s,;}\]]+)", 0),
        (r"(?i)(?<=://)[^\s/@:]+:[^\s/@]+(?=@)", 0),
        # 64 hexadecimal digits or more are a key, or a hash that is no loss.
        (r"\b[0-9a-fA-F]{64,}\b", 0),
    )
)  # fmt: skip


def secrets_in(files: Iterable[Path]) -> list[str]:
    """The values that must not get out: every line of ``files`` that is long enough; unreadable files give none."""
    found: set[str] = set()
    for file in files:
        try:
            lines = file.read_text(errors="replace").splitlines()
        except OSError:
            continue
        found |= {line.strip() for line in lines if len(line.strip()) >= _SHORTEST and not line.startswith("-----")}
    return sorted(found, key=len, reverse=True)


def clean(text: str, secrets: Iterable[str]) -> str:
    """``text`` without ``secrets`` and without anything that has the form of one."""
    for secret in secrets:
        text = text.replace(secret, MASK)
    for form in _FORMS:
        text = form.sub(MASK, text)
    return text
