"""The processes of an appliance: backend, ringd, frontend."""

from __future__ import annotations

import argparse
from pathlib import Path

from blink.cli.command import Commands, with_config
from blink.errors import BlinkError


def backend(commands: Commands) -> None:
    """``blink backend``."""
    parser = commands.add_parser(
        "backend",
        help="load the model and serve the ring",
        description="Load the model, create the ring and serve it. SIGTERM and SIGINT finish what runs, refuse what "
        "waits and stop after [engine] drain_timeout_s; a second signal stops at once.",
    )
    with_config(parser)
    parser.add_argument("--check", action="store_true", help="only say whether this machine could, and what it takes")
    parser.add_argument(
        "--prepare",
        action="store_true",
        help="capture, inspect and try every graph of a GPU engine, write their manifest, and exit; does nothing where "
        "it is up to date, which --check with this only reports",
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="with --prepare --check: also write what differs as JSON; - is stdout"
    )
    parser.set_defaults(run=_backend)


def _backend(args: argparse.Namespace) -> int:
    from blink.backend.server import check, inspect_graphs
    from blink.backend.server import main as serve
    from blink.config import load_config

    if args.json is not None and not (args.prepare and args.check):
        raise BlinkError("--json has nothing to write", "give it with --prepare --check")
    if args.prepare:
        return inspect_graphs(load_config(args.config), check=args.check, json_path=args.json)
    return (check if args.check else serve)(load_config(args.config))


def ringd(commands: Commands) -> None:
    """``blink ringd``."""
    parser = commands.add_parser(
        "ringd",
        help="own the ring's RDMA registrations and queue pairs",
        description="Own the registrations and queue pairs of the ring that the backend of the same configuration "
        "announces, and let authenticated frontends connect to it. It runs beside the backend, where ring.transport "
        "is verbs.",
    )
    with_config(parser)
    parser.set_defaults(run=_ringd)


def _ringd(args: argparse.Namespace) -> int:
    from blink.config import load_config
    from blink.ringd.server import main as serve

    return serve(load_config(args.config))


def frontend(commands: Commands) -> None:
    """``blink frontend``."""
    parser = commands.add_parser("frontend", help="serve the OpenAI-compatible HTTP API")
    with_config(parser)
    parser.set_defaults(run=_frontend)


def _frontend(args: argparse.Namespace) -> int:
    from blink.config import load_config
    from blink.frontend.server import main as serve

    return serve(load_config(args.config))
