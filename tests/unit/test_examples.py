"""Every example runs on a machine without a GPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(path, tmp_path):
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "AUTOSWIZZLE_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, env=env, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert done.stderr == ""


def test_there_are_examples():
    assert len(EXAMPLES) >= 3
