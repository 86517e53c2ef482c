"""Kernels on the GPU: every family against float64, poisoned memory, odd views, streams, graphs."""

import itertools
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest
import torch

from autoswizzle.config import GROUPED_SWIZZLES, SWIZZLES, GemmConfig
from autoswizzle.errors import CompileError, LaunchError
from autoswizzle.hardware import detect
from autoswizzle.kernels import bind, bound, run
from autoswizzle.problem import TORCH_NAMES, GemmProblem
from autoswizzle.space import default_config, why_illegal

DEVICE = torch.device("cuda", 0)
NAN = float("nan")
GIB = 2**30
UNIT_ROUNDOFF = {"bf16": 2.0**-8, "fp16": 2.0**-11, "fp32": 2.0**-24}
LAYOUTS = ("nn", "nt", "tn", "tt")
PRECISIONS = (("fp16", "ieee"), ("bf16", "ieee"), ("fp32", "ieee"), ("fp32", "tf32"))

POINTER = GemmConfig(block_m=64, block_n=64, block_k=32)
TMA = GemmConfig(kernel="tma", block_m=64, block_n=64, block_k=64, persistent=True)
TMA_FP32 = replace(TMA, block_k=32)


def legal(config, problem):
    return why_illegal(config, problem, detect(DEVICE.index)) is None


def dtype_of(problem):
    return getattr(torch, TORCH_NAMES[problem.dtype])


