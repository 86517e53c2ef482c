"""The wgmma family on the device (sm_90): persistent programs, TMA copies, wgmma, in Gluon.

A program computes output tiles one after another. Its shared memory holds a ring of STAGES k steps;
`full[slot]` completes when the TMA copies of a step have arrived, `empty[slot]` when every consumer
has read it. A wait names the parity of the phase it waits for: the i-th use of a slot is phase i.

Two kernels share all parts:
- specialized: one warp, the producer, issues every copy; one or two consumers multiply and store.
  Cooperative consumers take the same tile, each a share of its rows; pingpong consumers take
  alternate tiles, so that one stores while the other multiplies.
- pipelined: the same warps issue copies, multiply and store; copies run ahead into the next tile.

Tiles are handed out by index (static), or by an atomic counter (dynamic): the first tile of a
program is its index, then the producer takes the next from the counter and passes it to the
consumers through `queue`, a ring in shared memory.
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

from autoswizzle.kernels.gluon import barrier, tma_load, tma_store, tma_store_wait
from autoswizzle.kernels.order import tile_at

QUEUE = gl.constexpr(4)  # tiles the producer may be ahead of a consumer, in dynamic scheduling


@dataclass(frozen=True)
class Plan:
    """The compile-time constants of a kernel. Data only: its text is part of the compiler's key.

    pieces: widths that block_n is made of, each a power of two. shares: consumers (or parts) that
    the rows of a tile are split among; rows: of one share. alternate: consumers that take turns
    tile by tile. stores: shared-memory buffers a consumer stores through, store_n columns each.
    """

    block_m: int
    block_n: int
    block_k: int
    pieces: tuple[int, ...]
    rows: int
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
    group_size: int
    log_side: int
    dynamic: bool
    consumer_registers: int
    producer_registers: int

    def on_device(self) -> "Plan":
        """The same plan as a kernel takes it: every field a constexpr."""
        values = {item.name: gl.constexpr(getattr(self, item.name)) for item in fields(self)}
        values["pieces"] = gl.constexpr(tuple(map(gl.constexpr, self.pieces)))
        return Plan(**values)


@gluon.jit
def specialized(
    a_desc, b_desc, tail_desc, c_desc, counter, m, n, k, plan: gl.constexpr
):
    """C tiles by one producer warp and one or two consumers of plan.warps warps each."""
    a_s, b_s = _allocate_ring(a_desc, b_desc, tail_desc, plan)
    consumers: gl.constexpr = max(plan.shares, plan.alternate)
    c_s = gl.allocate_shared_memory(
        c_desc.dtype, [consumers * plan.stores, plan.rows, plan.store_n], c_desc.layout
    )
    full = _barriers(plan.stages, 1)
    empty = _barriers(plan.stages, plan.shares)
    turn = _barriers(plan.alternate, 1)
    queue = ()
    if plan.dynamic:
        layout: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
        queue = (
            gl.allocate_shared_memory(gl.int32, [QUEUE, 1], layout),
            _barriers(QUEUE, 1),
            _barriers(QUEUE, plan.shares),
        )
    fence_async_shared()
    mbarrier.arrive(turn.index(0), count=1)  # the first consumer goes first
    ring = (a_s, b_s, full, empty)
    inputs = (a_desc, b_desc, tail_desc)
    if consumers == 1:
        gl.warp_specialize(
            [
                (_consume, (c_desc, c_s, ring, turn, queue, m, n, k, 0, plan)),
                (_produce, (inputs, ring, queue, counter, m, n, k, plan)),
            ],
            [1],
            [plan.producer_registers],
        )
    else:
        gl.warp_specialize(
            [
                (_consume, (c_desc, c_s, ring, turn, queue, m, n, k, 0, plan)),
                (_consume, (c_desc, c_s, ring, turn, queue, m, n, k, 1, plan)),
                (_produce, (inputs, ring, queue, counter, m, n, k, plan)),
            ],
            [plan.warps, 1],
            [plan.consumer_registers, plan.producer_registers],
        )


@gluon.jit
def _barriers(COUNT: gl.constexpr, ARRIVALS: gl.constexpr):
    """COUNT barriers whose phase completes after ARRIVALS arrivals."""
    bars = gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(COUNT):
        mbarrier.init(bars.index(i), count=ARRIVALS)
    return bars


@gluon.jit
def _allocate_ring(a_desc, b_desc, tail_desc, plan: gl.constexpr):
    """Shared memory of plan.stages k steps of A and of each piece of B, stored as in memory."""
    a_s = gl.allocate_shared_memory(
        a_desc.dtype, [plan.stages * plan.shares] + a_desc.block_shape, a_desc.layout
    )
    b_s = (
        gl.allocate_shared_memory(b_desc.dtype, [plan.stages] + b_desc.block_shape, b_desc.layout),
    )
    if len(plan.pieces) == 2:
        b_s += (
            gl.allocate_shared_memory(
                b_desc.dtype, [plan.stages] + tail_desc.block_shape, tail_desc.layout
            ),
        )
    return a_s, b_s


@gluon.jit
def _tile(index, m, n, plan: gl.constexpr):
    """First row and column of the index-th visited tile."""
    tile_m, tile_n = tile_at(
        index,
        gl.cdiv(m, plan.block_m),
        gl.cdiv(n, plan.block_n),
        plan.swizzle,
        plan.group_size,
        plan.log_side,
    )
    return tile_m * plan.block_m, tile_n * plan.block_n


@gluon.jit
def _advance(slot, phase, SLOTS: gl.constexpr):
    """The next slot of a ring and the parity of its phase."""
    slot += 1
    if slot == SLOTS:
        slot = 0
        phase ^= 1
    return slot, phase


@gluon.jit
def _skip(slot, phase, steps, SLOTS: gl.constexpr):
    """The slot and the parity of its phase after steps more uses of the ring."""
    slot += steps
    return slot % SLOTS, phase ^ (slot // SLOTS & 1)


@gluon.jit
def _load(inputs, ring, slot, row, col, inner, pred, plan: gl.constexpr):
    """Starts the copies of one k step, from element inner of k, into a slot of the ring."""
    a_desc, b_desc, tail_desc = inputs
    a_s, b_s, full, _ = ring
    bar = full.index(slot)
    mbarrier.expect(bar, plan.step_bytes, pred=pred)
    for share in gl.static_range(plan.shares):
        start = row + share * plan.rows
        at = [inner, start] if plan.a_transposed else [start, inner]
        tma_load(a_desc, at, bar, a_s.index(slot * plan.shares + share), pred=pred)
    at = [col, inner] if plan.b_transposed else [inner, col]
    tma_load(b_desc, at, bar, b_s[0].index(slot), pred=pred)
    if len(plan.pieces) == 2:
        start = col + plan.pieces[0]
        at = [start, inner] if plan.b_transposed else [inner, start]
        tma_load(tail_desc, at, bar, b_s[1].index(slot), pred=pred)


@gluon.jit
def _accumulators(plan: gl.constexpr):
    """One fp32 accumulator of plan.rows rows for each piece of block_n, zero."""
    accs = ()
    for i in gl.static_range(len(plan.pieces)):
        accs += (_accumulator(plan.pieces[i], plan),)
    return accs


@gluon.jit
def _accumulator(COLUMNS: gl.constexpr, plan: gl.constexpr):
    layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0],
        warps_per_cta=[plan.warps, 1],
        instr_shape=[16, COLUMNS, plan.instruction_k],
    )
    return warpgroup_mma_init(gl.zeros([plan.rows, COLUMNS], gl.float32, layout))


@gluon.jit
def _multiply(accs, ring, slot, share, use_acc, plan: gl.constexpr):
    """Starts acc (+)= A @ B on one k step for each piece."""
    a_s, b_s, _, _ = ring
    a = a_s.index(slot * plan.shares + share)
    if plan.a_transposed:
        a = a.permute((1, 0))
    sums = ()
    for i in gl.static_range(len(plan.pieces)):
        b = b_s[i].index(slot)
        if plan.b_transposed:
            b = b.permute((1, 0))
        sums += (
            warpgroup_mma(
                a, b, accs[i], use_acc=use_acc, precision=plan.precision.value, is_async=True
            ),
        )
    return sums


@gluon.jit
def _wait(accs, STEPS: gl.constexpr, plan: gl.constexpr):
    """The accumulators, as tensors, once all but the last STEPS steps are done."""
    if len(plan.pieces) == 1:
        done = (warpgroup_mma_wait(STEPS, deps=accs),)
    else:
        done = warpgroup_mma_wait(2 * STEPS, deps=accs)
    return done


@gluon.jit
def _in_flight(done):
    """Accumulators again, of what _wait gave."""
    accs = ()
    for i in gl.static_range(len(done)):
        accs += (warpgroup_mma_init(done[i]),)
    return accs


@gluon.jit
def _store(sums, c_desc, c_s, FIRST: gl.constexpr, row, col, plan: gl.constexpr):
    """Stores a share of a tile in slices of plan.store_n columns, through plan.stores buffers."""
    slices = ()
    for i in gl.static_range(len(sums)):
        parts = (sums[i],)
        for _ in gl.static_range((plan.pieces[i] // plan.store_n).bit_length() - 1):
            halves = ()
            for j in gl.static_range(len(parts)):
                part = parts[j]
                halves += part.reshape([part.shape[0], 2, part.shape[1] // 2]).permute(0, 2, 1).split()
            parts = halves
        slices += parts
    for i in gl.static_range(len(slices)):
        value = slices[i].to(c_desc.dtype)
        buffer = c_s.index(FIRST + i % plan.stores)
        tma_store_wait(plan.stores - 1)
        buffer.store(value)
        fence_async_shared()
        tma_store(c_desc, [row, col + i * plan.store_n], buffer)


@gluon.jit
def _produce(inputs, ring, queue, counter, m, n, k, plan: gl.constexpr):
    """The producer warp: loads every k step of this program's tiles, and hands out tiles."""
    _, _, full, empty = ring
    tiles = gl.cdiv(m, plan.block_m) * gl.cdiv(n, plan.block_n)
    slot = 0
    phase = 1
    index = gl.program_id(0)
    taken = 0
    while index < tiles:
        row, col = _tile(index, m, n, plan)
        for inner in range(0, k, plan.block_k):
            mbarrier.wait(empty.index(slot), phase)
            _load(inputs, ring, slot, row, col, inner, True, plan)
            slot, phase = _advance(slot, phase, plan.stages)
        if plan.dynamic:
            index = gl.num_programs(0) + gl.atomic_add(counter, 1)
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
def _consume(c_desc, c_s, ring, turn, queue, m, n, k, SELF: gl.constexpr, plan: gl.constexpr):
    """Consumer SELF: multiplies and stores its share of each tile, or each tile in its turn."""
    _, _, full, empty = ring
    share: gl.constexpr = SELF if plan.shares == 2 else 0
    tiles = gl.cdiv(m, plan.block_m) * gl.cdiv(n, plan.block_n)
    steps = gl.cdiv(k, plan.block_k)
    zero = _accumulators(plan)
    slot = 0
    phase = 0
    place = 0
    index = gl.program_id(0)
    if plan.alternate == 2 and SELF == 1:
        slot, phase = _skip(slot, phase, steps, plan.stages)
        place = 1
        index = _next_tile(queue, 1, plan)
    turns = 0
    while index < tiles:
        row, col = _tile(index, m, n, plan)
        previous = slot
        if plan.alternate == 2:
            mbarrier.wait(turn.index(SELF), turns & 1)
        accs = zero
        for step in range(steps):
            mbarrier.wait(full.index(slot), phase)
            accs = _multiply(accs, ring, slot, share, step > 0, plan)
            accs = _in_flight(_wait(accs, 1, plan))
            mbarrier.arrive(empty.index(previous), count=1, pred=step > 0)
            previous = slot
            slot, phase = _advance(slot, phase, plan.stages)
        if plan.alternate == 2:
            mbarrier.arrive(turn.index(1 - SELF), count=1)
        sums = _wait(accs, 0, plan)
        mbarrier.arrive(empty.index(previous), count=1)
        _store(sums, c_desc, c_s, SELF * plan.stores, row + share * plan.rows, col, plan)
        turns += 1
        if plan.alternate == 2:
            slot, phase = _skip(slot, phase, steps, plan.stages)
        place += plan.alternate
        index = _next_tile(queue, place, plan)
    tma_store_wait(0)


