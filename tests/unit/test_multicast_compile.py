"""multicast candidates compile for sm_90 without a GPU, into what their protocol stands on."""

import re
from dataclasses import replace

import pytest

from autoswizzle.config import GemmConfig
from autoswizzle.errors import LaunchError
from autoswizzle.hardware import find_gpu
from autoswizzle.kernels.family import family
from autoswizzle.kernels.offline import compile_for, compiled, meta_operands
from autoswizzle.problem import GemmProblem
from autoswizzle.space import why_illegal
from autoswizzle.toolchain import triton_version

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif((triton_version() or (0, 0)) < (3, 9), reason="multicast needs triton 3.9"),
]

H200 = find_gpu("H200")
ABOVE = GemmConfig(
    kernel="multicast", block_m=128, block_n=256, block_k=64, num_stages=4, persistent=True,
    epilogue_subtile=4, warp_specialize="cooperative", cluster_m=2,
)  # fmt: skip
BESIDE = replace(ABOVE, cluster_m=1, cluster_n=2)


def of_192(config: GemmConfig, **changes: object) -> GemmConfig:
    return replace(config, block_m=256, block_n=192, num_stages=3, epilogue_subtile=6, **changes)


def pingpong(config: GemmConfig, **changes: object) -> GemmConfig:
    changes = {"block_n": 192, "epilogue_subtile": 3, **changes}
    return replace(config, warp_specialize="pingpong", **changes)


# (dtype and layout, configuration): together both clusters of every layout, dtype, way to split the
# warps and number of pieces, and the widest tiles, which are the nearest to spilling.
SPREAD = [
    ("bf16:nt", ABOVE),
    ("fp16:nn", BESIDE),
    ("bf16:tn", replace(ABOVE, block_m=256, block_n=128, swizzle="hilbert")),
    ("bf16:nt", replace(BESIDE, block_m=256, block_n=128, swizzle="xor")),
    ("bf16:nn", of_192(ABOVE, swizzle="morton")),
    ("fp16:tt", of_192(BESIDE)),
    ("fp16:tt", replace(ABOVE, block_m=192, num_stages=3)),
    ("bf16:tn", replace(BESIDE, block_m=192, num_stages=3)),
    ("bf16:nt", replace(BESIDE, block_m=192, block_n=96, num_stages=5, epilogue_subtile=3)),
    ("bf16:nn", replace(ABOVE, block_n=160, num_stages=5, epilogue_subtile=5, swizzle="row")),
    ("bf16:nt", replace(BESIDE, block_n=64, block_k=128, num_stages=3, epilogue_subtile=1)),
    ("bf16:nn", pingpong(ABOVE, swizzle="serpentine")),
    ("bf16:nt", pingpong(BESIDE)),
    ("fp16:tn", pingpong(BESIDE, block_m=64, block_n=256, epilogue_subtile=4)),
    ("bf16:nt", pingpong(ABOVE, block_m=192, block_n=128, epilogue_subtile=4)),
    ("fp16:nn", pingpong(BESIDE, block_m=192, block_n=128, epilogue_subtile=2)),
    ("bf16:nt", pingpong(ABOVE, num_stages=5, epilogue_subtile=4, swap_ab=True)),
    ("fp16:nn", pingpong(BESIDE, block_m=64, epilogue_subtile=1, swap_ab=True)),
    ("bf16:tt", pingpong(BESIDE, num_stages=5, epilogue_subtile=4, swap_ab=True)),
    ("bf16:nt", replace(ABOVE, num_warps=8)),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "config"), SPREAD, ids=lambda value: str(value))
def test_fast_code(kind: str, config: GemmConfig) -> None:
    problem = GemmProblem.parse(f"4096x4096x4096:{kind}")
    assert why_illegal(config, problem, H200) is None
    resources = compile_for(config, problem, H200)  # raises when it does not fit on an SM
    assert (resources.spill_bytes, resources.warnings) == (0, ())
    assert (resources.num_warps, resources.registers) == (
        (16, 128) if three_consumers(config) else (12, 168)
    )
    kernel = compiled(config, problem, H200)
    ptx = kernel.asm["ptx"]
    assert kernel.metadata.num_ctas == 2
    for needed in ("stmatrix", "setmaxnreg", "cp.async.bulk.tensor.2d.global.shared"):
        assert needed in ptx, needed
    instructions = {f"m64n{width}k16" for width in pieces_of(config)}
    assert set(re.findall(r"wgmma\.mma_async\S*?\.(m64n\d+k16)", ptx)) == instructions
    # the slot before is given back behind a step's first product, whatever their number
    assert set(re.findall(r"wgmma\.wait_group\.sync\.aligned (\d+)", ptx)) == {"0", "1"}
    check_loads(ptx, config, problem.layout)
    check_cluster_barriers(ptx)
    height, width = multiplied(config)
    stored = height // strips_of(config), min(64, width // config.epilogue_subtile)
    boxes = [tuple(fact["block_size"]) for fact in kernel.metadata.tensordesc_meta]
    assert boxes[3] == (stored[::-1] if config.swap_ab else stored), "a tensor map's is a block's"


