"""Rotary embeddings: properties that hold by definition; tests/engine/test_references.py has every kind at work."""

from __future__ import annotations

import numpy as np
import pytest

from blink.model.rope import RopeTable, inverse_frequencies
from blink.model.spec import RopeSpec
from tests.engine.checkpoints import CONFIGS, spec

PLAIN = RopeSpec("default", 10000.0, 16, 256)


def test_plain_frequencies():
    np.testing.assert_allclose(inverse_frequencies(PLAIN, 256), 10000.0 ** -(np.arange(8) / 8), rtol=1e-6)


def test_linear_divides_all():
    linear = RopeSpec("linear", 10000.0, 16, 256, factor=4.0)
    np.testing.assert_allclose(inverse_frequencies(linear, 256), inverse_frequencies(PLAIN, 256) / 4)


def test_dynamic_is_plain_within_the_original_context():
    dynamic = RopeSpec("dynamic", 10000.0, 16, 256, factor=2.0)
    assert np.array_equal(inverse_frequencies(dynamic, 256), inverse_frequencies(PLAIN, 256))
    longer = inverse_frequencies(dynamic, 512)
    assert longer[0] == 1
    assert (longer[1:] < inverse_frequencies(PLAIN, 256)[1:]).all()


@pytest.mark.parametrize("kind", ["llama3", "yarn"])
def test_fast_pairs_stay_and_slow_ones_stretch(kind):
    rope = RopeSpec(kind, 10000.0, 64, 256, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0)
    plain = inverse_frequencies(RopeSpec("default", 10000.0, 64, 256), 256)
    ratio = plain / inverse_frequencies(rope, 2048)
    assert ratio[0] == 1
    assert ratio[-1] == pytest.approx(8, rel=1e-5)
    assert (np.diff(ratio) > -1e-5).all()


def test_longrope_goes_by_the_context_of_the_engine():
    rope = spec("phi3-longrope").rope
    short, long = inverse_frequencies(rope, 64), inverse_frequencies(rope, 65)
    np.testing.assert_allclose(short / long, np.array(rope.long_factor) / rope.short_factor, rtol=1e-5)


@pytest.mark.parametrize("name", CONFIGS)
def test_scores_depend_on_distance_only(name):
    """Rotation keeps lengths (times the attention factor), leaves what is beyond its part, and makes q·k relative."""
    s = spec(name)
    table = RopeTable(s.rope, 128)
    rng = np.random.default_rng(0)
    q, k = rng.standard_normal((2, s.head_dim)).astype(np.float32)

    def rotated(x, position):
        y = x.copy().reshape(1, 1, -1)
        table.rotate(y, np.array([position], np.int32))
        return y[0, 0]

    assert np.array_equal(rotated(q, 9)[s.rope.dim :], q[s.rope.dim :])
    length = s.rope.attention_factor * np.linalg.norm(q[: s.rope.dim])
    assert np.linalg.norm(rotated(q, 99)[: s.rope.dim]) == pytest.approx(length, rel=1e-5)
    assert rotated(q, 27) @ rotated(k, 20) == pytest.approx(rotated(q, 107) @ rotated(k, 100), rel=1e-3, abs=1e-3)
