"""What is measured of a GPU: how it is summed up, kept, and put to use."""

import json
from dataclasses import replace

import pytest

from autoswizzle import microbench
from autoswizzle.calibration import (
    READINGS,
    Calibration,
    Reading,
    calibrated,
    calibration_file,
    keep,
)
from autoswizzle.cli.app import run
from autoswizzle.errors import HardwareError, UnavailableError
from autoswizzle.hardware import MIB, DeviceFacts, find_gpu, gpu_from_facts
from autoswizzle.settings import settings

H200 = find_gpu("H200")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("AUTOSWIZZLE_CACHE_DIR", str(tmp_path))
    settings.cache_clear()
    yield tmp_path
    settings.cache_clear()


class FakeGpu:
    """A device whose loads miss as the model of simulator/l2.py says, in every repeat slower."""

    def __init__(self, mib=30.0):
        self.mib, self.calls = mib, []

    def _next(self, name, base):
        self.calls.append(name)
        return base * (1 + 0.01 * (self.calls.count(name) - 1))

    def dram_gbs(self):
        return self._next("dram_gbs", 4000)

    def l2_gbs(self):
        return self._next("l2_gbs", 9000)

    def line_ns(self, size):
        missing = min(max((size / MIB / self.mib - 0.6) / 0.8, 0), 1)
        return 300 + 400 * missing

    def tflops(self):
        return self._next("tflops", 700)

    def launch_us(self):
        return self._next("launch_us", 2)


def test_every_reading_is_a_median_with_its_range():
    probes = FakeGpu()
    found = microbench.calibrate(H200, probes, repeats=3)
    assert found.dram_gbs == Reading(4040, 4000, 4080)
    assert found.dram_gbs.spread == pytest.approx(0.02, rel=0.02)
    assert found.tflops.value == pytest.approx(707)
    assert found.launch_us.low == 2
    assert (found.gpu, found.num_sms, found.l2_bytes) == ("H200", 132, 60 * MIB)
    # In turns, so that a drift of the clocks hits every reading alike; products settle them first.
    assert probes.calls[:4] == ["tflops", "launch_us", "dram_gbs", "l2_gbs"]
    assert probes.calls == probes.calls[:4] * 3


def test_launches_are_timed_behind_queued_products(monkeypatch):
    """The device works through a queue: an idle spell would let the clocks rise."""
    queue = []

    class Stamp:
        def __init__(self, place):
            self.place = place

        def elapsed_time(self, other):
            assert queue[self.place : other.place] == ["graph"] * microbench.REPLAYS
            assert queue[self.place - 1] == "product"
            odd = len(taken) == 1
            taken.append(5.0 if odd else 1.0)  # ms: one window that something disturbed
            return taken[-1]

    class Queue:
        def record(self):
            return Stamp(len(queue))

        def synchronize(self):
            queue.append("wait")

        def capture(self, calls):
            assert len(calls) == microbench.LAUNCHES
            return lambda: queue.append("graph")

    class Probes(microbench.CudaProbes):
        def __init__(self):
            self._backend = Queue()

        def _multiply(self):
            queue.append("product")

        def _time_us(self, call, count):
            return 1e3 * microbench.HEAT_MS / 3

    from autoswizzle.kernels import probes

    taken = []
    monkeypatch.setattr(probes, "nothing", {(1,): lambda: None})
    found = Probes().launch_us()
    assert found == pytest.approx(1e3 / (microbench.REPLAYS * microbench.LAUNCHES))
    assert len(taken) == microbench.WINDOWS
    assert queue.count("product") == 3 * microbench.WINDOWS
    assert queue.index("wait") == len(queue) - 1


@pytest.mark.parametrize("mib", [18.0, 30.0, 47.3, 60.0])
def test_capacity_is_where_half_of_the_loads_miss(mib):
    found = microbench.calibrate(H200, FakeGpu(mib), repeats=1)
    assert found.l2_effective_bytes.value == pytest.approx(mib * MIB, rel=0.02)


def test_capacity_of_a_hard_edge_lies_between_the_sizes_around_it():
    sizes = [10, 20, 30, 40, 50]
    assert 30 < microbench.capacity(sizes, [1, 1, 1, 3, 3]) < 40


def test_a_cache_without_an_edge_is_told():
    with pytest.raises(UnavailableError, match=r"l2_effective_bytes can't be told: .* 100 ns"):
        microbench.capacity([1, 2, 3, 4], [100, 101, 99, 110])


