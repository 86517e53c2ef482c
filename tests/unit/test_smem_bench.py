"""What the layout experiment predicts, against the counters it must reproduce."""

from dataclasses import replace

import pytest

from autoswizzle.errors import ConfigError, UnavailableError
from autoswizzle.hardware import find_gpu
from autoswizzle.problem import GemmProblem
from autoswizzle.space import why_illegal

pytestmark = pytest.mark.kernel
bench = pytest.importorskip("autoswizzle.smem_bench")
pytest.importorskip("triton.experimental.gluon")
SQUARE = GemmProblem(4096, 4096, 4096, "bf16", "nt")
LDMATRIX_WAVEFRONTS = 50_331_648  # at 4096^3, counted on an H200


def experiment(name):
    return bench.layout_configs()[name]


def test_operand_reads_cost_7_3_1_0_conflicts_a_wavefront():
    accesses = [bench.predicted_accesses(config, SQUARE) for config in experiment("operands")]
    reads = [
        [item[name] for name in ("a_read", "b_read")] for item in accesses
    ]  # A is read 4 times, B twice
    assert [sum(read.wavefronts for read in pair) for pair in reads] == [LDMATRIX_WAVEFRONTS] * 4
    assert [sum(read.conflicts for read in pair) for pair in reads] == [
        factor * LDMATRIX_WAVEFRONTS for factor in (7, 3, 1, 0)
    ]
    assert [bench.predicted_conflicts(item)[0] for item in accesses] == [
        factor * LDMATRIX_WAVEFRONTS for factor in (7, 3, 1, 0)
    ]  # C is read without conflicts
    assert not any(name.endswith("_copy") for item in accesses for name in item)


def test_padding_goes_through_registers_without_conflicts():
    for config in experiment("operands_padded"):
        accesses = bench.predicted_accesses(config, SQUARE)
        padded = config.smem_a == "padded"
        assert accesses["a_read"].instruction == ("ld.shared.b32" if padded else "ldmatrix.x4")
        assert accesses["a_copy"].ways == accesses["b_copy"].ways == 1
    assert accesses["a_read"].ways == accesses["b_read"].ways == 1  # the last is padded
    assert accesses["a_read"].wavefronts + accesses["b_read"].wavefronts == LDMATRIX_WAVEFRONTS


def test_the_store_of_c():
    ways = {
        config.smem_c: bench.predicted_accesses(config, SQUARE)["c_store"].ways
        for config in experiment("result")
    }
    assert ways == {"none": 4, "32": 4, "64": 2, "128": 2}
    stores = bench.predicted_accesses(experiment("result")[0], SQUARE)
    assert bench.predicted_conflicts(stores) == (0, 4096 * 4096 * 4 // 128 * 3)


def test_one_thing_changes_within_an_experiment_and_all_can_run():
    for configs in bench.layout_configs().values():
        changed = [config.to_dict() for config in configs]
        names = {name for item in changed for name in item if item[name] != changed[0].get(name)}
        assert names <= {"smem_a", "smem_b"} or len(names) == 1
        for config in configs:
            assert why_illegal(config, SQUARE, find_gpu("H200")) is None


def test_other_problems_are_refused():
    with pytest.raises(ConfigError, match="layouts need mma_sync on 16-bit nt"):
        bench.predicted_accesses(bench.ARTICLE, GemmProblem(64, 64, 64, "bf16", "nn"))
    with pytest.raises(ConfigError, match="layouts need mma_sync on 16-bit nt"):
        bench.predicted_accesses(replace(bench.ARTICLE, kernel="pointer"), SQUARE)


OUTPUT = """==PROF== Connected to process 4711
==PROF== Profiling "mma_sync_gemm": 0%....100% - 2 passes
"ID","Process ID","Kernel Name","Section Name","Metric Name","Metric Unit","Metric Value"
"0","4711","mma_sync_gemm","Command line profiler metrics","{load}","","352,321,536"
"0","4711","mma_sync_gemm","Command line profiler metrics","{stall}","inst","1.25"
"0","4711","mma_sync_gemm","Command line profiler metrics","another","","n/a"
"1","4711","mma_sync_gemm","Command line profiler metrics","{load}","","0"
"""


def test_counters_are_read_from_ncus_csv():
    text = OUTPUT.replace("{load}", bench.METRICS["load_conflicts"]).replace(
        "{stall}", "smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio"
    )
    assert bench.parse_counters(text) == [
        {"load_conflicts": 352_321_536.0, "barrier": 1.25},
        {"load_conflicts": 0.0},
    ]
    assert bench.parse_counters("==ERROR== no permission") == []


def fake_ncu(tmp_path, monkeypatch, script):
    program = tmp_path / "ncu"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")


def test_a_profiler_that_may_not_count_says_why(tmp_path, monkeypatch):
    fake_ncu(tmp_path, monkeypatch, "echo '==ERROR== ERR_NVGPUCTRPERM'; exit 1")
    with pytest.raises(UnavailableError, match=r"count 1 launches, got 0: ==ERROR== ERR_NVGPUCTR"):
        bench.count_conflicts(SQUARE, [bench.ARTICLE])


def test_without_a_profiler_it_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnavailableError, match="needs ncu"):
        bench.count_conflicts(SQUARE, [bench.ARTICLE])


def test_a_profiler_that_hangs_is_given_up(tmp_path, monkeypatch):
    fake_ncu(tmp_path, monkeypatch, "exec sleep 30")
    monkeypatch.setattr(bench, "PROFILE_TIMEOUT_S", 0.2)
    with pytest.raises(UnavailableError, match="ncu did not end within"):
        bench.count_conflicts(SQUARE, [bench.ARTICLE])
