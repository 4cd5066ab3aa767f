from __future__ import annotations

import json
import random
import struct
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from blink.errors import BlinkError
from blink.model.progress import Progress
from blink.model.safetensors_file import (
    TensorSource,
    iter_entries,
    map_tensors,
    read_entries,
    shards,
    to_float32,
    write_tensors,
)

QUIET = Progress("test", 0)


def raw_file(path: Path, header: object, body: bytes = b"") -> Path:
    """A safetensors file with any header at all."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)
    return path


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def test_what_is_written_reads_back_by_the_library(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {"b": rng.normal(size=(5, 3)).astype(np.float32), "a": rng.normal(size=7).astype(np.float32)}
    sources = [TensorSource(k, a.shape, lambda a=a: (row for row in np.atleast_2d(a))) for k, a in arrays.items()]
    write_tensors(tmp_path / "x.safetensors", sources, QUIET)
    theirs = load_file(tmp_path / "x.safetensors")
    assert theirs.keys() == arrays.keys()
    for k, a in arrays.items():
        assert np.array_equal(theirs[k], a)
        assert np.array_equal(map_tensors(tmp_path / "x.safetensors")[k], a)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, np.int64, np.int8, np.uint8, np.bool_])
def test_what_the_library_writes_is_mapped(tmp_path, dtype):
    a = (np.random.default_rng(0).normal(size=(4, 6)) * 3).astype(dtype)
    save_file({"x": a, "empty": np.zeros((0, 3), dtype), "scalar": np.array(1, dtype)}, tmp_path / "x.safetensors")
    ours = map_tensors(tmp_path / "x.safetensors")
    assert ours["x"].dtype == a.dtype
    assert np.array_equal(ours["x"], a)
    assert ours["empty"].shape == (0, 3)
    assert ours["scalar"].shape == ()
    assert not ours["x"].flags.writeable


def test_bfloat16_comes_as_bits_and_converts_exactly(tmp_path):
    values = np.array([0.0, -0.0, 1.0, -2.5, 3.389531e38, 1e-40, np.inf, -np.inf, np.nan], np.float32)
    bits = (values.view(np.uint32) >> 16).astype("<u2")
    raw_file(tmp_path / "x.safetensors", {"x": entry("BF16", [9], 0, 18)}, bits.tobytes())
    mapped = map_tensors(tmp_path / "x.safetensors")["x"]
    assert mapped.dtype == np.uint16
    assert np.array_equal(mapped, bits)
    expected = (bits.astype(np.uint32) << 16).view(np.float32)
    assert np.array_equal(to_float32(mapped), expected, equal_nan=True)
    assert to_float32(mapped)[3] == -2.5


def test_float16_converts_exactly():
    a = np.array([1.5, -0.1, 65504], np.float16)
    assert np.array_equal(to_float32(a), a.astype(np.float32))
    b = np.array([1.5], np.float32)
    assert to_float32(b) is b or np.shares_memory(to_float32(b), b)


@pytest.mark.parametrize(
    ("header", "says"),
    [
        (b"{not json", "not JSON"),
        (b"[1, 2]", "not a JSON object"),
        (b"[" * 50_000 + b"]" * 50_000, "not JSON"),
        ({"x": 3}, "no valid dtype"),
        ({"x": {"dtype": "F32"}}, "no valid dtype"),
        ({"x": entry("F32", [-1], 0, 4)}, "no valid dtype"),
        ({"x": entry("F32", [1.5], 0, 4)}, "no valid dtype"),
        ({"x": entry("F32", [True], 0, 4)}, "no valid dtype"),
        ({"x": {"dtype": ["F32"], "shape": [1], "data_offsets": [0, 4]}}, "no valid dtype"),
        ({"x": entry("F8_E4M3", [4], 0, 4)}, "unsupported dtype 'F8_E4M3'"),
        ({"x": entry("F32", [2], 0, 4)}, "spans 4 bytes"),
        ({"x": entry("F32", [1], 4, 0)}, "spans -4 bytes"),
        ({"x": entry("F32", [2**62], 0, 2**64)}, "was cut off"),
        ({"x": entry("F32", [2], 8, 16)}, "was cut off"),
    ],
)
def test_damage_is_named(tmp_path, header, says):
    path = raw_file(tmp_path / "x.safetensors", header, bytes(8))
    with pytest.raises(BlinkError, match=r"x\.safetensors") as e:
        read_entries(path)
    assert says in e.value.cause
    assert "\n" not in str(e.value)


@pytest.mark.parametrize("data", [b"", b"1234567", struct.pack("<Q", 2**63) + b"{}", struct.pack("<Q", 50) + b"{}"])
def test_an_impossible_header_length(tmp_path, data):
    (tmp_path / "x.safetensors").write_bytes(data)
    with pytest.raises(BlinkError, match="header length"):
        read_entries(tmp_path / "x.safetensors")


def test_mutations_end_in_an_error_or_in_arrays(tmp_path):
    path = tmp_path / "x.safetensors"
    save_file({f"t{i}": np.ones((3, 4), np.float32) for i in range(3)}, path)
    good, rng, errors = path.read_bytes(), random.Random(1), 0
    for _ in range(1000):
        data = bytearray(good)
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(250)] = rng.choice(b'\x00\xff{}[]",:0123456789-e.F') if rng.random() < 0.8 else 200
        path.write_bytes(data)
        try:
            map_tensors(path)
        except BlinkError:
            errors += 1
    assert errors > 500


def _sharded(folder: Path) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    arrays = {f"t{i}": rng.normal(size=(2, 3)).astype(np.float32) for i in range(4)}
    parts = {"model-00001-of-00002.safetensors": ["t0", "t2"], "model-00002-of-00002.safetensors": ["t1", "t3"]}
    for file, names in parts.items():
        save_file({n: arrays[n] for n in names}, folder / file)
    index = {"metadata": {}, "weight_map": {n: f for f, names in parts.items() for n in names}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return arrays


def test_shards(tmp_path):
    _sharded(tmp_path)
    assert [p.name for p in shards(tmp_path)] == [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    assert sorted(e.name for _, e in iter_entries(tmp_path)) == ["t0", "t1", "t2", "t3"]


def test_a_missing_shard_is_named(tmp_path):
    _sharded(tmp_path)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(BlinkError, match=r"model-00002-of-00002\.safetensors is missing"):
        shards(tmp_path)


def test_a_tensor_in_two_shards_is_named(tmp_path):
    _sharded(tmp_path)
    save_file(
        {"t0": np.ones(1, np.float32), "t1": np.ones(1, np.float32)}, tmp_path / "model-00002-of-00002.safetensors"
    )
    with pytest.raises(BlinkError, match=r"tensor t0 is in model-00001"):
        list(iter_entries(tmp_path))


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"weight_map": {}}', '{"weight_map": {"a": "../x.safetensors"}}'])
def test_a_damaged_index_is_named(tmp_path, content):
    (tmp_path / "model.safetensors.index.json").write_text(content)
    with pytest.raises(BlinkError, match="weight_map"):
        shards(tmp_path)


def test_no_weights(tmp_path):
    with pytest.raises(BlinkError, match=r"\.bin files are not read"):
        shards(tmp_path)
