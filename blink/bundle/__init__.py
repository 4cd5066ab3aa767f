"""The set that `make bundle` packs: all that an appliance is installed from, in one file, for places without a network.

This package needs the standard library alone, so a set can be checked on a machine that has nothing else yet.
"""
