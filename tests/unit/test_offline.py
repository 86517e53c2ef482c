"""Kernels compiled for GPUs that are not here: what must be in the code, and what it takes."""

import re
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from triton import knobs
from triton.errors import TritonError

from autoswizzle.config import GemmConfig
from autoswizzle.errors import CompileError, LaunchError, UnavailableError
from autoswizzle.hardware import find_gpu
from autoswizzle.kernels import compile_for
from autoswizzle.kernels.compiler import compile_errors
from autoswizzle.kernels.offline import compiled, meta_operands
from autoswizzle.problem import GemmProblem
from autoswizzle.space import why_illegal

pytestmark = pytest.mark.kernel

MATRIX_UNIT = {90: r"wgmma\.mma_async", 100: r"tcgen05\.mma"}  # else mma.sync
ASYNC_COPY = r"cp\.async\.c[ag]\.shared\.global"
TENSOR_LOAD = r"cp\.async\.bulk\.tensor\S*\.shared::(?:cluster|cta)\.global"
TENSOR_STORE = r"cp\.async\.bulk\.tensor\S*\.global\.shared"

PROBLEM = "4096x4096x4096:bf16:nt"
SPREAD = [  # (problem, fields): none of these may spill or serialise wgmma
    (PROBLEM, {}),
    ("4096x4096x4096:fp16:nn", {"block_n": 256, "num_warps": 8, "persistent": True}),
    (
        "4096x4096x4096:bf16:tn",
        {"block_m": 64, "block_k": 64, "swizzle": "hilbert", "persistent": True,
         "scheduling": "dynamic"},
    ),
    ("1024x1024x1024:fp32:nt:tf32", {"block_m": 64, "block_n": 64, "swizzle": "morton"}),
]  # fmt: skip
TMA = {"kernel": "tma", "block_k": 64, "num_warps": 8, "persistent": True}
TMA_SPREAD = [
    (PROBLEM, {"block_n": 128}),
    ("4096x4096x4096:fp16:tt", {"flatten": True, "swizzle": "xor"}),
    ("4096x4096x4096:bf16:nn", {"epilogue_subtile": 2, "scheduling": "dynamic"}),
    ("1024x1024x1024:fp32:nt:tf32", {"block_m": 64, "block_n": 64, "block_k": 32, "num_warps": 4}),
]


def spread(gpu):
    """(configuration, problem): what gpu can run of both."""
    for problem, fields in SPREAD:
        yield GemmConfig(**fields), GemmProblem.parse(problem)
    if gpu.capability >= 90:
        stages = 2 if gpu.capability == 120 else 3  # 99 KiB a block
        for problem, fields in TMA_SPREAD:
            yield GemmConfig(**{**TMA, "num_stages": stages, **fields}), GemmProblem.parse(problem)


def test_the_code_is_what_the_gpu_is_fast_at(target):
    for config, problem in spread(target):
        check_code(config, problem, target)


def check_code(config, problem, gpu):
    assert why_illegal(config, problem, gpu) is None
    resources = compile_for(config, problem, gpu)
    assert resources.spill_bytes <= (16 if gpu.capability == 100 else 0)  # 4 registers, ptxas 13.4
    assert resources.warnings == ()
    assert resources.num_warps == config.num_warps
    ptx = compiled(config, problem, gpu).asm["ptx"]
    assert re.search(MATRIX_UNIT.get(gpu.capability, r"mma\.sync"), ptx)
    if config.kernel == "tma":
        assert re.search(TENSOR_LOAD, ptx)
        assert re.search(TENSOR_STORE, ptx)
        assert not re.search(ASYNC_COPY, ptx)
    else:
        assert re.search(ASYNC_COPY, ptx)
    assert ("atom" in ptx) == (config.scheduling == "dynamic")


