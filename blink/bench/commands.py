"""The commands ``blink bench …``; each imports what it needs when it runs."""

# ruff: noqa: PLC0415
from __future__ import annotations

import argparse
from pathlib import Path
from typing import TypeAlias

from blink.errors import BlinkError
from blink.output import with_json

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


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


def engine(commands: Commands) -> None:
    """``blink bench engine``."""
    parser = commands.add_parser(
        "engine",
        help="decode and prefill steps of the native engine on a GPU",
        description="Time steps of the native engine on this machine's GPU, for Llama-3-8B's shape with random weights "
        "(35 GiB of GPU memory): decode of 1 to 128 rows at a context of 1024, launched by the host and by the "
        "scheduler's loop, by parts; prefill of 512 and 2048 tokens.",
    )
    parser.add_argument("--dtype", choices=("float16", "bfloat16"), default="float16", help="of weights and cache")
    parser.add_argument("--exact", action="store_true", help="one algorithm for steps of all sizes")
    with_json(parser)
    parser.set_defaults(run=_engine)


def _engine(args: argparse.Namespace) -> int:
    from blink.instruments.engine_gpu import run

    return run(dtype=args.dtype, exact=args.exact, json_path=args.json)


def kernels(commands: Commands) -> None:
    """``blink bench kernels``."""
    parser = commands.add_parser(
        "kernels",
        help="attention and sampling kernels of the native engine on a GPU",
        description="Time the native engine's attention of one layer (Llama-3-8B's shape; decode of 1 to 128 rows at a "
        "context of 1024, and prefill) and its sampling (128 256 tokens, by parameters) on this machine's GPU.",
    )
    with_json(parser)
    parser.set_defaults(run=_kernels)


def _kernels(args: argparse.Namespace) -> int:
    from blink.instruments.native_kernels import run

    return run(json_path=args.json)


def scheduler(commands: Commands) -> None:
    """``blink bench scheduler``."""
    parser = commands.add_parser(
        "scheduler",
        help="what the scheduler costs on this machine's GPU, under both drivers",
        description="Measure the scheduler on this machine's GPU under both drivers, with an engine that does nothing: "
        "steps, latency, idle power, graphs. Takes the GPU for about a minute; no appliance need run.",
    )
    with_json(parser)
    parser.set_defaults(run=_scheduler)


def _scheduler(args: argparse.Namespace) -> int:
    from blink.instruments.scheduler import run

    return run(json_path=args.json)


def ring(commands: Commands) -> None:
    """``blink bench ring``."""
    parser = commands.add_parser(
        "ring",
        help="what the ring's transports, a client and a frontend worker carry",
        description="Measure the operations of each transport of the ring, a ring client, and one frontend worker on "
        "one core, which streams to SSE readers what a synthetic engine writes into the ring. Starts all that it needs "
        "on this machine; no appliance has to run. A transport that the machine lacks is named with the reason.",
    )
    parser.add_argument("--transport", choices=["shm", "verbs", "both"], default="both", help="both, side by side")
    parser.add_argument("--streams", type=int, default=128, metavar="N", help="streams at once (128)")
    parser.add_argument(
        "--rate", type=float, action="append", metavar="R",
        help="tokens/s that the engine offers all streams together (20000); may be repeated",
    )  # fmt: skip
    parser.add_argument("--seconds", type=float, default=5.0, metavar="S", help="how long each rate is offered (5)")
    parser.add_argument("--device", metavar="NAME", help="RDMA device, where there are several")
    with_json(parser)
    parser.set_defaults(run=_ring)


def _ring(args: argparse.Namespace) -> int:
    from blink.instruments.ring import TRANSPORTS, run

    chosen = TRANSPORTS if args.transport == "both" else (args.transport,)
    rates = tuple(args.rate or (20_000.0,))
    return run(chosen, streams=args.streams, rates=rates, seconds=args.seconds, device=args.device, json_path=args.json)


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
