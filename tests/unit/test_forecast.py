"""rank and simulate as users call them."""

import pytest

import autoswizzle
from autoswizzle import GemmConfig, GemmProblem
from autoswizzle.errors import ArgumentError, ConfigError, HardwareError, ProblemError
from autoswizzle.hardware import find_gpu


def test_text_and_names_are_enough():
    found = autoswizzle.rank("1024x1024x1024:bf16:nt", gpu="h200", top=3)
    assert len(found) == 3
    assert found == autoswizzle.rank(
        GemmProblem(1024, 1024, 1024, "bf16", "nt"), gpu=find_gpu("H200"), top=3
    )
    again = autoswizzle.simulate("1024x1024x1024:bf16:nt", found[0].config, gpu="H200")
    assert again == found[0]


@pytest.mark.parametrize(
    ("call", "error", "named"),
    [
        (lambda: autoswizzle.rank("12x34", gpu="H200"), ProblemError, "12x34"),
        (lambda: autoswizzle.rank("8x8x8", gpu="H300"), HardwareError, "H300"),
        (lambda: autoswizzle.rank("8x8x8", gpu=90), HardwareError, "gpu must be"),
        (lambda: autoswizzle.rank("8x8x8", gpu="H200", top=0), ArgumentError, "top must"),
        (
            lambda: autoswizzle.simulate("8x8x8", GemmConfig(block_m=96), gpu="H200"),
            ConfigError,
            "block_m",
        ),
    ],
)
def test_wrong_arguments_are_named(call, error, named):
    with pytest.raises(error, match=named):
        call()