def test_whole_k_blocks_are_loaded_without_a_mask():
    gpu = find_gpu("A100-80GB")
    whole = compiled(GemmConfig(), GemmProblem.parse(PROBLEM), gpu).asm
    ragged = compiled(GemmConfig(), GemmProblem.parse("4096x4096x4112:bf16:nt"), gpu).asm
    loads = {name: re.findall(r"tt\.load [^:]*", asm["ttir"]) for name, asm in
             (("whole", whole), ("ragged", ragged))}  # fmt: skip
    assert [load.count("%") for load in loads["whole"]] == [1, 1]
    assert [load.count("%") for load in loads["ragged"]] == [3, 3]
    for asm in (whole, ragged):
        copies = re.findall(ASYNC_COPY + r"[^;]*;", asm["ptx"])
        assert copies
        assert all(" 0x10," in copy for copy in copies), "16 bytes at a time"


@pytest.mark.parametrize(
    ("text", "width"),
    [
        ("3000x3000x3000:bf16:nn", 16),
        ("17x3000x3000:bf16:nt", 16),
        ("3000x3000x3000:fp16:tt", 16),
        ("1004x1004x1004:fp32:nt:tf32", 16),
        ("3004x3004x3004:bf16:nt", 8),
        ("3002x3002x3002:bf16:tn", 4),
    ],
)
def test_loads_are_as_wide_as_the_extents_allow(text, width):
    """The compiler itself tells only multiples of 16 elements from all others."""
    problem = GemmProblem.parse(text)
    ptx = compiled(GemmConfig(), problem, find_gpu("A100-80GB")).asm["ptx"]
    widths = {int(found, 16) for found in re.findall(ASYNC_COPY + r"[^;]*?, (0x\w+)", ptx)}
    assert widths == {width}


def test_an_unaligned_problem_compiles_to_narrow_accesses():
    """The base may be at any element: nothing wider than one bf16 may be loaded or stored."""
    problem = GemmProblem(512, 512, 512, "bf16", "nt", aligned=False)
    ptx = compiled(GemmConfig(), problem, find_gpu("A100-80GB")).asm["ptx"]
    accesses = re.findall(r"(?:ld|st)\.global\.\S+", ptx)
    assert accesses
    assert {access.split(".")[-1] for access in accesses} == {"b16"}
    assert not re.search(ASYNC_COPY, ptx)


def test_offsets_are_64_bit_only_where_they_must_be():
    narrow = compiled(GemmConfig(), GemmProblem.parse(PROBLEM), find_gpu("A100-80GB")).asm["ttir"]
    wide = compiled(
        GemmConfig(), GemmProblem.parse("65536x16384x65536:bf16:nt"), find_gpu("A100-80GB")
    ).asm["ttir"]
    assert "xi64>" not in narrow
    assert "xi64>" in wide


def test_too_much_shared_memory_is_one_line():
    config = GemmConfig(block_n=256, block_k=128, num_warps=8, num_stages=5)
    with pytest.raises(CompileError, match=r"^shared memory of a block must be <= 101376.*\d$"):
        compile_for(config, GemmProblem.parse(PROBLEM), find_gpu("L4"))


def test_spills_are_reported():
    config = GemmConfig(block_m=256, block_n=128, num_warps=4, num_stages=2)
    resources = compile_for(config, GemmProblem.parse(PROBLEM), find_gpu("A100-80GB"))
    assert resources.registers == 255
    assert resources.spill_bytes > 0


def test_max_registers_is_obeyed():
    gpu, problem = find_gpu("H200"), GemmProblem.parse(PROBLEM)
    assert compile_for(GemmConfig(), problem, gpu).registers > 128
    assert compile_for(GemmConfig(max_registers=128), problem, gpu).registers <= 128


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RuntimeError("PassManager::run failed"), "RuntimeError: PassManager::run failed"),
        (IndexError("map::at"), "IndexError: map::at"),
        (TritonError("at 3:4:\n    tl.dot(a)\n    ^\nbad shape\n"), "TritonError: bad shape"),
        (
            TritonError("PTXAS error: failed\nptxas fatal error : C7602 too big\nRepro command: x"),
            "TritonError: ptxas fatal error : C7602 too big",
        ),
        (AssertionError(), "AssertionError: no message"),
    ],
)
def test_what_a_compiler_raises_becomes_one_line(error, reason):
    with pytest.raises(CompileError) as caught, compile_errors():
        raise error
    assert str(caught.value) == reason


