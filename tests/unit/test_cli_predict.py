"""`autoswizzle rank` and `simulate` say what the simulator says."""

import json

import pytest

from autoswizzle.cli.app import run
from autoswizzle.config import SWIZZLES, GemmConfig
from autoswizzle.hardware import MIB, find_gpu
from autoswizzle.problem import GemmProblem
from autoswizzle.simulator import ranking

PROBLEM = "1024x1536x512:fp16:nt"


@pytest.fixture
def few(monkeypatch):
    """A space small enough to rank in no time."""
    configs = [
        GemmConfig(block_m=m, num_warps=w, swizzle=s)
        for m in (32, 64, 128)
        for w in (4, 8)
        for s in SWIZZLES
    ]
    monkeypatch.setattr(ranking, "candidates", lambda problem, gpu: iter(configs))


def printed(capsys, *args):
    assert run([*args, "--json"]) == 0
    out, err = capsys.readouterr()
    return json.loads(out), err


def test_simulate_predicts_the_configuration_asked_for(capsys):
    data, err = printed(
        capsys, "simulate", PROBLEM, "--gpu", "H200", "--block", "128x64x64", "--warps", "8",
        "--stages", "4", "--swizzle", "serpentine", "--group-size", "3", "--persistent",
    )  # fmt: skip
    config = GemmConfig(
        block_m=128, block_n=64, block_k=64, num_warps=8, num_stages=4, swizzle="serpentine",
        group_size=3, persistent=True,
    )  # fmt: skip
    expected = ranking.predict(GemmProblem.parse(PROBLEM), config, find_gpu("H200"))
    assert err == ""
    assert data.items() >= json.loads(json.dumps(expected.to_dict())).items()


def test_the_model_of_the_l2_can_be_chosen(few, capsys):
    problem, gpu = GemmProblem.parse("8192x8192x2048:fp16"), find_gpu("H200")
    expected = ranking.predict(problem, GemmConfig(), gpu, model="l2")
    args = ("simulate", str(problem), "--gpu", "H200", "--model")
    data, _ = printed(capsys, *args, "l2")
    assert data["dram_read_bytes"] == expected.dram_read_bytes
    assert printed(capsys, *args, "lru")[0]["dram_read_bytes"] != expected.dram_read_bytes
    assert run([*args, "l3"]) == 2
    assert "--model must be one of lru, l2, got 'l3'" in capsys.readouterr().err


def test_set_reaches_any_field(capsys):
    data, _ = printed(
        capsys, "simulate", PROBLEM, "--gpu", "H200", "--set", "swizzle=xor", "--set", "num_warps=8"
    )
    assert data["config"] == {"kernel": "pointer", "swizzle": "xor", "num_warps": 8}


def test_simulate_explains_its_terms(capsys):
    assert run(["simulate", PROBLEM, "--gpu", "H200"]) == 0
    plain = capsys.readouterr().out
    assert run(["simulate", PROBLEM, "--gpu", "H200", "--explain"]) == 0
    explained = capsys.readouterr().out
    config = GemmConfig()
    terms = ranking.predict(GemmProblem.parse(PROBLEM), config, find_gpu("H200")).terms
    assert explained.startswith(plain)
    for name, us in terms.items():
        assert [name, f"{us:.2f}", "us"] in [line.split() for line in explained.splitlines()]
    for named in ("L2 hit rate", "DRAM read", "waves", "resident", "time"):
        assert named in plain


def test_rank_lists_the_simulators_best(few, capsys):
    data, _ = printed(capsys, "rank", PROBLEM, "--gpu", "A100-80GB", "--top", "7")
    expected = ranking.rank(GemmProblem.parse(PROBLEM), find_gpu("A100-80GB"), top=7)
    assert [row["config"] for row in data["ranking"]] == [p.config.to_dict() for p in expected]
    assert data["gpu"] == "A100-80GB"
    assert run(["rank", PROBLEM, "--gpu", "A100-80GB", "--top", "7"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 9
    for line, prediction in zip(lines[2:], expected, strict=True):
        assert str(prediction.config) in line


def test_overrides_change_the_gpu(few, capsys):
    data, _ = printed(capsys, "rank", PROBLEM, "--gpu", "H200", "--num-sms", "7", "--l2-mb", "1.5")
    assert data["num_sms"] == 7
    assert data["l2_effective_bytes"] == 1.5 * MIB
    assert {row["resident"] % 7 for row in data["ranking"]} == {0}


def test_no_number_of_sms_makes_a_product_slower(capsys):
    """Four times the SMs: a quarter of the time of what a tile fills, less than a round more."""
    args = ("simulate", "4096x4096x4096:fp16", "--gpu", "H200", "--num-sms")
    found = {sms: printed(capsys, *args, str(sms))[0]["terms"] for sms in (32, 128, 10**6, 10**9)}
    assert found[128]["arithmetic"] == pytest.approx(found[32]["arithmetic"] / 4, rel=0.01)
    assert found[10**6]["arithmetic"] == found[10**9]["arithmetic"] < found[128]["arithmetic"]


@pytest.mark.parametrize("command", ["rank", "simulate"])
def test_without_a_gpu_the_default_is_said_apart_from_the_result(few, capsys, monkeypatch, command):
    from autoswizzle.errors import UnavailableError

    def missing(device):
        raise UnavailableError("no CUDA device 0")

    monkeypatch.setattr("autoswizzle.cli.options.detect", missing)
    data, err = printed(capsys, command, "64x64x64")
    assert data["gpu"] == "H200"
    assert err.count("\n") == 1
    assert "H200" in err


def test_a_dtype_without_kernels_is_one_line(capsys):
    assert run(["simulate", "64x64x64:fp8e4m3", "--gpu", "A100-80GB"]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "fp8e4m3" in err
