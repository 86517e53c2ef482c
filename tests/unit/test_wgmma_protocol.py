"""The wgmma kernels' barriers, rings and tile hand-out, run on a stand-in for Gluon.

The device source itself is executed, with tiny tiles: each partition is a thread, a seeded
scheduler decides who runs at every operation, and asynchronous work is as late as it may be. TMA
copies poison their target until they land; products read shared memory when they are waited for,
and refuse poison when they are issued; stores read their buffer when waited for. So a missing or
misplaced wait, arrival or phase shows as a wrong product, or as a deadlock.

The blocks of a cluster run together. What they allocate is one object with a copy in each block; a
thread sees its own block's, and a multicast copy or an arrival at the pair's barrier reaches over.
"""

import importlib.util
import random
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import count, product
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest.mock import patch

import numpy as np
import pytest

from autoswizzle.simulator.order import tile_order

KERNELS = Path(__file__).parents[2] / "kernels"


class DeadlockError(AssertionError):
    pass


class Machine:
    """Threads of which one runs at a time, and asynchronous operations that end at random."""

    def __init__(self, seed: int, blocks: int = 1) -> None:
        self.rng = random.Random(seed)
        self.blocks = blocks  # of a cluster
        self.impatient = False  # whether waits for the barriers of both blocks are left out
        self.unfenced: set[int] = set()
        self.allocated: list[Shared | Bars] = []  # of the program that runs
        self.met = 0  # of its blocks, where their partitions begin
        self.lock = threading.Condition()
        self.ready: dict[int, Callable[[], bool]] = {}  # by thread: may it go on?
        self.running: int | None = None
        self.keys = count()
        self.pending: list[Callable[[], None]] = []
        self.failure: BaseException | None = None
        self.local = threading.local()

    def start(self, body: Callable[[], None]) -> threading.Thread:
        key = next(self.keys)
        self.ready[key] = lambda: True

        def main() -> None:
            self.local.key, self.local.products, self.local.stores = key, deque(), deque()
            self.local.allocations = 0
            try:
                self._await_turn(key)
                body()
                assert not self.local.stores, "a store was never waited for"
            except BaseException as error:  # noqa: BLE001  # handed to the test
                self.failure = self.failure or error
            with self.lock:
                del self.ready[key]
                self._next()

        thread = threading.Thread(target=main, daemon=True, name=str(key))
        thread.start()
        return thread

    def run(self, *bodies: Callable[[], None]) -> None:
        self.allocated, self.met = [], 0
        threads = [self.start(body) for body in bodies]
        with self.lock:
            self._next()
        for thread in threads:
            thread.join(60)
        if self.failure:
            raise self.failure
        assert not any(thread.is_alive() for thread in threads), "no end"
        assert not self.pending, "a copy was never waited for"

    def enter(self, program: int, rank: int = 0) -> None:
        """The calling thread is of this program, and of this block of its cluster."""
        self.local.program, self.local.rank = program, rank

    def until(self, condition: Callable[[], bool]) -> None:
        """A point where another thread may run; returns once condition holds."""
        key = self.local.key
        with self.lock:
            self.ready[key] = condition
            self._next()
        self._await_turn(key)

    def step(self) -> None:
        self.until(lambda: True)

    def _await_turn(self, key: int) -> None:
        with self.lock:
            self.lock.wait_for(lambda: self.running == key or self.failure is not None)
        if self.failure is not None:
            raise DeadlockError("another partition failed")

    def _next(self) -> None:
        while True:
            if self.pending and self.rng.random() < 0.3:
                self.pending.pop(self.rng.randrange(len(self.pending)))()
            able = [key for key, condition in self.ready.items() if condition()]
            if able and self.rng.random() < 0.9:
                self.running = self.rng.choice(able)
                break
            if not able and not self.pending:
                if self.ready:
                    self.failure = self.failure or DeadlockError(
                        f"{len(self.ready)} partitions wait"
                    )
                break
        self.lock.notify_all()


