"""Make what a BlueField card is flashed with."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from blink.errors import BlinkError
from images.bluefield.build import build, pinned_sha256
from images.bluefield.config import render, template_sha256, write_private
from images.bluefield.embed import embed
from images.bluefield.settings import Settings, parse

EPILOG = """\
SETTINGS is a JSON object; docs/images.md lists its fields. It and bf.cfg hold secrets.

exit codes: 0 done; 1 the cause and the remedy are on stderr; 2 the command line is wrong
"""

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def _settings(path: Path) -> Settings:
    try:
        return parse(sys.stdin.read() if str(path) == "-" else path.read_text())
    except OSError as e:
        raise BlinkError(f"{path}: {e.strerror}", "name a file of settings that can be read") from None


def config(commands: Commands) -> None:
    """``config``."""
    parser = commands.add_parser("config", help="render the bf.cfg of a card")
    parser.add_argument("--settings", type=Path, default=Path("-"), metavar="FILE", help="default: standard input")
    parser.add_argument("--output", type=Path, metavar="FILE", help="with mode 0600; default: standard output")
    parser.add_argument("--template-hash", action="store_true", help="only print what identifies the template")
    parser.set_defaults(run=_config)


def _config(args: argparse.Namespace) -> None:
    if args.template_hash:
        print(template_sha256())
        return
    text = render(_settings(args.settings))
    if args.output is None:
        print(text, end="")
    else:
        write_private(args.output, text)


def _with_sha256(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sha256", metavar="HEX", help="of the vendor's file; default: images/bluefield/manifest.toml")


def embedding(commands: Commands) -> None:
    """``embed``."""
    parser = commands.add_parser("embed", help="put a release of the frontend into a BFB")
    parser.add_argument("--bfb", type=Path, required=True, metavar="FILE", help="as the vendor ships it")
    _with_sha256(parser)
    parser.add_argument("--bundle", type=Path, required=True, metavar="TAR", help="from scripts/bundle, for aarch64")
    parser.add_argument(
        "--output", type=Path, required=True, metavar="FILE", help="and FILE.json, which says what it is"
    )
    parser.set_defaults(run=_embed)


def _embed(args: argparse.Namespace) -> None:
    origin = embed(args.bfb, pinned_sha256(args.sha256), args.bundle, args.output)
    print(f"{args.output}: release {origin.release}, sha256 {origin.sha256}")


def building(commands: Commands) -> None:
    """``build``."""
    parser = commands.add_parser("build", help="check a BFB and write all else that a card is flashed with")
    parser.add_argument("--bfb", type=Path, required=True, metavar="FILE", help="the vendor's, or what embed wrote")
    _with_sha256(parser)
    parser.add_argument("--settings", type=Path, required=True, metavar="FILE", help="- is standard input")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR")
    parser.add_argument("--any-platform", action="store_true", help="take another version than manifest.toml names")
    parser.set_defaults(run=_build)


def _build(args: argparse.Namespace) -> None:
    build(_settings(args.settings), args.bfb, args.sha256, args.output, any_platform=args.any_platform)
    print(f"{args.output}: bf.cfg, known_hosts, manifest.json")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    top = argparse.ArgumentParser(
        prog="python -m images.bluefield",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for add in (config, embedding, building):
        add(commands)
    args = top.parse_args(argv)
    try:
        args.run(args)
    except BlinkError as e:
        print(f"images: {e}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
