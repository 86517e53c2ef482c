"""Importing autoswizzle: what it loads, what it touches, what it offers."""

import copy
import json
import os
import subprocess
import sys
from multiprocessing import get_context

import joblib
import pytest

import autoswizzle
from autoswizzle.config import GemmConfig
from autoswizzle.hardware import find_gpu
from autoswizzle.problem import GemmProblem
from autoswizzle.search.finals import Final
from autoswizzle.search.history import Failure
from autoswizzle.search.measure import Measurement
from autoswizzle.search.study import SearchResult
from autoswizzle.simulator.ranking import predict
from autoswizzle.tuning import TuneResult


def run(code):
    """What a fresh interpreter prints as JSON."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


LOADED = "import json, sys; print(json.dumps(sorted(m.split('.')[0] for m in sys.modules)))"


def test_importing_loads_neither_compiler_nor_search():
    loaded = run(f"import autoswizzle; {LOADED}")
    assert "autoswizzle" in loaded
    assert not {"torch", "triton", "optuna", "numpy"} & set(loaded)


def test_multiplying_on_the_cpu_loads_neither_and_leaves_cuda_alone():
    code = (
        "import torch, autoswizzle; a = torch.ones(2, 2); autoswizzle.matmul(a, a);"
        f"assert not torch.cuda.is_initialized(); {LOADED}"
    )
    loaded = run(code)
    assert not {"triton", "optuna"} & set(loaded)


def test_a_decision_needs_no_compiler_either(tmp_path):
    code = (
        f"import os; os.environ['AUTOSWIZZLE_CACHE_DIR'] = {str(tmp_path)!r};"
        f"import autoswizzle; autoswizzle.explain('64x64x64:fp16', gpu='H200'); {LOADED}"
    )
    assert not {"triton", "optuna"} & set(run(code))


def test_the_environment_is_not_read_at_import():
    code = (
        "import os; os.environ['AUTOSWIZZLE_ON_MISS'] = 'nonsense';"
        "import autoswizzle, autoswizzle.ops; print('true')"
    )
    assert run(code) is True


def test_public_names_are_sorted_and_lead_somewhere():
    assert autoswizzle.__all__ == sorted(autoswizzle.__all__)
    assert set(autoswizzle.__all__) == set(autoswizzle._HOMES) == set(dir(autoswizzle))
    for name in autoswizzle.__all__:
        value = getattr(autoswizzle, name)
        assert value.__doc__
        assert value.__name__.removeprefix("autoswizzle.") == name


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'autoswizzle' has no attribute 'matmull'"):
        autoswizzle.matmull  # noqa: B018


MULTIPLY = (
    "import torch, autoswizzle; a = torch.eye(2);assert torch.equal(autoswizzle.matmul(a, a), a);"
)
LOOK_UP = "assert autoswizzle.explain('64x64x64', gpu='H200').uses_torch"


@pytest.mark.parametrize(
    ("home", "code"),
    [
        ({}, MULTIPLY),
        ({"HOME": "/"}, MULTIPLY),
        ({"HOME": __file__}, MULTIPLY + LOOK_UP),
        ({"HOME": f"{__file__}/below"}, MULTIPLY + LOOK_UP),
        ({"HOME": "/", "XDG_CACHE_HOME": __file__}, MULTIPLY + LOOK_UP),
    ],
    ids=["unset", "root", "a file", "below a file", "a file for a cache"],
)
def test_no_home_is_needed(tmp_path, home, code):  # F05
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={"PATH": os.environ["PATH"], **home},
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("\n") <= 1
    assert list(tmp_path.iterdir()) == []


def test_values_cross_process_borders():
    """As joblib's workers and multiprocessing's spawned ones get them."""
    gpu = find_gpu("H200")
    problem, config = GemmProblem(64, 64, 64, "fp16"), GemmConfig(swizzle="hilbert")
    measurement = Measurement(config, 2.0, 1.0, 3.0, "sustained", host_us=4.0)
    final = Final(config, config, 1.5, 1.4, 1.6, (measurement,), (measurement,))
    result = SearchResult(measurement, (measurement,), (), None, "trials", final)
    values = [problem, config, gpu, measurement, final, result, predict(problem, config, gpu)]
    values += [Failure(config, "Hung", "no answer"), autoswizzle.explain(problem, gpu=gpu)]
    values += [autoswizzle.TuneReport((TuneResult(problem, error="none"),))]
    with get_context("spawn").Pool(1) as pool:
        assert pool.map(copy.copy, values) == values
    assert (
        joblib.Parallel(n_jobs=2, backend="loky")(map(joblib.delayed(copy.copy), values)) == values
    )
