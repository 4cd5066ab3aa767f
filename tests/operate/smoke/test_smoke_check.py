"""How a check is run, and what its reports say."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from blink.errors import BlinkError
from blink.operate.smoke import check as check_module
from blink.operate.smoke import report
from blink.operate.smoke.check import Check, CheckError, Deadline, Outcome, run_check


def make(run, timeout_s: float = 5.0) -> Check[None]:
    return Check("name", "hop", "summary", timeout_s, "the backend hangs", run)


def test_what_a_passing_check_saw_is_its_detail() -> None:
    outcome = run_check(make(lambda context, deadline: "seen"), None)
    assert (outcome.passed, outcome.detail, outcome.cause) == (True, "seen", "")


@pytest.mark.parametrize(
    ("error", "detail", "cause"),
    [
        (CheckError("a is b", "c broke"), "a is b", "c broke"),
        (BlinkError("d is down", "start d"), "d is down", "start d"),
        (KeyError("choices"), "KeyError: 'choices'", "unexpected answer"),
    ],
)
def test_every_error_is_a_failure_with_a_cause(error: Exception, detail: str, cause: str) -> None:
    def run(context: None, deadline: Deadline) -> str:
        raise error

    outcome = run_check(make(run), None)
    assert not outcome.passed
    assert outcome.detail == detail
    assert cause in outcome.cause


def test_a_wait_that_runs_out_names_what_it_waited_for() -> None:
    def run(context: None, deadline: Deadline) -> str:
        while True:
            deadline.left("a beat")
            time.sleep(0.001)

    outcome = run_check(make(run, 0.05), None)
    assert not outcome.passed
    assert outcome.detail == "waited 0.05 s for a beat"
    assert outcome.cause == "the backend hangs"


def test_a_check_that_hangs_outside_its_waits_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_module, "GRACE_S", 0.05)
    release = threading.Event()

    def run(context: None, deadline: Deadline) -> str:
        deadline.left("a server that never answers")
        release.wait(60)
        return "too late"

    outcome = run_check(make(run, 0.05), None)
    release.set()
    assert not outcome.passed
    assert outcome.detail == "waited 0.05 s for a server that never answers"


OUTCOMES = [
    Outcome("ring", "ring", True, 0.25, "epoch 1"),
    Outcome("golden", "engine", False, 1.5, "token 3 is <7> & not 8, \x00 \ufffe", "damaged weights"),
]


def test_the_table_shows_every_check_and_the_cause_of_a_failure() -> None:
    lines = report.table(OUTCOMES).splitlines()
    assert len(lines) == 5
    assert lines[1].split()[:4] == ["ring", "ring", "ok", "0.250"]
    assert "FAILED" in lines[2]
    assert "likely cause: damaged weights" in lines[3]
    assert lines[4] == "1 of 2 checks passed"


def test_junit_is_xml_that_counts_and_names_failures(tmp_path: Path) -> None:
    report.write_junit(tmp_path / "junit.xml", "local", OUTCOMES)
    suite = ET.parse(tmp_path / "junit.xml").getroot().find("testsuite")
    assert suite is not None
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
    cases = {case.get("name"): case for case in suite.iter("testcase")}
    assert cases["ring"].find("failure") is None
    failure = cases["golden"].find("failure")
    assert failure is not None
    assert failure.get("message") == "token 3 is <7> & not 8, \\x00 \\ufffe"
    assert "damaged weights" in (failure.text or "")


def test_json_has_every_field(tmp_path: Path) -> None:
    report.write_json(tmp_path / "smoke.json", "local", OUTCOMES)
    document = json.loads((tmp_path / "smoke.json").read_text())
    assert document["passed"] is False
    assert document["checks"][0] == {
        "name": "ring", "hop": "ring", "passed": True, "seconds": 0.25, "detail": "epoch 1", "cause": "",
    }  # fmt: skip


def test_a_report_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(BlinkError, match="No such file or directory: name a file"):
        report.write_json(tmp_path / "missing" / "smoke.json", "local", OUTCOMES)
