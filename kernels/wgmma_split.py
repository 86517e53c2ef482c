"""Split k in the wgmma kernel: partial sums in memory, added by whoever computes a tile's end.

A division (whole, together, parts) of the tiles makes each of the first `whole` a work item of its
own. After them, every `together` tiles are shared by `parts` units, which cut their k steps, laid
end to end, into equal ranges: one tile among several units (split_k), or two tiles among three, for
example (stream_k, where a unit may have parts of two tiles; it has no more, as together < parts).

A unit computes the part that ends inside a tile first, and leaves its sums in memory. The unit that
computes a tile's end adds what lower units of its group left. It waits for lower units alone, which
lower programs compute in the same round (the grid is a multiple of `parts`), or the same program
before: as programs start in order, no wait is for a program that can't start. Sums are added in a
fixed order: the result does not depend on timing.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from autoswizzle.kernels.gluon import barrier
from autoswizzle.kernels.handover import hand_over, take_over
from autoswizzle.kernels.wgmma_parts import sliced, store_slice

# Rows and columns of sums that the threads of a warp hold side by side: 256 bytes.
SIDE = gl.constexpr(8)


@gluon.jit
def work_end(shape, division, plan: gl.constexpr):
    """The index at which this program's work items end; shape is (m, n, k, group_size)."""
    end = _tiles(shape, plan)
    if plan.divided:
        whole, together, parts = division
        end = whole + gl.cdiv(end - whole, together) * parts
        unit = gl.program_id(0)
        if together > 1 and whole + unit < end:
            _, first, stop, steps = _range(unit, shape, division, plan)
            if (stop - 1) // steps > first // steps:
                end += gl.num_programs(0)
    return end


@gluon.jit
def work_of(index, shape, division, plan: gl.constexpr):
    """(tile index, first k step, k step after the last) of a program's work item."""
    tile, first, end = index, 0, gl.cdiv(shape[2], plan.block_k)
    if plan.divided and index >= division[0]:
        unit, again = _unit(index, division)
        base, start, stop, steps = _range(unit, shape, division, plan)
        local = start // steps if again else (stop - 1) // steps
        tile = base + local
        first = max(start - local * steps, 0)
        end = min(stop - local * steps, steps)
    return tile, first, end


@gluon.jit
def store_part(
    sums, c_desc, c_s, FIRST: gl.constexpr, left, index, SHARE: gl.constexpr, row, col, shape,
    division, plan: gl.constexpr,
):  # fmt: skip
    """Leaves a share's sums of a part for others, or adds what they left and stores the tile.

    left: (partials, flags, ticket): fp32, a block of strips x rows x block_n for each unit and
    share, and a flag for each (handover.py).
    """
    partials, flags, ticket = left
    unit, again = _unit(index, division)
    _, start, stop, steps = _range(unit, shape, division, plan)
    local = start // steps if again else (stop - 1) // steps
    size: gl.constexpr = plan.strips * plan.rows * plan.block_n
    slices = sliced(sums, plan)
    if stop < (local + 1) * steps:
        mine = partials + (gl.cast(unit, gl.int64) * plan.shares + SHARE) * size
        for i in gl.static_range(len(slices)):
            gl.store(mine + _offsets(slices[i], i, plan), slices[i])
        barrier()  # the flag says that every warp's sums are there
        hand_over(flags + unit * plan.shares + SHARE, ticket)
    else:
        part = unit % division[2]
        total = _total(unit, shape, division, plan)
        earliest = unit - part + gl.cdiv(division[2] * (local * steps + 1), total) - 1
        for other in range(earliest, unit):
            take_over(flags + other * plan.shares + SHARE, ticket)
        for first in gl.static_range(0, len(slices), plan.added):
            values = slices[first : first + plan.added]
            for other in range(earliest, unit):
                theirs = partials + (gl.cast(other, gl.int64) * plan.shares + SHARE) * size
                added = ()
                for i in gl.static_range(len(values)):
                    places = _offsets(values[i], first + i, plan)
                    added += (values[i] + gl.load(theirs + places, cache_modifier=".cg"),)
                values = added
            for i in gl.static_range(len(values)):
                store_slice(values[i], c_desc, c_s, FIRST, first + i, row, col, plan)


@gluon.jit
def _tiles(shape, plan: gl.constexpr):
    return gl.cdiv(shape[0], plan.block_m) * gl.cdiv(shape[1], plan.block_n)


@gluon.jit
def _unit(index, division):
    """The unit of a work item, and whether it is the unit's second part."""
    whole, together, _ = division
    unit = index - whole
    again = False
    if together > 1:
        again = unit >= gl.num_programs(0)
        if again:
            unit -= gl.num_programs(0)
    return unit, again


@gluon.jit
def _total(unit, shape, division, plan: gl.constexpr):
    """The k steps that a unit's group shares."""
    whole, together, parts = division
    left = _tiles(shape, plan) - whole - unit // parts * together
    return min(together, left) * gl.cdiv(shape[2], plan.block_k)


@gluon.jit
def _range(unit, shape, division, plan: gl.constexpr):
    """(first tile of a unit's group, the unit's first k step there, its stop, steps of a tile)."""
    whole, together, parts = division
    total = _total(unit, shape, division, plan)
    part = unit % parts
    base = whole + unit // parts * together
    steps = gl.cdiv(shape[2], plan.block_k)
    return base, total * part // parts, total * (part + 1) // parts, steps


@gluon.jit
def _offsets(values, PLACE: gl.constexpr, plan: gl.constexpr):
    """Where the elements of slice PLACE lie in a block of rows x block_n, SIDE x SIDE in a row."""
    layout: gl.constexpr = values.type.layout
    rows = gl.arange(0, plan.rows, gl.SliceLayout(1, layout))
    cols = gl.arange(0, plan.store_n, gl.SliceLayout(0, layout))
    first: gl.constexpr = PLACE * plan.rows * plan.store_n
    starts = rows // SIDE * (SIDE * plan.store_n) + rows % SIDE * SIDE
    return first + starts[:, None] + (cols // SIDE * (SIDE * SIDE) + cols % SIDE)[None, :]
