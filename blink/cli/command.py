"""What commands are made with."""

from __future__ import annotations

import argparse
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias


class Command(argparse.ArgumentParser):
    """One command. ``module`` names the module whose ``add_commands`` defines its arguments; use imports it."""

    module = ""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        if self.module:
            import_module(self.module).add_commands(self)
            self.module = ""
        return super().parse_known_args(args, namespace)


Commands: TypeAlias = "argparse._SubParsersAction[Command]"
"""The commands of ``blink``, or the actions of one of them; each ``add_parser`` adds one."""


def actions(parser: Command) -> Commands:
    """The actions of a command that does nothing by itself."""
    name = parser.prog.rsplit(" ", 1)[-1]
    return parser.add_subparsers(dest=f"{name}_command", required=True, metavar="ACTION")


def with_config(parser: argparse._ActionsContainer, *, required: bool = True) -> None:
    """Add ``--config``."""
    parser.add_argument(
        "--config", type=Path, required=required, metavar="FILE", help="the appliance's TOML file, written by site.yml"
    )
