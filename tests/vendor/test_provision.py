"""The roles that bring a GPU host to its drivers and its card to a mode, against a real systemd, apt and reboot."""

from __future__ import annotations

import pytest

from tests.vendor.conftest import Appliance

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


def test_bare_host_gets_drivers_and_mode_with_one_reboot_and_then_nothing_changes(shared: Appliance) -> None:
    before = shared.host.boot_id()
    foretold = shared.play("provision", "--check", "--diff")
    print(foretold.output)
    run = shared.play("provision")
    print(run.output)
    run.require()
    assert shared.host.boot_id() != before
    again = shared.play("provision").require()
    print(again.output)
    assert again.count("changed") == 0
