"""``blink bundle verify`` and ``blink bundle unpack``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from blink.bundle.manifest import Manifest
from blink.bundle.verify import check_content, check_signature, unpack
from blink.output import with_json, write_json

DESCRIPTION = """\
A set is the one file that `make bundle` writes: wheels for both halves, what Ansible needs, playbooks, the model and
the BFB that were asked for, the SHA-256 of every file, and a bill of materials.
"""

EXIT_CODES = """\
exit codes: 0 every file is as it was packed; 1 one is not, the cause and the remedy are on stderr; 2 the command line
is wrong
"""


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return str(value.get("file") or ", ".join(f"{k} {_text(v)}" for k, v in value.items()))
    return ", ".join(map(_text, value)) if isinstance(value, list) else str(value)


def render(manifest: Manifest, signer: str | None) -> str:
    """What was checked, for a person."""
    size = sum(f.bytes for f in manifest.files)
    lines = [f"{key}: {_text(value)}" for key, value in manifest.about.items()]
    lines.append(f"{len(manifest.files)} files, {size / (1 << 20):.1f} MiB, all as in the manifest")
    if signer is None:
        lines.append("the signature was not checked, so anybody may have made this: --signers FILE checks it")
    else:
        lines.append(f"signed by {signer}")
    return "\n".join(lines)


def add_commands(parser: argparse.ArgumentParser) -> None:
    """Add the actions of ``blink bundle`` to ``parser``."""
    actions = parser.add_subparsers(dest="bundle_command", required=True, metavar="ACTION")
    for name, text in (("verify", "check a set, and change nothing"), ("unpack", "check a set while unpacking it")):
        action = actions.add_parser(name, help=text, description=DESCRIPTION, epilog=EXIT_CODES)
        action.add_argument("file", type=Path, metavar="FILE", help="the .tar that make bundle wrote")
        if name == "unpack":
            action.add_argument("folder", type=Path, metavar="DIR", help="made by this; must not exist yet")
        action.add_argument(
            "--signers",
            type=Path,
            metavar="FILE",
            help="also check FILE.sig against these keys (ALLOWED SIGNERS of ssh-keygen)",
        )
        with_json(action)
        action.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the action; 0 where the set passes. Raises BlinkError where it does not."""
    signer = None if args.signers is None else check_signature(args.file, args.signers)
    manifest = unpack(args.file, args.folder) if args.bundle_command == "unpack" else check_content(args.file)
    if str(args.json) != "-":
        print(render(manifest, signer))
    if args.json is not None:
        files = [{"path": f.path, "bytes": f.bytes, "sha256": f.sha256} for f in manifest.files]
        write_json(args.json, {"file": str(args.file), "signer": signer, "about": manifest.about, "files": files})
    return 0
