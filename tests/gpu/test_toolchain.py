"""Every kernel compiles for the GPU it is meant for, on a machine without one; what is compiled once is kept."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("cuda.bindings.nvrtc", reason="needs cuda-bindings, nvidia-cuda-nvrtc and nvidia-nvjitlink")

from blink.backend.gpu import loop_layout
from blink.engine.native import layout
from blink.engine.synthetic import layout as synthetic
from blink.errors import BlinkError
from blink.gpu import toolchain
from tests.gpu.cubin import launches

FOLDER = toolchain.kernel_folder()
SOURCES = sorted(p.relative_to(FOLDER).as_posix() for p in FOLDER.rglob("*.cu"))
GRAPHS = ("drivers/conditional.cu", "drivers/persistent.cu")
SPECIFIC = ("native/attention_prefill.cu",)
EM_CUDA = 190
ENTRIES = (*layout.ENTRIES, *loop_layout.ENTRIES, *synthetic.ENTRIES)


def entries(cubin: bytes) -> set[str]:
    """Names of the kernels in a cubin."""
    return {name.decode() for name in re.findall(rb"\0\.text\.([A-Za-z_]\w*)(?=\0)", cubin)}


@pytest.mark.parametrize("source", SOURCES)
def test_kernels_compile_for_hopper(source: str) -> None:
    arch = "sm_90a" if source in SPECIFIC else "sm_90"
    cubin = toolchain.compile_kernels(source, arch, controls_graphs=source in GRAPHS)
    assert cubin[:4] == b"\x7fELF"
    assert int.from_bytes(cubin[18:20], "little") == EM_CUDA
    declared = {e.name: e for e in ENTRIES if e.source == source}
    own = {name for name in entries(cubin) if not name.startswith("__")}  # the others are the device runtime's
    assert own == declared.keys(), "kernels, and what says how they are launched"
    made = launches(cubin)
    for name, entry in declared.items():
        size = entry.arguments.struct().size if entry.arguments else 0
        assert made[name].parameters == (((0, size),) if size else ()), name
        assert made[name].most_threads in (entry.threads, None), name


HEAD_DIMS = (8, 64, 72, layout.MAX_HEAD_DIM)


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_the_shared_memory_of_attention_is_what_it_is_launched_with(head_dim: int) -> None:
    """As the linear layers' is, which is asserted where they are."""
    sizes = {"prefill": {"sizeof(Storage)": layout.prefill_storage(head_dim)}, "decode": {}}
    for group in (1, 7, 8, 9, 64):
        sizes["decode"][f"storage_bytes({group})"] = layout.decode_storage(head_dim, group)
    for header, kind in (("attention_items", "prefill"), ("attention_splits", "decode")):
        text = f'#include "native/{header}.cuh"\nusing namespace blink;\n'
        text += "".join(f'static_assert({what} == {size}, "");\n' for what, size in sizes[kind].items())
        toolchain.compile_text(text.encode(), f"{kind}.cu", "sm_90a", f"--define-macro=HEAD_DIM={head_dim}")


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of sources that a test may change."""
    folder = tmp_path / "kernels"
    folder.mkdir()
    (folder / "one.cu").write_text('#include "two.h"\nextern "C" __global__ void one(int *x) { *x = TWO; }\n')
    (folder / "two.h").write_text("#define TWO 2\n")
    monkeypatch.setattr(toolchain, "kernel_folder", lambda: folder)
    toolchain.source_hash.cache_clear()
    yield folder
    toolchain.source_hash.cache_clear()


def test_what_was_compiled_is_kept(kernels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = tmp_path / "cache"
    first = toolchain.cached_kernels("one.cu", "sm_90", 13000, kept)
    assert [p.read_bytes() for p in kept.iterdir()] == [first]
    with monkeypatch.context() as without:
        without.setattr(toolchain, "compile_kernels", lambda *a, **k: pytest.fail("compiled again"))
        assert toolchain.cached_kernels("one.cu", "sm_90", 13000, kept) == first


@pytest.mark.parametrize("change", ["header", "driver", "device", "options", "defines"])
def test_a_change_compiles_anew(kernels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    kept, arch, version, defines = tmp_path / "cache", "sm_90", 13000, {"ONE": 1}
    toolchain.cached_kernels("one.cu", arch, version, kept, defines=defines)
    match change:
        case "header":
            (kernels / "two.h").write_text("#define TWO 3\n")
        case "driver":
            version = 13010
        case "device":
            arch = "sm_100"
        case "options":
            monkeypatch.setattr(toolchain, "OPTIONS", ("--std=c++20",))
        case "defines":
            defines = {"ONE": 2}
    toolchain.source_hash.cache_clear()
    toolchain.cached_kernels("one.cu", arch, version, kept, defines=defines)
    assert len(list(kept.iterdir())) == 2


def test_a_cache_that_cannot_be_written_is_done_without(kernels: Path, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert toolchain.cached_kernels("one.cu", "sm_90", 13000, blocked / "cache")[:4] == b"\x7fELF"


def test_an_error_names_the_file_and_what_the_compiler_said(kernels: Path) -> None:
    (kernels / "one.cu").write_text("nonsense;\n")
    with pytest.raises(BlinkError, match=r"one\.cu does not compile: .*nonsense"):
        toolchain.compile_kernels("one.cu", "sm_90")


def test_another_toolchain_is_refused(kernels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code of a newer one would not load, with an error that names no cause."""
    monkeypatch.setattr(toolchain, "CUDA_VERSION", (12, 9))
    with pytest.raises(BlinkError, match=r"NVRTC is version 13\.0, not 12\.9"):
        toolchain.compile_kernels("one.cu", "sm_90")