def test_a_kept_calibration_replaces_what_was_expected():
    found = microbench.calibrate(H200, FakeGpu(24), repeats=1)
    assert calibrated(H200) is H200
    assert keep(found, H200) == calibration_file(H200)
    gpu = calibrated(H200)
    assert gpu.l2_effective_bytes == pytest.approx(24 * MIB, rel=0.02)
    assert gpu.sustained.dram_gbs == 4000
    assert gpu.sustained.l2_gbs == 9000
    assert gpu.sustained.launch_us == 2
    assert gpu.sustained.peak_share * gpu.rates.bf16 == pytest.approx(700)
    assert gpu.source.endswith(f"calibrated {found.date[:10]}")
    assert replace(gpu, l2_effective_bytes=1, measured=None, source="") == replace(
        H200, l2_effective_bytes=1, source=""
    )


def test_a_gpu_that_the_catalogue_lacks_predicts_by_its_calibration():
    """The prediction depends on what was measured, not on the nearest entry's datasheet."""
    from autoswizzle.config import GemmConfig
    from autoswizzle.problem import GemmProblem
    from autoswizzle.simulator.ranking import predict

    def predicted(name, num_sms):
        gpu = gpu_from_facts(DeviceFacts(name, 90, num_sms, 60 * MIB))
        keep(microbench.calibrate(gpu, FakeGpu(), repeats=1), gpu)
        return predict(GemmProblem(4096, 4096, 4096, "bf16", "nt"), GemmConfig(), calibrated(gpu))

    known, unknown = predicted("NVIDIA H200", 132), predicted("NVIDIA H20000 X", 132)
    assert unknown.time_us == pytest.approx(known.time_us)
    assert unknown.dram_read_bytes == known.dram_read_bytes


def test_the_file_gives_back_what_was_kept(folder):
    found = microbench.calibrate(H200, FakeGpu(), repeats=2)
    path = keep(found, H200)
    assert path == folder / "calibration" / "h200.json"
    data = json.loads(path.read_text())
    assert data["tflops"]["spread"] == pytest.approx(0.01, rel=0.01)
    assert Calibration.from_dict(data) == found


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"schema": 99}',
        '{"schema": 1}',
        "dram_gbs",
        "num_sms",
        "\x00",
        "[" * 100_000,
    ],
    ids=lambda text: text[:12],
)
def test_a_damaged_file_is_left_alone_with_a_warning(text, caplog):
    path = keep(microbench.calibrate(H200, FakeGpu(), repeats=1), H200)
    if text == "dram_gbs":
        data = json.loads(path.read_text())
        data["dram_gbs"]["value"] = -1
        text = json.dumps(data)
    if text == "num_sms":
        text = json.dumps({**json.loads(path.read_text()), "num_sms": "many"})
    path.write_text(text)
    assert calibrated(H200) is H200
    assert str(path) in caplog.text
    assert path.read_text() == text


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("date", None),
        ("date", 20261130),
        ("date", "2026\x1b[31m"),
        ("gpu", ["H200"]),
        pytest.param("dram_gbs", 10**400, id="beyond float"),
        ("l2_effective_bytes", 1e-9),  # no whole byte
    ],
)
def test_a_file_whose_content_can_not_be_used_is_left_alone_with_a_warning(field, value, caplog):
    path = keep(microbench.calibrate(H200, FakeGpu(), repeats=1), H200)
    reading = dict.fromkeys(("value", "low", "high"), value)
    changed = {field: reading if field in READINGS else value}
    path.write_text(json.dumps({**json.loads(path.read_text()), **changed}))
    assert calibrated(H200) is H200
    assert str(path) in caplog.text


def test_a_calibration_of_another_slice_is_not_used(caplog):
    keep(microbench.calibrate(H200, FakeGpu(), repeats=1), H200)
    half = replace(H200, num_sms=66)
    assert calibrated(half) is half
    assert "132 SMs" in caplog.text


@pytest.mark.parametrize("values", [(0, 0, 0), (1, 2, 3), (3, 1, 2), (1, 1, float("inf"))])
def test_an_impossible_reading_is_refused(values):
    with pytest.raises(HardwareError, match="reading must have"):
        Reading(*values)


@pytest.fixture
def present(monkeypatch):
    import contextlib

    import torch

    monkeypatch.setattr("autoswizzle.cli.calibrate.present_gpu", lambda device: H200)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(microbench, "CudaProbes", lambda gpu: FakeGpu())


def test_the_command_keeps_and_prints(present, folder, capsys):
    assert run(["calibrate", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    path = folder / "calibration" / "h200.json"
    assert data.pop("file") == str(path)
    assert data == json.loads(path.read_text())
    assert set(READINGS) <= set(data)


def test_a_dry_run_keeps_nothing(present, folder, capsys):
    assert run(["calibrate", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "L2, effective capacity" in out
    assert "kept in" not in out
    assert list(folder.iterdir()) == []


def test_without_a_gpu_the_command_says_so(capsys, monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert run(["calibrate"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: no CUDA device 0")
    assert err.count("\n") == 1
