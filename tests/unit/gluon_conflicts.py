"""Print gl.bank_conflicts of each case on stdin (JSON), one count a line.

A program of its own, because Gluon aborts the process on some layouts.
"""

import json
import sys

from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource

DTYPES = {1: gl.int8, 2: gl.bfloat16, 4: gl.float32}
TARGET = GPUTarget("cuda", 90, 32)


@gluon.constexpr_function
def register_type(dtype, rows, cols, layout):
    return gl.distributed_type(dtype, [rows, cols], layout)


@gluon.jit
def probe(
    dtype: gl.constexpr,
    rows: gl.constexpr,
    cols: gl.constexpr,
    registers: gl.constexpr,
    shared: gl.constexpr,
):
    tile = gl.allocate_shared_memory(dtype, [rows, cols], shared)
    gl.static_print("=", gl.bank_conflicts(register_type(dtype, rows, cols, registers), tile.type))


def registers_of(case):
    kind = case["registers"]
    if kind == "blocked":
        lanes = case["lanes"]
        return gl.BlockedLayout([1, case["vector"]], lanes, [case["warps"], 1], [1, 0])
    parent = gl.NVMMADistributedLayout([2, 0], [case["warps"] // 2, 2], [16, 8])
    if kind == "accumulator":
        return parent
    return gl.DotOperandLayout({"a": 0, "b": 1}[kind], parent, k_width=4 // case["itemsize"])


def shared_of(case):
    if case["shared"] == "panel":
        return gl.NVMMASharedLayout(case["width"], 8 * case["itemsize"], rank=2)
    return gl.SwizzledSharedLayout(case["vec"], case["per_phase"], case["max_phase"], [1, 0])


def main():
    backend = make_backend(TARGET)
    for case in json.load(sys.stdin):
        values = (
            DTYPES[case["itemsize"]],
            case["rows"],
            case["cols"],
            registers_of(case),
            shared_of(case),
        )
        source = GluonASTSource(
            probe,
            dict.fromkeys(probe.arg_names, "constexpr"),
            {(index,): value for index, value in enumerate(values)},
        )
        options = backend.parse_options({"num_warps": case["warps"]})
        context = ir.context()
        ir.load_dialects(context)
        backend.load_dialects(context)
        codegen = backend.get_codegen_implementation(options)
        source.make_ir(TARGET, options, codegen, backend.get_module_map(), context)


if __name__ == "__main__":
    main()
