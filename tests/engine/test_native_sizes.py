"""What the native engine takes and refuses, and how it rounds weights: what needs no GPU."""

from __future__ import annotations

import numpy as np
import pytest

from blink.engine.native.memory import needs, sampler_bytes, weights_nbytes
from blink.engine.native.shape import AttentionShape, matrices, require_supported
from blink.engine.seam.engine import EngineSettings
from blink.errors import BlinkError
from blink.model.spec import ModelSpec
from tests.engine.checkpoints import spec

LLAMA3_8B = ModelSpec.from_config(
    {
        "architectures": ["LlamaForCausalLM"], "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 8192,
    }
)  # fmt: skip
SETTINGS = EngineSettings(lanes=128, batch_tokens=2048, pages=4096, page_tokens=64, max_context=8192)


def test_weights_are_the_parameters_at_two_bytes() -> None:
    assert weights_nbytes(LLAMA3_8B) == pytest.approx(2 * LLAMA3_8B.parameters(), rel=1e-3)
    tied = spec("llama-mha-tied")
    assert weights_nbytes(tied) < weights_nbytes(spec("llama"))


def test_pages_are_keys_and_values_of_every_layer() -> None:
    assert needs(LLAMA3_8B, SETTINGS)["engine.pages"] == 32 * 2 * 4096 * 64 * 8 * 128 * 2


def test_rows_are_padded_for_the_kernels() -> None:
    for matrix in matrices(spec("llama-odd-sizes")).values():
        assert matrix.stride % 32 == 0
        assert 0 <= matrix.stride - matrix.inputs < 32


@pytest.mark.parametrize(("name", "says"), [("qwen3-moe", "mixtures of experts"), ("llama-odd-sizes", "head_dim")])
def test_what_is_not_supported_is_refused_by_name(name: str, says: str) -> None:
    with pytest.raises(BlinkError, match=says):
        require_supported(spec(name), SETTINGS)
    with pytest.raises(BlinkError, match=says):
        needs(spec(name), SETTINGS)


def test_what_the_kernels_cannot_do_is_refused() -> None:
    good = {"heads": 8, "kv_heads": 2, "head_dim": 64, "pages": 4, "page_tokens": 64, "max_context": 64}
    for change, text in (
        ({"head_dim": 100}, "head_dim .* not 100"),
        ({"head_dim": 136}, "head_dim .* up to 128, not 136"),
        ({"heads": 9}, "num_attention_heads: 9"),
        ({"page_tokens": 48}, r"engine\.page_tokens: 48"),
    ):
        with pytest.raises(BlinkError, match=text):
            AttentionShape(**{**good, **change}, scale=1.0, dtype="float16")


def test_what_is_too_large_to_sample_from_is_refused() -> None:
    for vocab, context, text in ((1 << 23, 100, "vocab_size"), (0, 100, "vocab_size"), (100, 1 << 20, "max_context")):
        with pytest.raises(BlinkError, match=text):
            sampler_bytes(vocab=vocab, lanes=1, max_context=context)


@pytest.mark.parametrize("value", [1.0, 1.00390625, 1.01171875, -3.3895e38, 1e-40, np.inf, 3.4e38, 0.0])
def test_bfloat16_is_rounded_to_nearest_even(value: float) -> None:
    """1 + 1/256 lies between 1 and 1 + 1/128 and goes to the even 1; 1 + 3/256 goes up."""
    to_real = pytest.importorskip("blink.engine.native.weights", reason="needs cuda-bindings").to_real
    x = np.array([value], np.float32)
    got = (to_real(x, "bfloat16").astype(np.uint32) << 16).view(np.float32)[0]
    below = (x.view(np.uint32) & 0xFFFF0000).view(np.float32)[0]
    above = ((x.view(np.uint32) & 0xFFFF0000) + np.uint32(0x10000)).view(np.float32)[0]
    choices = {float(below), float(above)} if np.isfinite(value) else {value}
    assert float(got) in choices
    if np.isfinite(value) and np.isfinite(above):
        assert abs(got - x[0]) == min(abs(below - x[0]), abs(above - x[0]))
    if value in (1.00390625, 1.01171875):
        assert got == {1.00390625: 1.0, 1.01171875: 1.015625}[value]


def test_conversions_keep_what_they_can() -> None:
    to_real = pytest.importorskip("blink.engine.native.weights", reason="needs cuda-bindings").to_real
    halves = np.arange(0, 0x7C00, 7, dtype=np.uint16)
    np.testing.assert_array_equal(to_real(halves.view(np.float16), "float16"), halves)
    np.testing.assert_array_equal(to_real(halves, "bfloat16"), halves)
    assert np.isnan((to_real(np.array([np.nan], np.float32), "bfloat16").astype(np.uint32) << 16).view(np.float32))
    assert to_real(np.array([1e6], np.float32), "float16")[0] == 0x7C00, "too large is infinite, and its row fails"
