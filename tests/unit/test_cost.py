"""The time model: what each term depends on."""

from dataclasses import asdict, replace

import pytest

from autoswizzle.config import GemmConfig
from autoswizzle.hardware import Sustained, find_gpu
from autoswizzle.problem import GemmProblem
from autoswizzle.simulator.cost import FITTED, dram_write_bytes, terms
from autoswizzle.simulator.resources import uses_wgmma
from autoswizzle.space import tail

H200 = find_gpu("H200")
SQUARE = GemmProblem(8192, 8192, 8192, "bf16", "nt")
TILE = GemmConfig(block_m=128, block_n=128, block_k=64, num_warps=8, num_stages=3)


def arithmetic(problem=SQUARE, config=TILE, blocks=1, gpu=H200):
    return terms(config, problem, gpu, blocks, 0).arithmetic


def test_parts_add_up_and_hide_less_than_all_but_the_longest():
    found = terms(TILE, SQUARE, H200, 2, 3e9)
    assert found.total == pytest.approx(sum(asdict(found).values()))
    bounds = found.arithmetic, found.dram, found.l2
    assert max(bounds) < sum(bounds) + found.hidden < sum(bounds)
    rest = found.prologue, found.epilogue, found.reduction, found.launch
    assert all(part >= 0 for part in rest)


@pytest.mark.parametrize("overlap", [1.0, 1e9])
def test_overlap_goes_from_a_sum_to_the_longest(overlap):
    fitted = replace(FITTED, l2_overlap=overlap, dram_overlap=overlap)
    found = terms(TILE, SQUARE, H200, 2, 3e9, fitted)
    bounds = found.arithmetic, found.dram, found.l2
    expected = sum(bounds) if overlap == 1 else max(bounds)
    assert sum(bounds) + found.hidden == pytest.approx(expected)


def test_no_kernel_beats_the_peak_rate():
    floor = SQUARE.flops / H200.rates.bf16 / 1e6
    for block_m, block_n in ((64, 32), (128, 128), (256, 128)):
        config = replace(TILE, block_m=block_m, block_n=block_n)
        assert arithmetic(config=config) > floor


def test_one_tile_more_than_a_full_round_costs_a_round():
    rows = 128 * 132
    full, one_more = (GemmProblem(rows + extra, 128, 8192) for extra in (0, 1))
    assert arithmetic(one_more) == pytest.approx(2 * arithmetic(full))
    assert arithmetic(GemmProblem(rows - 127, 128, 8192)) == arithmetic(full)


def test_a_last_round_with_few_blocks_an_sm_is_shorter():
    """Rounds of two blocks an SM: three tiles an SM are one and a half rounds."""
    one, two, three = (
        arithmetic(GemmProblem(128 * 132 * count, 128, 8192), replace(TILE, block_k=128), 2)
        for count in (1, 2, 3)
    )
    assert three == pytest.approx(one + two)
    assert one < two


def test_more_stages_hide_more_latency():
    small = GemmProblem(64, 64, 8192)
    times = [
        arithmetic(small, replace(TILE, block_m=64, block_n=64, num_stages=stages))
        for stages in (1, 2, 4)
    ]
    assert times == sorted(times, reverse=True)
    assert times[0] > times[1] > times[2]


def test_dram_time_is_bytes_over_the_bandwidth_that_is_reached():
    found = terms(TILE, SQUARE, H200, 1, 4.32e9 - dram_write_bytes(SQUARE))
    assert found.dram == pytest.approx(1000)


def test_more_traffic_costs_more_but_less_than_its_own_time():
    little, much = (terms(TILE, SQUARE, H200, 1, volume) for volume in (1e9, 2e9))
    assert 0 < much.total - little.total < much.dram - little.dram


def test_split_k_shortens_the_loop_and_adds_a_reduction():
    deep = GemmProblem(256, 256, 32768)
    whole, two, eight = (
        terms(replace(TILE, split_k=count), deep, H200, 1, 0) for count in (1, 2, 8)
    )
    assert eight.arithmetic == pytest.approx(whole.arithmetic / 8)
    assert whole.reduction == 0
    # One SM writes its sums, then another one adds those of all others to its own.
    assert eight.reduction == pytest.approx(two.reduction * 8 / 2)


def test_stream_k_shares_the_last_wave():
    """16 x 10 tiles: a wave of 132 and 28 more, each for four SMs."""
    problem = GemmProblem(16 * 192, 10 * 256, 8192)
    config = replace(WGMMA, block_m=192, block_n=256, num_stages=3, epilogue_subtile=4)
    plain = terms(config, problem, H200, 1, 0)
    shared = terms(replace(config, stream_k=True), problem, H200, 1, 0)
    assert tail(config, problem, 132) == (132, 1, 4)
    assert shared.arithmetic == pytest.approx(plain.arithmetic * 1.25 / 2)
    assert shared.epilogue == plain.epilogue
    assert plain.reduction == 0 < shared.reduction


WGMMA = GemmConfig(
    kernel="wgmma", block_m=128, block_n=192, block_k=64, num_warps=4, num_stages=4,
    persistent=True, epilogue_subtile=3, warp_specialize="cooperative",
)  # fmt: skip


