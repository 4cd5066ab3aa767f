"""What every engine's sampling agrees on (docs/sampling.md)."""

from __future__ import annotations

WEIGHT_BITS = 40  # of the most likely token's weight
MAX_VOCAB = 1 << 22  # so many weights of WEIGHT_BITS add up within 62 bits
