"""The ring's memory, from blink/ring/layout.py: objects, a partition of each, and the words of a record."""

from __future__ import annotations

from blink.cstruct import Struct
from blink.ring.layout import COMMAND, F_HEAD, G_HEAD, HEADER, LOGPROB, REQUEST, STATUS, Geometry
from docs.figures.draw import LINE, Figure

RING = Geometry(slots=4096, parts=2)  # the defaults of an appliance
OBJECT, PART, WORDS = (24, 210), (284, 306), (650, 426)  # columns: x, width
ROW = 46  # height of one part
PER_LINE = 3  # words of a record on one line
TOPS = (56, 440)  # of the object G and of the object F

Part = tuple[int, str, Struct | None]  # offset, what is there, the record whose words are shown


def draw() -> str:
    """The SVG file."""
    fig = Figure(1100, 824, "The ring's memory: objects G and F, their partitions, their records", "ring_memory.py")
    fig.text(24, 32, "The ring's memory", "title")
    geometry = f"{RING.slots} slots in {RING.parts} partitions, each of n = {RING.slots_per_part}"
    fig.text(284, 32, f"{geometry}; offsets are hexadecimal")
    output, arena = (f"arena, {size >> 20} MiB" for size in (RING.output_bytes, RING.input_bytes))
    _objects(fig, TOPS[0], "G", "scheduler", who="scheduler writes, workers read", stride=RING.g_stride, header=HEADER)
    g_parts: list[Part] = [
        (0, f"{G_HEAD.name}, {G_HEAD.size} bytes", G_HEAD),
        (RING.status_off, f"n of {STATUS.name}, {STATUS.size} bytes each", STATUS),
        (RING.out_off, f"output {output}: tokens, {LOGPROB.name}", None),
    ]
    end = _partition(fig, TOPS[0], "G_p", "scheduler", parts=g_parts, first=TOPS[0] + 44 + ROW)
    _words(fig, end, "machine", HEADER)
    _objects(fig, TOPS[1], "F", "frontend", who="worker p writes F_p, scheduler reads", stride=RING.f_stride)
    f_parts: list[Part] = [
        (0, f"{F_HEAD.name}, {F_HEAD.size} bytes", F_HEAD),
        (RING.cmd_off, f"n of {COMMAND.name}, {COMMAND.size} bytes each", COMMAND),
        (RING.request_off, f"n of {REQUEST.name}, {REQUEST.size} bytes each", REQUEST),
        (RING.in_off, f"input {arena}: prompts, extensions", None),
    ]
    _partition(fig, TOPS[1], "F_p", "frontend", parts=f_parts, first=TOPS[1] + 44)
    _packed(fig, TOPS[0] + 44 + 3 * ROW + 28, "scheduler", (STATUS, G_HEAD))
    _packed(fig, TOPS[1] + 44 + 4 * ROW + 28, "frontend", (F_HEAD, COMMAND))
    return fig.svg()


def _objects(
    fig: Figure, y: float, name: str, kind: str, *, who: str, stride: int, header: Struct | None = None
) -> None:
    """The regions of one object from the top: the first column."""
    x, w = OBJECT
    fig.text(x, y + 14, f"object {name}", "title")
    fig.text(x, y + 31, who)
    at, start = y + 44, 0
    if header is not None:
        fig.box((x, at, w, ROW), "machine", "H", [f"`{0:08X}`"])
        at, start = at + ROW, header.size
    for p in range(RING.parts):
        fig.box((x, at, w, ROW), kind, f"{name}_{p}", [f"`{start + p * stride:08X}`"])
        at += ROW


def _partition(fig: Figure, y: float, name: str, kind: str, *, parts: list[Part], first: float) -> float:
    """A partition's parts, the second column, and the words of their records, the third.

    ``first`` is where the object's first partition begins. Returns where the third column ends.
    """
    x, w = PART
    top = y + 44
    fig.line((OBJECT[0] + OBJECT[1], first), (x, top))
    fig.line((OBJECT[0] + OBJECT[1], first + ROW), (x, top + ROW * len(parts)))
    fig.text(x, y + 14, f"partition {name}", "title")
    fig.text(x, y + 31, "offsets from its start")
    at = top
    for i, (offset, text, struct) in enumerate(parts):
        fig.box((x, top + i * ROW, w, ROW), kind, "", [text, f"`{offset:08X}`"])
        if struct is not None:
            height = _words(fig, at, kind, struct)
            fig.line((x + w, top + i * ROW + ROW / 2), (WORDS[0], at + height / 2))
            at += height + 10
    return at


def _words(fig: Figure, y: float, kind: str, struct: Struct) -> float:
    """The words of a record by their offsets. Returns the box's height."""
    x, w = WORDS
    lines = -(-len(struct.fields) // PER_LINE)
    height = 32.0 + LINE * lines
    fig.box((x, y, w, height), kind, f"{struct.name}, {struct.size} bytes")
    for i, field in enumerate(struct.fields):
        name = field.name if field.count == 1 else f"{field.name}[{field.count}]"
        at = x + 10 + (w - 10) / PER_LINE * (i % PER_LINE)
        fig.text(at, y + 20 + LINE * (1 + i // PER_LINE), f"{field.offset:02X} {name}", "code")
    return height


def _packed(fig: Figure, y: float, kind: str, structs: tuple[Struct, ...]) -> None:
    """The packed words of ``structs`` from high to low bits, each field as wide as its bits."""
    x, w = OBJECT[0] + 66, PART[0] + PART[1] - OBJECT[0] - 66
    fig.text(OBJECT[0], y, "packed words: fields and their bits, high to low")
    for field in (f for struct in structs for f in struct.fields if f.word is not None):
        assert field.word is not None
        y += 32
        fig.text(OBJECT[0], y, field.name, "code")
        at: float = x
        for bits in field.word.fields:
            width = w * bits.width / 64
            name = f"~{bits.inverse_of}" if bits.inverse_of else bits.name
            fig.box((at, y - 16, width, 24), kind)
            fig.text(at + width / 2, y, f"{name}{bits.width}", "code", "middle")
            at += width
