import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoswizzle.config import TORCH, GemmConfig
from autoswizzle.hardware import CATALOGUE, find_gpu
from autoswizzle.problem import GemmProblem
from autoswizzle.space import (
    GROUP_SIZES,
    branches,
    candidates,
    default_config,
    orders,
    tail,
    tiles,
    why_illegal,
)

H200 = find_gpu("H200")
PROBLEM = GemmProblem(4096, 4096, 4096, "bf16", "nt")


def test_candidates_are_legal_and_distinct() -> None:
    found = list(candidates(PROBLEM, H200))
    assert len(found) == len(set(found)) > 1000
    assert all(why_illegal(config, PROBLEM, H200) is None for config in found[::97])


@pytest.mark.parametrize("gpu", CATALOGUE, ids=lambda gpu: gpu.name)
@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp32"])
def test_default_is_legal_everywhere(gpu, dtype) -> None:
    for m, n, k in itertools.product((1, 17, 4096), repeat=3):
        problem = GemmProblem(m, n, k, dtype)
        assert why_illegal(default_config(problem, gpu), problem, gpu) is None


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"block_m": 96}, "block_m must be a power of two"),
        ({"block_k": 8}, "block_k must be a power of two"),
        ({"num_warps": 3}, "num_warps must be"),
        ({"num_stages": 9}, "num_stages must be"),
        ({"block_m": 256, "block_n": 256}, "accumulators a thread, got 512"),
        ({"smem_a": "64"}, "pointer does not use smem_a"),
        ({"swizzle": "row", "group_size": 4}, "row does not use group_size"),
        ({"group_size": 4096}, "group_size must be"),
    ],
)
def test_illegal_pointer_configs_are_named(change: dict[str, object], named: str) -> None:
    reason = why_illegal(replace(GemmConfig(), **change), PROBLEM, H200)
    assert reason is not None
    assert named in reason


def test_k_steps_that_int32_can_not_divide_among_parts_are_illegal() -> None:
    config = GemmConfig("pointer", 16, 16, 16, split_k=32, swizzle="row")
    last = 2**31 // 32 - 1  # steps, of which 32 times as many end below 2**31
    assert why_illegal(config, GemmProblem(1, 16, 16 * last), H200) is None
    reason = why_illegal(config, GemmProblem(1, 16, 16 * last + 1), H200)
    assert reason == f"k steps x split_k must be <= {2**31 - 1}, got {2**31}"


@pytest.mark.parametrize("extent", ["m", "n", "k"])
def test_an_extent_whose_blocks_int32_can_not_count_is_illegal(extent) -> None:
    problem = replace(GemmProblem(1, 1, 1, "fp16"), **{extent: 2**31 - 100})
    assert why_illegal(GemmConfig(block_m=64, block_n=64), problem, H200) is None
    reason = why_illegal(GemmConfig(block_k=128, num_warps=8), problem, H200)
    assert str(reason).startswith(f"{extent} must be at most {2**31 - 128} ")


def test_illegal_problems_are_named() -> None:
    batched = GemmProblem(64, 64, 64, batch=2)
    assert "batch must be 1" in (why_illegal(GemmConfig(), batched, H200) or "")
    fp8 = GemmProblem(64, 64, 64, "fp8e4m3")
    assert "dtype" in (why_illegal(GemmConfig(), fp8, H200) or "")
    wide = GemmProblem(64, 64, 64, "bf16", out_dtype="fp32")
    assert "out_dtype" in (why_illegal(GemmConfig(), wide, H200) or "")
    huge = GemmProblem(2**31 - 1, 2**10, 1)
    small_tiles = GemmConfig(block_m=16, block_n=16, block_k=16)
    assert "tiles" in (why_illegal(small_tiles, huge, H200) or "")


def test_torch_is_always_legal_and_has_no_tunables() -> None:
    assert why_illegal(TORCH, PROBLEM, H200) is None
    assert why_illegal(replace(TORCH, block_m=64), PROBLEM, H200) is not None


def test_branches_follow_gpu_and_dtype() -> None:
    assert "pointer" in branches(PROBLEM, find_gpu("A10"))
    assert branches(GemmProblem(64, 64, 64, "fp8e5m2"), find_gpu("A10")) == {}


@pytest.mark.parametrize(("kernel", "block_k"), [("tma", 64), ("wgmma", 64)])
def test_tma_stores_need_rows_of_whole_pieces(kernel: str, block_k: int) -> None:
    config = GemmConfig(kernel, block_k=block_k, persistent=True)
    legal = GemmProblem(512, 1544, 512, aligned=True)
    assert why_illegal(config, legal, H200) is None
    ragged = replace(legal, n=1537)
    assert why_illegal(config, ragged, H200) == (
        f"{kernel} needs operands aligned to 16 bytes and n to be a multiple of 8, or padded, got "
        f"{ragged}"
    )


