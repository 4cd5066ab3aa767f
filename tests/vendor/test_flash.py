"""The role that flashes a card, against a card that parses what is pushed to it and then boots it."""

from __future__ import annotations

import pytest

from tests.vendor.conftest import Appliance

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@pytest.fixture(scope="module")
def provisioned(shared: Appliance) -> Appliance:
    """A host with DOCA-Host's tools."""
    shared.install("doca-ofed", "rshim")
    return shared


def test_a_good_flash_boots_the_card_and_a_second_run_changes_nothing(provisioned: Appliance) -> None:
    run = provisioned.play("flash")
    print(run.output)
    run.require()
    print(provisioned.play("flash").output)
