"""The mma_sync kernel's indices, masks and ring on numpy; what it refuses.

What numpy shows: gluon_on_numpy.
"""

import itertools
import math

import numpy as np
import pytest
import torch

from autoswizzle.config import GemmConfig
from autoswizzle.errors import LaunchError
from autoswizzle.hardware import find_gpu
from autoswizzle.problem import GemmProblem
from autoswizzle.smem import KINDS, tile_layout
from autoswizzle.space import branches, why_illegal

pytestmark = pytest.mark.kernel
pytest.importorskip("triton.experimental.gluon")
mma_sync = pytest.importorskip("autoswizzle.kernels.mma_sync")

H200 = find_gpu("H200")


@pytest.fixture
def run_on_numpy(gluon_on_numpy):
    """Runs every program of config's launch; see gluon_on_numpy.run."""
    value = gluon_on_numpy.Value

    class Tile:
        """A tile in shared memory."""

        def __init__(self, array):
            self.array = array

        def index(self, slot):
            assert 0 <= slot < len(self.array)
            return Tile(self.array[slot])

        def permute(self, order):
            return Tile(self.array.transpose(order))

        def load(self, layout):
            return self.array.copy().view(value)

        def store(self, value):
            self.array[...] = value

    class Gluon(gluon_on_numpy.Gluon):
        """With shared memory, and copies that arrive when they are waited for."""

        def __init__(self, index):
            super().__init__(index)
            self.open, self.groups = [], []

        def allocate_shared_memory(self, dtype, shape, layout):
            return Tile(np.full(shape, np.nan, dtype))

        def cp_async(self, tile, pointer, mask):
            self.open.append((tile, pointer.read(mask)))
            tile.array[...] = np.nan

        def commit_group(self):
            self.groups.append(self.open)
            self.open = []

        def wait_group(self, outstanding):
            while len(self.groups) > outstanding:
                for tile, value in self.groups.pop(0):
                    tile.store(value)

    def names(gl):
        return {
            "cp_async": gl.cp_async,
            "async_copy": gl,
            "barrier": lambda: None,
            "tile_at": lambda index, grid_m, grid_n, *_: (index // grid_n, index % grid_n),
        }

    def ran(config, problem, a, b, out):
        call = mma_sync.call(config, problem, a, b, out)
        parts = ("_addresses", "_multiply")
        for gl in gluon_on_numpy.run(call, mma_sync, parts, Gluon, names):
            assert not gl.open
            assert not gl.groups or "padded" in (config.smem_a, config.smem_b)

    return ran


def operand(rows, cols, transposed, padding=0):
    """Small integers in rows x cols of the given storage order; padding elements a line are NaN."""
    lines, inner = (cols, rows) if transposed else (rows, cols)
    stored = torch.full((lines, inner + padding), float("nan"))
    stored[:, :inner] = torch.randint(-2, 3, (lines, inner)).float()
    stored = stored[:, :inner]
    return stored.t() if transposed else stored


def make_config(**changed):
    tile = {"block_m": 32, "block_n": 32, "block_k": 16, "num_warps": 1, "num_stages": 3}
    return GemmConfig(kernel="mma_sync", swizzle="row", **{**tile, **changed})


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize(
    ("m", "n", "k"), [(32, 32, 64), (40, 72, 48), (8, 8, 8), (64, 40, 24), (72, 32, 200)]
)
@pytest.mark.parametrize("smem", ["128", "padded"])
@pytest.mark.parametrize("stages", [2, 4])
def test_products_are_exact_and_whole(run_on_numpy, layout, m, n, k, smem, stages):
    torch.manual_seed(m + n + k)
    problem = GemmProblem(m, n, k, "bf16", layout)
    config = make_config(smem_a=smem, num_stages=stages)
    assert why_illegal(config, problem, H200) is None
    a = operand(m, k, layout[0] == "t", padding=8)
    b = operand(k, n, layout[1] == "t", padding=16)
    out = torch.full((m, n + 8), float("nan"))[:, :n]
    run_on_numpy(config, problem, a, b, out)
    assert torch.equal(out, a @ b)
    assert torch.isnan(out.as_strided((m - 1, 8), (n + 8, 1), n)).all()  # nothing past a row


def test_offsets_of_64_bits(run_on_numpy, monkeypatch):
    monkeypatch.setattr(mma_sync, "INT32_MAX", 0)
    problem = GemmProblem(40, 72, 48, "bf16", "tt")
    a, b = operand(40, 48, True), operand(48, 72, True)
    out = torch.full((40, 72), float("nan"))
    run_on_numpy(make_config(), problem, a, b, out)
    assert torch.equal(out, a @ b)


def test_only_offsets_beyond_32_bits_are_wide():
    def wide(m, n, k):
        a = torch.empty(2**62 // 8, device="meta").as_strided((m, k), (k, 1))
        b = torch.empty(2**62 // 8, device="meta").as_strided((k, n), (n, 1))
        out = torch.empty(2**62 // 8, device="meta").as_strided((m, n), (n, 1))
        return mma_sync.call(make_config(), GemmProblem(m, n, k), a, b, out).constants["WIDE"]

    assert not wide(8192, 8192, 8192)
    assert wide(2**20, 64, 4096)
    assert wide(64, 2**20, 4096)
    assert wide(2**16, 2**16, 64)


def test_extents_that_are_not_contiguous_may_be_odd(run_on_numpy):
    for layout, m, k in (("nn", 37, 24), ("tn", 40, 13), ("nt", 1, 24)):
        problem = GemmProblem(m, 24, k, "bf16", layout)
        assert why_illegal(make_config(), problem, H200) is None
        a, b = operand(m, k, layout[0] == "t"), operand(k, 24, layout[1] == "t")
        out = torch.full((m, 24), float("nan"))
        run_on_numpy(make_config(), problem, a, b, out)
        assert torch.equal(out, a @ b)


@pytest.mark.parametrize(
    ("shape", "layout", "message"),
    [
        ((64, 64, 60), "nn", "mma_sync needs k to be a multiple of 8, got 60"),
        ((64, 60, 64), "nt", "mma_sync needs n to be a multiple of 8, got 60"),
        ((60, 64, 64), "tn", "mma_sync needs m to be a multiple of 8, got 60"),
    ],
)
def test_contiguous_extents_must_be_whole_copies(shape, layout, message):
    problem = GemmProblem(*shape, "bf16", layout, aligned=True)
    assert why_illegal(make_config(), problem, H200) == message
    operands = [operand(64, 64, transposed == "t") for transposed in layout + "n"]
    with pytest.raises(LaunchError, match="to be a multiple of 8, got 60"):
        mma_sync.call(make_config(), problem, *operands)


@pytest.mark.parametrize("strides", [(68, 1), (1, 64), (128, 2)])
def test_strides_that_copies_cannot_follow_are_refused(strides):
    whole = torch.empty(64 * 200)
    a = whole.as_strided((64, 64), strides)
    with pytest.raises(LaunchError, match="mma_sync needs a with unit inner stride"):
        mma_sync.call(make_config(), GemmProblem(64, 64, 64), a, whole[:4096].view(64, 64), a)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"num_stages": 1}, "mma_sync needs num_stages in 2..8, got 1"),
        ({"num_warps": 8}, "num_warps must split 32 x 32 into 16 x 16 pieces, got 8"),
        ({"max_registers": 256}, "max_registers must be in 0..255, got 256"),
        ({"persistent": True}, "mma_sync does not use persistent, got True"),
        ({"block_n": 48}, "block_n must be a power of two in 16..256, got 48"),
    ],
)
def test_illegal_configurations_name_the_field(changed, message):
    assert why_illegal(make_config(**changed), GemmProblem(64, 64, 64), H200) == message


