"""The wgmma kernel without specialised warps (sm_90): the same warps copy, multiply and store."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier

from autoswizzle.kernels.gluon import barrier, tma_store_wait
from autoswizzle.kernels.overlap import let_the_next_launch_begin, wait_for_the_launch_before
from autoswizzle.kernels.wgmma_parts import (
    accumulators,
    advance,
    allocate_ring,
    allocate_stores,
    in_flight,
    load_step,
    make_barriers,
    multiply,
    store_tile,
    tile_start,
    wait_for,
)


@gluon.jit(do_not_specialize=["m", "n", "k", "group_size"])
def pipelined(a_desc, b_desc, tail_desc, c_desc, counter, m, n, k, group_size, plan: gl.constexpr):
    """C tiles by plan.warps warps that also issue the copies, up to plan.stages - 1 steps ahead.

    Copies run ahead into the following tile only, so that two tiles are all that is remembered.
    """
    let_the_next_launch_begin()
    a_s, b_s = allocate_ring(a_desc, b_desc, tail_desc, plan)
    c_s = allocate_stores(c_desc, plan.stores)
    full = make_barriers(plan.stages, 1)
    fence_async_shared()
    shape = (m, n, k, group_size)
    ring = (a_s, b_s, full, full)
    inputs = (a_desc, b_desc, tail_desc)
    tiles = gl.cdiv(m, plan.block_m) * gl.cdiv(n, plan.block_n)
    steps = gl.cdiv(k, plan.block_k)
    zero = accumulators(plan)
    wait_for_the_launch_before()
    index = gl.program_id(0)
    following = _following(index, counter, plan)
    here = tile_start(min(index, tiles - 1), shape, plan)
    there = tile_start(min(following, tiles - 1), shape, plan)
    slot = 0
    phase = 0
    loaded = 0  # k steps whose copies were started, counted from the start of this tile
    available = _available(index, following, tiles, steps)
    for _ in gl.static_range(plan.stages - 1):
        loaded = _load_ahead(inputs, ring, slot, 0, loaded, available, here, there, steps, plan)
    while index < tiles:
        accs = zero
        for step in range(steps):
            mbarrier.wait(full.index(slot), phase)
            accs = multiply(accs, ring, slot, 0, step > 0, 0, len(accs), plan)
            accs = in_flight(wait_for(accs, len(accs)))
            barrier()  # every warp has read the slot of the step before, where the next copy goes
            loaded = _load_ahead(
                inputs, ring, slot, step, loaded, available, here, there, steps, plan
            )
            slot, phase = advance(slot, phase, plan.stages)
        sums = wait_for(accs, 0)
        store_tile(sums, c_desc, c_s, 0, here[0], here[1], plan)
        loaded -= steps
        index = following
        following = _following(index, counter, plan)
        here = there
        there = tile_start(min(following, tiles - 1), shape, plan)
        available = _available(index, following, tiles, steps)
    tma_store_wait(0)


@gluon.jit
def _following(index, counter, plan: gl.constexpr):
    """The index of the tile after the index-th."""
    if plan.dynamic:
        following = gl.num_programs(0) + gl.atomic_add(counter, 1, sem="relaxed")
    else:
        following = index + gl.num_programs(0)
    return following


@gluon.jit
def _available(index, following, tiles, steps):
    """The k steps of the tiles with these two indices."""
    available = steps if index < tiles else 0
    return available + steps if following < tiles else available


@gluon.jit
def _load_ahead(
    inputs, ring, slot, step, loaded, available, here, there, steps, plan: gl.constexpr
):
    """Starts the copies of k step `loaded`, if there is one; slot is that of k step `step`.

    Steps from `steps` on belong to the tile `there`. Returns the steps loaded.
    """
    there_too = loaded >= steps
    row = there[0] if there_too else here[0]
    col = there[1] if there_too else here[1]
    inner = (loaded - steps if there_too else loaded) * plan.block_k
    ahead = slot + loaded - step
    if ahead >= plan.stages:
        ahead -= plan.stages
    wanted = loaded < available
    load_step(inputs, ring, ahead, row, col, inner, wanted, plan)
    return loaded + 1 if wanted else loaded