def multiplied(config: GemmConfig) -> tuple[int, int]:
    """Rows and columns of what is multiplied, a tile or its transpose."""
    if config.swap_ab:
        return config.block_n, config.block_m
    return config.block_m, config.block_n


def three_consumers(config: GemmConfig) -> bool:
    return config.block_m == 192 and config.warp_specialize == "cooperative"


def strips_of(config: GemmConfig) -> int:
    """Parts that the rows of a tile are copied, multiplied and stored in."""
    height, _ = multiplied(config)
    if config.warp_specialize == "pingpong":
        return height // 64
    if height == 192:
        return 3
    return 1 if config.num_warps == 8 else 2


def pieces_of(config: GemmConfig) -> list[int]:
    """Columns of a wgmma: of 192 rows two times 128, else 256 at most and a power of two."""
    columns = multiplied(config)[1]
    return {
        96: [64, 32], 160: [128, 32], 192: [128, 64],
        256: [128, 128] if three_consumers(config) else [256],
    }.get(columns, [columns])  # fmt: skip


def check_loads(ptx: str, config: GemmConfig, layout: str) -> None:
    """What both blocks read is multicast to both, by the first; a copy is 64 elements wide. a and b
    are the factors of what is multiplied.
    """
    rows, along_rows = multiplied(config)[0] // strips_of(config), config.cluster_m == 2
    by_rows, by_columns = layout[0] == "t", layout[1] == "n"
    if config.swap_ab:
        by_rows, by_columns, along_rows = by_columns, by_rows, not along_rows
    of_a = strips_of(config) * -(-(rows if by_rows else config.block_k) // 64)
    of_b = sum(-(-(width if by_columns else config.block_k) // 64) for width in pieces_of(config))
    shared, own = (of_b, of_a) if along_rows else (of_a, of_b)
    copy = r"cp\.async\.bulk\.tensor\.2d\.shared::"
    assert len(re.findall(copy + "cta", ptx)) == own
    loads = re.findall(rf"@(%p\d+) {copy}cluster\S+multicast::cluster [^;]*, (%rs\d+);", ptx)
    assert len(loads) == shared
    for predicate, mask in loads:
        assert source(ptx, mask) == "mov.b16 3"
        conditions = [source(ptx, name) for name in source(ptx, predicate).split()[1:]]
        ranks = [
            text.split()[1] for text in conditions if re.match(r"setp\.eq\.\w+ %r\d+ 0$", text)
        ]
        assert [source(ptx, rank) for rank in ranks] == ["mov.u32 %cluster_ctarank"]


def source(ptx: str, register: str) -> str:
    """The instruction that sets a register, without it: its name and operands."""
    found = re.findall(rf"^\s+([\w.]+)\s+(?:%r\d+\|)?{register}, ([^;]*);", ptx, re.MULTILINE)
    assert len(found) == 1, (register, found)
    return " ".join([found[0][0], *found[0][1].split(", ")])


def check_cluster_barriers(ptx: str) -> None:
    """The blocks wait for each other once their barriers are there, and before they end: each with
    the warps that begin and with those that then get a partition.
    """
    assert len(re.findall(r"barrier\.cluster\.arrive\.relaxed", ptx)) == 2
    assert len(re.findall(r"barrier\.cluster\.arrive\.aligned", ptx)) == 2
    assert len(re.findall(r"barrier\.cluster\.wait", ptx)) == 4
    assert ptx.count("fence.mbarrier_init.release.cluster") == 1
    places = [
        ptx.rindex("mbarrier.init.shared"),
        ptx.index("fence.mbarrier_init.release.cluster"),
        ptx.index("barrier.cluster.arrive.relaxed"),
        min(map(ptx.index, ("multicast::cluster", "mbarrier.arrive.shared::cluster"))),
        ptx.index("barrier.cluster.arrive.aligned"),
    ]
    assert places == sorted(places)


def test_one_binary_for_all_extents_and_group_sizes() -> None:
    first = compiled(ABOVE, GemmProblem(4096, 4096, 4096, "bf16", "nt"), H200)
    other = GemmProblem(1, 24, 16, "bf16", "nt")
    assert compiled(replace(ABOVE, group_size=1), other, H200).hash == first.hash


def test_operands_that_tma_cannot_address_are_refused() -> None:
    problem = GemmProblem(256, 256, 256, "bf16", "nt")
    a, b, out = meta_operands(problem)
    for bad in (
        (a.as_strided((256, 256), (257, 1)), b, out),
        (a, b.as_strided((256, 256), (256, 1)), out),
        (a, b, out.as_strided((256, 256), (1, 256))),
        (a.as_strided((256, 256), (256, 1), 1), b, out),
    ):
        with pytest.raises(LaunchError, match=r"^(a|b|out) must have a unit inner stride"):
            family("multicast").call(ABOVE, problem, *bad)