def ints(rows, cols, dtype, seed=0):
    """Integers in -2..2: products over k <= 64 are exact in every dtype."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-2, 3, (rows, cols), generator=generator).to(DEVICE, dtype)


def normal(rows, cols, dtype, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn((rows, cols), generator=generator).to(DEVICE, dtype)


def in_poison(values, transposed, unit):
    """A view with these values amid NaN: before it, after every row, and after its end.

    Its pitch is an odd multiple of unit elements; its base is aligned, but for unit 1.
    """
    stored = values.t() if transposed else values
    rows, cols = stored.shape
    pitch = (cols // unit + 1 | 1) * unit
    offset = 1 if unit == 1 else 16
    base = torch.full((offset + (rows + 1) * pitch,), NAN, dtype=values.dtype, device=DEVICE)
    view = base.as_strided((rows, cols), (pitch, 1), offset)
    view.copy_(stored)
    return base, view.t() if transposed else view


@dataclass(frozen=True)
class Case:
    """One configuration on one problem, operands and output amid NaN.

    unit: elements that pitches are odd multiples of; 0 for 16 bytes if aligned, else 1.
    """

    config: GemmConfig
    problem: GemmProblem
    random: bool = False
    unit: int = 0

    def __str__(self):
        return f"{self.config}-{self.problem}"

    def operands(self):
        problem, fill = self.problem, normal if self.random else ints
        dtype = dtype_of(problem)
        a = fill(problem.m, problem.k, dtype, 1)
        b = fill(problem.k, problem.n, dtype, 2)
        unit = self.unit or (16 // problem.itemsize if problem.aligned else 1)
        _, a = in_poison(a, problem.layout[0] == "t", unit)
        _, b = in_poison(b, problem.layout[1] == "t", unit)
        base, out = in_poison(torch.full((problem.m, problem.n), NAN, dtype=dtype), False, unit)
        return a, b, out, base

    def to_compile(self):
        operands = self.operands()[:3]
        return {
            "config": self.config.to_dict(),
            "problem": self.problem.to_dict(),
            "capability": detect(DEVICE.index).capability,
            "operands": [
                (operand.shape, operand.stride(), operand.storage_offset()) for operand in operands
            ],
        }

    def load(self):
        bind(self.config, self.problem, *self.operands()[:3])

    def check(self):
        a, b, out, base = self.operands()
        run(self.config, self.problem, a, b, out)
        self.check_values(a, b, out)
        first = out.clone()
        out.fill_(NAN)
        assert base.isnan().all(), "wrote outside out"
        launcher = bind(self.config, self.problem, a, b, out)
        launcher(a, b, out)
        assert launcher.direct != self.config.padded
        assert torch.equal(out, first), "a bound launch differs from a plain one"

    def check_values(self, a, b, out):
        problem = self.problem
        exact = a.double() @ b.double()
        if not self.random:
            assert torch.equal(out, exact.to(out.dtype))
            return
        magnitude = a.double().abs() @ b.double().abs()
        limit = (
            UNIT_ROUNDOFF[problem.out_dtype] * exact.abs() + 4 * problem.k * 2.0**-24 * magnitude
        )
        if problem.precision == "tf32":
            limit += 2.0**-9 * magnitude
        worst = ((out.double() - exact).abs() / limit).nan_to_num(nan=torch.inf).max().item()
        assert worst <= 1, f"error is {worst:.3g} of the bound"


def products():
    """Family x dtype x layout in full, ragged, on random data."""
    for (dtype, precision), layout in itertools.product(PRECISIONS, LAYOUTS):
        ragged = GemmProblem(197, 141, 331, dtype, layout, precision=precision, aligned=False)
        yield Case(POINTER, ragged, random=True)
        aligned = GemmProblem(197, 141, 331, dtype, layout, precision=precision, aligned=True)
        yield Case(replace(POINTER, persistent=True, block_m=128), aligned, random=True)
        yield Case(TMA_FP32 if dtype == "fp32" else TMA, aligned, random=True)
        for split_k, problem in ((2, ragged), (3, aligned), (8, aligned)):
            yield Case(replace(POINTER, split_k=split_k, num_stages=4), problem, random=True)


def orders():
    """Every order with every launch; the other tunables take turns, each pair at least once."""
    stages, subtiles = itertools.cycle((2, 3, 4, 5)), itertools.cycle((1, 2, 4))
    dtypes, sizes = itertools.cycle(("bf16", "fp16", "fp32")), itertools.cycle((1, 2, 3, 8))
    grids = itertools.cycle(((5, 3), (1, 9), (9, 2), (7, 13)))
    launches = [
        (POINTER, {}),
        (POINTER, {"persistent": True}),
        (POINTER, {"persistent": True, "scheduling": "dynamic"}),
        (TMA_FP32, {}),
        (TMA_FP32, {"flatten": True}),
        (TMA_FP32, {"scheduling": "dynamic"}),
    ]
    for swizzle, (base, launch) in itertools.product(SWIZZLES, launches):
        group = {"group_size": next(sizes)} if swizzle in GROUPED_SWIZZLES else {}
        subtile = {"epilogue_subtile": next(subtiles)} if base.kernel == "tma" else {}
        config = replace(
            base, swizzle=swizzle, num_stages=next(stages), **group, **subtile, **launch
        )
        grid_m, grid_n = next(grids)
        problem = GemmProblem(64 * grid_m - 1, 64 * grid_n - 7, 50, next(dtypes), aligned=True)
        yield Case(config, problem)


def blocks():
    """All block sizes on a problem that none divides, beside NaN."""
    for block_m, block_n, block_k in itertools.product((16, 32, 64, 128), repeat=3):
        config = GemmConfig(block_m=block_m, block_n=block_n, block_k=block_k)
        yield Case(config, GemmProblem(17, 19, 33, "fp16", aligned=False))


def small_extents():
    for extents, layout in itertools.product(
        [(1, 1, 1), (1, 70, 64), (70, 1, 64), (65, 66, 1), (1, 1, 50)], LAYOUTS
    ):
        yield Case(POINTER, GemmProblem(*extents, "bf16", layout, aligned=False))
        yield Case(TMA, GemmProblem(*extents, "bf16", layout, aligned=True))


def padded():
    """What TMA can't address: odd bases and pitches, with odd extents or round ones."""
    wgmma = GemmConfig(
        kernel="wgmma", block_n=160, block_k=64, persistent=True, epilogue_subtile=5,
        warp_specialize="cooperative",
    )  # fmt: skip
    for config, (dtype, precision), layout in itertools.product(
        (TMA_FP32, TMA, wgmma), PRECISIONS, LAYOUTS
    ):
        if (config.block_k == 32) == (dtype == "fp32"):
            ragged = GemmProblem(197, 141, 331, dtype, layout, precision=precision, aligned=False)
            yield Case(replace(config, padded=True), ragged, random=True, unit=1)
            odd = replace(ragged, m=192, n=320, k=512)
            yield Case(replace(config, padded=True), odd, random=True, unit=1)
    tf32 = GemmProblem(99, 77, 55, "fp32", "nt", precision="tf32")
    yield Case(replace(wgmma, padded=True, block_k=32), tf32)
    for extents in ((1, 1, 1), (1, 70, 65), (70, 1, 64), (65, 66, 1)):
        yield Case(replace(TMA, padded=True), GemmProblem(*extents, "bf16", aligned=False))


