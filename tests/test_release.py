"""The id by which the halves of an appliance know that they run the same release."""

from __future__ import annotations

from pathlib import Path

from blink.release import release_id
from tests.ansible.playbook import ROOT


def package(folder: Path) -> Path:
    (folder / "kernels/reference").mkdir(parents=True)
    (folder / "cli.py").write_text("print()")
    (folder / "kernels/reference/cpu_engine.cpp").write_text("int x;")
    (folder / "libblink_cpu.so").write_bytes(b"\x7fELF x86_64")
    return folder


def test_halves_of_two_architectures_run_one_release(tmp_path: Path) -> None:
    host, dpu = package(tmp_path / "host"), package(tmp_path / "dpu")
    (dpu / "libblink_cpu.so").write_bytes(b"\x7fELF aarch64")
    assert release_id([host]) == release_id([dpu])


def test_a_change_in_python_or_in_a_library_is_another_release(tmp_path: Path) -> None:
    before = release_id([package(tmp_path / "a")])
    other = package(tmp_path / "b")
    (other / "kernels/reference/cpu_engine.cpp").write_text("int y;")
    assert release_id([other]) != before
    another = package(tmp_path / "c")
    (another / "cli.py").write_text("print(1)")
    assert release_id([another]) != before


def test_what_libraries_are_built_from_travels_with_the_package() -> None:
    installed = (ROOT / "CMakeLists.txt").read_text().split("install(DIRECTORY kernels/", 1)[1]
    suffixes = {path.suffix for path in (ROOT / "kernels").rglob("*") if path.is_file()}
    assert all(f'PATTERN "*{suffix}"' in installed for suffix in suffixes)
