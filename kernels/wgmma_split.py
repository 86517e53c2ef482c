"""Split k in the wgmma kernel: partial sums in memory, added by whoever finishes a tile last.

A work item is one part of a tile's k steps; items of a tile are neighbours, so that they run at the
same time and their partial sums are still in the L2. The parts are added in order of k whoever is
last: the result does not depend on timing.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from autoswizzle.kernels.gluon import barrier
from autoswizzle.kernels.wgmma_parts import sliced, store_slice


@gluon.jit
def work_of(index, k, plan: gl.constexpr):
    """(tile index, first k step, k step after the last) of the index-th work item."""
    steps = gl.cdiv(k, plan.block_k)
    if plan.splits == 1:
        tile, first, end = index, 0, steps
    else:
        tile = index // plan.splits
        split = index % plan.splits
        first = steps * split // plan.splits
        end = steps * (split + 1) // plan.splits
    return tile, first, end


@gluon.jit
def add_partials(
    sums, c_desc, c_s, partials, tickets, index, SHARE: gl.constexpr, row, col, plan: gl.constexpr
):
    """Leaves a share's sums of work item `index` in partials; the last of the tile adds and stores.

    partials: fp32, a block of rows x block_n for each work item and share. tickets: int32 zeros,
    one for each tile and share; zeros again afterwards.
    """
    tile = index // plan.splits
    size: gl.constexpr = plan.rows * plan.block_n
    slices = sliced(sums, plan)
    mine = partials + (gl.cast(index, gl.int64) * plan.shares + SHARE) * size
    for i in gl.static_range(len(slices)):
        gl.store(mine + _offsets(slices[i], i, plan), slices[i])
    barrier()  # the ticket says that every warp's sums are there
    ticket = tickets + tile * plan.shares + SHARE
    if gl.atomic_add(ticket, 1, sem="acq_rel") == plan.splits - 1:
        gl.store(ticket, 0)
        first = (gl.cast(tile, gl.int64) * plan.splits * plan.shares + SHARE) * size
        for i in gl.static_range(len(slices)):
            offsets = _offsets(slices[i], i, plan)
            total = gl.load(partials + first + offsets, cache_modifier=".cg")
            for split in gl.static_range(1, plan.splits):
                at = first + split * plan.shares * size
                total += gl.load(partials + at + offsets, cache_modifier=".cg")
            store_slice(total, c_desc, c_s, SHARE * plan.stores, i, row, col, plan)


@gluon.jit
def _offsets(values, PLACE: gl.constexpr, plan: gl.constexpr):
    """Where the PLACE-th slice's elements lie in a block of rows x block_n."""
    layout: gl.constexpr = values.type.layout
    rows = gl.arange(0, plan.rows, gl.SliceLayout(1, layout))
    cols = gl.arange(0, plan.store_n, gl.SliceLayout(0, layout))
    return rows[:, None] * plan.block_n + (cols[None, :] + PLACE * plan.store_n)