def test_only_pingpong_stores_beside_arithmetic():
    styles = "none", "cooperative", "pingpong"
    found = {
        style: terms(replace(WGMMA, warp_specialize=style), SQUARE, H200, 1, 0).epilogue
        for style in styles
    }
    tiles = 64 * 43
    assert found["none"] == found["cooperative"]
    assert found["cooperative"] == pytest.approx(found["pingpong"] * -(-tiles // 132))


def test_products_of_two_pieces_need_specialised_warps():
    def slowdown(block_n):
        none, cooperative = (
            arithmetic(config=replace(WGMMA, block_n=block_n, warp_specialize=style))
            for style in ("none", "cooperative")
        )
        return none / cooperative

    assert slowdown(256) < 1.02
    assert slowdown(192) > 1.2


def test_rates_measured_on_the_machine_replace_the_expected_ones():
    slow = replace(H200, measured=Sustained(2160, 1000, 0.355, 7))
    found, expected = (terms(TILE, SQUARE, gpu, 1, 1e9) for gpu in (slow, H200))
    assert found.dram == pytest.approx(2 * expected.dram)
    assert found.launch == 7
    assert found.arithmetic > 1.9 * expected.arithmetic
    assert found.l2 == pytest.approx(expected.l2 * 9.9)


def test_low_tiles_do_not_reach_the_rate_of_wgmma():
    low, high = (replace(TILE, block_m=rows, num_stages=8) for rows in (32, 64))
    wide = GemmProblem(64 * 132, 128, 8192)
    assert arithmetic(wide, low, 2) > arithmetic(wide, high, 1)


def test_rates_of_the_gpu_count():
    tf32 = GemmProblem(8192, 8192, 8192, "fp32", precision="tf32")
    ieee = GemmProblem(8192, 8192, 8192, "fp32")
    assert arithmetic(SQUARE) < arithmetic(tf32) < arithmetic(ieee)
    assert arithmetic(gpu=find_gpu("A100-80GB")) > arithmetic()


def test_spills_cost_time_in_every_step():
    kept, spilled = (terms(TILE, SQUARE, H200, 1, 0, spill_bytes=count) for count in (0, 200))
    assert spilled.arithmetic > 1.2 * kept.arithmetic
    assert spilled.epilogue == kept.epilogue


@pytest.mark.parametrize(
    ("problem", "copied"),
    [
        (GemmProblem(4095, 4097, 4099), "abc"),
        (GemmProblem(4096, 4104, 4099), "a"),
        (GemmProblem(4096, 4097, 4096), "bc"),
        (GemmProblem(4095, 4096, 4096, "bf16", "tn"), "a"),
        (GemmProblem(4096, 4096, 4096, aligned=False), "abc"),  # odd bases
        (GemmProblem(4095, 4097, 4099, aligned=True), "c"),  # padded rows
    ],
)
def test_padding_costs_a_pass_over_each_matrix_that_tma_cannot_address(problem, copied):
    config = GemmConfig("tma", block_k=64, persistent=True, padded=True)
    elements = {
        "a": problem.m * problem.k, "b": problem.k * problem.n, "c": problem.m * problem.n,
    }  # fmt: skip
    moved = sum(2 * 2 * elements[name] for name in copied)
    kept_up = H200.sustained
    expected = moved / kept_up.dram_gbs / 1e3 + len(copied) * kept_up.launch_us
    assert terms(config, problem, H200, 1, 0).padding == pytest.approx(expected)
    assert terms(replace(config, padded=False), problem, H200, 1, 0).padding == 0


def test_a_narrow_piece_costs_more_than_its_columns():
    """128 + 64 columns are as fast as their products, 128 + 32 and 64 + 32 read too much."""
    wgmma = GemmConfig("wgmma", block_m=128, block_k=64, warp_specialize="cooperative")
    problem = GemmProblem(128, 960, 2**20)

    def step(block_n):
        one = GemmProblem(128, block_n, problem.k)
        return arithmetic(one, replace(wgmma, block_n=block_n, num_stages=8)) / block_n

    assert step(160) > 1.02 * step(192)
    assert step(96) > step(160)


@pytest.mark.parametrize("rows", [32, 64, 128])
def test_a_swapped_tile_costs_what_its_transpose_does(rows):
    """In products: B is read once for each 64 rows of what is multiplied."""
    tile = GemmConfig("wgmma", block_m=192, block_n=rows, block_k=64, warp_specialize="pingpong")
    swapped = replace(tile, block_m=rows, block_n=192, swap_ab=True)
    one, other = GemmProblem(192, rows, 2**20), GemmProblem(rows, 192, 2**20)
    assert arithmetic(one, tile) == arithmetic(other, swapped)
    assert uses_wgmma(swapped, other, H200)


@pytest.mark.parametrize("cluster", [(1, 2), (2, 1)])
def test_a_cluster_loads_what_its_blocks_share_once(cluster):
    """In the same rounds as blocks that are alone."""
    alone = GemmConfig("wgmma", block_n=256, block_k=64, warp_specialize="cooperative")
    config = replace(alone, kernel="multicast", cluster_m=cluster[0], cluster_n=cluster[1])
    pair, single = terms(config, SQUARE, H200, 1, 0), terms(alone, SQUARE, H200, 1, 0)
    touched_alone = 64 * 8192 + 32 * 8192  # columns for each tile row, rows for each tile column
    touched = 64 // cluster[0] * 8192 + 32 // cluster[1] * 8192
    assert pair.l2 / single.l2 == pytest.approx(touched / touched_alone)
    assert pair.arithmetic == pytest.approx(single.arithmetic, rel=0.02)
    assert pair.epilogue == single.epilogue