@gluon.jit
def pipelined(a_desc, b_desc, tail_desc, c_desc, counter, m, n, k, plan: gl.constexpr):
    """C tiles by plan.warps warps that also issue the copies, up to plan.stages - 1 steps ahead.

    Copies run ahead into the following tile only, so that two tiles are all that is remembered.
    """
    a_s, b_s = _allocate_ring(a_desc, b_desc, tail_desc, plan)
    c_s = gl.allocate_shared_memory(
        c_desc.dtype, [plan.stores, plan.rows, plan.store_n], c_desc.layout
    )
    full = _barriers(plan.stages, 1)
    fence_async_shared()
    ring = (a_s, b_s, full, full)
    inputs = (a_desc, b_desc, tail_desc)
    tiles = gl.cdiv(m, plan.block_m) * gl.cdiv(n, plan.block_n)
    steps = gl.cdiv(k, plan.block_k)
    zero = _accumulators(plan)
    index = gl.program_id(0)
    following = _following(index, counter, plan)
    here = _tile(index, m, n, plan)
    there = _tile(min(following, tiles - 1), m, n, plan)
    slot = 0
    phase = 0
    loaded = 0  # k steps whose copies were started, counted from the start of this tile
    for _ in gl.static_range(plan.stages - 1):
        available = steps if following >= tiles else 2 * steps
        loaded = _load_ahead(inputs, ring, slot, 0, loaded, available, here, there, steps, plan)
    while index < tiles:
        available = steps if following >= tiles else 2 * steps
        accs = zero
        for step in range(steps):
            barrier()  # every warp has read the slot of the step before
            loaded = _load_ahead(
                inputs, ring, slot, step, loaded, available, here, there, steps, plan
            )
            mbarrier.wait(full.index(slot), phase)
            accs = _multiply(accs, ring, slot, 0, step > 0, plan)
            accs = _in_flight(_wait(accs, 1, plan))
            slot, phase = _advance(slot, phase, plan.stages)
        sums = _wait(accs, 0, plan)
        _store(sums, c_desc, c_s, 0, here[0], here[1], plan)
        loaded -= steps
        index = following
        following = _following(index, counter, plan)
        here = there
        there = _tile(min(following, tiles - 1), m, n, plan)
    tma_store_wait(0)


@gluon.jit
def _following(index, counter, plan: gl.constexpr):
    """The index of the tile after the index-th."""
    if plan.dynamic:
        following = gl.num_programs(0) + gl.atomic_add(counter, 1)
    else:
        following = index + gl.num_programs(0)
    return following


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
    _load(inputs, ring, ahead, row, col, inner, wanted, plan)
    return loaded + 1 if wanted else loaded
