"""Parts of the wgmma kernels on the device (sm_90): the ring of k steps, products, stores.

A program computes output tiles one after another. Its shared memory holds a ring of plan.stages k
steps; `full[slot]` completes when the TMA copies of a step have arrived, `empty[slot]` when every
consumer has read it. A wait names the parity of the phase it waits for: the i-th use of a slot is
phase i.
"""

from dataclasses import dataclass, fields

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)

from autoswizzle.kernels.gluon import tma_load, tma_store, tma_store_wait
from autoswizzle.kernels.order import tile_at


@dataclass(frozen=True)
class Plan:
    """The compile-time constants of a kernel. Data only: its text is part of the compiler's key.

    pieces: widths that block_n is made of, each a power of two. shares: consumers (or parts) that
    the rows of a tile are split among; strips: of rows rows each, that a consumer multiplies one
    by one. alternate: consumers that take turns tile by tile. stores: shared-memory buffers a
    consumer stores through, store_n columns each. divided: k steps of some tiles are split into
    parts, each a work item of its own (wgmma_split). added: slices of store_n columns that partial
    sums are added to at once. along: the dimension of C that the blocks of a cluster divide; -1
    without clusters. swapped: C's transpose is multiplied, B's by A's: all else here, and m and n,
    are of that.
    """

    block_m: int
    block_n: int
    block_k: int
    pieces: tuple[int, ...]
    rows: int
    strips: int
    shares: int
    alternate: int
    warps: int
    stages: int
    step_bytes: int
    store_n: int
    stores: int
    a_transposed: bool
    b_transposed: bool
    instruction_k: int
    precision: str
    swizzle: str
    log_side: int
    dynamic: bool
    divided: bool
    added: int
    consumer_registers: int
    producer_registers: int
    along: int = -1
    swapped: bool = False

    def on_device(self) -> "Plan":
        """The same plan as a kernel takes it: every field a constexpr."""
        values = {item.name: gl.constexpr(getattr(self, item.name)) for item in fields(self)}
        values["pieces"] = gl.constexpr(tuple(map(gl.constexpr, self.pieces)))
        return Plan(**values)


@gluon.jit
def make_barriers(COUNT: gl.constexpr, ARRIVALS: gl.constexpr):
    """COUNT barriers whose phase completes after ARRIVALS arrivals."""
    bars = gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(COUNT):
        mbarrier.init(bars.index(i), count=ARRIVALS)
    return bars


@gluon.jit
def allocate_ring(a_desc, b_desc, tail_desc, plan: gl.constexpr):
    """Shared memory of plan.stages k steps of A and of each piece of B, stored as in memory."""
    a_s = gl.allocate_shared_memory(
        a_desc.dtype,
        [plan.stages * plan.shares * plan.strips, a_desc.block_shape[0], a_desc.block_shape[1]],
        a_desc.layout,
    )
    b_s = (
        gl.allocate_shared_memory(
            b_desc.dtype, [plan.stages, b_desc.block_shape[0], b_desc.block_shape[1]], b_desc.layout
        ),
    )
    if len(plan.pieces) == 2:
        b_s += (
            gl.allocate_shared_memory(
                b_desc.dtype,
                [plan.stages, tail_desc.block_shape[0], tail_desc.block_shape[1]],
                tail_desc.layout,
            ),
        )
    return a_s, b_s


@gluon.jit
def allocate_stores(c_desc, COUNT: gl.constexpr):
    """Shared memory of COUNT slices of C, as they lie there."""
    height: gl.constexpr = c_desc.block_shape[0]
    width: gl.constexpr = c_desc.block_shape[1]
    return gl.allocate_shared_memory(c_desc.dtype, [COUNT, height, width], c_desc.layout)


@gluon.jit
def tile_start(index, shape, plan: gl.constexpr):
    """First row and column of the index-th visited tile; shape is (m, n, k, group_size)."""
    m, n, _, group_size = shape
    rows, cols = gl.cdiv(m, plan.block_m), gl.cdiv(n, plan.block_n)
    if plan.swapped:
        tile_n, tile_m = tile_at(index, cols, rows, plan.swizzle, group_size, plan.log_side)
    else:
        tile_m, tile_n = tile_at(index, rows, cols, plan.swizzle, group_size, plan.log_side)
    return tile_m * plan.block_m, tile_n * plan.block_n


@gluon.jit
def advance(slot, phase, SLOTS: gl.constexpr):
    """The next slot of a ring and the parity of its phase."""
    slot += 1
    if slot == SLOTS:
        slot = 0
        phase ^= 1
    return slot, phase


@gluon.jit
def before(slot, SLOTS: gl.constexpr):
    """The slot before this one. (A variable that follows slot a step behind would not be carried by
    a loop: entering it, the two name one value, and the compiler takes them for the same.)
    """
    return SLOTS - 1 if slot == 0 else slot - 1


