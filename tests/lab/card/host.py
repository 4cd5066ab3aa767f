"""gpu01 as the host of a card: DOCA-Host's tools as tests/vendor has them, and the link to the card."""

from __future__ import annotations

import base64
import io
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from images.lab.machine import Machine
from tests.vendor.repository import LIBRARY, MFT, RSHIM, unit

LINK: dict[str, str | Path] = {
    "/usr/lib/vendor/link.py": Path(__file__).with_name("link.py"),
    "/lib/systemd/system/card-link.service": unit(
        "Link to the card, simulated", "/usr/bin/python3 -I /usr/lib/vendor/link.py"
    ),
}
FILES = LIBRARY | RSHIM | {path: file for path, file in MFT.items() if path.endswith("/flint")} | LINK


@contextmanager
def equipped(gpu: Machine) -> Iterator[None]:
    """The tools on ``gpu``, as long as the block."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for path, content in FILES.items():
            data = content.read_bytes() if isinstance(content, Path) else content.encode()
            entry = tarfile.TarInfo(path.replace("/lib/systemd", "/usr/lib/systemd", 1).lstrip("/"))
            entry.size, entry.mode = len(data), 0o755
            tar.addfile(entry, io.BytesIO(data))
    gpu.ssh("base64 -d | tar -xC /", stdin=base64.b64encode(archive.getvalue()).decode())
    # rshim comes after what the link shows it.
    gpu.ssh(
        "systemctl daemon-reload && systemctl start card-link "
        "&& timeout 60 sh -c 'until [ -e /vendor/rshim0/misc ]; do sleep 0.2; done' && systemctl start rshim "
        "&& timeout 60 sh -c 'until [ -e /dev/rshim0/misc ]; do sleep 0.2; done'"
    )
    try:
        yield
    finally:
        gpu.ssh(f"systemctl stop rshim card-link; rm -rf /vendor /dev/rshim0 /usr/lib/vendor {' '.join(FILES)}")
        gpu.ssh("systemctl daemon-reload")
