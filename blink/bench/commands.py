"""The commands ``blink bench …``, the instruments' among them; each imports what it needs when it runs."""

# ruff: noqa: PLC0415
from __future__ import annotations

import argparse
from pathlib import Path

from blink.errors import BlinkError
from blink.instruments.commands import Commands, engine, kernels, ring, scheduler
from blink.output import with_json


def _with_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="the appliance's TOML file")


def local(commands: Commands) -> None:
    """``blink bench local``."""
    parser = commands.add_parser(
        "local",
        help="tokens per second and latencies, one stream beside eight",
        description="Measure decode throughput and latencies of a running appliance over HTTP, one stream beside "
        "eight, and of the engine alone; prints hardware, versions and configuration with them.",
    )
    _with_config(parser)
    with_json(parser)
    parser.set_defaults(run=_local)


def _local(args: argparse.Namespace) -> int:
    from blink.bench.local import run
    from blink.config import load_config

    return run(load_config(args.config), config_path=args.config, json_path=args.json)


def residency(commands: Commands) -> None:
    """``blink bench residency``."""
    parser = commands.add_parser(
        "residency",
        help="one GPU engine under a scheduler on the GPU, and under the same one on a CPU thread",
        description="Start the configuration's backend twice, with the scheduler on the GPU and on a CPU thread, and "
        "measure how long the same requests take: short and long prompts by short and long answers, on quiet cores "
        "and beside two busy processes per core. The appliance itself must not run: its GPU is needed.",
    )
    _with_config(parser)
    parser.add_argument("--requests", type=int, default=64, metavar="N", help="submitted at once (64)")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="runs of each, of which the median (3)")
    with_json(parser)
    parser.set_defaults(run=_residency)


def _residency(args: argparse.Namespace) -> int:
    from blink.bench.residency import run
    from blink.config import load_config

    return run(load_config(args.config), requests=args.requests, rounds=args.rounds, json_path=args.json)


def load(commands: Commands) -> None:
    """``blink bench load``."""
    parser = commands.add_parser(
        "load",
        help="TTFT, TPOT and throughput of any OpenAI-compatible server, at a rate",
        description="Send completions of random token ids to a server that speaks OpenAI's API and takes ignore_eos, "
        "as a Poisson process or so many at once, and print TTFT, TPOT and throughput.",
    )
    parser.add_argument(
        "--url", action="append", required=True, metavar="URL", help="of the server; several take turns"
    )
    parser.add_argument("--model", required=True, metavar="NAME")
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument("--rate", type=float, metavar="R", help="requests/s, as a Poisson process")
    how.add_argument("--at-once", type=int, metavar="N", help="requests in flight at any time")
    parser.add_argument("--seconds", type=float, default=60.0, metavar="S", help="window that is counted (60)")
    parser.add_argument("--warm-up", type=float, default=5.0, metavar="S", help="before it (5)")
    parser.add_argument("--prompt", type=int, default=1019, metavar="N", help="mean prompt tokens (1019)")
    parser.add_argument("--answer", type=int, default=463, metavar="N", help="mean answer tokens (463)")
    parser.add_argument("--sigma", type=float, default=0.0, metavar="S", help="shape of log-normal lengths (0: equal)")
    parser.add_argument(
        "--ids", type=int, nargs=2, default=[100, 400], metavar=("LOW", "END"), help="of the tokens sent"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of arrivals, lengths and prompts (0)")
    parser.add_argument("--key-file", type=Path, metavar="FILE", help="whose first line is the API key")
    with_json(parser)
    parser.set_defaults(run=_load)


def _load(args: argparse.Namespace) -> int:
    from blink.bench.load import Work, run

    key = _key(args.key_file) if args.key_file else None
    work = Work(args.prompt, args.answer, args.sigma, tuple(args.ids), args.seed)
    return run(
        args.url, args.model, work, rate=args.rate, at_once=args.at_once, warm_up_s=args.warm_up,
        seconds=args.seconds, key=key, json_path=args.json,
    )  # fmt: skip


def _key(path: Path) -> str:
    try:
        return path.read_text().split()[0]
    except (OSError, IndexError, UnicodeDecodeError) as e:
        raise BlinkError(f"{path} holds no API key ({e})", "name a file whose first line is one") from None


def add_commands(parser: argparse.ArgumentParser) -> None:
    """Add what ``blink bench`` measures to ``parser``."""
    commands = parser.add_subparsers(dest="bench_command", required=True, metavar="WHAT")
    for add in (local, engine, kernels, scheduler, ring, residency, load):
        add(commands)
