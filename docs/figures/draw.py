"""What the figures are drawn with: boxes, arrows and text, as SVG on a light ground of its own.

The ground makes a figure look the same on dark and light pages. Coordinates are pixels from the top left.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

LINE = 17  # between two lines of text
# What stands for what, in all figures: (fill, line).
COLORS = {
    "ground": ("#ffffff", "#d0d7de"),
    "machine": ("#f6f8fa", "#8c959f"),
    "frontend": ("#ddf4ff", "#0969da"),
    "scheduler": ("#dafbe1", "#1a7f37"),
    "engine": ("#fbefff", "#8250df"),
    "ring": ("#fff8c5", "#9a6700"),
    "outside": ("#ffffff", "#57606a"),
}
_STYLE = """text { font-family: system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif; font-size: 13px; fill: #1f2328; }
.title { font-weight: bold; font-size: 14px; }
.small { font-size: 12px; fill: #424a53; }
.code { font-family: ui-monospace, 'DejaVu Sans Mono', monospace; font-size: 11.5px; fill: #424a53; }
.arrow { fill: none; stroke: #424a53; stroke-width: 1.6; }
.dashed { stroke-dasharray: 5 4; }"""


class Figure:
    """A drawing of ``width`` by ``height`` pixels; ``label`` is what it says to those who cannot see it."""

    def __init__(self, width: int, height: int, label: str, source: str) -> None:
        self._parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" role="img" aria-label="{escape(label)}">',
            f"<!-- Drawn by {source}; `make generate` writes this file. -->",
            f"<style>{_STYLE}</style>",
            '<marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" '
            'markerHeight="8" orient="auto-start-reverse">'
            '<path d="M0 0 L10 5 L0 10 z" fill="#424a53"/></marker>',
        ]
        self.box((1, 1, width - 2, height - 2), "ground")

    def box(
        self, area: tuple[float, float, float, float], kind: str, title: str = "", lines: Sequence[str] = ()
    ) -> None:
        """A box at (x, y, width, height), of a kind of COLORS, with a title and lines; one in backticks is code."""
        x, y, w, h = area
        fill, stroke = COLORS[kind]
        self._parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="6" fill="{fill}" stroke="{stroke}"/>'
        )
        at = y + 20
        if title:
            self.text(x + 10, at, title, "title")
            at += LINE
        for line in lines:
            code = line.startswith("`")
            self.text(x + 10, at, line.strip("`"), "code" if code else "small")
            at += LINE

    def text(self, x: float, y: float, text: str, style: str = "small", anchor: str = "start") -> None:
        """One line of text whose baseline is at y."""
        self._parts.append(f'<text x="{x:g}" y="{y:g}" class="{style}" text-anchor="{anchor}">{escape(text)}</text>')

    def arrow(self, *points: tuple[float, float], dashed: bool = False, both: bool = False) -> None:
        """A line over ``points`` with a head at its end, or at both."""
        path = " L".join(f"{x:g} {y:g}" for x, y in points)
        start = ' marker-start="url(#head)"' if both else ""
        style = "arrow dashed" if dashed else "arrow"
        self._parts.append(f'<path class="{style}" d="M{path}" marker-end="url(#head)"{start}/>')

    def trunk(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        """A line without a head, as thick as an arrow: part of a way that several arrows share."""
        self._parts.append(f'<path class="arrow" d="M{start[0]:g} {start[1]:g} L{end[0]:g} {end[1]:g}"/>')

    def line(self, *points: tuple[float, float]) -> None:
        """A thin dashed line, such as those that show where a part is enlarged."""
        path = " L".join(f"{x:g} {y:g}" for x, y in points)
        self._parts.append(f'<path d="M{path}" fill="none" stroke="#8c959f" stroke-dasharray="3 3"/>')

    def svg(self) -> str:
        """The file's text."""
        return "\n".join([*self._parts, "</svg>"]) + "\n"