@gluon.jit
def skip(slot, phase, steps, SLOTS: gl.constexpr):
    """The slot and the parity of its phase after steps more uses of the ring."""
    slot += steps
    return slot % SLOTS, phase ^ (slot // SLOTS & 1)


@gluon.jit
def load_step(inputs, ring, slot, row, col, inner, pred, plan: gl.constexpr):
    """Starts the copies of one k step, from element inner of k, into a slot of the ring."""
    a_desc, b_desc, tail_desc = inputs
    a_s, b_s, full, _ = ring
    bar = full.index(slot)
    mbarrier.expect(bar, plan.step_bytes, pred=pred)
    strips: gl.constexpr = plan.shares * plan.strips
    for strip in gl.static_range(strips):
        start = row + strip * plan.rows
        at = [inner, start] if plan.a_transposed else [start, inner]
        tma_load(a_desc, at, bar, a_s.index(slot * strips + strip), pred=pred)
    at = [col, inner] if plan.b_transposed else [inner, col]
    tma_load(b_desc, at, bar, b_s[0].index(slot), pred=pred)
    if len(plan.pieces) == 2:
        start = col + plan.pieces[0]
        at = [start, inner] if plan.b_transposed else [inner, start]
        tma_load(tail_desc, at, bar, b_s[1].index(slot), pred=pred)


@gluon.jit
def accumulators(plan: gl.constexpr):
    """One fp32 accumulator of plan.rows rows for each piece of block_n of each strip, zero."""
    accs = ()
    for _ in gl.static_range(plan.strips):
        for i in gl.static_range(len(plan.pieces)):
            accs += (_accumulator(plan.pieces[i], plan),)
    return accs


@gluon.jit
def _accumulator(COLUMNS: gl.constexpr, plan: gl.constexpr):
    own: gl.constexpr = COLUMNS // 2 if plan.along == 1 else COLUMNS
    layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0],
        warps_per_cta=[plan.warps, 1],
        instr_shape=[16, own, plan.instruction_k],
        cga_layout=[[1 - plan.along, plan.along]] if plan.along >= 0 else [],
    )
    return warpgroup_mma_init(gl.zeros([plan.rows, COLUMNS], gl.float32, layout))


@gluon.jit
def multiply(
    accs, ring, slot, share, use_acc, FIRST: gl.constexpr, END: gl.constexpr, plan: gl.constexpr
):
    """Starts acc (+)= A @ B on one k step for accs FIRST..END: of each piece of each strip."""
    a_s, b_s, _, _ = ring
    sums = ()
    for strip in gl.static_range(plan.strips):
        a = a_s.index((slot * plan.shares + share) * plan.strips + strip)
        if plan.a_transposed:
            a = a.permute((1, 0))
        for i in gl.static_range(len(plan.pieces)):
            b = b_s[i].index(slot)
            if plan.b_transposed:
                b = b.permute((1, 0))
            if strip * len(plan.pieces) + i >= FIRST and strip * len(plan.pieces) + i < END:
                acc = warpgroup_mma(
                    a, b, accs[strip * len(plan.pieces) + i], use_acc=use_acc,
                    precision=plan.precision.value, is_async=True,
                )  # fmt: skip
            else:
                acc = accs[strip * len(plan.pieces) + i]
            sums += (acc,)
    return sums


@gluon.jit
def wait_for(accs, LEFT: gl.constexpr):
    """The accumulators, as tensors, once all but the last LEFT products are done."""
    if len(accs) == 1:
        done = (warpgroup_mma_wait(LEFT, deps=accs),)
    else:
        done = warpgroup_mma_wait(LEFT, deps=accs)
    return done


@gluon.jit
def in_flight(done):
    """Accumulators again, of what wait_for gave."""
    accs = ()
    for i in gl.static_range(len(done)):
        accs += (warpgroup_mma_init(done[i]),)
    return accs


@gluon.jit
def store_tile(sums, c_desc, c_s, FIRST: gl.constexpr, row, col, plan: gl.constexpr):
    """Stores a share of a tile slice by slice, through plan.stores buffers from FIRST on."""
    slices = sliced(sums, plan)
    for i in gl.static_range(len(slices)):
        store_slice(slices[i], c_desc, c_s, FIRST, i, row, col, plan)


@gluon.jit
def sliced(sums, plan: gl.constexpr):
    """The sums in slices of plan.store_n columns."""
    slices = ()
    for i in gl.static_range(len(sums)):
        slices += slices_of(sums[i], plan)
    return slices


@gluon.jit
def slices_of(piece, plan: gl.constexpr):
    """One piece in slices of plan.store_n columns: as many of each block that has a part of it."""
    parts = (piece,)
    for _ in gl.static_range((piece.shape[1] // plan.store_n).bit_length() - 1):
        halves = ()
        for i in gl.static_range(len(parts)):
            halves += _halves(parts[i], plan)
        parts = halves
    return parts


@gluon.jit
def _halves(part, plan: gl.constexpr):
    """The left and the right half of each block's columns."""
    rows: gl.constexpr = part.shape[0]
    columns: gl.constexpr = part.shape[1]
    blocks: gl.constexpr = 2 if plan.along == 1 else 1
    split = part.reshape([rows, blocks, 2, columns // blocks // 2]).permute(0, 1, 3, 2).split()
    return split[0].reshape([rows, columns // 2]), split[1].reshape([rows, columns // 2])


@gluon.jit
def store_slice(
    values, c_desc, c_s, FIRST: gl.constexpr, PLACE: gl.constexpr, row, col, plan: gl.constexpr
):
    """Starts the store of the PLACE-th slice of a share: slice by slice, strip by strip."""
    buffer = c_s.index(FIRST + PLACE % plan.stores)
    # The previous tile's stores were started a main loop ago: waiting for all costs nothing.
    tma_store_wait(plan.stores - 1 if PLACE > 0 else 0)
    beside: gl.constexpr = plan.block_n // plan.store_n
    row += PLACE // beside * plan.rows
    col += PLACE % beside * plan.store_n
    if plan.swapped:
        buffer.permute((1, 0)).store(values.to(c_desc.dtype))
    else:
        buffer.store(values.to(c_desc.dtype))
    fence_async_shared()
    tma_store(c_desc, [col, row] if plan.swapped else [row, col], buffer)
