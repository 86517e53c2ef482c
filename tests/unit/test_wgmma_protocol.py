"""The wgmma kernels' barriers, rings and tile hand-out, run on a stand-in for Gluon.

The device source itself is executed, with tiny tiles: each partition is a thread, a seeded
scheduler decides who runs at every operation, and asynchronous work is as late as it may be. TMA
copies poison their target until they land; products read shared memory when they are waited for,
and refuse poison when they are issued; stores read their buffer when waited for. So a missing or
misplaced wait, arrival or phase shows as a wrong product, or as a deadlock.
"""

import importlib.util
import random
import sys
import threading
from collections import deque
from collections.abc import Callable
from itertools import product
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

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.lock = threading.Condition()
        self.ready: dict[int, Callable[[], bool]] = {}  # by thread: may it go on?
        self.running: int | None = None
        self.pending: list[Callable[[], None]] = []
        self.failure: BaseException | None = None
        self.local = threading.local()

    def start(self, body: Callable[[], None]) -> threading.Thread:
        key = len(self.ready)
        self.ready[key] = lambda: True

        def main() -> None:
            self.local.key, self.local.products, self.local.stores = key, deque(), deque()
            try:
                self._await_turn(key)
                body()
                assert not self.local.stores, "a store was never waited for"
            except BaseException as error:  # noqa: BLE001  # handed to the test
                self.failure = self.failure or error
            with self.lock:
                del self.ready[key]
                self._next()

        thread = threading.Thread(target=main, daemon=True)
        thread.start()
        return thread

    def run(self, body: Callable[[], None]) -> None:
        self.running = None  # the last thread of an earlier run had the number of this one's first
        thread = self.start(body)
        with self.lock:
            self._next()
        thread.join(60)
        if self.failure:
            raise self.failure
        assert not thread.is_alive(), "no end"

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
    """Registers; None while a product into them is in flight."""

    type = SimpleNamespace(layout=None)

    def __init__(self, value: np.ndarray | None) -> None:
        self.value = value

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape

    def __add__(self, other: "Tensor") -> "Tensor":
        return Tensor(self.value + other.value)

    def to(self, dtype: object) -> "Tensor":
        return self

    def reshape(self, shape: list[int]) -> "Tensor":
        return Tensor(self.value.reshape(shape))

    def permute(self, *order: int) -> "Tensor":
        return Tensor(self.value.transpose(order))

    def split(self) -> tuple["Tensor", "Tensor"]:
        return Tensor(self.value[..., 0]), Tensor(self.value[..., 1])


class Pointer:
    """Global memory from an element on, or at an array of elements."""

    def __init__(self, memory: np.ndarray, at: int | np.ndarray = 0) -> None:
        self.memory, self.at = memory, at

    def __add__(self, offset: int | np.ndarray) -> "Pointer":
        return Pointer(self.memory, self.at + offset)


class Shared:
    """A view of shared memory; unfenced buffers were written and not yet fenced."""

    def __init__(self, value: np.ndarray, unfenced: set[int]) -> None:
        self.value, self.unfenced = value, unfenced

    def index(self, at: int) -> "Shared":
        assert 0 <= at < len(self.value)
        return Shared(self.value[at], self.unfenced)

    def permute(self, order: tuple[int, int]) -> "Shared":
        return Shared(self.value.transpose(order), self.unfenced)

    def store(self, value: Tensor) -> None:
        self.value[...] = value.value
        self.unfenced.add(self.value.ctypes.data)

    def load(self, layout: object) -> np.ndarray:
        return self.value


class Bars:
    def __init__(self, machine: Machine, count: int) -> None:
        self.bars = [Barrier(machine) for _ in range(count)]

    def index(self, at: int) -> Barrier:
        assert 0 <= at < len(self.bars)
        return self.bars[at]


class Descriptor:
    """A matrix, and the shape of the blocks that are copied from or to it."""

    def __init__(self, matrix: np.ndarray, block: list[int]) -> None:
        self.matrix, self.block_shape, self.dtype, self.layout = matrix, block, "float", None
        self.writes = np.zeros(matrix.shape, int)

    def window(self, at: list[int], block: tuple[int, ...]) -> tuple[slice, ...]:
        assert list(block) == self.block_shape
        assert all(start >= 0 for start in at)
        return tuple(slice(start, start + size) for start, size in zip(at, block, strict=True))


