"""How sampling divides a vocabulary, and the device memory it takes. Imports nothing of CUDA."""

from __future__ import annotations

from blink.engine.seam.sampling import MAX_VOCAB
from blink.errors import BlinkError

BLOCKS, WARPS = 8, 16  # of the cluster that has a row, and of each block; kernels/native/cluster.cuh
SHARED_LIMIT = 192 << 10  # bytes of logits that a block keeps in shared memory
MAX_CONTEXT = (1 << 20) - 1  # occurrences of a token are counted in 20 bits


def warp_ids(vocab: int) -> int:
    """How many consecutive ids each warp has; a multiple of 4. Raises BlinkError."""
    if not 0 < vocab <= MAX_VOCAB:
        raise BlinkError(f"vocab_size: {vocab} is not within 1 … {MAX_VOCAB}", "check the model's config.json")
    return -(-vocab // (4 * BLOCKS * WARPS)) * 4


def block_bytes(vocab: int) -> int:
    """Of the logits that one block has."""
    return 4 * WARPS * warp_ids(vocab)


def spills(vocab: int) -> bool:
    """Whether they are kept in device memory, since shared memory is too small."""
    return block_bytes(vocab) > SHARED_LIMIT


def sampler_bytes(*, vocab: int, lanes: int, max_context: int) -> int:
    """Device memory that :class:`blink.engine.native.sampler.Sampler` takes. Raises BlinkError."""
    if max_context > MAX_CONTEXT:
        raise BlinkError(f"engine.max_context: {max_context} exceeds {MAX_CONTEXT}", "lower it")
    return 4 * lanes * max_context + (lanes * BLOCKS * block_bytes(vocab) if spills(vocab) else 0)