def widths():
    """Extents and pitches that allow accesses of 16, 8, 4 and 2 bytes, and none wider."""
    for unit, layout in itertools.product((8, 4, 2, 1), LAYOUTS):
        problem = GemmProblem(25 * unit, 9 * unit, 33 * unit, "fp16", layout, aligned=False)
        yield Case(POINTER, problem, random=True, unit=unit)


def vectors():
    """One to four rows: family x dtype x layout in full; blocks of every width and depth."""
    for (dtype, precision), layout, m in itertools.product(PRECISIONS, LAYOUTS, (1, 2, 3, 4)):
        for aligned in (False, True):
            ragged = GemmProblem(m, 141, 331, dtype, layout, precision=precision, aligned=aligned)
            yield Case(gemv(m, block_n=16, block_k=64), ragged, random=True)
    for block_n, block_k in ((2, 1024), (4, 512), (32, 64), (128, 32), (2, 4096), (16, 256)):
        for num_warps, layout in itertools.product((1, 4, 8), ("nt", "nn")):
            config = gemv(1, block_n=block_n, block_k=block_k, num_warps=num_warps)
            yield Case(config, GemmProblem(1, 130, 64, "bf16", layout, aligned=True))
            yield Case(config, GemmProblem(1, 256, 8192, "bf16", layout), random=True)


def gemv(m, **fields):
    return GemmConfig("gemv", block_m=1 << (m - 1).bit_length(), swizzle="row", **fields)


def few_rows():
    """One to 32 rows; every tile with every number of warps, ragged and along a long k."""
    for m in range(1, 33):
        for dtype, k in (("bf16", 328), ("fp16", 8), ("fp16", 1024)):
            ragged = GemmProblem(m, 141, k, dtype, "nt", aligned=True)
            yield Case(skinny(m, block_n=16, block_k=256), ragged, random=True)
    for block_m, block_n, warp_k in (
        (8, 16, 64), (8, 16, 128), (8, 16, 256), (8, 32, 64), (8, 32, 128), (8, 64, 64),
        (16, 16, 64), (16, 16, 128), (16, 32, 64), (16, 32, 128), (16, 64, 64),
        (32, 16, 64), (32, 16, 128), (32, 32, 64),
    ):  # fmt: skip
        for num_warps, m in itertools.product((2, 4, 8), (block_m, block_m - 3)):
            config = skinny(m, block_n=block_n, block_k=warp_k * num_warps, num_warps=num_warps)
            yield Case(config, GemmProblem(m, 130, 64, "bf16", "nt", aligned=True))
            yield Case(config, GemmProblem(m, 200, 4104, "fp16", "nt"), random=True)
            yield Case(config, GemmProblem(m, 256, 8192, "bf16", "nt"), random=True)


def skinny(m, **fields):
    return GemmConfig("skinny", block_m=max(8, 1 << (m - 1).bit_length()), swizzle="row", **fields)


CASES = [
    *products(), *orders(), *blocks(), *small_extents(), *widths(), *padded(), *vectors(),
    *few_rows(),
]  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _compile_ahead(side_by_side):
    """Compile and load every case in parallel, so that the tests find them ready."""
    if side_by_side:
        return
    cases = [case for case in CASES if legal(case.config, case.problem)]
    with ThreadPoolExecutor(16) as pool:
        plain = [case for case in cases if not case.config.padded]
        work = json.dumps(list(pool.map(Case.to_compile, plain)))
        script = str(Path(__file__).with_name("compile_ahead.py"))
        subprocess.run([sys.executable, script], input=work, text=True, check=True)
        list(pool.map(Case.load, cases))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_products(case):
    if not legal(case.config, case.problem):
        pytest.skip(f"{case.config.kernel} is not for this GPU")
    case.check()


