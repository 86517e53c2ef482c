"""Importing autoswizzle: what it loads, what it touches, what it offers."""

import json
import subprocess
import sys

import pytest

import autoswizzle


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