@pytest.mark.parametrize("kernel", ["tma", "wgmma"])
def test_padded_rows_are_for_what_tma_cannot_address(kernel: str) -> None:
    config = GemmConfig(kernel, block_k=64, persistent=True, padded=True)
    odd = GemmProblem(4095, 4097, 4099)
    for problem in (odd, replace(PROBLEM, aligned=False), replace(odd, aligned=True)):
        assert why_illegal(config, problem, H200) is None
        assert branches(problem, H200)[kernel]["padded"] == (True,)
    assert why_illegal(config, PROBLEM, H200) == (
        f"padded must be false where TMA can address the operands, got true for {PROBLEM}"
    )
    assert branches(PROBLEM, H200)[kernel]["padded"] == (False,)
    assert "does not use padded" in (why_illegal(GemmConfig(padded=True), odd, H200) or "")


@pytest.mark.parametrize(
    ("block_n", "slices"), [(96, (3, 6)), (160, (5, 10)), (192, (3, 6)), (64, (1, 2, 4))]
)
def test_slices_of_a_wgmma_tile(block_n: int, slices: tuple[int, ...]) -> None:
    config = GemmConfig("wgmma", block_n=block_n, block_k=64, num_warps=8, persistent=True)
    assert legal_slices(config) == slices


def test_slices_do_not_straddle_the_two_products_of_three_consumers() -> None:
    """256 columns are two products of 128 there: a slice of all of them did not compile."""
    config = GemmConfig(
        "wgmma", 192, 256, 64, num_stages=2, persistent=True, warp_specialize="cooperative"
    )
    assert legal_slices(config) == (2, 4, 8)
    assert legal_slices(replace(config, block_m=128)) == (1, 2, 4, 8)


def legal_slices(config: GemmConfig) -> tuple[int, ...]:
    return tuple(
        count
        for count in range(1, 17)
        if why_illegal(replace(config, epilogue_subtile=count), PROBLEM, H200) is None
    )


def test_tiles_stand_for_every_candidate() -> None:
    """A candidate is a tile in another order, scheduling, flattening or number of slices."""

    def plain(config: GemmConfig) -> GemmConfig:
        settled = {"swizzle": "row", "group_size": 8, "scheduling": "static", "flatten": False}
        return replace(config, **settled, epilogue_subtile=1)

    wanted = {plain(config) for config in candidates(PROBLEM, H200)}
    found = list(tiles(PROBLEM, H200))
    assert {plain(config) for config in found} == wanted
    assert len(found) == len(set(found))
    assert all(why_illegal(config, PROBLEM, H200) is None for config in found)


def test_orders_of_a_tile() -> None:
    config = GemmConfig("wgmma", block_k=64, persistent=True)
    found = list(orders(config))
    assert config in found
    assert len(found) == len(set(found)) == 3 * len(GROUP_SIZES) + 5
    assert {replace(other, swizzle="grouped", group_size=8) for other in found} == {config}


@given(
    m=st.integers(1, 40000), n=st.integers(1, 40000), k=st.integers(1, 40000),
    block_m=st.sampled_from((64, 128, 192, 256)), num_sms=st.integers(1, 200),
)  # fmt: skip
def test_a_shared_tail_fits_one_wave_and_is_shorter(
    m: int, n: int, k: int, block_m: int, num_sms: int
) -> None:
    config = GemmConfig(block_m=block_m, block_n=128, block_k=64)
    count = -(-m // block_m) * -(-n // 128)
    whole, together, parts = tail(config, GemmProblem(m, n, k), num_sms)
    if parts == 1:
        assert (whole, together) == (count, 1)
        return
    assert whole % num_sms == 0
    assert 0 < count - whole < num_sms
    assert together < parts  # no unit has more than two tiles
    assert -(-(count - whole) // together) * parts <= num_sms
    assert together * -(-k // 64) >= parts  # nor less than a k step


@pytest.mark.parametrize(
    ("rest", "shares"),
    [
        (28, (1, 4)), (66, (1, 2)), (88, (2, 3)), (99, (3, 4)), (104, (4, 5)), (106, (1, 1)),
        (132, (1, 1)),
    ],
)  # fmt: skip
def test_tails_of_an_h200(rest: int, shares: tuple[int, int]) -> None:
    config = GemmConfig(block_m=128, block_n=128, block_k=64)
    problem = GemmProblem(128 * (132 + rest), 128, 8192)
    assert tail(config, problem, 132)[1:] == shares
