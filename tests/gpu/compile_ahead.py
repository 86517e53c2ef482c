"""Compiles cases into triton's cache on disk, in processes: tracing holds Python's lock.

Run as a script, with a JSON list on stdin of {"config", "problem", "capability", "operands"}, where
operands are [shape, strides, storage offset] of a, b, out. What fails is left to its test.
"""

import json
import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import torch

from autoswizzle.config import GemmConfig
from autoswizzle.errors import CandidateError
from autoswizzle.kernels.compiler import compile_errors
from autoswizzle.kernels.family import family
from autoswizzle.kernels.offline import compile_call
from autoswizzle.problem import TORCH_NAMES, GemmProblem


def compile_one(case: dict[str, Any]) -> None:
    """Compile one case; its operands are meta tensors of the same strides and alignment."""
    config, problem = (
        GemmConfig.from_dict(case["config"]),
        GemmProblem.from_dict(case["problem"]),
    )
    memory = torch.empty(2**40, dtype=getattr(torch, TORCH_NAMES[problem.dtype]), device="meta")
    operands = [memory.as_strided(*operand) for operand in case["operands"]]
    try:
        with compile_errors():
            compile_call(family(config.kernel).call(config, problem, *operands), case["capability"])
    except CandidateError:
        return


def main() -> None:
    """Compile what stdin lists."""
    cases = json.load(sys.stdin)
    with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn")) as pool:
        list(pool.map(compile_one, cases))


if __name__ == "__main__":
    main()
