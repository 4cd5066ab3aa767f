"""The ring's header H as one value: written by the host, checked by every worker before it trusts an offset."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from blink.errors import BlinkError
from blink.ring.layout import HEADER, MAGIC, VERSION, Geometry
from blink.ring.shares import worker_share
from blink.ring.transport import Bytes

_DTYPE = HEADER.dtype()
_OFFSETS = ("g_off", "g_stride", "f_off", "f_stride", "out_off", "out_len", "in_off", "in_len")


@dataclass(frozen=True)
class Header:
    """Limits of a ring and the identity of what it serves. ``epoch`` 0 means that the ring is not published yet."""

    geometry: Geometry
    epoch: int
    lanes: int
    queue_cap: int
    vocab: int
    max_context: int
    ext_words: int
    page_tokens: int
    pages: int
    fingerprint: bytes

    @property
    def share(self) -> int:
        """Requests that one worker may have outstanding: its part of the scheduler's queue."""
        return worker_share(self.queue_cap, self.geometry.parts)

    def _offsets(self) -> dict[str, int]:
        g = self.geometry
        values = (g.g_off, g.g_stride, 0, g.f_stride, g.out_off, g.output_bytes, g.in_off, g.input_bytes)
        return dict(zip(_OFFSETS, values, strict=True))

    def encode(self) -> bytes:
        """H as bytes, length PAGE, with zero counters."""
        record = np.zeros((), _DTYPE)
        record["magic"], record["version"], record["epoch"] = MAGIC, VERSION, self.epoch
        record["slots"], record["parts"] = self.geometry.slots, self.geometry.parts
        for name in ("lanes", "queue_cap", "vocab", "max_context", "ext_words", "page_tokens", "pages"):
            record[name] = getattr(self, name)
        for name, value in self._offsets().items():
            record[name] = value
        record["fingerprint"] = np.frombuffer(self.fingerprint, np.uint8)
        return record.tobytes()

    @classmethod
    def decode(cls, data: Bytes, where: str) -> Header:
        """Check and parse H, u8, shape [PAGE]. Raises BlinkError, naming ``where`` and the field."""
        record = np.frombuffer(data.tobytes(), _DTYPE)[0]
        if int(record["magic"]) != MAGIC:
            raise BlinkError(f"{where}: magic is {int(record['magic']):#x}", "this is no Blink ring; check ring_dir")
        if int(record["version"]) != VERSION or int(record["features"]):
            raise BlinkError(
                f"{where}: ring version {int(record['version'])}.{int(record['features'])}, not {VERSION}.0",
                "install the same version of Blink on backend and frontend",
            )
        broken = "the backend wrote a broken header; restart it"
        try:
            geometry = Geometry(*(int(record[name]) for name in ("slots", "parts", "in_len", "out_len")))
        except ValueError as e:
            raise BlinkError(f"{where}: {e}", broken) from None
        numbers = {
            name: int(record[name])
            for name in ("epoch", "lanes", "queue_cap", "vocab", "max_context", "ext_words", "page_tokens", "pages")
        }
        header = cls(geometry, fingerprint=record["fingerprint"].tobytes(), **numbers)
        for name, value in header._offsets().items():
            if int(record[name]) != value:
                raise BlinkError(f"{where}: {name} is {int(record[name])}, its geometry says {value}", broken)
        for name in ("lanes", "queue_cap", "vocab", "max_context"):
            if not numbers[name]:
                raise BlinkError(f"{where}: {name} is 0", broken)
        return header