def test_a_real_nan_stays_in_its_row():
    problem = GemmProblem(17, 19, 33, "fp16")
    a, b = ints(17, 33, torch.float16), ints(33, 19, torch.float16)
    out = torch.full((17, 19), NAN, dtype=torch.float16, device=DEVICE)
    expected = (a.double() @ b.double()).half()
    a[3, 5] = NAN
    run(POINTER, problem, a, b, out)
    assert out[3].isnan().all()
    rest = [row for row in range(17) if row != 3]
    assert torch.equal(out[rest], expected[rest])


def test_a_real_nan_stays_in_its_row_and_column_of_few():
    """Rows of a past m and columns of b past n are others again, of which one may be NaN."""
    problem = GemmProblem(5, 19, 64, "fp16", "nt", aligned=True)
    a, b = ints(5, 64, torch.float16), ints(19, 64, torch.float16)
    out = torch.full((5, 24), NAN, dtype=torch.float16, device=DEVICE)[:, :19]
    expected = (a.double() @ b.double().t()).half()
    a[2, 7] = b[0, 50] = b[18, 3] = NAN
    expected[2] = expected[:, 0] = expected[:, 18] = NAN
    run(skinny(5, block_n=16, block_k=256), problem, a, b.t(), out)
    assert torch.equal(out.isnan(), expected.isnan())
    assert torch.equal(out.nan_to_num(), expected.nan_to_num())


def test_few_rows_past_32_bits():
    if torch.cuda.mem_get_info(DEVICE)[0] < 8 * GIB:
        pytest.skip("needs 8 GiB of free GPU memory")
    base = torch.empty(3 * GIB + 128, dtype=torch.bfloat16, device=DEVICE)
    far, out = base.as_strided((4, 64), (GIB, 1)), base.as_strided((4, 4), (GIB, 1), 64)
    values = ints(4, 64, torch.bfloat16)
    far.copy_(values)
    out.fill_(NAN)
    problem = GemmProblem(4, 4, 64, "bf16", "nt", aligned=True)
    run(skinny(4, block_n=16, block_k=256), problem, far, far.t(), out)
    assert torch.equal(out, (values.double() @ values.double().t()).bfloat16())


@pytest.mark.parametrize("config", [POINTER, TMA], ids=lambda config: config.kernel)
def test_offsets_past_32_bits(config):
    if torch.cuda.mem_get_info(DEVICE)[0] < 8 * GIB:
        pytest.skip("needs 8 GiB of free GPU memory")
    base = torch.empty(3 * GIB + 64, dtype=torch.bfloat16, device=DEVICE)
    far = base.as_strided((4, 64), (GIB, 1))
    values = ints(4, 64, torch.bfloat16)
    far.copy_(values)
    near = ints(64, 32, torch.bfloat16, 1)
    out = torch.full((4, 32), NAN, dtype=torch.bfloat16, device=DEVICE)
    problem = GemmProblem(4, 32, 64, "bf16")
    if not legal(config, problem):
        pytest.skip(f"{config.kernel} is not for this GPU")
    run(config, problem, far, near, out)
    assert torch.equal(out, (values.double() @ near.double()).bfloat16())
    left = ints(32, 64, torch.bfloat16, 2)
    turned = torch.full((32, 8), NAN, dtype=torch.bfloat16, device=DEVICE)[:, :4]
    run(config, GemmProblem(32, 4, 64, "bf16", "nt", aligned=True), left, far.t(), turned)
    assert torch.equal(turned, (left.double() @ values.t().double()).bfloat16())
    into = base.as_strided((4, 32), (GIB, 1))
    run(config, problem, values, near, into)
    assert torch.equal(into, (values.double() @ near.double()).bfloat16())


@pytest.mark.parametrize("changes", [{}, {"persistent": True}, {"swizzle": "column"}])
def test_more_tiles_than_a_grid_axis_y_holds(changes):
    m = 16 * 70000
    config = GemmConfig(block_m=16, block_n=16, block_k=16, **changes)
    a, b = ints(m, 16, torch.float16), ints(16, 8, torch.float16, 1)
    out = torch.full((m, 8), NAN, dtype=torch.float16, device=DEVICE)
    run(config, GemmProblem(m, 8, 16, "fp16"), a, b, out)
    assert torch.equal(out, (a.float() @ b.float()).half())
    assert torch.ones(2, device=DEVICE).sum().item() == 2


