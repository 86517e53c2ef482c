"""Every order on every grid up to 40 x 40 and some large ones: device and host agree."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import triton
import triton.language as tl

from autoswizzle.config import GROUPED_SWIZZLES, SWIZZLES
from autoswizzle.kernels.order import log_side, tile_at
from autoswizzle.simulator.order import tile_order

DEVICE = torch.device("cuda", 0)
GRIDS = [(m, n) for m in range(1, 41) for n in range(1, 41)]
LARGE_GRIDS = [(1, 3000), (3000, 1), (257, 511), (512, 512), (1000, 777)]
GROUP_SIZES = (1, 2, 3, 5, 8, 16, 39, 1024)


@triton.jit(do_not_specialize=["room"])
def _visit(out, grids, room, SWIZZLE: tl.constexpr, GROUP: tl.constexpr, LOG: tl.constexpr):
    """Program (index, case) stores where grid number case has its index-th tile."""
    index = tl.program_id(0)
    case = tl.program_id(1)
    grid_m = tl.load(grids + 2 * case)
    grid_n = tl.load(grids + 2 * case + 1)
    if index < grid_m * grid_n:
        tile_m, tile_n = tile_at(index, grid_m, grid_n, SWIZZLE, GROUP, LOG)
        tl.store(out + (case * room + index) * 2, tile_m)
        tl.store(out + (case * room + index) * 2 + 1, tile_n)


def by_log_side(swizzle, grids):
    sides = {}
    for grid in grids:
        sides.setdefault(log_side(swizzle, *grid), []).append(grid)
    return sides


def device_orders(swizzle, size, log, grids):
    """(cases, tiles, 2) on the host, -1 past each grid's tiles."""
    room = max(m * n for m, n in grids)
    out = torch.full((len(grids), room, 2), -1, dtype=torch.int32, device=DEVICE)
    table = torch.tensor(grids, dtype=torch.int32, device=DEVICE)
    _visit[(room, len(grids))](out, table, room, swizzle, size, log)
    return out.cpu().numpy()


def sizes(swizzle):
    return GROUP_SIZES if swizzle in GROUPED_SWIZZLES else (8,)


@pytest.fixture(scope="module", autouse=True)
def _compile_ahead(side_by_side):
    """Compile every order in parallel."""
    if side_by_side:
        return
    kinds = {
        (swizzle, size, log)
        for swizzle in SWIZZLES
        for size in sizes(swizzle)
        for log in by_log_side(swizzle, GRIDS + LARGE_GRIDS)
    }
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda kind: device_orders(*kind, [(1, 1)]), kinds))


@pytest.mark.parametrize("grids", [GRIDS, LARGE_GRIDS], ids=["to-40x40", "large"])
@pytest.mark.parametrize("swizzle", SWIZZLES)
def test_device_order_is_the_hosts(swizzle, grids):
    for size in sizes(swizzle):
        for log, some in by_log_side(swizzle, grids).items():
            orders = device_orders(swizzle, size, log, some)
            for (m, n), tiles in zip(some, orders, strict=True):
                assert (tiles[: m * n] == tile_order(swizzle, m, n, size)).all(), (m, n, size)
                assert (tiles[m * n :] == -1).all(), (m, n, size)