@pytest.fixture
def ptxas(monkeypatch, tmp_path):
    """Gives triton a ptxas that knows its version and then does what a line of shell says."""

    def build(line):
        real, path = knobs.nvidia.ptxas.path, tmp_path / "ptxas"
        path.write_text(f'#!/bin/sh\n[ "$1" = --version ] && exec {real} --version\n{line}\n')
        path.chmod(0o755)
        monkeypatch.setenv("TRITON_PTXAS_PATH", str(path))

    return build


SMALL = GemmProblem(128, 128, 128, "fp16")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("echo 'ptxas fatal   : C7602 error, too big' >&2; exit 1", "ptxas fatal   : C7602 error"),
        ("kill -SEGV $$", "`ptxas` failed with error code -11"),
    ],
)
def test_a_failing_ptxas_says_why_and_prints_nothing(ptxas, line, reason, capsys):
    ptxas(line)
    with pytest.raises(CompileError, match=re.escape(reason)):
        compile_for(GemmConfig(), SMALL, find_gpu("A100-80GB"))
    assert capsys.readouterr().out == ""
    assert not knobs.compilation.always_compile
    assert not knobs.nvidia.dump_ptxas_log


def test_what_other_threads_print_meanwhile_is_printed(monkeypatch, capsys):
    def chatty(*task):
        with ThreadPoolExecutor(1) as pool:
            pool.submit(print, "Used 999 registers").result()
        return compiled(*task)

    monkeypatch.setattr("autoswizzle.kernels.offline.compiled", chatty)
    assert compile_for(GemmConfig(), SMALL, find_gpu("A100-80GB")).registers <= 255
    assert capsys.readouterr().out == "Used 999 registers\n"


@pytest.mark.parametrize("name", ["KILL", "TERM"])
def test_a_ptxas_that_was_killed_is_no_verdict_on_the_candidate(ptxas, name):
    """Verdicts of the compiler are kept on disk; the system may have more memory next time."""
    ptxas(f"kill -{name} $$")
    with pytest.raises(LaunchError) as caught:
        compile_for(GemmConfig(), SMALL, find_gpu("A100-80GB"))
    assert caught.value.kind == "Killed"


def test_other_errors_are_not_the_compilers():
    with pytest.raises(KeyError), compile_errors():
        raise KeyError("a bug")


@pytest.mark.parametrize(
    ("text", "strides", "offset"),
    [
        ("64x32x128:bf16:nt", ((128, 1), (1, 128), (32, 1)), 0),
        ("64x32x128:bf16:tn", ((1, 64), (32, 1), (32, 1)), 0),
        ("63x31x127:bf16:nn", ((127, 1), (31, 1), (31, 1)), 0),
        ("64x32x128:bf16:nn:unaligned", ((128, 1), (32, 1), (32, 1)), 1),
        ("63x31x127:fp32:nn:ieee:aligned", ((128, 1), (32, 1), (32, 1)), 0),
    ],
)
def test_operands_stand_for_the_problem(text, strides, offset):
    problem = GemmProblem.parse(text)
    operands = meta_operands(problem)
    assert tuple(operand.stride() for operand in operands) == strides
    assert [operand.storage_offset() for operand in operands] == [offset] * 3
    a, b, out = operands
    assert a.shape == (problem.m, problem.k)
    assert b.shape == (problem.k, problem.n)
    assert out.shape == (problem.m, problem.n)
    assert a.device == torch.device("meta")


def test_an_interpreted_kernel_can_not_be_compiled(monkeypatch):
    monkeypatch.setattr("autoswizzle.kernels.offline.interpreted", lambda call: True)
    with pytest.raises(UnavailableError, match="TRITON_INTERPRET unset"):
        compile_for(GemmConfig(), GemmProblem.parse(PROBLEM), find_gpu("H200"))
