"""Bound launches without a GPU: what they hand to the driver, and when they step aside."""

import inspect
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import triton

from autoswizzle.config import GemmConfig
from autoswizzle.errors import LaunchError, ProblemError
from autoswizzle.kernels import bind, bound
from autoswizzle.kernels.padding import copy_call
from autoswizzle.problem import GemmProblem

pytestmark = pytest.mark.kernel

HERE = Path(__file__).parent
PROBLEM = GemmProblem(16, 16, 16, "fp16")


def tensors(rows=16):
    return [torch.empty(rows, 16, dtype=torch.float16) for _ in range(3)]


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc, as triton's launcher does")
def test_the_driver_gets_what_tritons_own_launch_gives_it(tmp_path):
    headers = Path(triton.__file__).parent / "backends/nvidia/include"
    library = tmp_path / "libcuda.so.1"
    compile_stub = ["gcc", "-shared", "-fPIC", "-w", f"-I{headers}", str(HERE / "stub_driver.c")]
    subprocess.run([*compile_stub, "-o", str(library)], check=True)
    (tmp_path / "libcuda.so").symlink_to(library)
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": str(tmp_path),
        "TRITON_LIBCUDA_PATH": str(tmp_path),
        "TRITON_CACHE_DIR": str(tmp_path / "cache"),
    }
    done = subprocess.run(
        [sys.executable, str(HERE / "bound_under_stub.py")],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == "same"


def test_an_unknown_triton_takes_the_plain_launch(monkeypatch):
    monkeypatch.setattr(bound, "triton_version", lambda: (99, 0))
    runs = []
    monkeypatch.setattr(bound, "run", lambda *arguments: runs.append(arguments))
    operands = tensors()
    launcher = bind(GemmConfig(), PROBLEM, *operands)
    assert not launcher.direct
    launcher(*operands)
    assert runs == [(GemmConfig(), PROBLEM, *operands)]


def test_a_padded_launch_loads_its_copies_and_its_product_once(monkeypatch):
    loaded, launched = [], []

    def fake_bind(call, operands, plain):
        loaded.append(call.kernel.__name__)
        return lambda *tensors: launched.append((call.kernel.__name__, tensors))

    monkeypatch.setattr(bound, "_bind", fake_bind)
    config = GemmConfig("tma", block_k=64, persistent=True, padded=True)
    problem = GemmProblem(33, 17, 35, "fp16", "nt")
    a, b, out = (
        torch.zeros(shape, dtype=torch.float16) for shape in [(33, 35), (17, 35), (33, 17)]
    )
    launcher = bind(config, problem, a, b.t(), out)
    assert not launcher.direct
    assert loaded == ["copy_rows", "copy_rows", "tma_gemm", "copy_rows"]
    assert not launched
    launcher(a, b.t(), out)
    launcher(a, b.t(), out)
    assert len(loaded) == 4
    assert [name for name, _ in launched] == 2 * loaded
    (_, (_, _, padded_a)), (_, (_, _, padded_b)), (_, product), (_, (_, _, last)) = launched[:4]
    assert [padded.stride() for padded in (padded_a, padded_b)] == [(40, 1), (40, 1)]
    assert [operand.data_ptr() for operand in product[:2]] == [
        padded_a.data_ptr(),
        padded_b.data_ptr(),
    ]
    assert product[1].stride() == (1, 40)
    assert product[2].stride() == (24, 1)
    assert last.data_ptr() == out.data_ptr()


def test_a_padded_launch_loads_nothing_for_bases_as_odd_as_before(monkeypatch):
    """What a plan ran once runs in a CUDA-graph capture, which can load no kernel."""
    loaded = []

    def fake_bind(call, operands, plain):
        loaded.append(call.kernel.__name__)
        return lambda *tensors: None

    def late(rows, cols, by):
        return torch.zeros(rows * cols + by, dtype=torch.float16)[by:].view(rows, cols)

    monkeypatch.setattr(bound, "_bind", fake_bind)
    config = GemmConfig("tma", block_k=64, persistent=True, padded=True)
    operands = [(32, 64), (64, 16), (32, 16)]
    problem = GemmProblem(32, 16, 64, "fp16", aligned=False)
    launcher = bind(config, problem, *(late(*shape, 1) for shape in operands))
    assert len(loaded) == 4
    for by in (2, 3, 4, 7):
        launcher(*(late(*shape, by) for shape in operands))
    assert len(loaded) == 4
    launcher(late(32, 64, 0), *(late(*shape, 1) for shape in operands[1:]))  # no copy of a
    assert len(loaded) == 4


def test_the_longest_row_is_copied_to_its_end():
    """Its extent rounded up to whole blocks is beyond 32 bits, and would be negative there."""
    row = torch.empty(1, 2**31 - 1, dtype=torch.float16, device="meta")
    call = copy_call(row, row)
    assert call.args["wide"] == call.tiles == 2**22
    assert "cdiv" not in inspect.getsource(call.kernel.fn)


def test_cpu_operands_and_other_extents_are_refused():
    with pytest.raises(LaunchError, match="operands must be on a CUDA device, got cpu"):
        bind(GemmConfig(), PROBLEM, *tensors())
    with pytest.raises(ProblemError, match=r"a must have shape \(16, 16\), got \(17, 16\)"):
        bind(GemmConfig(), PROBLEM, *tensors(17))
