"""One appliance for all tests that start services: its own name, port and directories, and a tiny model."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ansible.playbook import Run, playbook, processes
from tests.appliance import ENGINE, RING
from tests.ports import free_port
from tests.tiny_model import write_checkpoint


class Deployed:
    """An appliance that only playbooks start and stop."""

    def __init__(self, root: Path) -> None:
        self.state_dir = root / "state"
        self.config = self.state_dir / "blink.toml"
        self.port = free_port()
        self.variables: dict[str, Any] = {
            "blink_appliance": "test",
            "blink_state_dir": str(self.state_dir),
            "blink_http_port": self.port,
            "blink_model_source": str(write_checkpoint(root / "checkpoint")),
            "blink_model_name": "tiny",
            "blink_settings": {"engine": ENGINE, "ring": RING},
        }
        self.is_up = False
        self.is_as_given = False

    def settings(self, **engine: Any) -> dict[str, Any]:
        """``blink_settings`` with other engine fields."""
        return {"blink_settings": {"engine": ENGINE | engine, "ring": RING}}

    def run(self, name: str, *arguments: str, **variables: Any) -> Run:
        """Run a playbook on this appliance; ``variables`` are for this run."""
        return playbook(name, self.variables | variables, *arguments)

    def up(self) -> None:
        """Bring it up with its own variables, if a test left it another way."""
        if not self.is_as_given:
            self.run("site.yml").require()
            self.is_up = self.is_as_given = True

    def deploy(self, *arguments: str, **variables: Any) -> Run:
        """Run the playbook between preflight and smoke with other variables, which the next test may find in force."""
        self.is_as_given = False
        return self.run("playbooks/deploy.yml", *arguments, **variables)

    def down(self) -> Run:
        """Stop it, running or not."""
        self.is_up = self.is_as_given = False
        return self.run("playbooks/down.yml")

    def services(self) -> dict[str, int]:
        """Process ids of the services, by name, without the processes that they started themselves."""
        found = processes(self.config)
        return {
            half: min(pid for pid, command in found.items() if f"blink {half} " in command)
            for half in ("backend", "frontend")
            if any(f"blink {half} " in command for command in found.values())
        }


@pytest.fixture(scope="session")
def deployed() -> Iterator[Deployed]:
    """The appliance; nothing of it is left behind."""
    # pytest's own directories have paths that are too long for the sockets.
    root = Path(tempfile.mkdtemp(prefix="blink-"))
    appliance = Deployed(root)
    yield appliance
    appliance.down().require()
    shutil.rmtree(root)
    assert processes(appliance.config) == {}


@pytest.fixture
def running(deployed: Deployed) -> Deployed:
    """The appliance, up with whatever variables."""
    if not deployed.is_up:
        deployed.up()
    return deployed
