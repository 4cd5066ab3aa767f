"""The card, for a person who flashes it by hand: python -m tests.lab.card, until it is interrupted."""

from __future__ import annotations

import sys
import time

from images.lab.errors import LabError
from images.lab.machine import Machine
from images.lab.places import STATE
from tests.lab.card.card import inserted
from tests.lab.card.host import equipped
from tests.lab.card.image import write_bfb


def main() -> None:
    bfb = write_bfb(STATE / "card.bfb")
    with inserted() as card, equipped(Machine("gpu01")):
        print(f"{bfb} can be flashed (docs/lab.md); Ctrl+C takes the card out", flush=True)
        shown: list[str] = []
        while True:
            lines = list(card.lines)
            if lines[: len(shown)] != shown:
                shown = []
            for line in lines[len(shown) :]:
                print(line, flush=True)
            shown = lines
            time.sleep(1)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        pass
    except LabError as error:
        sys.exit(f"lab: {error}")
