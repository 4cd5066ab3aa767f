"""The outcome of a run of checks as a table, as JSON and as JUnit XML."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from xml.etree import ElementTree as ET

from blink import output
from blink.operate.smoke.check import Outcome

_XML_CHAR = re.compile("[\\t\\n\\x20-\\ud7ff\\ue000-\\ufffd\\U00010000-\\U0010ffff]")


def table(outcomes: Sequence[Outcome]) -> str:
    """Aligned plain text; a failed check has its likely cause on a line of its own."""
    names = max(len(o.name) for o in outcomes)
    hops = max(len(o.hop) for o in outcomes)
    lines = [f"{'CHECK':<{names}}  {'HOP':<{hops}}  RESULT  SECONDS  DETAIL"]
    for o in outcomes:
        result = "ok" if o.passed else "FAILED"
        lines.append(f"{o.name:<{names}}  {o.hop:<{hops}}  {result:<6}  {o.seconds:7.3f}  {o.detail}")
        if not o.passed:
            lines.append(f"{'':<{names}}  likely cause: {o.cause}")
    failed = sum(not o.passed for o in outcomes)
    lines.append(f"{len(outcomes) - failed} of {len(outcomes)} checks passed")
    return "\n".join(lines)


def write_json(path: Path, appliance: str, outcomes: Sequence[Outcome]) -> None:
    """Write {appliance, passed, checks: [Outcome…]} to ``path``; "-" is stdout."""
    document = {
        "appliance": appliance,
        "passed": all(o.passed for o in outcomes),
        "checks": [asdict(o) for o in outcomes],
    }
    output.write_json(path, document)


def write_junit(path: Path, appliance: str, outcomes: Sequence[Outcome]) -> None:
    """Write one JUnit test suite to ``path``; "-" is stdout."""
    suite = ET.Element(
        "testsuite",
        name=f"blink smoke {appliance}",
        tests=str(len(outcomes)),
        failures=str(sum(not o.passed for o in outcomes)),
        errors="0",
        skipped="0",
        time=f"{sum(o.seconds for o in outcomes):.3f}",
    )
    for o in outcomes:
        case = ET.SubElement(suite, "testcase", classname=f"blink.smoke.{o.hop}", name=o.name, time=f"{o.seconds:.3f}")
        if o.passed:
            ET.SubElement(case, "system-out").text = _xml_safe(o.detail)
        else:
            failure = ET.SubElement(case, "failure", message=_xml_safe(o.detail), type=o.hop)
            failure.text = _xml_safe(f"{o.detail}\nlikely cause: {o.cause}")
    root = ET.Element("testsuites")
    root.append(suite)
    ET.indent(root)
    output.write_text(path, '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n")


def _xml_safe(text: str) -> str:
    """``text`` with the characters that XML 1.0 cannot hold shown as escapes: a model may answer anything."""
    return "".join(c if _XML_CHAR.match(c) else ascii(c)[1:-1] for c in text)
