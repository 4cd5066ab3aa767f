"""Write the C headers that come from Python layouts: `python -m blink.generate [--check]`."""

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

KERNELS = Path(__file__).resolve().parent.parent / "kernels"


def headers() -> dict[str, str]:
    """File name → text of every generated header."""
    ring = render_header("blink/ring/layout.py", "BLINK_RING_LAYOUT_H", layout.header_enums(), layout.STRUCTS)
    seam = render_header("blink/engine/seam/batch.py", "BLINK_BATCH_LAYOUT_H", batch.header_enums(), batch.PARTS)
    seam = _including(seam, "ring/layout.h")
    drivers = render_header("blink/backend/gpu/loop_layout.py", "BLINK_LOOP_LAYOUT_H", loop.CONSTANTS, loop.PARTS)
    drivers = _including(drivers, "seam/batch_layout.h")
    made_up = render_header(
        "blink/engine/synthetic/layout.py", "BLINK_SYNTHETIC_LAYOUT_H", synthetic.CONSTANTS, synthetic.STRUCTS
    )
    kernels = render_header("blink/engine/native/layout.py", "BLINK_NATIVE_LAYOUT_H", native.CONSTANTS, native.STRUCTS)
    kernels = _including(kernels, "native/types.cuh", "seam/batch_layout.h")
    kernels = kernels.replace("\n}  // namespace blink", f"\n{native.linear_macro()}\n}}  // namespace blink")
    return {
        "ring/layout.h": ring,
        "seam/batch_layout.h": seam,
        "drivers/loop_layout.h": drivers,
        "native/layout.h": kernels,
        "synthetic/layout.h": _including(made_up, "seam/batch_layout.h"),
    }


def _including(header: str, *others: str) -> str:
    lines = "".join(f'#include "{other}"\n' for other in others)
    return header.replace("namespace blink {", f"{lines}namespace blink {{", 1)


def main() -> int:
    """Write the headers, or with ``--check`` exit 1 if one is stale."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if a header is stale")
    check = parser.parse_args().check
    stale = [n for n, text in headers().items() if not (KERNELS / n).exists() or (KERNELS / n).read_text() != text]
    for name in stale:
        if check:
            print(f"kernels/{name} is stale: run `make generate`", file=sys.stderr)
        else:
            (KERNELS / name).write_text(headers()[name])
            print(f"wrote kernels/{name}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    raise SystemExit(main())
