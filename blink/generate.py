"""Write what comes from Python: C headers, lists in roles, figures. `python -m blink.generate [--check]`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from blink.backend.gpu import loop_layout as loop
from blink.cstruct import render_header
from blink.engine.native import layout as native
from blink.engine.seam import batch
from blink.engine.synthetic import layout as synthetic
from blink.ring import layout
from blink.role_lists import role_files
from docs.figures import figures

ROOT = Path(__file__).resolve().parent.parent


def headers() -> dict[str, str]:
    """File name → text of every generated header."""
    ring = render_header("blink/ring/layout.py", "BLINK_RING_LAYOUT_H", layout.header_enums(), layout.PARTS)
    seam = render_header(
        "blink/engine/seam/batch.py", "BLINK_BATCH_LAYOUT_H", batch.header_enums(), batch.PARTS, ["ring/layout.h"]
    )
    drivers = render_header(
        "blink/backend/gpu/loop_layout.py", "BLINK_LOOP_LAYOUT_H", loop.CONSTANTS, loop.PARTS, ["seam/batch_layout.h"]
    )
    made_up = render_header(
        "blink/engine/synthetic/layout.py", "BLINK_SYNTHETIC_LAYOUT_H", synthetic.CONSTANTS, synthetic.STRUCTS,
        ["seam/batch_layout.h"],
    )  # fmt: skip
    kernels = render_header(
        "blink/engine/native/layout.py", "BLINK_NATIVE_LAYOUT_H", native.CONSTANTS, native.STRUCTS,
        ["native/types.cuh", "seam/batch_layout.h"],
    )  # fmt: skip
    kernels = kernels.replace("\n}  // namespace blink", f"\n{native.linear_macro()}\n}}  // namespace blink")
    return {
        "ring/layout.h": ring,
        "seam/batch_layout.h": seam,
        "drivers/loop_layout.h": drivers,
        "native/layout.h": kernels,
        "synthetic/layout.h": made_up,
    }


def files() -> dict[str, str]:
    """Name, from the checkout on, → text of every file that is generated, or has generated lines."""
    return {f"kernels/{name}": text for name, text in headers().items()} | role_files(ROOT) | figures()


def main() -> int:
    """Write the files, or with ``--check`` exit 1 if one is stale."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if a file is stale")
    check = parser.parse_args().check
    stale = {n: text for n, text in files().items() if not (ROOT / n).exists() or (ROOT / n).read_text() != text}
    for name, text in stale.items():
        if check:
            print(f"{name} is stale: run `make generate`", file=sys.stderr)
        else:
            (ROOT / name).write_text(text)
            print(f"wrote {name}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    raise SystemExit(main())
