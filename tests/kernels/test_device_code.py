"""The device code compiles for the GPU it is meant for, on a machine without one."""

import pytest

pytest.importorskip("cuda.bindings.nvrtc", reason="needs cuda-bindings and nvidia-cuda-nvrtc")

from cuda.bindings import nvrtc

from tests.kernels.device_build import compile_step

EM_CUDA = 190


def test_the_compiler_is_not_newer_than_the_driver_it_must_work_with():
    err, major, minor = nvrtc.nvrtcVersion()
    assert err == nvrtc.nvrtcResult.NVRTC_SUCCESS
    assert (major, minor) == (13, 0), "driver 580 loads code of CUDA 13.0"


def test_step_compiles_to_a_cubin_for_hopper():
    cubin = compile_step("sm_90")
    assert cubin[:4] == b"\x7fELF"
    assert int.from_bytes(cubin[18:20], "little") == EM_CUDA
    for kernel in (b"blink_step", b"blink_init"):
        assert b".text." + kernel in cubin
