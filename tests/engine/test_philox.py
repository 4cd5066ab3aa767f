from __future__ import annotations

import pytest

from blink.engine.reference.philox import philox4x32, random_u64

PI = ((0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0))


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0,) * 4, (0,) * 2, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (*PI, (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
    ],
)
def test_known_answers_of_random123(counter, key, expected):
    """The lines "philox4x32 10" of Random123's kat_vectors."""
    assert philox4x32(counter, key) == expected


def test_random_u64_is_the_first_two_words():
    words = philox4x32((7, 0, 0, 0), (0x89ABCDEF, 0x01234567))
    assert random_u64(0x0123456789ABCDEF, 7) == words[1] << 32 | words[0]
