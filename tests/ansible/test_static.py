"""What can be said about playbooks without running them."""

from __future__ import annotations

import pytest
import yaml

from tests.ansible.playbook import INVENTORIES, PLAYBOOKS, ROOT, ansible


@pytest.mark.parametrize("inventory", INVENTORIES)
def test_every_playbook_parses_with_inventory(inventory: str) -> None:
    run = ansible("ansible-playbook", "--syntax-check", "--inventory", f"inventory/{inventory}", *PLAYBOOKS).require()
    assert run.output.count("playbook: ") == len(PLAYBOOKS)


@pytest.mark.parametrize("role", sorted(p.name for p in (ROOT / "roles").iterdir()))
def test_role_states_its_arguments_and_explains_its_defaults(role: str) -> None:
    folder = ROOT / "roles" / role
    options = yaml.safe_load((folder / "meta/argument_specs.yml").read_text())["argument_specs"]["main"]["options"]
    assert all(option["description"] for option in options.values())
    defaults = folder / "defaults/main.yml"
    if defaults.exists():
        assert set(yaml.safe_load(defaults.read_text())) <= set(options)
        assert defaults.read_text().startswith("#")


def test_roles_need_no_collection() -> None:
    modules = set()
    for file in [*(ROOT / "roles").rglob("tasks/*.yml"), *(ROOT / "playbooks/tasks").glob("*.yml")]:
        modules |= {key for task in _tasks(yaml.safe_load(file.read_text())) for key in task if "." in key}
    assert modules
    assert {m for m in modules if not m.startswith("ansible.builtin.")} == set()


def _tasks(items: list[dict[str, object]]) -> list[dict[str, object]]:
    found = []
    for item in items:
        found.append(item)
        for part in ("block", "rescue", "always"):
            found += _tasks(item.get(part, []))  # type: ignore[arg-type]
    return found
