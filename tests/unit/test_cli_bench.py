"""`autoswizzle bench` around a device that answers with fixed times."""

import json

import pytest

from autoswizzle import order_bench
from autoswizzle.cli.app import run
from autoswizzle.config import GemmConfig
from autoswizzle.hardware import MIB, find_gpu
from autoswizzle.order_bench import OrderRow
from autoswizzle.report.orders import correlations, order_table
from autoswizzle.search.measure import Measurement
from autoswizzle.simulator.ranking import Prediction

# Source article, RTX 5080, 8192^3 fp16, tiles 128x128x32: predicted hit %, ms, TFLOPS.
PUBLISHED = {
    ("row", 8): (79.43, 9.342, 117.70),
    ("column", 8): (79.43, 11.548, 95.21),
    ("grouped", 1): (79.43, 9.383, 117.18),
    ("grouped", 2): (79.52, 9.486, 115.90),
    ("grouped", 4): (85.57, 9.476, 116.03),
    ("grouped", 8): (92.13, 9.464, 116.18),
    ("grouped", 16): (95.27, 9.482, 115.95),
    ("grouped", 32): (88.06, 9.485, 115.92),
    ("grouped", 64): (79.43, 11.636, 94.49),
    ("morton", 8): (89.39, 9.590, 114.66),
    ("xor", 8): (79.43, 11.530, 95.36),
}


def rows_of(problem, base, times=PUBLISHED):
    rows = []
    for (swizzle, size), (hit, ms, _) in times.items():
        config = GemmConfig.from_dict({**base.to_dict(), "swizzle": swizzle, "group_size": size})
        read = int((1 - hit / 100) * 17_179_869_184)
        prediction = Prediction(problem, config, hit / 100, read, 134_217_728, 24.4, 168, 9e3, {})
        measurement = Measurement(config, 1e3 * ms, 990 * ms, 1010 * ms, "burst")
        rows.append(OrderRow(prediction, measurement))
    return rows


@pytest.fixture
def device(monkeypatch):
    calls = []

    def bench_orders(problem, base, **options):
        calls.append((problem, base, options))
        return rows_of(problem, base)

    monkeypatch.setattr(order_bench, "bench_orders", bench_orders)
    monkeypatch.setattr("autoswizzle.cli.bench.present_gpu", lambda device: find_gpu("RTX 5080"))
    monkeypatch.setattr("autoswizzle.verdicts.versions", lambda: {"torch": "2.11", "triton": "3.6"})
    return calls


def test_the_articles_table(device, capsys):
    args = ["8192x8192x8192", "--dtype", "fp16", "--block", "128x128x32", "--warmup", "5"]
    assert run(["bench", *args, "--rep", "50"]) == 0
    out = capsys.readouterr().out
    head, body = out.split("order ")[0], out.split("\n")
    for named in ("RTX 5080", "84 SMs", "8192x8192x8192:fp16:nn", "tiles 128x128x32 (64 x 64)"):
        assert named in head
    for named in ("capacity 168 programs (2 an SM)", "one program per tile", "burst", "triton 3.6"):
        assert named in head
    for (swizzle, size), (hit, ms, tflops) in PUBLISHED.items():
        group = str(size) if swizzle == "grouped" else "-"
        [line] = [line.split() for line in body if line.split()[:2] == [swizzle, group]]
        assert line[2] == f"{hit:.2f}"
        assert line[5] == f"{ms:.3f}"
        assert float(line[6]) == pytest.approx(tflops, abs=0.02)
    [(problem, base, options)] = device
    assert str(problem) == "8192x8192x8192:fp16:nn"
    assert (base.block_m, base.block_n, base.block_k, base.persistent) == (128, 128, 32, False)
    assert (options["timing"], options["warmup_ms"], options["rep_ms"]) == ("burst", 5.0, 50.0)
    assert "Spearman(predicted hit rate, TFLOPS)" in out


def test_fp32_runs_in_both_precisions_unless_one_is_stated(device, capsys):
    assert run(["bench", "512x512x512", "--dtype", "fp32", "--persistent"]) == 0
    assert [problem.precision for problem, _, _ in device] == ["tf32", "ieee"]
    assert all(base.persistent for _, base, _ in device)
    assert capsys.readouterr().out.count("persistent") == 2
    device.clear()
    assert run(["bench", "512x512x512:fp32:nt:ieee", "--timing", "sustained"]) == 0
    assert [problem.precision for problem, _, _ in device] == ["ieee"]
    assert device[0][2]["timing"] == "sustained"


def test_json_is_all_that_stdout_holds(device, capsys):
    assert run(["bench", "512x512x512", "--l2-mb", "32", "--json"]) == 0
    [report] = json.loads(capsys.readouterr().out)
    assert report["l2_effective_bytes"] == 32 * MIB
    assert len(report["rows"]) == len(PUBLISHED)
    assert report["spearman"]["hit_rate_tflops"] == pytest.approx(0.27, abs=0.3)


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (["512x512x512", "--dtype", "int8"], "--dtype must be one of fp16, bf16, fp32"),
        (["512x512x512:fp16", "--dtype", "bf16"], "--dtype must agree"),
        (["512x512", "--dtype", "fp16"], "must be [BATCHx]MxNxK"),
        (["512x512x512", "--timing", "cold"], "--timing must be one of burst, sustained"),
        (["512x512x512", "--rep", "0"], "--rep must be a number above 0"),
        (["512x512x512", "--block", "100x64x64"], "block_m must be a power of two"),
        (["512x512x512", "--set", "kernel=torch"], "torch"),
    ],
)
def test_bad_arguments_measure_nothing(device, capsys, args, named):
    assert run(["bench", *args]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert named in err
    assert device == []


def test_correlations_average_ties_and_refuse_constants():
    from autoswizzle.problem import GemmProblem

    problem, base = GemmProblem(8192, 8192, 8192, "fp16"), GemmConfig()
    perfect = {
        ("row", 8): (50.0, 4.0, 0),
        ("column", 8): (60.0, 3.0, 0),
        ("xor", 8): (70.0, 2.0, 0),
    }
    assert correlations(rows_of(problem, base, perfect)) == {
        "hit_rate_tflops": pytest.approx(1.0),
        "dram_time": pytest.approx(1.0),
    }
    # By hand: ranks of the hit rate 1.5, 1.5, 3, of the rate 1, 2, 3: Pearson 0.866.
    tied = {**perfect, ("column", 8): (50.0, 3.0, 0)}
    found = correlations(rows_of(problem, base, tied))
    assert found["hit_rate_tflops"] == pytest.approx(0.866, abs=1e-3)
    flat = {key: (50.0, ms, 0) for key, (_, ms, _) in perfect.items()}
    assert correlations(rows_of(problem, base, flat))["hit_rate_tflops"] is None
    assert order_table([]).startswith("order")


def test_without_a_gpu_it_is_one_line(capsys, monkeypatch):
    from autoswizzle.errors import UnavailableError

    def missing(device):
        raise UnavailableError(f"no CUDA device {device}: torch finds none")

    monkeypatch.setattr("autoswizzle.cli.bench.present_gpu", missing)
    assert run(["bench", "512x512x512"]) == 1
    assert capsys.readouterr().err == "error: no CUDA device 0: torch finds none\n"
