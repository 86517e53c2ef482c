import logging

import pytest

from autoswizzle.errors import HardwareError, UnavailableError
from autoswizzle.hardware import (
    CATALOGUE,
    LIMITS,
    MIB,
    DeviceFacts,
    _driver_facts,
    find_gpu,
    gpu_from_facts,
)

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


def test_driver_tool_output() -> None:
    facts = _driver_facts(0, lambda command: "NVIDIA A100, PCIe, 8.0\n")
    assert facts == DeviceFacts("NVIDIA A100, PCIe", 80)
    assert _driver_facts(0, lambda command: None) is None
    assert _driver_facts(0, lambda command: "No devices were found\n") is None


def test_overrides() -> None:
    gpu = find_gpu("H200").with_overrides(num_sms=100, l2_mb=12.5)
    assert (gpu.num_sms, gpu.l2_effective_bytes, gpu.l2_bytes) == (100, 13107200, 60 * MIB)


@pytest.mark.parametrize("bad", [{"num_sms": 0}, {"num_sms": -3}, {"l2_mb": 0}, {"l2_mb": -1.0}])
def test_illegal_overrides_are_named(bad: dict[str, int]) -> None:
    (name,) = bad
    with pytest.raises(HardwareError, match=name):
        find_gpu("H200").with_overrides(**bad)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_l2_override_must_be_finite(value: float) -> None:
    with pytest.raises(HardwareError, match="l2_mb"):
        find_gpu("H200").with_overrides(l2_mb=value)