def test_padded_column_major_operands():
    a = torch.empty_strided((50257, 512), (1, 50304), dtype=torch.bfloat16, device=DEVICE)
    a.copy_(ints(50257, 512, torch.bfloat16))
    b = ints(512, 768, torch.bfloat16, 1)
    exact = (a.float() @ b.float()).bfloat16()
    problem = GemmProblem(50257, 768, 512, "bf16", "tn", aligned=True)
    big = {"block_m": 128, "block_n": 128, "num_warps": 8}
    for config in (
        default_config(problem, detect(0)),
        replace(POINTER, **big),
        replace(TMA, **big),
    ):
        if legal(config, problem):
            out = torch.full((50257, 768), NAN, dtype=torch.bfloat16, device=DEVICE)
            run(config, problem, a, b, out)
            assert torch.equal(out, exact), config


def test_odd_inner_extents_in_fp32():
    a = torch.empty_strided((1024, 2048), (1, 1024), device=DEVICE)
    a.copy_(ints(1024, 2048, torch.float32))
    b = torch.empty_strided((2048, 1953), (7920, 1), device=DEVICE)
    b.copy_(ints(2048, 1953, torch.float32, 1))
    out = torch.full((1024, 1953), NAN, device=DEVICE)
    problem = GemmProblem(1024, 1953, 2048, "fp32", "tn")
    run(default_config(problem, detect(0)), problem, a, b, out)
    assert torch.equal(out, (a.double() @ b.double()).float())


@pytest.mark.parametrize("bound_launch", [False, True])
def test_slices_at_odd_elements_after_aligned_ones(bound_launch):
    buffer = ints(1, 8 + 128 * 64, torch.float16)[0]
    b = ints(64, 32, torch.float16, 1)
    problem = GemmProblem(128, 32, 64, "fp16", aligned=False)
    launcher = None
    for offset in (0, 1, 2, 8, 3):
        a = buffer[offset : offset + 128 * 64].view(128, 64)
        parent = torch.full((128 * 32 + 16,), NAN, dtype=torch.float16, device=DEVICE)
        out = parent[offset : offset + 128 * 32].view(128, 32)
        if bound_launch:
            launcher = launcher or bind(POINTER, problem, a, b, out)
            launcher(a, b, out)
        else:
            run(POINTER, problem, a, b, out)
        assert torch.equal(out, (a.double() @ b.double()).half()), offset
        out.fill_(NAN)
        assert parent.isnan().all(), offset


def test_tma_refuses_a_slice_at_an_odd_element():
    problem = GemmProblem(64, 64, 64, "fp16")
    if not legal(TMA, problem):
        pytest.skip("tma is not for this GPU")
    a = ints(1, 64 * 65, torch.float16)[0, 1 : 1 + 64 * 64].view(64, 64)
    b, out = ints(64, 64, torch.float16), torch.empty(64, 64, dtype=torch.float16, device=DEVICE)
    with pytest.raises(LaunchError, match="a must have a base"):
        run(TMA, problem, a, b, out)


def test_zero_strides_steps_and_permuted_views():
    row, column = ints(1, 64, torch.float16), ints(64, 1, torch.float16)
    wide, deep = ints(32, 128, torch.float16), ints(8, 6 * 64, torch.float16).view(8, 2, 3, 64)
    pairs = [
        (row.expand(128, 64), column.expand(64, 96)),
        (wide[:, ::2], column.expand(64, 96)),
        (deep.permute(1, 2, 0, 3)[1, 2], ints(96, 64, torch.float16).t()),
        (ints(33, 1, torch.float16).expand(33, 64), wide[:, ::2].t()),
        (torch.as_strided(row, (1, 64), (7, 1)), torch.as_strided(column, (64, 1), (1, 9))),
    ]
    for a, b in pairs:
        kept = a.clone(), b.clone()
        m, k, n = *a.shape, b.shape[1]
        out = torch.full((n, m), NAN, dtype=torch.float16, device=DEVICE).t()
        run(POINTER, GemmProblem(m, n, k, "fp16", aligned=False), a, b, out)
        assert torch.equal(out, (a.double() @ b.double()).half())
        assert torch.equal(a, kept[0])
        assert torch.equal(b, kept[1])


