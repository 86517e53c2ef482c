"""wgmma candidates compile for sm_90 without a GPU, into what makes them fast."""

import re
from dataclasses import replace
from typing import Any

import pytest

from autoswizzle.config import GemmConfig
from autoswizzle.errors import LaunchError
from autoswizzle.hardware import find_gpu
from autoswizzle.kernels.family import family
from autoswizzle.kernels.offline import compile_for, compiled, meta_operands
from autoswizzle.problem import GemmProblem
from autoswizzle.search.study import MAX_SPILL_BYTES
from autoswizzle.space import consumers, why_illegal

pytestmark = pytest.mark.kernel

H200 = find_gpu("H200")
BASE = GemmConfig(
    kernel="wgmma", block_m=128, block_n=256, block_k=64, num_stages=4, persistent=True,
    epilogue_subtile=4, warp_specialize="cooperative",
)  # fmt: skip
PINGPONG = replace(BASE, block_n=128, epilogue_subtile=2, warp_specialize="pingpong")
PIPELINED = replace(BASE, num_warps=8, num_stages=3, warp_specialize="none")
SWAPPED = replace(PINGPONG, block_n=192, epilogue_subtile=4, swap_ab=True)
TF32 = replace(BASE, block_n=128, block_k=32)

# (problem, configuration): together every layout, dtype, way to split the warps, scheduling, and
# the widest tiles, which are the nearest to spilling.
SPREAD = [
    ("4096x4096x4096:bf16:nt", BASE),
    ("4096x4096x4096:fp16:tt", replace(BASE, scheduling="dynamic", swizzle="hilbert")),
    ("4096x4096x4096:bf16:nn", replace(BASE, num_warps=8, swizzle="serpentine")),
    ("4096x4096x4096:bf16:tn", replace(BASE, block_m=256, block_n=128)),
    ("4096x4096x4096:bf16:nn", replace(BASE, block_m=256, block_n=192, num_stages=3,
                                       epilogue_subtile=6)),
    ("4096x4096x4096:fp16:nt", replace(BASE, block_m=256, block_n=64, epilogue_subtile=2,
                                       swizzle="column")),
    ("4096x4096x4096:bf16:tn", replace(PINGPONG, num_stages=5, swizzle="morton")),
    ("4096x4096x4096:bf16:nt", replace(PINGPONG, block_n=192, epilogue_subtile=3,
                                       scheduling="dynamic", swizzle="grouped_n")),
    ("4096x4096x4096:fp16:nn", replace(PINGPONG, block_m=64, block_n=256, epilogue_subtile=4)),
    ("4096x4096x4096:bf16:tn", replace(BASE, block_m=192, num_stages=3)),
    ("4096x4096x4096:bf16:tn", replace(PINGPONG, block_m=192, epilogue_subtile=4)),
    ("4096x4096x4096:fp16:nn", replace(PINGPONG, block_m=192, scheduling="dynamic")),
    ("8192x4096x4096:bf16:nt", replace(PINGPONG, block_m=192, epilogue_subtile=4, stream_k=True)),
    ("8192x4096x4096:bf16:nt", replace(PINGPONG, num_stages=5, stream_k=True)),
    ("8192x4096x14336:bf16:nn", replace(BASE, block_m=192, num_stages=3, stream_k=True)),
    ("8192x4096x14336:bf16:nt", replace(BASE, block_m=256, block_n=192, num_stages=3,
                                        epilogue_subtile=6, stream_k=True)),
    ("4096x4096x4096:bf16:nt", SWAPPED),
    ("4096x4096x4096:fp16:nn", replace(SWAPPED, block_m=64, epilogue_subtile=2, swizzle="row")),
    ("4096x4096x4096:bf16:tt", replace(SWAPPED, epilogue_subtile=8, scheduling="dynamic")),
    ("8192x8192x4096:bf16:tn", replace(SWAPPED, block_m=96, epilogue_subtile=3, stream_k=True)),
    ("8192x4096x4096:bf16:nt", replace(SWAPPED, num_stages=5, stream_k=True)),
    ("1024x1024x16384:bf16:nt", replace(BASE, split_k=4)),
    ("1024x1024x16384:bf16:tn", replace(BASE, num_warps=8, split_k=3, scheduling="dynamic")),
    ("4096x4096x4096:bf16:tt", replace(PIPELINED, swizzle="xor")),
    ("4096x4096x4096:bf16:nt", replace(PIPELINED, block_n=128, num_warps=4, scheduling="dynamic")),
    ("4096x4096x4096:fp32:nt:tf32", replace(TF32, num_stages=5)),
]  # fmt: skip


