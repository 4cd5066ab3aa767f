"""The documentation against the tree: what it names exists, its pages link, its lines can be read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs.figures.request_road import STEPS

ROOT = Path(__file__).resolve().parents[1]
EVIDENCE = ROOT / "docs" / "evidence"  # what once ran: it may name what is gone
PAGES = sorted({ROOT / "README.md", *(ROOT / "docs").rglob("*.md")})
TOPS = {"blink", "docs", "images", "inventory", "kernels", "playbooks", "requirements", "roles", "scripts", "tests"}
FILES = [path for top in TOPS for path in (ROOT / top).rglob("*") if "__pycache__" not in path.parts]
NAMES = {"site.yml", *(path.name for path in FILES)}
SOURCE = re.compile(r"[\w.*-]+\.(py|cu|cuh|h|cpp|sh|yml|j2)")
WIDTH = 120

pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def prose(page: Path) -> str:
    """The page without its blocks of code."""
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)


def missing(name: str) -> bool:
    """Whether ``name``, from a page, should be a file or folder of this tree and is not.

    One with a slash is a path from the checkout on; one without is a source file's name, wherever it lies.
    """
    path = name.split("::", maxsplit=1)[0]
    if re.search(r"[^\w./*-]", path):
        return False
    first, slash, _ = path.partition("/")
    if first in TOPS and slash:
        return not any(ROOT.glob(path.rstrip("/")))
    if not SOURCE.fullmatch(path.rsplit("/", 1)[-1]):
        return False
    return not path.startswith(("/", ".")) and (bool(slash) or not any(Path(n).match(path) for n in NAMES))


@pytest.mark.parametrize(
    ("name", "gone"),
    [
        ("blink/config.py", False),
        ("kernels/*/layout.h", False),
        ("tests/ring/", False),
        ("plan.cuh", False),
        ("/etc/x.py", False),
        ("blink/no.py", True),
        ("scheduler/plan.cuh", True),
        ("nowhere.cuh", True),
    ],
)
def test_what_counts_as_missing(name: str, gone: bool) -> None:
    assert missing(name) == gone


@pages
def test_every_path_exists(page: Path) -> None:
    if not page.is_relative_to(EVIDENCE):
        assert [name for name in re.findall(r"`([^`\s]+)`", prose(page)) if missing(name)] == []


@pages
def test_every_link_leads_somewhere(page: Path) -> None:
    links = [link.split("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)) if "://" not in link]
    assert [link for link in links if link and not (page.parent / link).exists()] == []


@pages
def test_lines_can_be_read(page: Path) -> None:
    """Rows of a table cannot be wrapped."""
    lines = enumerate(page.read_text().splitlines(), 1)
    assert [n for n, line in lines if len(line) > WIDTH and not line.startswith("|")] == []


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text()
    assert [p.name for p in (ROOT / "docs").glob("*.md") if p.name != "README.md" and f"]({p.name})" not in index] == []


def test_the_figure_has_the_steps_of_the_page() -> None:
    steps = re.findall(
        r"^## (\d)\. (.+)\n\n.*\n.*\n\| folder \| `([^`]+)`", (ROOT / "docs/life-of-a-request.md").read_text(), re.M
    )
    assert {int(n): (title, folder) for n, title, folder in steps} == {
        n: (title, folder) for n, (title, folder, _) in STEPS.items()
    }
