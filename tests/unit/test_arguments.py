"""Wrong arguments of the public functions: an error of this package that says what is legal."""

import re

import numpy as np
import pytest
import torch

import autoswizzle
from autoswizzle import smem
from autoswizzle.errors import ArgumentError, ConfigError, UnavailableError

pytestmark = pytest.mark.usefixtures("fresh")

PROBLEM = "64x64x64:fp16"
CONFIG = autoswizzle.GemmConfig()
NO_PROBLEMS = [None, 5, 1.5, b"64x64x64", [], {}, True, "", "64x64x" + "9" * 5000]


@pytest.mark.parametrize("wrong", NO_PROBLEMS, ids=lambda wrong: repr(wrong)[:7])
@pytest.mark.parametrize(
    "call",
    [
        autoswizzle.GemmProblem.parse,
        lambda wrong: autoswizzle.rank(wrong, gpu="H200"),
        lambda wrong: autoswizzle.simulate(wrong, CONFIG, gpu="H200"),
        lambda wrong: autoswizzle.explain(wrong, gpu="H200"),
        lambda wrong: autoswizzle.tune([wrong]),
        lambda wrong: autoswizzle.prepare([wrong]),
        lambda wrong: autoswizzle.export_cache("x.json", [wrong]),
    ],
    ids=["parse", "rank", "simulate", "explain", "tune", "prepare", "export_cache"],
)
def test_what_is_no_problem(call, wrong):
    with pytest.raises(ArgumentError, match=" must "):
        call(wrong)


@pytest.mark.parametrize("wrong", [None, 5, PROBLEM], ids=repr)
@pytest.mark.parametrize("call", [autoswizzle.tune, autoswizzle.prepare], ids=["tune", "prepare"])
def test_what_is_no_list_of_problems(call, wrong):
    with pytest.raises(ArgumentError, match="problems must be an iterable of problems, got"):
        call(wrong)


@pytest.mark.parametrize("wrong", [5, "pointer", {}, []], ids=repr)
def test_what_is_no_configuration(wrong):
    with pytest.raises(ConfigError, match="config must be a GemmConfig, got"):
        autoswizzle.simulate(PROBLEM, wrong, gpu="H200")
    with pytest.raises(ConfigError, match="config must be a GemmConfig, got"):
        autoswizzle.matmul(torch.ones(2, 2), torch.ones(2, 2), config=wrong)


@pytest.mark.parametrize("wrong", [5, b"H200", [], "", "H900"], ids=repr)
def test_what_is_no_gpu(wrong):
    for call in (
        lambda: autoswizzle.rank(PROBLEM, gpu=wrong),
        lambda: autoswizzle.simulate(PROBLEM, CONFIG, gpu=wrong),
        lambda: autoswizzle.explain(PROBLEM, gpu=wrong),
    ):
        with pytest.raises(ArgumentError, match="gpu must be"):
            call()


@pytest.mark.parametrize("wrong", [-1, 1.5, "0", True, [], None], ids=repr)
def test_what_is_no_device(wrong):
    with pytest.raises(ArgumentError, match="device must be an integer of at least 0, got"):
        autoswizzle.tune([PROBLEM], devices=[wrong])
    if wrong is not None:  # the current one
        with pytest.raises(ArgumentError, match="device must be an integer of at least 0, got"):
            autoswizzle.prepare([PROBLEM], device=wrong)


@pytest.mark.parametrize("wrong", ["no", 0, 1, None, []], ids=repr)
@pytest.mark.parametrize("name", ["progress", "force", "from_scratch"])
def test_what_is_no_flag(name, wrong):
    message = f"{name} must be True or False, got {wrong!r}"
    with pytest.raises(ArgumentError, match=re.escape(message)):
        autoswizzle.tune([PROBLEM], **{name: wrong})


@pytest.mark.parametrize("wrong", [5, [], {0}], ids=repr)
def test_what_is_no_list_of_devices(wrong):
    with pytest.raises(ArgumentError, match="devices must be a list of GPUs' numbers, got"):
        autoswizzle.tune([PROBLEM], devices=wrong)


def test_a_device_named_twice():
    with pytest.raises(ArgumentError, match="devices must name each GPU once, got"):
        autoswizzle.tune([PROBLEM], devices=[0, 1, 0])


@pytest.mark.parametrize("wrong", [None, 5, [], {}], ids=repr)
def test_what_is_no_effort(wrong):
    with pytest.raises(ArgumentError, match="effort must be one of quick, standard, exhaustive"):
        autoswizzle.tune([PROBLEM], effort=wrong)


