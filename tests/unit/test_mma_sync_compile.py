"""The mma_sync kernel compiled for GPUs that are not here: instructions, registers, spills."""

import re

import pytest

from autoswizzle.config import GemmConfig
from autoswizzle.hardware import find_gpu
from autoswizzle.problem import GemmProblem
from autoswizzle.smem import gemm_traffic

pytestmark = pytest.mark.kernel
pytest.importorskip("triton.experimental.gluon")
offline = pytest.importorskip("autoswizzle.kernels.offline")


A100, H200 = find_gpu("A100-80GB"), find_gpu("H200")
SQUARE = GemmProblem(4096, 4096, 4096, "bf16", "nt")
RING = 3 * (128 + 128) * 64 * 2  # bytes of three stages; C's 64 KiB lie over it


def article(**changed):
    """The article's tile: 128 x 128 x 64 with 8 warps."""
    tile = {"block_m": 128, "block_n": 128, "block_k": 64, "num_warps": 8, "num_stages": 3}
    return GemmConfig(kernel="mma_sync", **{**tile, **changed})


def counts(config, problem, gpu):
    ptx = offline.compiled(config, problem, gpu).asm["ptx"]
    names = ("mma.sync", "ldmatrix", "cp.async.cg", "ld.shared", "st.shared", "ld.global")
    return {name: len(re.findall(re.escape(name), ptx)) for name in names}


@pytest.mark.parametrize("gpu", [A100, H200], ids=["sm_80", "sm_90"])
@pytest.mark.parametrize("kind", ["none", "128"])
def test_the_articles_tile_has_no_spills_and_one_instruction_mix(gpu, kind):
    config = article(smem_a=kind, smem_b=kind, smem_c=kind)
    resources = offline.compile_for(config, SQUARE, gpu)
    assert resources.spill_bytes == 0
    assert resources.registers <= 255
    assert (resources.shared_bytes, resources.num_warps) == (RING, 8)
    found = counts(config, SQUARE, gpu)
    warp_reads = (
        (128 // 2 + 128 // 4) * 64 * 2
    )  # bytes of A and B one of 2 x 4 warps reads a k step
    assert found["ldmatrix"] == warp_reads // 512  # an ldmatrix.x4 reads four 8 x 16 byte matrices
    assert found["mma.sync"] == (128 // 2 // 16) * (128 // 4 // 8) * (64 // 16)
    assert found["cp.async.cg"] == 3 * (128 + 128) * 64 * 2 // (256 * 16)
    assert found["ld.global"] == 0


def test_padding_goes_through_registers_and_pads_every_row():
    config = article(smem_a="padded", smem_b="padded", smem_c="padded")
    resources = offline.compile_for(config, SQUARE, H200)
    assert resources.spill_bytes == 0
    assert RING < resources.shared_bytes <= RING + 3 * (128 + 128) * 16
    found = counts(config, SQUARE, H200)
    assert found["cp.async.cg"] == found["ldmatrix"] == 0
    assert found["ld.global"] == 3 * (128 + 128) * 64 * 2 // (256 * 16)
    c_only = counts(article(smem_a="128", smem_b="128", smem_c="padded"), SQUARE, H200)
    assert c_only["cp.async.cg"] == 0
    assert c_only["ldmatrix"] > 0


@pytest.mark.parametrize("layout", ["nn", "tn", "tt"])
def test_every_storage_order_is_read_by_ldmatrix(layout):
    problem = GemmProblem(4104, 4104, 4104, "fp16", layout)  # 16-byte, but not 32-byte, strides
    found = counts(article(smem_a="64", smem_b="128", swizzle="hilbert"), problem, A100)
    assert (found["ldmatrix"], found["cp.async.cg"]) == (24, 24)


def test_max_registers_caps_the_compiler():
    resources = offline.compile_for(
        article(smem_a="128", smem_b="128", max_registers=128), SQUARE, H200
    )
    assert resources.registers <= 128


def test_ldmatrix_instructions_are_the_predicted_traffic():
    """12,582,912 ldmatrix of 512 bytes at 4096^3, as counted on an H200."""
    tiles, steps, warps = 32 * 32, 64, 8
    found = counts(article(smem_a="128", smem_b="128"), SQUARE, H200)["ldmatrix"]
    assert found * tiles * steps * warps == 12_582_912
    moved = gemm_traffic(
        4096, 4096, 4096, block_m=128, block_n=128, block_k=64, warps_m=2, warps_n=4, c_itemsize=0
    )
    assert moved.shared_read == 12_582_912 * 512
