"""Write docs/roles.md from what the roles state themselves; --check only compares, and fails where it is old.

Of each role's meta/argument_specs.yml: what it does, what it leaves, and its variables; of its defaults/main.yml, the
defaults, as written there.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/roles.md"
HEAD = """\
# Roles

Written by `make generate` from `roles/*/meta/argument_specs.yml` and `roles/*/defaults/main.yml`; `make lint`
compares.
[development.md](development.md#provisioning) says how roles are written, [provisioning.md](provisioning.md) and
[fleet.md](fleet.md) what they are for. Variables without a prefix of a role's are the inventory's.

A role returns at most one dictionary, named after it: `NAME_result`. A set of tasks besides `main` is called with
`tasks_from`.
"""
LONGEST = 60
WIDTH = 120


def one_line(text: object) -> str:
    """A description as one cell of a table."""
    parts = text if isinstance(text, list) else [text]
    return " ".join(" ".join(str(part).split()) for part in parts).replace("|", "\\|")


def default_of(name: str, option: dict[str, Any], defaults: dict[str, Any]) -> str:
    """A default as one cell: as the role's defaults have it, else as its statement does."""
    if name not in defaults and "default" not in option:
        return ""
    value = defaults.get(name, option.get("default"))
    if (isinstance(value, str) and "{{" in value) or (isinstance(value, list | dict) and "{{" in str(value)):
        text = one_line(value)
        return f"`{text}`" if len(text) <= LONGEST else "by other variables"
    text = yaml.safe_dump(value, default_flow_style=True, width=1000).removesuffix("...\n").strip()
    return f"`{text}`"


def rows(options: dict[str, Any], defaults: dict[str, Any], prefix: str = "") -> list[str]:
    """Rows of a table of variables; the fields of a dictionary come after it."""
    found = []
    for name, option in options.items():
        kind = option["type"] + (f" of {option['elements']}" if "elements" in option else "")
        what = one_line(option["description"])
        if "choices" in option:
            what += f" ({', '.join(map(str, option['choices']))})"
        required = "yes" if option.get("required") else ""
        default = default_of(name, option, defaults)
        found.append(f"| `{prefix}{name}` | {kind} | {default} | {required} | {what} |")
        found += rows(option.get("options", {}), {}, f"{prefix}{name}.")
    return found


def entry(name: str, spec: dict[str, Any], defaults: dict[str, Any], shown: list[list[str]]) -> list[str]:
    """One set of tasks of a role; ``shown`` are the tables that the role has already."""
    called = "" if name == "main" else f"`{name}`: "
    lines = [f"{called}{one_line(spec['short_description'])}."]
    if "description" in spec:
        lines.append(one_line(spec["description"]))
    table = rows(spec.get("options", {}), defaults)
    if table and table in shown:
        lines.append("Variables: as above.")
    out = [textwrap.fill(" ".join(lines), WIDTH, break_long_words=False, break_on_hyphens=False), ""]
    if table and table not in shown:
        shown.append(table)
        out += ["| variable | type | default | required | what |", "| --- | --- | --- | --- | --- |", *table, ""]
    return out


def page() -> str:
    """The text of docs/roles.md."""
    folders = sorted(path.parent.parent for path in ROOT.glob("roles/*/meta/argument_specs.yml"))
    specs = {f.name: yaml.safe_load((f / "meta/argument_specs.yml").read_text())["argument_specs"] for f in folders}
    lines = [HEAD, "| role | does |", "| --- | --- |"]
    lines += [f"| [`{name}`](#{name}) | {one_line(s['main']['short_description'])} |" for name, s in specs.items()]
    lines.append("")
    for folder in folders:
        file, shown = folder / "defaults/main.yml", list[list[str]]()
        defaults = yaml.safe_load(file.read_text()) if file.exists() else {}
        lines += [f"## {folder.name}", ""]
        for name, spec in specs[folder.name].items():
            lines += entry(name, spec, defaults, shown)
    return "\n".join(lines).rstrip("\n") + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only compare; 1 where the page is old")
    args = parser.parse_args()
    text = page()
    if not args.check:
        PAGE.write_text(text)
        return 0
    if not PAGE.exists() or PAGE.read_text() != text:
        print(f"{PAGE.relative_to(ROOT)} is not what the roles state: run make generate", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
