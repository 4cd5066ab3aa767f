"""The operator's tools for an appliance that is there: is it well, what does it do, out of service and back."""

from __future__ import annotations

import argparse
from pathlib import Path

from blink.cli.command import Commands, with_config
from blink.errors import BlinkError
from blink.output import with_json


def smoke(commands: Commands) -> None:
    """``blink smoke``."""
    parser = commands.add_parser(
        "smoke",
        help="check every hop of a running appliance",
        description="Check every hop of a running appliance, as a user of it would: ring, slot, model, HTTP. Exits "
        "with 1 when a check fails, and says which hop failed and the likely cause.",
    )
    with_config(parser, required=False)
    with_json(parser)
    parser.add_argument("--junit", type=Path, metavar="FILE", help="also write the result as JUnit XML")
    parser.add_argument("--only", action="append", metavar="NAME", help="run this check only; may be repeated")
    parser.add_argument(
        "--rounds", type=_rounds, default=1000, metavar="N", help="rounds of check rdma-order (1000); up to 10**9"
    )
    parser.add_argument("--list", action="store_true", help="name the checks and exit")
    parser.set_defaults(run=_smoke)


def _rounds(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a number of rounds")
    return int(text)


def _smoke(args: argparse.Namespace) -> int:
    from blink.config import load_config
    from blink.operate.smoke.main import list_checks, run

    if args.list:
        return list_checks()
    if args.config is None:
        raise BlinkError("smoke needs the appliance's configuration", "name it with --config FILE")
    return run(load_config(args.config), only=args.only, json_path=args.json, junit_path=args.junit, rounds=args.rounds)


def support_bundle(commands: Commands) -> None:
    """``blink support-bundle``."""
    parser = commands.add_parser(
        "support-bundle",
        help="gather what helps to find out what is wrong, without secrets",
        description="Write one file with versions, configuration, status, the table of smoke, logs of the last day, "
        "and what GPU, RDMA and card say of themselves. Keys, password hashes and their like are left out or masked.",
    )
    with_config(parser, required=False)
    parser.add_argument("--output", type=Path, metavar="FILE", help="a new .tar.gz; default: one in this folder")
    parser.add_argument("--since", default="24 hours ago", metavar="TIME", help="of logs, as journalctl takes it")
    parser.add_argument("--no-smoke", action="store_true", help="send the appliance no requests")
    parser.set_defaults(run=_support_bundle)


def _support_bundle(args: argparse.Namespace) -> int:
    from blink.operate.support.collect import run

    return run(args.config, args.output, args.since, smoke=not args.no_smoke)


def status(commands: Commands) -> None:
    """``blink status``."""
    parser = commands.add_parser(
        "status",
        help="what the backend is doing, read from the ring",
        description="Read the ring's header and print what the backend is doing. Exits with 1 when it is down or "
        "stalled.",
    )
    with_config(parser)
    with_json(parser)
    parser.set_defaults(run=_status)


def _status(args: argparse.Namespace) -> int:
    from blink.config import load_config
    from blink.operate.status import run

    return run(load_config(args.config), json_path=args.json)


def wait(commands: Commands) -> None:
    """``blink wait``."""
    parser = commands.add_parser("wait", help="return once a half of the appliance serves")
    parser.add_argument("half", choices=["backend", "frontend"])
    with_config(parser)
    parser.add_argument("--timeout", type=float, default=60.0, metavar="S", help="seconds until it fails (60)")
    parser.set_defaults(run=_wait)


def _wait(args: argparse.Namespace) -> int:
    from blink.config import load_config
    from blink.operate.wait import wait

    if args.half == "backend":
        from blink.operate.status import backend_trouble as trouble
    else:  # with httpx, which a GPU host lacks
        from blink.operate.http import frontend_trouble as trouble
    return wait(args.half, load_config(args.config), trouble, args.timeout)


def drain(commands: Commands) -> None:
    """``blink drain``."""
    parser = commands.add_parser(
        "drain",
        help="take the appliance out of service, and return once no request runs",
        description="Make GET /ready answer 503, so that load balancers send no new requests, and wait until none "
        "runs. What still comes meanwhile is served. It lasts over restarts, until `blink undrain`.",
    )
    what = parser.add_mutually_exclusive_group(required=True)
    with_config(what, required=False)
    what.add_argument(
        "--mark", type=Path, metavar="DIR", help="of the run directory DIR, which has no configuration yet; do not wait"
    )
    parser.add_argument("--reason", default="an operator's command", metavar="TEXT", help="what GET /ready says")
    parser.add_argument(
        "--settle", type=float, default=5.0, metavar="S", help="seconds that load balancers need to notice (5)"
    )
    parser.add_argument("--timeout", type=float, default=600.0, metavar="S", help="seconds until it gives up (600)")
    parser.set_defaults(run=_drain)


def _drain(args: argparse.Namespace) -> int:
    from blink.config import load_config
    from blink.operate.drain import drain, mark

    if args.mark is not None:
        mark(args.mark, args.reason)
        return 0
    return drain(load_config(args.config), reason=args.reason, settle_s=args.settle, timeout_s=args.timeout)


def undrain(commands: Commands) -> None:
    """``blink undrain``."""
    parser = commands.add_parser("undrain", help="take requests again")
    with_config(parser)
    parser.set_defaults(run=_undrain)


def _undrain(args: argparse.Namespace) -> int:
    from blink.config import load_config
    from blink.operate.drain import undrain

    return undrain(load_config(args.config))
