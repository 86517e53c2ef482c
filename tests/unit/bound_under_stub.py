"""Compares bound launches with triton's own under tests/unit/stub_driver.c; run as a script.

What both hand to the driver must be the same: grid, threads, shared memory, cluster, stream, every
parameter. The operands are CPU tensors, whose addresses the stub does not follow.
"""

import ctypes
from contextlib import nullcontext
from dataclasses import replace

import torch

from autoswizzle.config import GemmConfig
from autoswizzle.hardware import find_gpu
from autoswizzle.problem import GemmProblem
from autoswizzle.space import cluster_size
from autoswizzle.toolchain import triton_version

STREAM, DEVICE = 77, 0
TMA = GemmConfig(kernel="tma", block_k=64, persistent=True)
SPLIT = GemmConfig(
    kernel="wgmma", block_n=256, block_k=64, num_stages=4, persistent=True, epilogue_subtile=4,
    warp_specialize="cooperative", split_k=8,
)  # fmt: skip
MULTICAST = replace(SPLIT, kernel="multicast", split_k=1, cluster_m=2)
GEMV = GemmConfig("gemv", block_m=1, block_n=32, block_k=64, swizzle="row")
SKINNY = GemmConfig("skinny", block_m=16, block_n=16, block_k=512, swizzle="row")
CASES = [  # (configuration, problem, driver parameters: p = 64-bit, i = 32-bit, m = tensor map)
    (GemmConfig(), "512x512x512:fp16:nn", "pppiiiiii"),
    (GemmConfig(persistent=True), "5120x512x512:bf16:nt", "pppiiiiii"),
    (GemmConfig(persistent=True, scheduling="dynamic"), "512x512x512:fp16:nn", "ppppiiiiii"),
    (GemmConfig(split_k=3), "512x512x512:fp16:nn", "ppp" + "ppp" + "iiiiii"),
    (TMA, "512x1024x512:fp16:nn", "miippmiippmiippiii"),
    (replace(TMA, scheduling="dynamic"), "512x1024x512:fp16:tt", "miippmiippmiipppiii"),
    (SPLIT, "512x512x1024:bf16:nn", 4 * "miipp" + "ppp" + "iiiiiii"),
    (GEMV, "1x4096x512:bf16:nn", "pppiiiii"),
    (replace(GEMV, block_m=4), "4x4096x512:fp16:nt", "pppiiiiii"),
    (SKINNY, "16x4096x512:bf16:nt", "pppiiiiii"),
]
if triton_version() >= (3, 9):  # few tiles, and more than are resident at once
    CASES += [
        (MULTICAST, "512x512x1024:bf16:nn", 4 * "miipp" + "iiii"),
        (
            replace(MULTICAST, cluster_m=1, cluster_n=2),
            "2048x8192x64:fp16:tt",
            4 * "miipp" + "iiii",
        ),
    ]
BLOCKS = {"512x512x1024:bf16:nn": 8, "2048x8192x64:fp16:tt": 132}  # of a multicast launch


def stand_in_for_a_gpu():
    """Point torch, triton and the package at GPU 0 of a machine without one."""
    torch._C._cuda_getDevice = lambda: DEVICE
    torch._C._cuda_getCurrentRawStream = lambda index: STREAM
    torch.cuda.get_device_capability = lambda device=None: (9, 0)
    from triton.backends.nvidia.driver import CudaDriver
    from triton.runtime import driver

    stub = CudaDriver()
    stub.get_current_stream = lambda device: STREAM
    stub.get_current_device = lambda: DEVICE
    stub.get_device_capability = lambda device: (9, 0)
    driver.set_active(stub)

    from autoswizzle.kernels import bound, family, launch

    launch.current_device = bound.current_device = lambda device: nullcontext()
    launch.detect = bound.detect = lambda index: find_gpu("H200")
    memory = torch.zeros(1, dtype=torch.int32), torch.zeros(1), torch.zeros(1, dtype=torch.int64)
    family.Scratch.allocate = lambda self, device: {
        "counter": memory[0] if self.counter else None,
        "partials": memory[1] if self.partials else None,
        "flags": memory[2] if self.flags else None,
        "ticket": 2**62 + 5 if self.flags else None,
    }