@pytest.mark.parametrize("wrong", [None, 5, b"x.json", "", "x\0.json", []], ids=repr)
def test_what_is_no_path(wrong):
    for call in (
        autoswizzle.load_cache,
        autoswizzle.export_cache,
        *([lambda path: autoswizzle.tune([PROBLEM], out=path)] if wrong is not None else []),
    ):
        with pytest.raises(ArgumentError, match="path must name a file or folder, got"):
            call(wrong)


def test_a_path_that_cannot_be_is_a_cache_error():
    for call in (autoswizzle.load_cache, autoswizzle.export_cache):
        with pytest.raises(autoswizzle.AutoswizzleError, match="File name too long"):
            call("x" * 5000)


def test_tune_refuses_an_output_before_it_looks_for_a_gpu(tmp_path):
    foreign = tmp_path / "package.json"
    foreign.write_text('{"name": "x"}')
    with pytest.raises(ArgumentError, match="must be a cache file or a new one, got"):
        autoswizzle.tune([PROBLEM], out=foreign)
    assert foreign.read_text() == '{"name": "x"}'


def test_prepare_without_a_gpu(monkeypatch):
    def current_device():
        raise AssertionError("Torch not compiled with CUDA enabled")

    monkeypatch.setattr(torch.cuda, "current_device", current_device)
    with pytest.raises(UnavailableError, match="no CUDA device: Torch not compiled"):
        autoswizzle.prepare([PROBLEM])


def test_numbers_beyond_any_tile_order():
    whole = autoswizzle.tile_order("grouped", 3, 2, 3)
    assert np.array_equal(autoswizzle.tile_order("grouped", 3, 2, 10**30), whole)
    with pytest.raises(ArgumentError, match="grid must have less than 2\\^31 tiles, got 65536x"):
        autoswizzle.tile_order("row", 65536, 32768)


@pytest.mark.parametrize(
    "call",
    [
        lambda: smem.warp_grid(None, 64, 4),
        lambda: smem.warp_grid(64, 64, "4"),
        lambda: smem.warp_grid(64, 64, 0),
        lambda: smem.row_lanes(10**30, 10**30),
        lambda: smem.picture("128", 8, 64),
        lambda: smem.picture(smem.tile_layout("128", 64), 10**30, 64),
        lambda: smem.picture(smem.tile_layout("128", 64), 1 << 20, 64),
    ],
)
def test_numbers_beyond_any_shared_memory(call):
    with pytest.raises(ArgumentError, match=" must "):
        call()


NO_WORDS = [None, 5, b"row", [], {}, np.array([1, 2]), torch.ones(2, 2), float("nan"), "no\nsuch"]
WORDS = {
    **{
        f"config {name}": lambda wrong, name=name: autoswizzle.GemmConfig(**{name: wrong})
        for name in ("kernel", "swizzle", "scheduling", "warp_specialize", "smem_a")
    },
    **{
        f"problem {name}": lambda wrong, name=name: autoswizzle.GemmProblem(
            4, 4, 4, **{name: wrong}
        )
        for name in ("dtype", "layout", "out_dtype", "precision", "epilogue")
    },
    "tile_order": lambda wrong: autoswizzle.tile_order(wrong, 2, 2),
    "effort": lambda wrong: autoswizzle.tune([PROBLEM], effort=wrong),
    "activation": lambda wrong: autoswizzle.linear(
        torch.ones(2, 2), torch.ones(2, 2), activation=5 if wrong is None else wrong
    ),
    "smem layout": lambda wrong: smem.tile_layout(wrong, 64),
    "instruction": lambda wrong: smem.bank_conflicts(smem.tile_layout("128", 64), wrong),
}


@pytest.mark.parametrize("wrong", NO_WORDS, ids=lambda wrong: repr(wrong)[:7])
@pytest.mark.parametrize("call", WORDS.values(), ids=WORDS)
def test_what_is_no_legal_word(call, wrong):
    with pytest.raises(ArgumentError, match="must be one of") as caught:
        call(wrong)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "wrong", ["1", [], {}, True, 0, -1, np.array([1, 2]), float("nan"), float("inf")], ids=repr
)
def test_what_is_no_number_of_seconds(wrong):
    with pytest.raises(ArgumentError, match="seconds must be a number above 0, got"):
        autoswizzle.tune([PROBLEM], seconds=wrong)


@pytest.mark.parametrize(
    "wrong", ["1", [], {}, True, 1, -1, np.array([1, 2]), float("nan"), float("inf")], ids=repr
)
def test_what_is_no_margin(wrong):
    with pytest.raises(ArgumentError, match="margin must be a number from 0 to below 1, got"):
        autoswizzle.tune([PROBLEM], margin=wrong)
