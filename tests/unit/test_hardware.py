import logging
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from autoswizzle.cli.app import run
from autoswizzle.errors import HardwareError, UnavailableError
from autoswizzle.hardware import (
    CATALOGUE,
    MIB,
    DeviceFacts,
    Rates,
    Sustained,
    driver_version,
    find_gpu,
    gpu_from_facts,
)
from autoswizzle.hardware.catalogue import LIMITS
from autoswizzle.hardware.detection import _driver_facts, _run_tool

H200 = DeviceFacts("NVIDIA H200", 90, 132, 60 * MIB, 233472, 232448)


def test_catalogue_is_whole() -> None:
    names = [gpu.name for gpu in CATALOGUE]
    assert len(set(names)) == len(names) == 11
    for gpu in CATALOGUE:
        assert gpu.limits == LIMITS[gpu.capability]
        assert 0 < gpu.l2_effective_bytes <= gpu.l2_bytes
        assert gpu.source


@pytest.mark.parametrize("name", ["H200", "h200", "NVIDIA H200", " nvidia-h200 "])
def test_find_ignores_spelling(name: str) -> None:
    assert find_gpu(name).l2_effective_bytes == 30 * MIB


def test_unknown_gpu_lists_the_known() -> None:
    with pytest.raises(HardwareError, match=r"must be one of A100-40GB, .*got 'H300'"):
        find_gpu("H300")


def test_reported_facts_of_a_known_gpu(caplog: pytest.LogCaptureFixture) -> None:
    gpu = gpu_from_facts(H200)
    known = find_gpu("H200")
    assert (gpu.rates, gpu.limits, gpu.l2_effective_bytes, gpu.dram_gbs) == (
        known.rates,
        known.limits,
        known.l2_effective_bytes,
        known.dram_gbs,
    )
    assert not caplog.records


def test_slice_of_a_known_gpu_scales() -> None:
    slice_ = gpu_from_facts(DeviceFacts("NVIDIA H200 MIG 3g.71gb", 90, 60, 30 * MIB))
    assert (slice_.num_sms, slice_.l2_bytes, slice_.l2_effective_bytes) == (60, 30 * MIB, 15 * MIB)
    assert slice_.rates.bf16 == pytest.approx(989.4 * 60 / 132)


@pytest.mark.parametrize("missing", [None, 0])
def test_unreported_facts_fall_back_with_one_warning(
    missing: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "autoswizzle"):
        gpu = gpu_from_facts(DeviceFacts("NVIDIA H200", 90, None, missing))
    assert (gpu.num_sms, gpu.l2_bytes) == (132, 60 * MIB)
    assert [record.message for record in caplog.records] == [
        "NVIDIA H200 does not report num_sms and l2_bytes; using the H200's"
    ]


def test_unknown_capability() -> None:
    with pytest.raises(UnavailableError, match="got 75"):
        gpu_from_facts(DeviceFacts("Tesla T4", 75, 40, 4 * MIB))


def test_driver_tool_output(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    facts = _driver_facts(0, lambda command: "NVIDIA A100, PCIe, 8.0\n")
    assert facts == DeviceFacts("NVIDIA A100, PCIe", 80)
    assert _driver_facts(0, lambda command: None) is None
    assert _driver_facts(0, lambda command: "No devices were found\n") is None


@pytest.mark.parametrize(
    ("visible", "device", "asked"),
    [
        (None, 1, "--id=1"),
        ("3,2", 1, "--id=2"),
        ("GPU-8932f937, MIG-377e", 0, "--id=GPU-8932f937"),
        ("GPU-8932f937, MIG-377e", 1, "--id=MIG-377e"),
        ("3,2", 2, None),
        ("", 0, None),
    ],
)
def test_the_driver_is_asked_for_the_visible_device(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, device: int, asked: str | None
) -> None:
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    commands: list[list[str]] = []

    def tool(command: list[str]) -> str:
        commands.append(command)
        return "NVIDIA H200, 9.0\n"

    found = _driver_facts(device, tool)
    assert [command[1] for command in commands] == ([] if asked is None else [asked])
    assert (found is None) == (asked is None)


@pytest.mark.parametrize("script", ["#!/bin/sh\nexit 9\n", "not a program", "#!/bin/sh\n"])
def test_a_broken_driver_tool_is_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(script)
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert _driver_facts(0, _run_tool) is None
    assert driver_version() is None


def test_a_driver_tool_that_hangs_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(command: list[str], **_: object) -> None:
        raise subprocess.TimeoutExpired(command, 10)

    monkeypatch.setattr("shutil.which", lambda name: name)
    monkeypatch.setattr(subprocess, "run", hang)
    assert driver_version() is None


def test_a_device_beyond_those_visible_is_named_with_their_count(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for option in (["--device", "7"], ["--gpus", "7"]):
        assert run(["tune", "64x64x64", *option]) == 2
        assert capsys.readouterr().err == "error: device must be in 0..1 (2 visible), got 7\n"


def test_overrides() -> None:
    gpu = find_gpu("H200").with_overrides(num_sms=100, l2_mb=12.5)
    assert (gpu.num_sms, gpu.l2_effective_bytes, gpu.l2_bytes) == (100, 13107200, 60 * MIB)


def test_an_sm_computes_and_reads_the_same_however_many_there_are() -> None:
    whole = replace(find_gpu("H200"), measured=Sustained(4300, 9900, 0.7, 2.5))
    half = whole.with_overrides(num_sms=66)
    assert half.rates == Rates(bf16=494.7, fp16=494.7, tf32=247.35, fp32=33.45, fp8=989.45)
    assert half.measured == Sustained(4300, 4950, 0.7, 2.5)
    assert half.with_overrides(num_sms=132).sustained == whole.sustained
    assert find_gpu("H200").with_overrides(num_sms=66).sustained.l2_gbs == 66 * 75
    assert whole.with_overrides(l2_mb=30.0) == whole


@pytest.mark.parametrize("bad", [{"num_sms": 0}, {"num_sms": -3}, {"l2_mb": 0}, {"l2_mb": -1.0}])
def test_illegal_overrides_are_named(bad: dict[str, int]) -> None:
    (name,) = bad
    with pytest.raises(HardwareError, match=name):
        find_gpu("H200").with_overrides(**bad)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e7, 1e-7])
def test_l2_override_must_be_a_capacity(value: float) -> None:
    with pytest.raises(HardwareError, match="l2_mb"):
        find_gpu("H200").with_overrides(l2_mb=value)