DYNAMIC = [
    replace(POINTER, persistent=True, scheduling="dynamic", swizzle="hilbert"),
    replace(TMA, scheduling="dynamic"),
]
SQUARE = GemmProblem(1500, 1504, 64, "fp16", aligned=True)


@pytest.mark.parametrize("config", DYNAMIC, ids=lambda config: config.kernel)
@pytest.mark.parametrize("bound_launch", [False, True])
def test_overlapping_dynamic_launches_keep_apart(config, bound_launch):
    if not legal(config, SQUARE):
        pytest.skip(f"{config.kernel} is not for this GPU")
    cases = []
    for seed in range(8):
        a, b = ints(1500, 64, torch.float16, seed), ints(64, 1504, torch.float16, seed + 9)
        cases.append((a, b, torch.full((1500, 1504), NAN, dtype=torch.float16, device=DEVICE)))
    launch = bind(config, SQUARE, *cases[0])
    if not bound_launch:
        launch = partial(run, config, SQUARE)
    launch(*cases[0])
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in range(4)]
    for _ in range(10):
        for place, operands in enumerate(cases):
            with torch.cuda.stream(streams[place % 4]):
                operands[2].fill_(NAN)
                launch(*operands)
    torch.cuda.synchronize()
    for a, b, out in cases:
        assert torch.equal(out, (a.double() @ b.double()).half())


@pytest.mark.parametrize("config", [POINTER, TMA, *DYNAMIC], ids=str)
@pytest.mark.parametrize("bound_launch", [False, True])
def test_graph_replays_with_new_inputs(config, bound_launch):
    if not legal(config, SQUARE):
        pytest.skip(f"{config.kernel} is not for this GPU")
    graphs = []
    for seed in range(2):
        a, b = ints(1500, 64, torch.float16, seed), ints(64, 1504, torch.float16, seed + 9)
        out = torch.full((1500, 1504), NAN, dtype=torch.float16, device=DEVICE)
        launcher = bind(config, SQUARE, a, b, out)
        launcher(a, b, out)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(3):
                out.fill_(NAN)
                if bound_launch:
                    launcher(a, b, out)
                else:
                    run(config, SQUARE, a, b, out)
        graphs.append((graph, a, b, out))
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    for turn in range(10):
        for stream, (graph, a, _, _) in zip(streams, graphs, strict=True):
            with torch.cuda.stream(stream):
                a.copy_(ints(1500, 64, torch.float16, 100 + turn))
                graph.replay()
    torch.cuda.synchronize()
    for _, a, b, out in graphs:
        assert torch.equal(out, (a.double() @ b.double()).half())


@pytest.mark.parametrize("bound_launch", [False, True])
def test_the_current_stream_orders_the_launch(bound_launch):
    problem = GemmProblem(256, 256, 64, "fp16")
    b = ints(64, 256, torch.float16)
    a = torch.zeros(256, 64, dtype=torch.float16, device=DEVICE)
    out = torch.full((256, 256), NAN, dtype=torch.float16, device=DEVICE)
    launcher = bind(POINTER, problem, a, b, out)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        a.fill_(1)
        if bound_launch:
            launcher(a, b, out)
        else:
            run(POINTER, problem, a, b, out)
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    stream.synchronize()
    assert torch.equal(out, (a.double() @ b.double()).half())


def test_another_device_is_used_and_the_current_one_kept():
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    problem = GemmProblem(256, 256, 64, "fp16")
    a, b = (ints(*shape, torch.float16).to("cuda:1") for shape in ((256, 64), (64, 256)))
    out = torch.full((256, 256), NAN, dtype=torch.float16, device="cuda:1")
    for launch in (bind(POINTER, problem, a, b, out), partial(run, POINTER, problem)):
        launch(a, b, out)
        torch.cuda.synchronize(1)
        assert torch.equal(out, (a.double() @ b.double()).half())
        assert torch.cuda.current_device() == 0
        out.fill_(NAN)