def operands(problem):
    """Tensors at addresses that are multiples of 128 bytes, in the problem's layout."""

    def tensor(rows, cols, turned=False):
        dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}[problem.dtype]
        flat = torch.empty(rows * cols + 64, dtype=dtype)
        first = -flat.data_ptr() % 128 // flat.element_size()
        flat = flat[first : first + rows * cols]
        return flat.view(cols, rows).t() if turned else flat.view(rows, cols)

    turned_a, turned_b = (letter == "t" for letter in problem.layout)
    return (
        tensor(problem.m, problem.k, turned_a),
        tensor(problem.k, problem.n, turned_b),
        tensor(problem.m, problem.n),
    )


class Stub:
    """The launch that the stub driver remembers."""

    def __init__(self):
        self._library = ctypes.CDLL("libcuda.so.1")

    def _get(self, kind, name):
        return kind.in_dll(self._library, name)

    def expect(self, parameters):
        self._get(ctypes.c_int, "stub_parameters").value = len(parameters)

    def seen(self, parameters):
        launch = list(self._get(ctypes.c_uint * 6, "stub_launch"))
        launch.append(self._get(ctypes.c_ulonglong, "stub_stream").value)
        values = self._get(ctypes.c_ulonglong * 64, "stub_values")
        maps = self._get((ctypes.c_ubyte * 128) * 64, "stub_maps")
        for place, kind in enumerate(parameters):
            plain = values[place] if kind == "p" else values[place] % 2**32
            launch.append(bytes(maps[place]) if kind == "m" else plain)
        return launch


def main():
    stub = Stub()
    stand_in_for_a_gpu()
    from autoswizzle.kernels import bind, bound, run

    for config, text, parameters in CASES:
        problem = GemmProblem.parse(text)
        stub.expect(parameters)
        first, second = operands(problem), operands(problem)
        launcher = bind(config, problem, *first)
        assert launcher.direct, config
        launcher = replace(launcher, device=DEVICE)
        seen = []
        for tensors in (first, second, first):
            run(config, problem, *tensors)
            plain = stub.seen(parameters)
            stub.expect("")
            launcher(*second)
            stub.expect(parameters)
            launcher(*tensors)
            assert stub.seen(parameters) == plain, (config, stub.seen(parameters), plain)
            seen.append(plain)
        assert seen[0] == seen[2] != seen[1]
        if problem.m == problem.n == problem.k and problem.layout in ("nn", "tt"):
            same = replace(bind(config, problem, first[0], first[0], first[2]), device=DEVICE)
            same(*first)
            assert stub.seen(parameters) == seen[0], f"{config} bound where a was b"
        assert seen[0][5] == 1, "launches may overlap"
        if config.kernel == "multicast":
            assert (seen[0][0], seen[0][4]) == (BLOCKS[text], cluster_size(config))
        else:
            assert seen[0][4] == 0
        assert len(launcher.tensor_maps) == 2 * parameters.count("m")

    stub.expect("")
    plain_runs = []
    bound.run = lambda *arguments: plain_runs.append(arguments)
    problem = GemmProblem.parse(CASES[0][1])
    a, b, out = operands(problem)
    launcher = replace(bind(CASES[0][0], problem, a, b, out), device=DEVICE)
    launcher(a, b, out)
    assert not plain_runs
    odd = torch.empty(a.numel() + 1, dtype=a.dtype)[1:].view(a.shape)
    launcher(odd, b, out)
    assert len(plain_runs) == 1, "a base of lesser alignment takes the plain launch"
    print("same")


if __name__ == "__main__":
    main()