@pytest.mark.parametrize(("text", "config"), SPREAD, ids=lambda value: str(value))
def test_fast_code(text: str, config: GemmConfig, machine_code: Any) -> None:
    problem = GemmProblem.parse(text)
    assert why_illegal(config, problem, H200) is None
    resources = compile_for(config, problem, H200)  # raises when it does not fit on an SM
    # Where partial sums are added, addresses are kept for longer than registers last.
    shared = config.split_k > 1 or config.stream_k
    assert resources.spill_bytes <= (MAX_SPILL_BYTES if shared else 0)
    assert resources.warnings == ()  # of wgmma that ptxas would serialise
    specialized = config.warp_specialize != "none"
    specialized_warps = 4 * consumers(config) + 4 if config.num_warps == 4 else 12
    assert resources.num_warps == (specialized_warps if specialized else config.num_warps)
    code = compiled(config, problem, H200).asm
    loops = machine_code.k_loops(code["cubin"], "HGMMA")
    assert len(loops) == ((resources.num_warps - 1) // config.num_warps if specialized else 1)
    assert not any(machine_code.LOCAL_MEMORY.search(line) for loop in loops for line in loop)
    ptx = code["ptx"]
    for needed in ("wgmma.mma_async", "cp.async.bulk.tensor.2d.shared", "stmatrix"):
        assert (needed in ptx) == (needed != "stmatrix" or problem.dtype != "fp32"), needed
    if specialized:  # a slot is given back behind the next step's first product
        assert set(re.findall(r"wgmma\.wait_group\.sync\.aligned (\d+)", ptx)) == {"0", "1"}
    turned = re.findall(r"stmatrix\S*\.trans\S*", ptx)  # as C's transpose is stored
    assert len(turned) == (len(re.findall("stmatrix", ptx)) if config.swap_ab else 0)
    assert "cp.async.bulk.tensor.2d.global.shared" in ptx
    assert ("setmaxnreg" in ptx) == specialized
    taken = re.search(r"atom\.global\.gpu\.relaxed\.(?:gpu\.)?add", ptx)  # the next tile
    assert bool(taken) == (config.scheduling == "dynamic")
    assert ("ld.global.gpu.acquire" in ptx) == shared  # sums, behind flags
    assert bool(re.search(r"(atom|red)\.global\.gpu\.release", ptx)) == shared


def test_one_binary_for_all_extents_and_group_sizes() -> None:
    first = compiled(BASE, GemmProblem(4096, 4096, 4096, "bf16", "nt"), H200)
    other = GemmProblem(1, 24, 16, "bf16", "nt")
    assert compiled(replace(BASE, group_size=1), other, H200).hash == first.hash


of_192 = {"block_n": 192, "warp_specialize": "pingpong"}


@pytest.mark.parametrize(
    ("text", "change", "named"),
    [
        ("4096x4096x4096:bf16:nt:unaligned", {}, "aligned to 16 bytes"),
        ("2x4096x4096x4096:bf16:nt", {}, "batch must be 1"),
        ("4096x4096x4096:fp32:nt", {}, "precision tf32"),
        ("4096x4096x4096:fp32:nn:tf32", {"block_k": 32}, "layout nt"),
        ("4096x4096x4096:fp32:nt:tf32", {"block_k": 128}, "block_k 32 or 64"),
        ("4096x4096x4096:bf16:nt", {"block_k": 32}, "block_k 64 or 128"),
        ("4096x4096x4096:bf16:nt", {"block_m": 96}, "block_m 64, 128, 192 or 256"),
        ("4096x4096x4096:bf16:nt", {"block_m": 192, "warp_specialize": "none"}, "for block_m 192"),
        ("4096x4096x4096:bf16:nt", {"stream_k": True, "split_k": 2}, "split_k must be 1"),
        ("4096x4096x4096:bf16:nt", {"stream_k": True, "scheduling": "dynamic"}, "be static with"),
        ("16896x256x4096:bf16:nt", {"stream_k": True}, "must have a partial last wave"),
        ("4096x4096x4096:bf16:nt", {"block_n": 112}, "block_n in 32, 64"),
        ("4096x4096x4096:bf16:nt", {"block_n": 192}, "epilogue_subtile in (3, 6)"),
        ("4096x4096x4096:bf16:nt", {"epilogue_subtile": 3}, "epilogue_subtile in (1, 2, 4, 8)"),
        ("4096x4096x4096:bf16:nt", {"swap_ab": True}, "block_n 192 and warp_specialize pingpong"),
        (
            "4096x4096x4096:bf16:nt",
            {"block_n": 192, "swap_ab": True},
            "warp_specialize pingpong for swap_ab, got 192 and cooperative",
        ),
        (
            "4096x4096x4096:fp32:nt:tf32",
            {**of_192, "block_k": 32, "swap_ab": True},
            "16 bits for swap_ab",
        ),
        (
            "4096x4096x4096:bf16:nt",
            {**of_192, "epilogue_subtile": 3, "swap_ab": True},
            "epilogue_subtile in (1, 2, 4, 8) for block_m 128",
        ),
        (
            "4096x4096x4096:bf16:nt",
            {**of_192, "block_m": 256, "swap_ab": True},
            "192 accumulators a thread, got 384",
        ),
        ("4096x4096x4096:bf16:nt", {"num_stages": 1}, "num_stages in 2..8"),
        ("4096x4096x4096:bf16:nt", {"num_warps": 2}, "num_warps 4 or 8"),
        ("4096x4096x4096:bf16:nt", {"block_m": 64}, "64 rows for every 4 warps"),
        ("4096x4096x4096:bf16:nt", {"block_m": 256}, "192 accumulators a thread, got 256"),
        ("4096x4096x4096:bf16:nt", {"persistent": False}, "must be persistent"),
        ("4096x4096x4096:bf16:nt", {"split_k": 3}, "tiles x split_k must be <= 1056"),
        ("1024x1024x128:bf16:nt", {"split_k": 3}, "split_k must be in 1..2"),
        (
            "1024x1024x4096:bf16:nt",
            {"split_k": 2, "epilogue_subtile": 1},
            "<= 64 partial sums at once, got 128",
        ),
        (
            "1024x1024x4096:bf16:nt",
            {"split_k": 2, "warp_specialize": "none", "num_warps": 8},
            "cooperative or pingpong to split k",
        ),
        (
            "4096x4096x4096:bf16:nt",
            {"warp_specialize": "pingpong", "num_warps": 8},
            "num_warps 4 for pingpong",
        ),
    ],
)
def test_illegal_is_named(text: str, change: dict[str, object], named: str) -> None:
    reason = why_illegal(replace(BASE, **change), GemmProblem.parse(text), H200)
    assert reason is not None
    assert named in reason


@pytest.mark.parametrize("gpu", ["A100-80GB", "L4", "B200", "RTX 5080"])
def test_only_hopper(gpu: str) -> None:
    reason = why_illegal(BASE, GemmProblem(4096, 4096, 4096), find_gpu(gpu))
    assert "wgmma needs compute capability in 90" in (reason or "")


def test_operands_that_tma_cannot_address_are_refused() -> None:
    a, b, out = meta_operands(GemmProblem(256, 256, 256, "bf16", "nt"))
    problem = GemmProblem(256, 256, 256, "bf16", "nt")
    for bad in (
        (a.as_strided((256, 256), (257, 1)), b, out),
        (a, b.as_strided((256, 256), (256, 1)), out),
        (a, b, out.as_strided((256, 256), (1, 256))),
        (a.as_strided((256, 256), (256, 1), 1), b, out),
    ):
        with pytest.raises(LaunchError, match="must have a unit inner stride"):
            family("wgmma").call(BASE, problem, *bad)
