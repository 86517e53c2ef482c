"""The multicast kernel (sm_90): the warp-specialised wgmma kernel in clusters of two blocks.

The blocks of a cluster lie one below the other (plan.along 0) and read the same columns of B, or
side by side (1) and read the same rows of A. What both read is copied once, by the first block, to
the shared memory of both. A program is a cluster and both blocks run the same code: every tensor
here, and every extent of the plan but step_bytes, is the cluster's; each block holds one half of it
along that dimension, or all of what both read.

Three barriers guard a slot of the ring: full, in each block, completes when the block's k step has
arrived, what is multicast included; own, in each block, when the block's consumers have read it, so
that its own copies may overwrite it; pair, in the first block, when the consumers of both have, so
that it may multicast into both.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
)

from autoswizzle.kernels.gluon import tma_load, tma_store_wait
from autoswizzle.kernels.overlap import let_the_next_launch_begin, wait_for_the_launch_before
from autoswizzle.kernels.wgmma_parts import (
    accumulators,
    advance,
    allocate_ring,
    allocate_stores,
    before,
    in_flight,
    multiply,
    skip,
    slices_of,
    store_slice,
    tile_start,
    wait_for,
)


@gluon.jit(do_not_specialize=["m", "n", "k", "group_size"])
def multicast(a_desc, b_desc, tail_desc, c_desc, m, n, k, group_size, plan: gl.constexpr):
    """C tiles by one producer warp and one to three consumers of plan.warps warps in each block."""
    let_the_next_launch_begin()
    a_s, b_s = allocate_ring(a_desc, b_desc, tail_desc, plan)
    consumers: gl.constexpr = max(plan.shares, plan.alternate)
    c_s = allocate_stores(c_desc, consumers * plan.stores)
    full = _make_barriers(plan.stages, 1, False)
    own = _make_barriers(plan.stages, plan.shares, False)
    pair = _make_barriers(plan.stages, plan.shares, True)
    turn = _make_barriers(plan.alternate, 1, False)
    fence_async_shared()
    mbarrier.arrive(turn.index(0), count=1)  # the first consumer goes first
    shape = (m, n, k, group_size)
    ring = (a_s, b_s, full, own)
    inputs = (a_desc, b_desc, tail_desc)
    outputs = (c_desc, c_s)
    # The compiler makes the blocks wait for each other here, as a block's barriers must be there
    # before the other's copies and arrivals, and once more behind the partitions: neither leaves
    # while the other may copy into its shared memory or arrive at its barriers.
    if consumers == 1:
        gl.warp_specialize(
            [
                (_consume, (outputs, ring, pair, turn, shape, 0, plan)),
                (_produce, (inputs, ring, pair, shape, plan)),
            ],
            [1],
            [plan.producer_registers],
        )
    elif consumers == 2:
        gl.warp_specialize(
            [
                (_consume, (outputs, ring, pair, turn, shape, 0, plan)),
                (_consume, (outputs, ring, pair, turn, shape, 1, plan)),
                (_produce, (inputs, ring, pair, shape, plan)),
            ],
            [plan.warps, 1],
            [plan.consumer_registers, plan.producer_registers],
        )
    else:
        gl.warp_specialize(
            [
                (_consume, (outputs, ring, pair, turn, shape, 0, plan)),
                (_consume, (outputs, ring, pair, turn, shape, 1, plan)),
                (_consume, (outputs, ring, pair, turn, shape, 2, plan)),
                (_produce, (inputs, ring, pair, shape, plan)),
            ],
            [plan.warps, plan.warps, 1],
            [plan.consumer_registers, plan.consumer_registers, plan.producer_registers],
        )


@gluon.jit
def _make_barriers(COUNT: gl.constexpr, ARRIVALS: gl.constexpr, SHARED: gl.constexpr):
    """COUNT barriers whose phase completes after ARRIVALS arrivals of a block: in each block its
    own, or if SHARED one of both, in the first, that both arrive at and only the first waits for.
    """
    bars = mbarrier.allocate_mbarrier(batch=COUNT, two_ctas=SHARED)
    for i in gl.static_range(COUNT):
        mbarrier.init(bars.index(i), count=ARRIVALS)
    return bars


@gluon.jit
def _tiles_of(shape, plan: gl.constexpr):
    """Tiles of the output; shape is (m, n, k, group_size)."""
    m, n, _, _ = shape
    return gl.cdiv(m, plan.block_m) * gl.cdiv(n, plan.block_n)


@gluon.jit
def _produce(inputs, ring, pair, shape, plan: gl.constexpr):
    """The producer warp: loads every k step of this program's tiles.

    It alone waits for the launch before: consumers touch memory only after they got a tile's loads.
    """
    wait_for_the_launch_before()
    _, _, full, own = ring
    items = _tiles_of(shape, plan)
    steps = gl.cdiv(shape[2], plan.block_k)
    slot = 0
    phase = 1
    index = gl.program_id(0)
    while index < items:
        row, col = tile_start(index, shape, plan)
        for step in range(steps):
            inner = step * plan.block_k
            mbarrier.wait(own.index(slot), phase)
            mbarrier.expect(full.index(slot), plan.step_bytes)
            # What is multicast comes last, as it alone waits for the other block.
            if plan.along == 0:
                _load_a(inputs, ring, slot, row, inner, plan, False)
                mbarrier.wait(pair.index(slot), phase)
                _load_b(inputs, ring, slot, col, inner, plan, True)
            else:
                _load_b(inputs, ring, slot, col, inner, plan, False)
                mbarrier.wait(pair.index(slot), phase)
                _load_a(inputs, ring, slot, row, inner, plan, True)
            slot, phase = advance(slot, phase, plan.stages)
        index += gl.num_programs(0)


@gluon.jit
def _load_a(inputs, ring, slot, row, inner, plan: gl.constexpr, MULTICAST: gl.constexpr):
    """Starts the copies of A of one k step, from element inner of k, into a slot of the ring."""
    a_desc, _, _ = inputs
    a_s, _, full, _ = ring
    bar = full.index(slot)
    strips: gl.constexpr = plan.shares * plan.strips
    for strip in gl.static_range(strips):
        start = row + strip * plan.rows
        at = [inner, start] if plan.a_transposed else [start, inner]
        tma_load(a_desc, at, bar, a_s.index(slot * strips + strip), multicast=MULTICAST)


@gluon.jit
def _load_b(inputs, ring, slot, col, inner, plan: gl.constexpr, MULTICAST: gl.constexpr):
    """The same of each piece of B."""
    _, b_desc, tail_desc = inputs
    _, b_s, full, _ = ring
    bar = full.index(slot)
    at = [col, inner] if plan.b_transposed else [inner, col]
    tma_load(b_desc, at, bar, b_s[0].index(slot), multicast=MULTICAST)
    if len(plan.pieces) == 2:
        start = col + plan.pieces[0]
        at = [start, inner] if plan.b_transposed else [inner, start]
        tma_load(tail_desc, at, bar, b_s[1].index(slot), multicast=MULTICAST)


@gluon.jit
def _consume(outputs, ring, pair, turn, shape, SELF: gl.constexpr, plan: gl.constexpr):
    """Consumer SELF: multiplies and stores its share of each tile, or each tile in its turn."""
    c_desc, c_s = outputs
    _, _, full, own = ring
    share: gl.constexpr = SELF if plan.shares > 1 else 0
    items = _tiles_of(shape, plan)
    steps = gl.cdiv(shape[2], plan.block_k)
    zero = accumulators(plan)
    slot = 0
    phase = 0
    index = gl.program_id(0)
    if plan.alternate == 2 and SELF == 1:
        slot, phase = skip(slot, phase, steps, plan.stages)
        index += gl.num_programs(0)
    turns = 0
    while index < items:
        if plan.alternate == 2:
            mbarrier.wait(turn.index(SELF), turns & 1)
        accs = zero
        for step in range(steps):
            mbarrier.wait(full.index(slot), phase)
            # The tensor cores work on the first product while the slot before, and the turn in a
            # tile's last step, are handed over: each takes a barrier of all warps.
            accs = multiply(accs, ring, slot, share, step > 0, 0, 1, plan)
            accs = in_flight(wait_for(accs, 1))
            _release(own, pair, before(slot, plan.stages), step > 0)
            if plan.alternate == 2 and len(accs) > 1:
                mbarrier.arrive(turn.index(1 - SELF), count=1, pred=step == steps - 1)
            accs = multiply(accs, ring, slot, share, step > 0, 1, len(accs), plan)
            slot, phase = advance(slot, phase, plan.stages)
        if plan.alternate == 2 and len(accs) == 1:
            mbarrier.arrive(turn.index(1 - SELF), count=1)
        sums = wait_for(accs, 0)
        _release(own, pair, before(slot, plan.stages), True)
        row, col = tile_start(index, shape, plan)
        row += share * plan.strips * plan.rows
        _store_tile(sums, c_desc, c_s, SELF * plan.stores, row, col, plan)
        turns += 1
        if plan.alternate == 2:
            slot, phase = skip(slot, phase, steps, plan.stages)
        index += gl.num_programs(0) * plan.alternate
    tma_store_wait(0)


@gluon.jit
def _release(own, pair, slot, pred):
    """A consumer has read its block's slot."""
    mbarrier.arrive(pair.index(slot), count=1, pred=pred)
    mbarrier.arrive(own.index(slot), count=1, pred=pred)


@gluon.jit
def _store_tile(sums, c_desc, c_s, FIRST: gl.constexpr, row, col, plan: gl.constexpr):
    """Stores a share of a tile slice by slice, through plan.stores buffers from FIRST on.

    A slice has as many columns of each block. Those of blocks side by side lie half a piece apart
    in C, but half a slice apart in a slice as it is stored: the difference is the second block's to
    add.
    """
    for strip in gl.static_range(plan.strips):
        for i in gl.static_range(len(plan.pieces)):
            slices = slices_of(sums[strip * len(plan.pieces) + i], plan)
            for j in gl.static_range(len(slices)):
                at = col
                if plan.along == 1:
                    at += _rank() * ((plan.pieces[i] - plan.store_n) // 2) - j * plan.store_n // 2
                store_slice(
                    slices[j], c_desc, c_s, FIRST,
                    (strip * plan.block_n + i * plan.pieces[0]) // plan.store_n + j, row, at, plan,
                )  # fmt: skip


@gluon.jit
def _rank():
    """0 in the first block of the cluster, 1 in the second."""
    return gl.inline_asm_elementwise(
        "mov.u32 $0, %cluster_ctarank;", "=r", [], dtype=gl.int32, is_pure=True, pack=1
    )
