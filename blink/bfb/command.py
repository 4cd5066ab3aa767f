"""``blink bfb inspect`` and ``blink bfb verify``."""

from __future__ import annotations

import argparse
import re
import sys
import time
from pathlib import Path

from blink.bfb.read import BF_BUNDLE, Bfb, read_bfb
from blink.errors import BlinkError
from blink.output import with_json, write_json

DESCRIPTION = """\
A BFB is what bfb-install pushes to a BlueField card. Both actions read the file from end to end: every header, and the
CRC-32 of every image.
"""

EXIT_CODES = """\
exit codes: 0 the file is whole (verify: and can be flashed); 1 it is not, the cause and the remedy are on stderr;
2 the command line is wrong
"""


def render(bfb: Bfb) -> str:
    """The file as text for a person."""
    lines = [f"{'offset':>12} {'bytes':>12} {'crc32':>8}  image"]
    for image in bfb.images:
        header = image.header
        lines.append(f"{image.offset:>12} {header.length:>12} {header.crc32:08x}  {header.name} v{header.version}")
    lines += [f"{name}: {version}" for name, version in bfb.info]
    if bfb.trailing:
        lines.append(f"{bfb.trailing} bytes follow the last image, which a card takes for bf.cfg")
    lines.append(f"kind: {bfb.kind}: {bfb.reason}")
    lines.append(f"sha256: {bfb.sha256}")
    return "\n".join(lines)


def check(bfb: Bfb, sha256: str | None) -> None:
    """Raise BlinkError unless ``bfb`` installs an operating system, is as the vendor ships it, and has that SHA-256."""
    if bfb.kind != BF_BUNDLE:
        raise BlinkError(
            f"{bfb.path}: kind {bfb.kind}: {bfb.reason}",
            "take a BF-Bundle (bf-bundle-…), which installs the card's operating system",
        )
    if bfb.trailing:
        raise BlinkError(
            f"{bfb.path}: offset {bfb.end}: {bfb.trailing} bytes follow the last image, which a card takes for bf.cfg",
            "take the file as the vendor ships it; bfb-install adds bf.cfg by itself",
        )
    if sha256 is not None and bfb.sha256 != sha256.lower():
        raise BlinkError(
            f"{bfb.path}: its SHA-256 is {bfb.sha256}, and {sha256.lower()} is wanted",
            "take the file that was pinned, or pin this one after comparing it with the vendor's published SHA-256",
        )


class Progress:
    """One line on a terminal, rewritten once a second; nothing elsewhere."""

    def __init__(self) -> None:
        self._shown = time.monotonic()
        self._any = False

    def __call__(self, done: int, size: int) -> None:
        now = time.monotonic()
        if not sys.stderr.isatty() or (now - self._shown < 1.0 and not (self._any and done == size)):
            return
        self._shown, self._any = now, True
        print(f"\rread {done >> 20} of {size >> 20} MiB", end="\n" if done == size else "", file=sys.stderr, flush=True)


def _sha256(text: str) -> str:
    if not re.fullmatch("[0-9a-fA-F]{64}", text):
        raise argparse.ArgumentTypeError("a SHA-256 has 64 hexadecimal digits")
    return text


def add_commands(parser: argparse.ArgumentParser) -> None:
    """Add the actions of ``blink bfb`` to ``parser``."""
    actions = parser.add_subparsers(dest="bfb_command", required=True, metavar="ACTION")
    for name, text in (
        ("inspect", "list what is in a file"),
        ("verify", "also refuse what must not be flashed"),
    ):
        action = actions.add_parser(
            name,
            help=text,
            description=DESCRIPTION
            + (
                "It is refused when it is damaged or truncated, holds firmware alone, carries bytes after its last "
                "image, or has another SHA-256."
                if name == "verify"
                else ""
            ),
            epilog=EXIT_CODES,
        )
        action.add_argument("file", type=Path, metavar="FILE")
        with_json(action)
        if name == "verify":
            action.add_argument("--sha256", type=_sha256, metavar="HEX", help="what the whole file must hash to")
        action.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the action; 0 where the file passes. Raises BlinkError with offset and image where it does not."""
    bfb = read_bfb(args.file, Progress())
    if args.bfb_command == "verify":
        check(bfb, args.sha256)
    if str(args.json) != "-":
        print(render(bfb))
    if args.json is not None:
        write_json(args.json, bfb.document())
    return 0
