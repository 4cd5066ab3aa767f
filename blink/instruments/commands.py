"""The instruments' commands, which ``blink bench`` offers; each imports what it needs when it runs."""

# ruff: noqa: PLC0415
from __future__ import annotations

import argparse
from typing import TypeAlias

from blink.output import with_json

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


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