class Barrier:
    def __init__(self, machine: Machine) -> None:
        self.machine, self.phase, self.bytes = machine, 0, 0

    def init(self, count: int) -> None:
        self.count = self.left = count

    def arrive(self) -> None:
        assert self.left > 0, "more arrivals than the phase has"
        self.left -= 1
        self.settle()

    def settle(self) -> None:
        if self.left == 0 and self.bytes == 0:
            self.phase += 1
            self.left = self.count


class Tensor:
    """Registers; None while a product into them is in flight.

    split: the dimension that the blocks of a cluster divide; value is one block's.
    """

    type = SimpleNamespace(layout=None)

    def __init__(self, value: np.ndarray | None, split: int | None = None) -> None:
        self.value, self.split_along = value, split

    @property
    def shape(self) -> tuple[int, ...]:
        return scaled(self.value.shape, self.split_along, 2)

    def __add__(self, other: "Tensor") -> "Tensor":
        return Tensor(self.value + other.value)

    def to(self, dtype: object) -> "Tensor":
        return self

    def reshape(self, shape: list[int]) -> "Tensor":
        """The blocks divide the same dimension as before."""
        block = scaled(shape, self.split_along, 1 / 2)
        return Tensor(self.value.reshape(block), self.split_along)

    def permute(self, *order: int) -> "Tensor":
        assert self.split_along is None or order[self.split_along] == self.split_along
        return Tensor(self.value.transpose(order), self.split_along)

    def split(self) -> tuple["Tensor", "Tensor"]:
        return tuple(Tensor(self.value[..., half], self.split_along) for half in (0, 1))


def scaled(shape: Sequence[int], dimension: int | None, factor: float) -> tuple[int, ...]:
    """The shape with one dimension, if any, times factor: of a cluster, or of one of its blocks."""
    return tuple(
        int(size * factor) if place == dimension else size for place, size in enumerate(shape)
    )


class Pointer:
    """Global memory from an element on, or at an array of elements."""

    def __init__(self, memory: np.ndarray, at: int | np.ndarray = 0) -> None:
        self.memory, self.at = memory, at

    def __add__(self, offset: int | np.ndarray) -> "Pointer":
        return Pointer(self.memory, self.at + offset)


class Shared:
    """A view of shared memory, of one in each block of a cluster."""

    def __init__(self, copies: list[np.ndarray], machine: Machine) -> None:
        self.copies, self.machine = copies, machine

    @property
    def value(self) -> np.ndarray:
        return self.copies[self.machine.local.rank]

    def index(self, at: int) -> "Shared":
        assert 0 <= at < len(self.value)
        return Shared([copy[at] for copy in self.copies], self.machine)

    def permute(self, order: tuple[int, int]) -> "Shared":
        return Shared([copy.transpose(order) for copy in self.copies], self.machine)

    def store(self, value: Tensor) -> None:
        self.value[...] = value.value
        self.machine.unfenced.add(self.value.ctypes.data)

    def load(self, layout: object) -> np.ndarray:
        return self.value


class Bars:
    """Barriers, a row of them in each block, or one row of both."""

    def __init__(self, machine: Machine, count: int, blocks: int) -> None:
        self.machine = machine
        self.rows = [[Barrier(machine) for _ in range(count)] for _ in range(blocks)]

    def index(self, at: int) -> "Bar":
        assert 0 <= at < len(self.rows[0])
        return Bar([row[at] for row in self.rows], self.machine)


class Bar:
    """One barrier in each block, or one of both."""

    def __init__(self, copies: list[Barrier], machine: Machine) -> None:
        self.copies, self.machine = copies, machine

    @property
    def own(self) -> Barrier:
        return self.copies[self.machine.local.rank % len(self.copies)]

    @property
    def pair(self) -> bool:
        """Whether both blocks arrive at it, and the first waits."""
        return len(self.copies) < self.machine.blocks


