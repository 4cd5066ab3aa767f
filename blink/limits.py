"""The largest sizes that an appliance can have, each once: the configuration, the ring and the scheduler keep to them.

The C++ headers carry them (kernels/ring/layout.h, kernels/seam/batch_layout.h).
"""

from __future__ import annotations

PARTITIONS = 64
"""Of a ring."""
SLOTS = 1 << 16
"""Of a ring; a multiple of its partitions."""
LANES = 1024
"""Rows of a decode step."""
RECORDS = 1 << 20
"""Requests that the scheduler holds: running, paused and waiting for a lane."""
PAGE_TOKENS = 1024
"""Positions of a page of the KV cache."""
CONTEXT = 1 << 24
"""Tokens of prompt and answer together."""
BATCH_TOKENS = 1 << 20
"""Packed tokens of a step."""
BUCKETS = 512
"""Captured steps of each kind: the paper's dense grids have 650 to 1000 graphs in all."""
EOS = 8
"""End-of-sequence ids of a model."""
STOP = 64
"""Ids that end a lane, the model's own included."""
BIAS = 1024
"""Entries of a request's logit bias."""