def stand_ins(machine: Machine, programs: int, swizzle: str) -> dict[str, ModuleType]:
    """Modules in place of those that the device source imports."""
    unfenced: set[int] = set()

    def module(name: str, **members: object) -> ModuleType:
        made = ModuleType(name)
        made.__dict__.update(members)
        return made

    def jit(function: object = None, **_: object) -> object:
        return function or (lambda later: later)

    def allocate(dtype: str, shape: list[int], layout: object) -> object:
        if dtype == "int64":
            return Bars(machine, shape[0])
        return Shared(np.full(shape, np.nan), unfenced)

    def atomic_add(pointer: Pointer, amount: int, sem: str) -> int:
        machine.step()
        pointer.memory[pointer.at] += amount
        return int(pointer.memory[pointer.at]) - amount

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
        program = machine.local.program
        threads = [
            machine.start(lambda body=body, args=args: (set_program(program), body(*args)))
            for body, args in partitions[1:]
        ]
        partitions[0][0](*partitions[0][1])
        machine.until(lambda: len(machine.ready) == 1)
        for thread in threads:
            thread.join(5)

    def set_program(program: int) -> None:
        machine.local.program = program

    def expect(bar: Barrier, count: int, pred: bool = True) -> None:
        if pred:
            bar.bytes += count
            bar.arrive()

    def wait(bar: Barrier, parity: int) -> None:
        machine.until(lambda: bar.phase % 2 != parity)

    def arrive(bar: Barrier, count: int = 1, pred: bool = True) -> None:
        machine.step()
        assert count == 1
        if pred:
            bar.arrive()

    def tma_load(desc, at, bar, result, pred=True) -> None:
        machine.step()
        if not pred:
            return
        result.value[...] = np.nan

        def land() -> None:
            found = desc.matrix[desc.window(at, result.value.shape)]
            result.value[...] = 0
            result.value[: found.shape[0], : found.shape[1]] = found
            bar.bytes -= result.value.size
            bar.settle()

        machine.pending.append(land)

    def tma_store(desc, at, source) -> None:
        machine.step()
        assert source.value.ctypes.data not in unfenced, "stored before the fence"

        def land() -> None:
            window = desc.window(at, source.value.shape)
            height, width = desc.matrix[window].shape
            desc.matrix[window] = source.value[:height, :width]
            desc.writes[window] += 1

        machine.local.stores.append(land)

    def tma_store_wait(pendings: int) -> None:
        machine.step()
        while len(machine.local.stores) > pendings:
            machine.local.stores.popleft()()

    def warpgroup_mma(a, b, acc, use_acc, precision, is_async):
        machine.step()
        assert is_async
        assert not np.isnan(a.value).any(), "a is read before it arrived"
        assert not np.isnan(b.value).any(), "b is read before it arrived"
        total = Tensor(None)

        def compute() -> None:
            total.value = a.value @ b.value + (acc.value if use_acc else 0)

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

    gl = module(
        "gl", constexpr=constexpr, int32="int32", int64="int64", float32="float32",
        allocate_shared_memory=allocate, store=store, load=load, cast=lambda value, dtype: value,
        arange=lambda start, end, layout: np.arange(start, end), SliceLayout=lambda *_: None,
        atomic_add=atomic_add, warp_specialize=warp_specialize,
        program_id=lambda axis: machine.local.program, num_programs=lambda axis: programs,
        cdiv=lambda a, b: -(-a // b), static_range=range, max=lambda value, axis: int(value.max()),
        zeros=lambda shape, dtype, layout: Tensor(np.zeros(shape)),
        full=lambda shape, value, dtype, layout: Tensor(np.full(shape, value)),
        NVMMADistributedLayout=lambda **_: None, BlockedLayout=lambda *_: None,
        SwizzledSharedLayout=lambda *_: None,
    )  # fmt: skip
    mbarrier = module(
        "mbarrier", init=lambda bar, count: bar.init(count), expect=expect, wait=wait,
        arrive=arrive, MBarrierLayout=lambda: None,
    )  # fmt: skip
    hopper = module(
        "hopper", mbarrier=mbarrier, fence_async_shared=unfenced.clear,
        warpgroup_mma=warpgroup_mma, warpgroup_mma_init=lambda value: value,
        warpgroup_mma_wait=warpgroup_mma_wait,
    )  # fmt: skip
    gluon = module("gluon", jit=jit, language=gl)
    copies = module(
        "autoswizzle.kernels.gluon", barrier=machine.step, tma_load=tma_load, tma_store=tma_store,
        tma_store_wait=tma_store_wait,
    )  # fmt: skip
    machine.set_program = set_program
    return {
        "triton.experimental": module("triton.experimental", gluon=gluon),
        "triton.experimental.gluon": gluon,
        "triton.experimental.gluon.language": gl,
        "triton.experimental.gluon.language.nvidia.hopper": hopper,
        "autoswizzle.kernels.gluon": copies,
        "autoswizzle.kernels.order": module("order", tile_at=tile_at),
    }


def load_kernels(fakes: dict[str, ModuleType]) -> dict[str, ModuleType]:
    """The device modules, executed over the stand-ins."""
    loaded = {}
    with patch.dict(sys.modules, fakes):
        for name in ("wgmma_parts", "wgmma_split", "wgmma_pipelined", "wgmma_specialized"):
            path = KERNELS / f"{name}.py"
            spec = importlib.util.spec_from_file_location(f"autoswizzle.kernels.{name}", path)
            loaded[name] = importlib.util.module_from_spec(spec)
            sys.modules[spec.name] = loaded[name]
            spec.loader.exec_module(loaded[name])
    return loaded


def multiply(
    extents: tuple[int, int, int], programs: int, seed: int, kind: str, stages: int,
    tail: bool = False, dynamic: bool = False, transposed: tuple[bool, bool] = (False, True),
    swizzle: str = "grouped", division: tuple[int, int, int] | None = None,
) -> None:  # fmt: skip
    """One launch of a kernel on tiny tiles, checked exactly, each output element written once.

    division: (whole, together, parts) of the tiles, see wgmma_split.
    """
    m, n, k = extents
    machine = Machine(seed)
    kernels = load_kernels(stand_ins(machine, programs, swizzle))
    shares = {"cooperative": 2, "thirds": 3}.get(kind, 1)
    pieces = (4, 2) if tail else (4,)
    block_m, block_n, block_k = 6 if shares == 3 else 4, sum(pieces), 2
    plan = kernels["wgmma_parts"].Plan(
        block_m=block_m, block_n=block_n, block_k=block_k, pieces=pieces, rows=block_m // shares,
        shares=shares, alternate=2 if kind == "pingpong" else 1, warps=4, stages=stages,
        step_bytes=(block_m + block_n) * block_k, store_n=2, stores=2, a_transposed=transposed[0],
        b_transposed=transposed[1], instruction_k=16, precision=SimpleNamespace(value="ieee"),
        swizzle=swizzle, log_side=0, dynamic=dynamic, divided=division is not None,
        consumer_registers=240, producer_registers=24,
    )  # fmt: skip
    numbers = np.random.default_rng(seed)
    a, b = numbers.integers(-2, 3, (m, k)) * 1.0, numbers.integers(-2, 3, (k, n)) * 1.0
    c = np.full((m, n), np.nan)

    def operand(matrix: np.ndarray, block: list[int], swap: bool) -> Descriptor:
        return Descriptor(matrix.T if swap else matrix, block[::-1] if swap else block)

    a_desc = operand(a, [plan.rows, block_k], transposed[0])
    b_desc = operand(b, [block_k, pieces[0]], transposed[1])
    tail_desc = operand(b, [block_k, pieces[-1]], transposed[1])
    c_desc = Descriptor(c, [plan.rows, plan.store_n])
    kernel = getattr(
        kernels["wgmma_pipelined" if kind == "none" else "wgmma_specialized"],
        "pipelined" if kind == "none" else "specialized",
    )
    tiles = -(-m // block_m) * -(-n // block_n)
    whole, together, parts = division or (tiles, 1, 1)
    units = -(-(tiles - whole) // together) * parts
    counter = np.zeros(1 + units * shares, int)
    partials = Pointer(np.full(units * block_m * block_n, np.nan))
    scratch = (Pointer(counter),) if kind == "none" else (Pointer(counter), partials)
    divided = () if kind == "none" else (whole, together, parts)
    order = list(range(programs))
    if division is None:  # else a program waits for lower ones
        random.Random(seed).shuffle(order)
    for program in order:

        def body(program: int = program) -> None:
            machine.set_program(program)
            kernel(a_desc, b_desc, tail_desc, c_desc, *scratch, m, n, k, 2, *divided, plan)

        machine.run(body)
        assert not machine.pending, "a copy was never waited for"
    np.testing.assert_array_equal(c, a @ b)
    assert (c_desc.writes == 1).all()
    if division is not None and whole < tiles and k > 2 * parts:
        assert counter[1:].any(), "nothing was shared"


KINDS = ("cooperative", "thirds", "pingpong", "whole", "none")


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


@pytest.mark.parametrize("kind", ["cooperative", "thirds", "pingpong", "whole"])
def test_a_shared_last_wave(kind: str) -> None:
    """After the waves of whole tiles, groups of tiles that programs share; the last is short."""
    height = 6 if kind == "thirds" else 4
    for seed, (together, parts) in enumerate(
        ((1, 2), (1, 5), (2, 3), (2, 5), (3, 4), (3, 7), (4, 5))
    ):
        for waves, rest in ((0, 1), (0, together), (1, together + 1), (2, 2 * together)):
            units = -(-rest // together) * parts
            programs = units if waves == 0 else units + seed % 3
            tiles = waves * programs + rest
            extents = (height * tiles - seed % 2, 4, 2 * parts + seed)
            multiply(extents, programs, seed, kind, 3, division=(waves * programs, together, parts))
