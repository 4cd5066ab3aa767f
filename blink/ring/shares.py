"""How the partitions of a ring share the requests that the scheduler holds.

Every partition has an equal share, so that none takes room from another. The last of several is the operator's, for
checks: what the header calls ``queue_cap`` is the share of all the others.
"""

from __future__ import annotations


def share_of(requests: int, workers: int) -> int:
    """The share of each partition where ``workers`` are to have ``requests`` between them."""
    return -(-requests // workers)


def queue_cap(share: int, parts: int) -> int:
    """What all workers together may have outstanding."""
    return share * (parts - 1)


def worker_share(cap: int, parts: int) -> int:
    """What one worker may have outstanding, of a ring whose header says ``cap``."""
    return max(1, cap // max(1, parts - 1))
