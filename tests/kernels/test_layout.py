"""The C++ compiler and NumPy agree on every layout that Python and the kernels share."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from blink.cstruct import Buffers, Struct
from blink.engine.seam import batch
from blink.ring import layout

KERNELS = Path(__file__).parents[2] / "kernels"
STRUCTS = [*layout.STRUCTS, *(part for part in batch.PARTS if isinstance(part, Struct))]
TABLES = [part for part in batch.PARTS if isinstance(part, Buffers)]
ENUMS = {**layout.header_enums(), **batch.header_enums()}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What a program that includes the generated headers says of them: name → value."""
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    lines = []
    for s in STRUCTS:
        lines.append(f'say("{s.name}", sizeof({s.name}));')
        for f in s.fields:
            lines.append(f'say("{s.name}.{f.name}", offsetof({s.name}, {f.name}));')
            lines.append(f'say("{s.name}.{f.name} size", sizeof({s.name}::{f.name}));')
    for t in TABLES:
        lines += [f'say("{t.name}.{a.name}", offsetof({t.name}, {a.name}));' for a in t.arrays]
        lines += [f'say("{t.name}.{a.name} size", sizeof(*{t.name}::{a.name}));' for a in t.arrays]
    lines += [f'say("{prefix}_{n}", {prefix}_{n});' for prefix, values in ENUMS.items() for n in values]
    source = (
        '#include <cstddef>\n#include <cstdio>\n#include "seam/batch_layout.h"\nusing namespace blink;\n'
        'static void say(const char *name, unsigned long long v) { printf("%s=%llu\\n", name, v); }\n'
        "int main() {\n" + "\n".join(lines) + "\n}\n"
    )
    folder = tmp_path_factory.mktemp("layout")
    (folder / "layout.cpp").write_text(source)
    command = ["g++", "-std=c++20", f"-I{KERNELS}", "-o", folder / "layout", folder / "layout.cpp"]
    subprocess.run(command, check=True, timeout=60)
    said = subprocess.run([folder / "layout"], check=True, capture_output=True, text=True, timeout=10).stdout
    return dict(line.split("=") for line in said.splitlines())


@pytest.mark.parametrize("struct", STRUCTS, ids=lambda s: s.name)
def test_offsets_and_sizes(struct: Struct, compiled: dict[str, str]) -> None:
    dtype = struct.dtype()
    assert int(compiled[struct.name]) == dtype.itemsize
    for name, (field, offset, *_) in (dtype.fields or {}).items():
        assert int(compiled[f"{struct.name}.{name}"]) == offset, name
        assert int(compiled[f"{struct.name}.{name} size"]) == field.itemsize, name


@pytest.mark.parametrize("table", TABLES, ids=lambda t: t.name)
def test_pointer_tables(table: Buffers, compiled: dict[str, str]) -> None:
    shapes = table.shapes({"lanes": 1, "lanes1": 2, "tokens": 3, "lane_pages": 4})
    for i, (name, (_, dtype)) in enumerate(shapes.items()):
        assert int(compiled[f"{table.name}.{name}"]) == 8 * i
        assert int(compiled[f"{table.name}.{name} size"]) == dtype.itemsize


def test_constants(compiled: dict[str, str]) -> None:
    for prefix, values in ENUMS.items():
        for name, value in values.items():
            assert int(compiled[f"{prefix}_{name}"]) == value


def test_the_geometry_is_what_the_scheduler_derives_from_the_header() -> None:
    """request_off is not in the header: both sides compute it."""
    for per_part in (1, 3, 4, 64, 4096):
        geometry = layout.Geometry(per_part, 1, 4096, 4096)
        commands_end = layout.F_HEAD.size + per_part * layout.COMMAND.size
        assert geometry.request_off == -(-commands_end // layout.REQUEST.size) * layout.REQUEST.size


def test_generated_headers_are_fresh() -> None:
    command = [sys.executable, "-m", "blink.generate", "--check"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