def test_the_searched_space_is_small():
    tunables = branches(GemmProblem(512, 512, 512), H200)["mma_sync"]
    assert math.prod(map(len, tunables.values())) <= 200
    for values in itertools.product(*tunables.values()):
        config = GemmConfig(kernel="mma_sync", **dict(zip(tunables, values, strict=True)))
        assert why_illegal(config, GemmProblem(512, 512, 512), H200) is None


def test_every_layout_is_the_one_bank_conflicts_are_counted_for():
    """Gluon's layout and smem.tile_layout put every element at the same offset."""
    for kind, cols, itemsize in itertools.product(KINDS, (16, 32, 64, 128, 256), (2, 4)):
        ours = tile_layout(kind, cols, itemsize)
        theirs = mma_sync.shared_layout(kind, 32, cols, itemsize)
        rows, columns = np.indices((32, cols))
        if kind == "padded":
            interval, padding = theirs.interval_padding_pairs[0]
            flat = rows * cols + columns
            expected = flat + flat // interval * padding
        else:  # the definition of SwizzledSharedLayout
            phase = rows // theirs.per_phase % theirs.max_phase
            chunk, within = np.divmod(columns, theirs.vec)
            expected = rows * cols + (chunk ^ phase) * theirs.vec + within
        assert np.array_equal(ours(rows, columns), expected * itemsize), (kind, cols, itemsize)
