"""The developer's instruments: parts of Blink measured by themselves. Users measure with :mod:`blink.bench`."""
