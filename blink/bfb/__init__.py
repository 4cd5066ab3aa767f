"""BlueField boot streams (BFB files): what is in one, and whether it can be flashed.

This package needs the standard library alone, so a machine without Blink's packages can run ``python -m blink.bfb``
from a checkout.
"""
