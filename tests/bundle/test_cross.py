"""Blink's library for the other processor: what it is, and that it computes the same, under an emulator."""

from __future__ import annotations

import os
import platform
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ansible.playbook import ROOT

pytest.importorskip("ziglang", reason="needs requirements/cross.txt")
pytestmark = [
    pytest.mark.fleet,
    pytest.mark.timeout(1800),  # the compiler has to build its own libraries first
    pytest.mark.skipif(platform.machine() != "x86_64", reason="this machine is not x86_64"),
]
# qemu-user-static and libc6-arm64-cross of Debian.
EMULATOR, SYSROOT = "qemu-aarch64-static", Path("/usr/aarch64-linux-gnu")

PROBE = r"""
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <dlfcn.h>
#include <vector>

int main(int, char **argv) {
    void *lib = dlopen(argv[1], RTLD_NOW);
    if (!lib) return std::fprintf(stderr, "%s\n", dlerror()), 1;
    auto crc = reinterpret_cast<std::uint32_t (*)(const void *, std::uint32_t)>(dlsym(lib, "blink_crc32c"));
    auto hash = reinterpret_cast<std::uint32_t (*)(const void *, std::uint32_t, std::uint32_t)>(
        dlsym(lib, "blink_words_hash"));
    auto store = reinterpret_cast<void (*)(void *, std::uint64_t)>(dlsym(lib, "blink_store_release"));
    auto load = reinterpret_cast<std::uint64_t (*)(const void *)>(dlsym(lib, "blink_load_acquire"));
    if (!crc || !hash || !store || !load) return 2;
    std::vector<std::uint32_t> words(1000);
    for (std::uint32_t i = 0; i < words.size(); ++i) words[i] = i * 2654435761u;
    alignas(8) std::uint64_t slot = 0;
    store(&slot, 0x0123456789abcdefull);
    std::printf("%08x %08x %016llx\n", crc(words.data(), 1000), hash(words.data(), 1000, 7),
                static_cast<unsigned long long>(load(&slot)));
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """libblink_core.so, compiled as scripts/bundle has it compiled."""
    folder = tmp_path_factory.mktemp("cross")
    environment = {
        **os.environ,
        "BLINK_TARGET": "aarch64-linux-gnu.2.28",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    for command in (
        ["cmake", "-S", ROOT, "-B", folder, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
         f"-DCMAKE_TOOLCHAIN_FILE={ROOT / 'scripts/cross.cmake'}"],
        ["cmake", "--build", folder, "--target", "blink_core"],
    ):  # fmt: skip
        subprocess.run(command, env=environment, check=True, timeout=900, capture_output=True)
    return folder / "libblink_core.so"


def test_it_is_for_the_other_processor_and_needs_an_old_glibc_alone(library: Path) -> None:
    data = library.read_bytes()
    assert data[:4] == b"\x7fELF"
    assert struct.unpack_from("<H", data, 18)[0] == 183  # EM_AARCH64
    versions = {tuple(map(int, v.split(b"."))) for v in re.findall(rb"GLIBC_(\d+\.\d+)", data)}
    assert max(versions) <= (2, 28)
    assert b"GLIBCXX" not in data


def test_it_computes_the_same(library: Path, tmp_path: Path) -> None:
    if shutil.which(EMULATOR) is None or not SYSROOT.is_dir():
        pytest.skip(f"needs {EMULATOR} and {SYSROOT} (apt install qemu-user-static libc6-arm64-cross)")
    import blink.core

    native = next(
        Path(f) / "libblink_core.so" for f in blink.core.blink.__path__ if (Path(f) / "libblink_core.so").exists()
    )
    source = tmp_path / "probe.cpp"
    source.write_text(PROBE)
    zig = [sys.executable, "-m", "ziglang", "c++", "-O1", str(source)]
    printed = []
    for target, prefix, lib in (
        ("aarch64-linux-gnu.2.28", [EMULATOR, "-L", str(SYSROOT)], library),
        (None, [], native),
    ):
        probe = tmp_path / f"probe-{target}"
        compiler = [*zig, "-target", target] if target else ["c++", "-O1", str(source), "-ldl"]
        subprocess.run([*compiler, "-o", str(probe)], check=True, timeout=900, capture_output=True)
        ran = subprocess.run([*prefix, str(probe), str(lib)], check=True, timeout=60, capture_output=True, text=True)
        printed.append(ran.stdout)
    assert printed[0] == printed[1]
    assert "0123456789abcdef" in printed[0]
