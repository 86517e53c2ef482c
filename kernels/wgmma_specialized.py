"""The warp-specialised wgmma kernel (sm_90): one warp copies, one or two consumers multiply.

Cooperative consumers take the same tile, each a share of its rows; pingpong consumers take
alternate tiles, so that one stores while the other multiplies.

Tiles are handed out by index (static), or by an atomic counter (dynamic): the first tile of a
program is its index, then the producer takes the next from the counter and passes it to the
consumers through `queue`, a ring in shared memory.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier

from autoswizzle.kernels.gluon import tma_store_wait
from autoswizzle.kernels.overlap import let_the_next_launch_begin, wait_for_the_launch_before
from autoswizzle.kernels.wgmma_parts import (
    accumulators,
    advance,
    allocate_ring,
    allocate_stores,
    before,
    in_flight,
    load_step,
    make_barriers,
    multiply,
    skip,
    store_tile,
    tile_start,
    wait_for,
)
from autoswizzle.kernels.wgmma_split import store_part, work_end, work_of

QUEUE = gl.constexpr(4)  # tiles the producer may be ahead of a consumer, in dynamic scheduling


@gluon.jit(do_not_specialize=["m", "n", "k", "group_size", "ticket", "whole", "together", "parts"])
def specialized(
    a_desc, b_desc, tail_desc, c_desc, counter, partials, flags, ticket, m, n, k, group_size,
    whole, together, parts, plan: gl.constexpr,
):  # fmt: skip
    """C tiles by one producer warp and one or two consumers of plan.warps warps each.

    counter: an int32 zero that hands out work items, if plan.dynamic. partials, flags, ticket: if
    plan.divided, for partial sums; whole, together, parts: how the tiles are divided (wgmma_split).
    """
    let_the_next_launch_begin()
    a_s, b_s = allocate_ring(a_desc, b_desc, tail_desc, plan)
    consumers: gl.constexpr = max(plan.shares, plan.alternate)
    c_s = allocate_stores(c_desc, consumers * plan.stores)
    full = make_barriers(plan.stages, 1)
    empty = make_barriers(plan.stages, plan.shares)
    turn = make_barriers(plan.alternate, 1)
    queue = ()
    if plan.dynamic:
        layout: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
        queue = (
            gl.allocate_shared_memory(gl.int32, [QUEUE, 1], layout),
            make_barriers(QUEUE, 1),
            make_barriers(QUEUE, plan.shares),
        )
    fence_async_shared()
    mbarrier.arrive(turn.index(0), count=1)  # the first consumer goes first
    shape = (m, n, k, group_size)
    division = (whole, together, parts)
    ring = (a_s, b_s, full, empty)
    inputs = (a_desc, b_desc, tail_desc)
    outputs = (c_desc, c_s, (partials, flags, ticket))
    if consumers == 1:
        gl.warp_specialize(
            [
                (_consume, (outputs, ring, turn, queue, shape, division, 0, plan)),
                (_produce, (inputs, ring, queue, counter, shape, division, plan)),
            ],
            [1],
            [plan.producer_registers],
        )
    elif consumers == 2:
        gl.warp_specialize(
            [
                (_consume, (outputs, ring, turn, queue, shape, division, 0, plan)),
                (_consume, (outputs, ring, turn, queue, shape, division, 1, plan)),
                (_produce, (inputs, ring, queue, counter, shape, division, plan)),
            ],
            [plan.warps, 1],
            [plan.consumer_registers, plan.producer_registers],
        )
    else:
        gl.warp_specialize(
            [
                (_consume, (outputs, ring, turn, queue, shape, division, 0, plan)),
                (_consume, (outputs, ring, turn, queue, shape, division, 1, plan)),
                (_consume, (outputs, ring, turn, queue, shape, division, 2, plan)),
                (_produce, (inputs, ring, queue, counter, shape, division, plan)),
            ],
            [plan.warps, plan.warps, 1],
            [plan.consumer_registers, plan.consumer_registers, plan.producer_registers],
        )


@gluon.jit
def _produce(inputs, ring, queue, counter, shape, division, plan: gl.constexpr):
    """The producer warp: loads every k step of this program's tiles, and hands out tiles.

    It alone waits for the launch before: consumers touch memory only after they got a tile's loads.
    """
    wait_for_the_launch_before()
    empty = ring[3]
    items = work_end(shape, division, plan)
    slot = 0
    phase = 1
    index = gl.program_id(0)
    taken = 0
    while index < items:
        tile, first, end = work_of(index, shape, division, plan)
        row, col = tile_start(tile, shape, plan)
        for step in range(first, end):
            mbarrier.wait(empty.index(slot), phase)
            load_step(inputs, ring, slot, row, col, step * plan.block_k, True, plan)
            slot, phase = advance(slot, phase, plan.stages)
        if plan.dynamic:
            index = gl.num_programs(0) + gl.atomic_add(counter, 1, sem="relaxed")
            _hand_out(queue, taken, index)
            taken += 1
        else:
            index += gl.num_programs(0)
    if plan.dynamic and plan.alternate == 2:
        _hand_out(queue, taken, index)  # the other consumer ends too


@gluon.jit
def _hand_out(queue, taken, index):
    """Passes the taken-th tile index from the counter to the consumers."""
    indices, ready, free = queue
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    slot = taken % QUEUE
    mbarrier.wait(free.index(slot), ((taken // QUEUE) & 1) ^ 1)
    indices.index(slot).store(gl.full([1], index, gl.int32, layout))
    mbarrier.arrive(ready.index(slot), count=1)


@gluon.jit
def _next_tile(queue, place, plan: gl.constexpr):
    """The index of this program's place-th tile, place >= 1."""
    if plan.dynamic:
        indices, ready, free = queue
        layout: gl.constexpr = gl.BlockedLayout([1], [32], [plan.warps], [0])
        taken = place - 1
        slot = taken % QUEUE
        mbarrier.wait(ready.index(slot), (taken // QUEUE) & 1)
        index = gl.max(indices.index(slot).load(layout), 0)
        mbarrier.arrive(free.index(slot), count=1)
    else:
        index = gl.program_id(0) + place * gl.num_programs(0)
    return index


@gluon.jit
def _consume(outputs, ring, turn, queue, shape, division, SELF: gl.constexpr, plan: gl.constexpr):
    """Consumer SELF: multiplies and stores its share of each tile, or each tile in its turn."""
    c_desc, c_s, left = outputs
    _, _, full, empty = ring
    share: gl.constexpr = SELF if plan.shares > 1 else 0
    items = work_end(shape, division, plan)
    zero = accumulators(plan)
    slot = 0
    phase = 0
    place = 0
    index = gl.program_id(0)
    if plan.alternate == 2 and SELF == 1:
        _other, first, end = work_of(index, shape, division, plan)  # the other consumer's
        slot, phase = skip(slot, phase, end - first, plan.stages)
        place = 1
        index = _next_tile(queue, 1, plan)
    turns = 0
    while index < items:
        tile, first, end = work_of(index, shape, division, plan)
        if plan.alternate == 2:
            mbarrier.wait(turn.index(SELF), turns & 1)
        accs = zero
        for step in range(first, end):
            mbarrier.wait(full.index(slot), phase)
            # The tensor cores work on the first product while the slot before, and the turn in a
            # tile's last step, are handed over: each takes a barrier of all warps.
            accs = multiply(accs, ring, slot, share, step > first, 0, 1, plan)
            accs = in_flight(wait_for(accs, 1))
            mbarrier.arrive(empty.index(before(slot, plan.stages)), count=1, pred=step > first)
            if plan.alternate == 2 and len(accs) > 1:
                mbarrier.arrive(turn.index(1 - SELF), count=1, pred=step == end - 1)
            accs = multiply(accs, ring, slot, share, step > first, 1, len(accs), plan)
            slot, phase = advance(slot, phase, plan.stages)
        if plan.alternate == 2 and len(accs) == 1:
            mbarrier.arrive(turn.index(1 - SELF), count=1)
        sums = wait_for(accs, 0)
        mbarrier.arrive(empty.index(before(slot, plan.stages)), count=1)
        row, col = tile_start(tile, shape, plan)
        row += share * plan.strips * plan.rows
        if not plan.divided or index < division[0]:
            store_tile(sums, c_desc, c_s, SELF * plan.stores, row, col, plan)
        else:
            store_part(
                sums, c_desc, c_s, SELF * plan.stores, left, index, share, row, col, shape,
                division, plan,
            )  # fmt: skip
        turns += 1
        if plan.alternate == 2:  # tiles that are handed out dynamically are all alike
            _other, first, end = work_of(index + gl.num_programs(0), shape, division, plan)
            slot, phase = skip(slot, phase, end - first, plan.stages)
        place += plan.alternate
        index = _next_tile(queue, place, plan)
    tma_store_wait(0)