def test_first_calls_of_16_threads_agree():
    problem = GemmProblem(96, 112, 64, "fp16")
    config = GemmConfig(block_m=32, block_n=32, block_k=32, swizzle="serpentine", group_size=3)
    a, b = ints(96, 64, torch.float16), ints(64, 112, torch.float16, 1)

    def call(_):
        out = torch.full((96, 112), NAN, dtype=torch.float16, device=DEVICE)
        run(config, problem, a, b, out)
        torch.cuda.synchronize()
        return out

    with ThreadPoolExecutor(16) as pool:
        results = list(pool.map(call, range(16)))
    exact = (a.double() @ b.double()).half()
    assert all(torch.equal(result, exact) for result in results)


def test_what_does_not_fit_is_a_compile_error_every_time():
    config = GemmConfig(block_n=256, block_k=256, num_warps=8, num_stages=6)
    problem = GemmProblem(256, 256, 1024, "fp16")
    a, b = ints(256, 1024, torch.float16), ints(1024, 256, torch.float16)
    for _ in range(2):
        with pytest.raises(CompileError, match="shared memory"):
            run(config, problem, a, b, torch.empty_like(b)[:256])


def test_a_bound_launch_follows_its_operands(monkeypatch):
    """Other tensors of the same kind, also when the tensor maps kept are fewer than the tensors."""
    monkeypatch.setattr(bound, "MAX_TENSOR_MAPS", 4)
    problem = GemmProblem(128, 136, 64, "fp16")
    for config in filter(lambda config: legal(config, problem), (POINTER, TMA)):
        launcher = None
        for seed in range(4):
            a, b = ints(128, 64, torch.float16, seed), ints(64, 136, torch.float16, seed + 9)
            out = torch.full((128, 136), NAN, dtype=torch.float16, device=DEVICE)
            launcher = launcher or bind(config, problem, a, b, out)
            launcher(a, b, out)
            assert torch.equal(out, (a.double() @ b.double()).half()), config
        assert launcher.direct
        assert len(launcher.tensor_maps) <= 4


SPECIALIZED = GemmConfig(
    kernel="wgmma", block_k=64, num_stages=4, persistent=True, epilogue_subtile=2,
    warp_specialize="cooperative",
)  # fmt: skip
CHAINED = [
    POINTER,
    replace(POINTER, split_k=4),
    replace(POINTER, persistent=True, scheduling="dynamic"),
    TMA,
    replace(TMA, scheduling="dynamic"),
    SPECIALIZED,
    replace(SPECIALIZED, warp_specialize="pingpong"),
    replace(SPECIALIZED, warp_specialize="none", num_warps=8),
    replace(SPECIALIZED, scheduling="dynamic"),
    replace(SPECIALIZED, split_k=3),
    replace(SPECIALIZED, kernel="multicast", cluster_n=2),
    replace(SPECIALIZED, kernel="multicast", cluster_m=2),
    replace(SPECIALIZED, padded=True),
    gemv(4, block_n=16, block_k=64),
    skinny(16, block_n=16, block_k=256),
]


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("config", CHAINED, ids=str)
def test_each_product_of_a_chain_sees_the_one_before(config, captured):
    """Launches overlap; each reads what the one before wrote and writes what it read."""
    size = 520 if not config.padded else 515
    rows = config.block_m if config.kernel in ("gemv", "skinny") else size
    problem = GemmProblem(rows, size, size, "bf16", "nt" if config.kernel == "skinny" else "nn")
    if not legal(config, problem):
        pytest.skip(f"{config.kernel} is not for this GPU or triton")
    generator = torch.Generator().manual_seed(0)
    orders = [torch.randperm(size, generator=generator).to(DEVICE) for _ in range(7)]
    moves = [torch.eye(size, dtype=torch.bfloat16, device=DEVICE)[order] for order in orders]
    if problem.layout == "nt":
        moves = [move.t().contiguous().t() for move in moves]
    start = ints(rows, size, torch.bfloat16)
    buffers = [start.clone(), torch.empty_like(start)]
    launcher = bind(config, problem, buffers[0], moves[0], buffers[1])

    def chain():
        for step in range(210):
            launcher(buffers[step % 2], moves[step % 7], buffers[(step + 1) % 2])

    expected = start
    for step in range(210):
        expected = expected[:, orders[step % 7].argsort()]
    replay = chain
    if captured:
        chain()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            chain()
        replay = graph.replay
    for _ in range(20):
        buffers[0].copy_(start)
        buffers[1].fill_(NAN)
        replay()
        assert torch.equal(buffers[0], expected)
