"""One round of every fault under load; `scripts/lab soak` does the same for half an hour."""

from __future__ import annotations

from tests.lab.deployed import Deployed
from tests.lab.disturbances import FAULTS
from tests.lab.soak import Soak


def test_load_with_faults_loses_no_token_and_leaves_nothing(lab: Deployed) -> None:
    soak = Soak(lab, minutes=None, every_s=0.0)
    soak.run()
    assert not soak.failures
    assert soak.faults == len(FAULTS)
    assert soak.total.complete > 0
