"""Drive the lab from the command line."""

import argparse
import os
import sys
from collections.abc import Sequence

from images.lab import pair
from images.lab.errors import LabError
from images.lab.machine import Machine
from images.lab.places import SSH_CONFIG, SSH_PORTS


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m images.lab", description="Two virtual machines with RDMA.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("build", help="build the disk image, if it is missing or out of date")
    commands.add_parser("up", help="build, boot both machines, and wait until they answer")
    commands.add_parser("down", help="turn both off and forget their disks")
    commands.add_parser("status", help="what runs, and how to reach it")
    commands.add_parser("packages", help="Debian's packages that this machine lacks for the lab, one a line")
    commands.add_parser("report", help="the end of what both have logged")
    for name, text in (("save", "keep both as they are now"), ("restore", "set both back")):
        commands.add_parser(name, help=text).add_argument("tag")
    for name, text in (("reset", "press the reset button"), ("ssh", "run a command, or a shell")):
        commands.add_parser(name, help=text).add_argument("host", choices=SSH_PORTS)
    link = commands.add_parser("link", help="pull the cable, or plug it in")
    link.add_argument("host", choices=SSH_PORTS)
    link.add_argument("state", choices=["up", "down"])
    arguments, rest = parser.parse_known_args(argv)
    if rest and arguments.command != "ssh":
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    try:
        return _run(arguments, rest)
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 1


def _run(arguments: argparse.Namespace, rest: Sequence[str]) -> int:
    match arguments.command:
        case "build" | "up" | "down":
            getattr(pair, arguments.command)()
        case "save" | "restore":
            getattr(pair, arguments.command)(arguments.tag)
        case "reset":
            Machine(arguments.host).reset()
            Machine(arguments.host).wait()
        case "link":
            Machine(arguments.host).link(up=arguments.state == "up")
        case "ssh":
            os.execvp("ssh", ["ssh", "-F", str(SSH_CONFIG), arguments.host, *rest])  # noqa: S606
        case "packages":
            print("".join(f"{package}\n" for package in pair.missing_packages()), end="")
        case "report":
            for machine in pair.MACHINES:
                print(machine.report())
        case "status":
            for machine in pair.MACHINES:
                print(f"{machine.name}: {f'runs as process {machine.pid}' if machine.pid else 'off'}")
            print(f"ssh -F {SSH_CONFIG} gpu01 (or dpu01)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
