"""Bound launches without a GPU: what they hand to the driver, and when they step aside."""

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


def test_cpu_operands_and_other_extents_are_refused():
    with pytest.raises(LaunchError, match="operands must be on a CUDA device, got cpu"):
        bind(GemmConfig(), PROBLEM, *tensors())
    with pytest.raises(ProblemError, match=r"a must have shape \(16, 16\), got \(17, 16\)"):
        bind(GemmConfig(), PROBLEM, *tensors(17))