class Descriptor:
    """A matrix, and the shape of the blocks that are copied from or to it."""

    def __init__(self, matrix: np.ndarray, block: list[int], split: int | None = None) -> None:
        """split: the dimension of the block that the blocks of a cluster divide."""
        self.matrix, self.block_shape, self.dtype, self.layout = matrix, block, "float", split
        self.writes = np.zeros(matrix.shape, int)

    def window(self, at: list[int], block: tuple[int, ...], rank: int) -> tuple[slice, ...]:
        assert block == scaled(self.block_shape, self.layout, 1 / 2)
        assert all(start >= 0 for start in at)
        return tuple(
            slice(start, start + size)
            for start, size in (
                (start + rank * size if place == self.layout else start, size)
                for place, (start, size) in enumerate(zip(at, block, strict=True))
            )
        )


def stand_ins(machine: Machine, programs: int, swizzle: str) -> dict[str, ModuleType]:
    """Modules in place of those that the device source imports."""

    def module(name: str, **members: object) -> ModuleType:
        made = ModuleType(name)
        made.__dict__.update(members)
        return made

    def jit(function: object = None, **_: object) -> object:
        return function or (lambda later: later)

    def in_every_block(make: Callable[[], object]) -> object:
        """What the block that comes first makes for all of its cluster."""
        place = machine.local.allocations
        machine.local.allocations += 1
        if place == len(machine.allocated):
            machine.allocated.append(make())
        return machine.allocated[place]

    def allocate(dtype: str, shape: list[int], layout: object) -> object:
        if dtype == "int64":
            return in_every_block(lambda: Bars(machine, shape[0], machine.blocks))
        block = scaled(shape, layout + 1 if isinstance(layout, int) else None, 1 / 2)
        blocks = range(machine.blocks)
        return in_every_block(lambda: Shared([np.full(block, np.nan) for _ in blocks], machine))

    def allocate_mbarrier(batch: int, two_ctas: bool) -> object:
        return in_every_block(lambda: Bars(machine, batch, machine.blocks // (1 + two_ctas)))

    def atomic_add(pointer: Pointer, amount: int, sem: str) -> int:
        machine.step()
        pointer.memory[pointer.at] += amount
        return int(pointer.memory[pointer.at]) - amount

    def atomic_xchg(pointer: Pointer, value: int, sem: str) -> int:
        machine.step()
        before, pointer.memory[pointer.at] = pointer.memory[pointer.at], value
        return int(before)

    def store(pointer: Pointer, value: Tensor | int) -> None:
        machine.step()
        pointer.memory[pointer.at] = value.value if isinstance(value, Tensor) else value

    def load(pointer: Pointer, cache_modifier: str) -> Tensor:
        machine.step()
        return Tensor(pointer.memory[pointer.at])

    def warp_specialize(
        partitions: list[tuple[Callable[..., None], tuple]], warps: list[int], registers: list[int]
    ) -> None:
        assert len(partitions) - 1 == len(warps) == len(registers)
        machine.met += 1
        machine.until(lambda: machine.met == machine.blocks)
        local = machine.local
        enter = partial(machine.enter, local.program, local.rank)
        threads = [
            machine.start(lambda body=body, args=args: (enter(), body(*args)))
            for body, args in partitions[1:]
        ]
        keys = {int(thread.name) for thread in threads}
        partitions[0][0](*partitions[0][1])
        machine.until(lambda: not keys & set(machine.ready))
        for thread in threads:
            thread.join(5)

    def init(bar: Bar, count: int) -> None:
        bar.own.init(count * (1 + bar.pair))

    def expect(bar: Bar, count: int, pred: bool = True) -> None:
        if pred:
            bar.own.bytes += count
            bar.own.arrive()

    def wait(bar: Bar, parity: int) -> None:
        own = bar.own
        waits = not bar.pair or (machine.local.rank == 0 and not machine.impatient)
        machine.until(lambda: not waits or own.phase % 2 != parity)

    def arrive(bar: Bar, count: int = 1, pred: bool = True) -> None:
        machine.step()
        assert count == 1
        if pred:
            bar.own.arrive()

    def wait_for_the_launch_before() -> None:
        machine.local.waited = True

    def tma_load(desc, at, bar, result, pred=True, multicast=False) -> None:
        machine.step()
        assert getattr(machine.local, "waited", False), "the launch before may still write this"
        rank = machine.local.rank
        assert not (multicast and desc.layout is not None), "the blocks do not share it"
        if not pred or (multicast and rank != 0):
            return

        def copy(target: np.ndarray, bar: Barrier) -> None:
            target[...] = np.nan

            def land() -> None:
                found = desc.matrix[desc.window(at, target.shape, rank)]
                target[...] = 0
                target[: found.shape[0], : found.shape[1]] = found
                bar.bytes -= target.size
                bar.settle()

            machine.pending.append(land)

        for block in range(machine.blocks) if multicast else (rank,):
            copy(result.copies[block], bar.copies[block])

    def tma_store(desc, at, source) -> None:
        machine.step()
        rank, value = machine.local.rank, source.value
        assert value.ctypes.data not in machine.unfenced, "stored before the fence"

        def land() -> None:
            window = desc.window(at, value.shape, rank)
            height, width = desc.matrix[window].shape
            desc.matrix[window] = value[:height, :width]
            desc.writes[window] += 1

        machine.local.stores.append(land)

    def tma_store_wait(pendings: int) -> None:
        machine.step()
        while len(machine.local.stores) > pendings:
            machine.local.stores.popleft()()

    def warpgroup_mma(a, b, acc, use_acc, precision, is_async):
        machine.step()
        assert is_async
        left, right = a.value, b.value
        assert not np.isnan(left).any(), "a is read before it arrived"
        assert not np.isnan(right).any(), "b is read before it arrived"
        total = Tensor(None, acc.split_along)

        def compute() -> None:
            total.value = left @ right + (acc.value if use_acc else 0)

        machine.local.products.append(compute)
        return total

    def warpgroup_mma_wait(count: int, deps: tuple) -> object:
        machine.step()
        while len(machine.local.products) > count:
            machine.local.products.popleft()()
        return deps[0] if len(deps) == 1 else deps

    def tile_at(index, grid_m, grid_n, kind, group_size, log_side):
        return tuple(map(int, tile_order(kind, grid_m, grid_n, group_size)[index]))

    def constexpr(value: object) -> object:
        return value

    def distributed(cga_layout: Sequence[list[int]] = (), **_: object) -> int | None:
        """The dimension that the blocks divide stands for the layout."""
        return cga_layout[0].index(1) if cga_layout else None

    def zeros(shape: list[int], dtype: object, layout: int | None) -> Tensor:
        return Tensor(np.zeros(scaled(shape, layout, 1 / 2)), layout)

    gl = module(
        "gl", constexpr=constexpr, int32="int32", int64="int64", float32="float32",
        allocate_shared_memory=allocate, store=store, load=load, cast=lambda value, dtype: value,
        arange=lambda start, end, layout: np.arange(start, end), SliceLayout=lambda *_: None,
        atomic_add=atomic_add, warp_specialize=warp_specialize,
        program_id=lambda axis: machine.local.program, num_programs=lambda axis: programs,
        cdiv=lambda a, b: -(-a // b), static_range=range, max=lambda value, axis: int(value.max()),
        zeros=zeros, inline_asm_elementwise=lambda *_, **__: machine.local.rank,
        full=lambda shape, value, dtype, layout: Tensor(np.full(shape, value)),
        NVMMADistributedLayout=distributed, BlockedLayout=lambda *_: None,
        SwizzledSharedLayout=lambda *_: None,
    )  # fmt: skip
    mbarrier = module(
        "mbarrier", init=init, expect=expect, wait=wait, arrive=arrive,
        allocate_mbarrier=allocate_mbarrier, MBarrierLayout=lambda: None,
    )  # fmt: skip
    hopper = module(
        "hopper", mbarrier=mbarrier, fence_async_shared=machine.unfenced.clear,
        warpgroup_mma=warpgroup_mma, warpgroup_mma_init=lambda value: value,
        warpgroup_mma_wait=warpgroup_mma_wait,
    )  # fmt: skip
    gluon = module("gluon", jit=jit, language=gl)
    tl = module("tl", atomic_add=atomic_add, atomic_xchg=atomic_xchg)
    copies = module(
        "autoswizzle.kernels.gluon", barrier=machine.step, tma_load=tma_load, tma_store=tma_store,
        tma_store_wait=tma_store_wait,
    )  # fmt: skip
    return {
        "triton": module("triton", jit=jit, language=tl),
        "triton.language": tl,
        "triton.experimental": module("triton.experimental", gluon=gluon),
        "triton.experimental.gluon": gluon,
        "triton.experimental.gluon.language": gl,
        "triton.experimental.gluon.language.nvidia.hopper": hopper,
        "autoswizzle.kernels.gluon": copies,
        "autoswizzle.kernels.order": module("order", tile_at=tile_at),
        "autoswizzle.kernels.overlap": module(
            "overlap",
            let_the_next_launch_begin=lambda: None,
            wait_for_the_launch_before=wait_for_the_launch_before,
        ),
    }


KERNEL_MODULES = (
    "handover", "wgmma_parts", "wgmma_split", "wgmma_pipelined", "wgmma_specialized",
    "multicast_specialized",
)  # fmt: skip


def load_kernels(fakes: dict[str, ModuleType]) -> dict[str, ModuleType]:
    """The device modules, executed over the stand-ins."""
    loaded = {}
    with patch.dict(sys.modules, fakes):
        for name in KERNEL_MODULES:
            path = KERNELS / f"{name}.py"
            spec = importlib.util.spec_from_file_location(f"autoswizzle.kernels.{name}", path)
            loaded[name] = importlib.util.module_from_spec(spec)
            sys.modules[spec.name] = loaded[name]
            spec.loader.exec_module(loaded[name])
    return loaded


STRIPED = ("strips", "swapped")  # of which the second stores the transpose of what it multiplies
HEIGHTS = {"thirds": 6, "strips": 6, "swapped": 6}


def multiply(
    extents: tuple[int, int, int], programs: int, seed: int, kind: str, stages: int,
    tail: bool = False, dynamic: bool = False, transposed: tuple[bool, bool] = (False, True),
    swizzle: str = "grouped", division: tuple[int, int, int] | None = None,
    along: int | None = None, impatient: bool = False,
) -> None:  # fmt: skip
    """One launch of a kernel on tiny tiles, checked exactly, each output element written once.

    division: (whole, together, parts) of the tiles, see wgmma_split. along: the dimension that the
    blocks of a cluster divide (multicast_specialized); impatient: it waits for its own block only.
    """
    m, n, k = extents
    machine = Machine(seed, blocks=1 if along is None else 2)
    machine.impatient = impatient
    kernels = load_kernels(stand_ins(machine, programs, swizzle))
    kernels["wgmma_split"].SIDE = 2
    shares = {"cooperative": 2, "thirds": 3}.get(kind, 1)
    strips = 3 if kind in STRIPED else 1
    pieces = (4, 2) if tail else (4,)
    block_m, block_n, block_k = HEIGHTS.get(kind, 4), sum(pieces), 2
    slices = block_n // 2 if tail or seed % 2 else 1
    plan = kernels["wgmma_parts"].Plan(
        block_m=block_m, block_n=block_n, block_k=block_k, pieces=pieces,
        rows=block_m // shares // strips, strips=strips, shares=shares,
        alternate=2 if kind in ("pingpong", *STRIPED) else 1, warps=4, stages=stages,
        step_bytes=(block_m + block_n) * block_k, store_n=block_n // slices,
        stores=min(2, strips * slices), a_transposed=transposed[0], b_transposed=transposed[1],
        instruction_k=16, precision=SimpleNamespace(value="ieee"), swizzle=swizzle, log_side=0,
        dynamic=dynamic, divided=division is not None, added=1 + seed % slices,
        consumer_registers=240, producer_registers=24, swapped=kind == "swapped",
    )  # fmt: skip
    height, width = (2 if along == dimension else 1 for dimension in (0, 1))
    plan = replace(
        plan, block_m=block_m * height, rows=plan.rows * height, block_n=block_n * width,
        pieces=tuple(piece * width for piece in pieces), store_n=plan.store_n * width,
        along=-1 if along is None else along,
    )  # fmt: skip
    numbers = np.random.default_rng(seed)
    a, b = numbers.integers(-2, 3, (m, k)) * 1.0, numbers.integers(-2, 3, (k, n)) * 1.0
    c = np.full((n, m) if plan.swapped else (m, n), np.nan)

    def operand(matrix: np.ndarray, block: list[int], swap: bool, split: int | None) -> Descriptor:
        if swap:
            return Descriptor(matrix.T, block[::-1], split if split is None else 1 - split)
        return Descriptor(matrix, block, split)

    split_a, split_b = (along if along == dimension else None for dimension in (0, 1))
    a_desc = operand(a, [plan.rows, block_k], transposed[0], split_a)
    b_desc = operand(b, [block_k, plan.pieces[0]], transposed[1], split_b)
    tail_desc = operand(b, [block_k, plan.pieces[-1]], transposed[1], split_b)
    if plan.swapped:
        split_c = along if along is None else 1 - along
        c_desc = Descriptor(c, [plan.store_n, plan.rows], split_c)
    else:
        c_desc = Descriptor(c, [plan.rows, plan.store_n], along)
    tiles = -(-m // block_m) * -(-n // block_n)
    whole, together, parts = division or (tiles, 1, 1)
    units = -(-(tiles - whole) // together) * parts
    counter, ticket = Pointer(np.zeros(1, int)), 2**62 + seed
    flags = numbers.integers(1, 9, units * shares)  # as they come, none of them cleared yet
    left = Pointer(np.full(units * block_m * block_n, np.nan)), Pointer(flags), ticket
    if along is not None:
        kernel, scratch, rest = kernels["multicast_specialized"].multicast, (), (plan,)
    elif kind == "none":
        kernel, scratch, rest = kernels["wgmma_pipelined"].pipelined, (counter,), (plan,)
    else:
        kernel, scratch = kernels["wgmma_specialized"].specialized, (counter, *left)
        rest = (whole, together, parts, plan)
    order = list(range(programs))
    if division is None:  # else a program waits for lower ones
        random.Random(seed).shuffle(order)
    came = flags.copy()
    replays = 1 if division is None or dynamic else 2  # memory is as the first one left it
    for _replay in range(replays):
        c.fill(np.nan)
        c_desc.writes.fill(0)
        for program in order:

            def block(rank: int, program: int = program) -> None:
                machine.enter(program, rank)
                kernel(a_desc, b_desc, tail_desc, c_desc, *scratch, m, n, k, 2, *rest)

            machine.run(*(partial(block, rank) for rank in range(machine.blocks)))
        np.testing.assert_array_equal(c, (a @ b).T if plan.swapped else a @ b)
        assert (c_desc.writes == 1).all()
        if division is not None:
            assert np.isin(flags, [0, *came]).all(), "sums were left and not taken"
            if whole < tiles and k > 2 * parts:
                assert (flags == 0).sum() > (came == 0).sum(), "nothing was shared"


@pytest.mark.parametrize("swizzle", ["row", "column", "grouped", "serpentine"])
@pytest.mark.parametrize("swapped", [False, True])
def test_tiles_come_in_the_order_of_c(swizzle: str, swapped: bool) -> None:
    """Whatever is multiplied, the order is that of C's tiles, whose traffic is predicted."""
    parts = load_kernels(stand_ins(Machine(0), 1, swizzle))["wgmma_parts"]
    plan = SimpleNamespace(block_m=6, block_n=4, swizzle=swizzle, log_side=0, swapped=swapped)
    m, n, grid = 36, 20, (6, 5)  # of what is multiplied, and its tiles
    expected = [
        (6 * row, 4 * col)
        for row, col in (
            place[:: -1 if swapped else 1]
            for place in tile_order(swizzle, *grid[:: -1 if swapped else 1], 2)
        )
    ]
    found = [parts.tile_start(index, (m, n, 8, 2), plan) for index in range(30)]
    assert found == expected


KINDS = ("cooperative", "thirds", "pingpong", "whole", "none", *STRIPED)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("stages", [2, 3, 4])
def test_any_number_of_tiles_and_steps(kind: str, dynamic: bool, stages: int) -> None:
    """1 to 12 tiles on 1 to 14 programs (some without a tile), 1 to 7 k steps."""
    rng = random.Random(f"{kind}{dynamic}{stages}")
    for seed in range(12):
        extents = (rng.randint(1, 16), rng.randint(1, 12), rng.randint(1, 14))
        programs = rng.choice((1, 1, 2, 3, 14))
        multiply(extents, programs, seed, kind, stages, dynamic=dynamic)


@pytest.mark.parametrize("kind", KINDS)
def test_two_pieces_and_layouts(kind: str) -> None:
    for seed, transposed in enumerate(product((False, True), repeat=2)):
        multiply((9, 13, 7), 2, seed, kind, 3, tail=True, transposed=transposed)


@pytest.mark.parametrize("kind", ["cooperative", "thirds", "whole"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_split_k(kind: str, dynamic: bool) -> None:
    """Every tile in parts, in one round of programs and in several."""
    for seed, parts in product(range(3), (2, 3, 5)):
        extents = (9, 13, 2 * parts + seed)
        multiply(
            extents, (1 + seed) * parts, seed, kind, 3, division=(0, 1, parts), dynamic=dynamic,
            tail=seed == 1,
        )  # fmt: skip


@pytest.mark.parametrize("kind", ["cooperative", "thirds", "pingpong", "whole", *STRIPED])
def test_a_shared_last_wave(kind: str) -> None:
    """After the waves of whole tiles, groups of tiles that programs share; the last is short."""
    height = HEIGHTS.get(kind, 4)
    for seed, (together, parts) in enumerate(
        ((1, 2), (1, 5), (2, 3), (2, 5), (3, 4), (3, 7), (4, 5))
    ):
        for waves, rest in ((0, 1), (0, together), (1, together + 1), (2, 2 * together)):
            units = -(-rest // together) * parts
            programs = units if waves == 0 else units + seed % 3
            tiles = waves * programs + rest
            extents = (height * tiles - seed % 2, 4, 2 * parts + seed)
            multiply(extents, programs, seed, kind, 3, division=(waves * programs, together, parts))


SPECIALIZED = ("cooperative", "thirds", "pingpong", "whole", *STRIPED)


@pytest.mark.parametrize("kind", SPECIALIZED)
@pytest.mark.parametrize("along", [0, 1])
def test_clusters(kind: str, along: int) -> None:
    """As the first test: 1 to 6 tiles of clusters, on 1 to 7 of them."""
    rng = random.Random(f"{kind}{along}")
    for seed in range(12):
        extents = (rng.randint(1, 16), rng.randint(1, 16), rng.randint(1, 14))
        programs, stages = rng.choice((1, 1, 2, 3, 7)), rng.choice((2, 3, 4))
        multiply(extents, programs, seed, kind, stages, along=along)


@pytest.mark.parametrize("kind", SPECIALIZED)
@pytest.mark.parametrize("along", [0, 1])
def test_clusters_with_two_pieces_and_layouts(kind: str, along: int) -> None:
    for seed, transposed in enumerate(product((False, True), repeat=2)):
        multiply((13, 27, 7), 2, seed, kind, 3, tail=True, transposed=transposed, along=along)


@pytest.mark.parametrize("along", [0, 1])
def test_without_waiting_for_the_other_block_its_operands_are_overwritten(along: int) -> None:
    def twenty_times() -> None:
        for seed in range(20):
            multiply((16, 16, 14), 1, seed, "cooperative", 2, along=along, impatient=True)

    with pytest.raises(AssertionError):
        twenty_times()
