"""The source hash: what changes it and what does not."""

import ast
import gc
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from autoswizzle.errors import ConfigError
from autoswizzle.kernels import source, source_hash

CODE = '''
"""Module."""
import triton

@triton.jit
def kernel(x, BLOCK: tl.constexpr):
    """Adds."""
    y = x + BLOCK
    return y
'''
SAME = """
import   triton
# a comment
@triton.jit
def kernel(
    x,
    BLOCK: tl.constexpr,
):

    y = (x + BLOCK)  # another
    return y
"""


def test_formatting_comments_and_docstrings_do_not_count():
    assert source.normalised(ast.parse(CODE)) == source.normalised(ast.parse(SAME))


@pytest.mark.parametrize(
    ("old", "new"), [("x + BLOCK", "x - BLOCK"), ("x + BLOCK", "x + BLOCK + 0"), ("jit", "jit()")]
)
def test_code_counts(old, new):
    changed = CODE.replace(old, new)
    assert source.normalised(ast.parse(CODE)) != source.normalised(ast.parse(changed))


def test_none_and_strings_that_are_values_count():
    trees = [source.normalised(ast.parse(f"x = {value}")) for value in ("None", "''", "0", "False")]
    assert len(set(trees)) == 4


def test_the_tree_is_the_same_in_every_python():
    """Node for node: fields that a Python version adds or leaves out are not part of it."""
    expected = (
        "Module",
        ("body", (
            "FunctionDef",
            ("name", "'f'"),
            ("args", ("arguments", ("args", ("arg", ("arg", "'x'"))))),
            ("body", ("Return", ("value", ("Name", ("id", "'x'"))))),
        )),
    )  # fmt: skip
    assert source.normalised(ast.parse("def f(x):\n    'doc'\n    return x")) == expected


def test_helpers_count_and_plumbing_does_not():
    modules = set(source._sources("autoswizzle.kernels.pointer"))
    helpers = {
        f"autoswizzle.kernels.{name}" for name in ("addressing", "handover", "order", "overlap")
    }
    assert modules == {"autoswizzle.kernels.pointer", *helpers}


def test_families_differ_and_unknown_ones_are_refused():
    assert len(source_hash("pointer")) == 64
    assert source_hash("pointer") != source_hash("tma")
    with pytest.raises(ConfigError, match=r"kernel must be one of pointer, .*, got 'cutlass'"):
        source_hash("cutlass")


def test_hashes_are_made_in_several_threads_at_once():
    """Python 3.11 fails if a garbage collection lets a second thread into its parser."""

    def let_others_run(*_):
        time.sleep(0.0005)

    source_hash.cache_clear()
    gc.callbacks.append(let_others_run)
    try:
        with ThreadPoolExecutor(4) as threads:
            hashes = list(threads.map(source_hash, ["wgmma", "pointer", "tma", "mma_sync"]))
    finally:
        gc.callbacks.remove(let_others_run)
    assert len(set(hashes)) == 4


def test_a_family_that_this_triton_cannot_compile_has_a_hash_too():
    """multicast needs triton 3.9: its modules are read, not imported."""
    code = (
        "import sys; from autoswizzle.kernels import source_hash; source_hash('multicast');"
        "print([name for name in sys.modules if 'multicast' in name])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert "autoswizzle.kernels.order" in source._sources("autoswizzle.kernels.multicast")
