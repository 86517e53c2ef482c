"""dispatch.py: order of places, policies of a miss, explanations, the miss log."""

import json
import os
import pickle
import signal
import threading
import time
from dataclasses import replace

import pytest
import torch

from autoswizzle import dispatch, kernels
from autoswizzle.cache.entry import CacheEntry
from autoswizzle.cache.store import CacheStore, export_entries
from autoswizzle.config import TORCH, GemmConfig
from autoswizzle.dispatch import Dispatcher, decide, dispatcher, explain, export_cache, load_cache
from autoswizzle.errors import CacheError, ConfigError, HardwareError, ProblemError
from autoswizzle.misses import MissLog, read_misses
from autoswizzle.problem import GemmProblem
from autoswizzle.settings import Settings

PROBLEM = GemmProblem(64, 128, 256, "fp16", "nn")


@pytest.fixture
def store(tmp_path):
    return CacheStore(tmp_path / "user", shipped=False)


@pytest.fixture
def made(monkeypatch, tmp_path, store):
    """Builds a dispatcher: made(on_miss="torch", ...)."""
    monkeypatch.setattr(kernels, "current_source", {"pointer": "aaaa", "torch": ""}.get)

    def build(*, triton=(3, 6), rank=None, **changes):
        chosen = Settings(cache_dir=tmp_path / "user", **changes)
        return Dispatcher(chosen, store, lambda: triton, rank)

    return build


def test_a_measured_entry_is_used(made, store, entry_for, h200):
    entry = entry_for(PROBLEM)
    path = store.put(entry)
    decision = made().decide(PROBLEM, h200)
    assert (decision.config, decision.source) == (entry.config, "cache")
    assert (decision.entry, decision.path) == (entry, path)
    assert not decision.uses_torch


def test_a_torch_entry_is_a_decision_not_a_miss(made, store, entry_for, h200):
    store.put(entry_for(PROBLEM, config=TORCH))
    decision = made().decide(PROBLEM, h200)
    assert (decision.config, decision.source, decision.uses_torch) == (TORCH, "cache", True)


@pytest.mark.parametrize(
    "changes",
    [
        {"source": "old"},
        {"triton": (3, 7)},
        {"origin": "predicted"},
        {"config": GemmConfig(num_warps=3)},
        {"config": GemmConfig(kernel="mma_sync")},
    ],
)
def test_an_entry_that_does_not_hold_is_a_miss(made, store, entry_for, h200, changes):
    store.put(entry_for(PROBLEM, **changes))
    decision = made().decide(PROBLEM, h200)
    assert (decision.config, decision.source) == (TORCH, "miss")


def test_an_illegal_entry_is_named_once(made, store, entry_for, h200, caplog):
    path = store.put(entry_for(PROBLEM, config=GemmConfig(num_warps=3)))
    decider = made()
    for _ in range(3):
        decider.decide(PROBLEM, h200)
    [record] = [r for r in caplog.records if r.levelname == "WARNING"]
    assert str(path) in record.getMessage()
    assert "num_warps must be" in record.getMessage()


def test_shipped_entries_come_last(fake_gpu, tmp_path, entry_for, h200):
    export_entries(tmp_path / "shipped" / "h200.json", [entry_for(PROBLEM, trials=1)])
    assert decide(PROBLEM, h200).source == "shipped"
    dispatcher().store.put(entry_for(PROBLEM, trials=2))
    assert (decide(PROBLEM, h200).source, decide(PROBLEM, h200).entry.trials) == ("cache", 2)
    export_entries(tmp_path / "mine.json", [entry_for(PROBLEM, trials=3)])
    load_cache(tmp_path / "mine.json")
    assert decide(PROBLEM, h200).entry.trials == 3


def test_a_cache_path_from_the_environment(fake_gpu, tmp_path, entry_for, h200, monkeypatch):
    export_entries(tmp_path / "b.json", [entry_for(PROBLEM)])
    paths = [str(tmp_path / "gone.json"), str(tmp_path / "b.json")]
    monkeypatch.setenv("AUTOSWIZZLE_CACHE_PATH", os.pathsep.join(paths))
    assert decide(PROBLEM, h200).path == tmp_path / "b.json"


def test_decisions_are_remembered(made, store, h200, monkeypatch):
    decider = made()
    first = decider.decide(PROBLEM, h200)
    monkeypatch.setattr(store, "get", lambda *args: pytest.fail("looked up again"))
    assert decider.decide(PROBLEM, h200) is first


def test_a_new_entry_replaces_what_was_remembered(made, store, entry_for, h200):
    decider = made()
    assert decider.decide(PROBLEM, h200).source == "miss"
    store.put(entry_for(PROBLEM))
    assert decider.decide(PROBLEM, h200).source == "cache"


def test_an_entry_that_can_not_be_kept_is_still_used(made, tmp_path, entry_for, h200):
    (tmp_path / "user").write_text("a file")
    decider = made()
    with pytest.raises(CacheError, match="user"):
        decider.store.put(entry_for(PROBLEM))
    assert decider.decide(PROBLEM, h200).source == "cache"


def test_disabled_is_torch_whatever_is_stored(made, store, entry_for, h200):
    store.put(entry_for(PROBLEM))
    decision = made(disabled=True).decide(PROBLEM, h200)
    assert (decision.config, decision.source) == (TORCH, "disabled")


def test_without_triton_all_is_torch(made, store, entry_for, h200):
    store.put(entry_for(PROBLEM))
    decision = made(triton=None).decide(PROBLEM, h200)
    assert decision.uses_torch
    assert "triton is not installed" in decision.reason


# A miss


def near(m):
    return replace(PROBLEM, m=m)


def test_nearest_takes_the_upper_neighbours_config(made, store, entry_for, h200):
    upper = GemmConfig(block_m=32, block_n=64)
    store.put(entry_for(near(32)))
    store.put(entry_for(near(64), config=upper))
    decision = made().decide(near(48), h200)
    assert (decision.config, decision.source) == (upper, "nearest")
    assert "m = 32 and 64" in decision.reason


@pytest.mark.parametrize(
    "neighbours",
    [
        {32: {}},
        {64: {}},
        {32: {}, 64: {"config": TORCH}},
        {32: {"config": TORCH}, 64: {}},
        {32: {"ratio": 1.01}, 64: {}},
        {32: {}, 64: {"ratio_low": 0.9}},
        {16: {}, 128: {}},
        {16: {}, 64: {}},
        {32: {}, 128: {}},
        {23: {}, 64: {}},
        {32: {}, 97: {}},
        {32: {"source": "old"}, 64: {}},
        {32: {"origin": "predicted"}, 64: {}},
        {32: {}, 64: {"config": GemmConfig(num_warps=3)}},
    ],
)
def test_nearest_needs_two_close_neighbours_that_beat_torch(
    made, store, entry_for, h200, neighbours
):
    for m, changes in neighbours.items():
        store.put(entry_for(near(m), **changes))
    decision = made().decide(near(48), h200)
    assert (decision.config, decision.source) == (TORCH, "miss")


@pytest.mark.parametrize(
    "changes", [{"ratio": 1.01}, {"config": TORCH, "fastest": GemmConfig(), "fastest_ratio": 1.01}]
)
def test_a_miss_between_neighbours_that_win_by_less_does_not_call_torch_as_fast(
    made, store, entry_for, h200, changes
):
    for m in (32, 64):
        store.put(entry_for(near(m), **changes))
    decision = made().decide(near(48), h200)
    assert decision.reason == "no entry; not both m = 32 and 64 beat torch by 2 %"


def test_a_neighbour_that_can_not_run_this_m_is_no_fault_of_its_entry(
    made, store, entry_for, h200, monkeypatch, caplog
):
    """A gemv kernel multiplies as many rows as it was made for, or one fewer of four."""
    monkeypatch.setattr(kernels, "current_source", {"gemv": "aaaa", "torch": ""}.get)
    for m in (1, 4):
        config = GemmConfig("gemv", m, 16, 128, swizzle="row")
        store.put(entry_for(replace(near(m), layout="nt"), config=config))
    decision = made().decide(replace(near(2), layout="nt"), h200)
    assert (decision.config, decision.source) == (TORCH, "miss")
    assert "gemv needs block_m 2 for m 2, got 4" in decision.reason
    assert not caplog.records
    config = GemmConfig("gemv", 2, 16, 128, swizzle="row")
    store.put(entry_for(replace(near(2), layout="nt"), config=config))
    decision = made().decide(replace(near(3), layout="nt"), h200)
    assert (decision.config.block_m, decision.source) == (4, "nearest")


@pytest.mark.parametrize("policy", ["torch", "tune", "error"])
def test_other_policies_ignore_neighbours(made, store, entry_for, h200, policy):
    store.put(entry_for(near(32)))
    store.put(entry_for(near(64)))
    assert made(on_miss=policy).decide(near(48), h200).source == "miss"


def test_the_model_policy_runs_the_predicted_best(made, h200):
    best = GemmConfig(block_m=64)
    decision = made(on_miss="model", rank=lambda problem, gpu: best).decide(PROBLEM, h200)
    assert (decision.config, decision.source) == (best, "model")


def test_the_model_policy_asks_the_simulator(made, h200):
    decision = made(on_miss="model").decide(GemmProblem(64, 64, 64, "fp16", "nn"), h200)
    assert decision.source == "model"
    assert not decision.uses_torch


def test_a_miss_is_logged_once_per_problem(made, h200, tmp_path):
    for _ in range(2):
        decider = made()
        for m in (1, 2, 2, 1):
            decider.decide(near(m), h200)
    log = tmp_path / "user" / "misses.jsonl"
    assert [json.loads(line)["gpu"] for line in log.read_text().splitlines()] == ["H200", "H200"]
    assert read_misses(log) == [near(1), near(2)]


def test_a_hit_is_no_miss(made, store, entry_for, h200, tmp_path):
    store.put(entry_for(PROBLEM))
    made().decide(PROBLEM, h200)
    assert not (tmp_path / "user" / "misses.jsonl").exists()


def test_what_is_explained_is_no_miss_until_it_is_multiplied(fake_gpu, h200):
    log = dispatcher().settings.cache_dir / "misses.jsonl"
    assert explain(PROBLEM).source == "miss"
    assert read_misses(log) == []
    dispatcher().decide(PROBLEM, h200)
    assert explain(PROBLEM).source == "miss"
    assert read_misses(log) == [PROBLEM]


def test_bad_lines_of_a_miss_log_are_skipped(tmp_path, caplog):
    log = tmp_path / "misses.jsonl"
    good = json.dumps({"problem": str(PROBLEM), "gpu": "H200"})
    lines = [good, "", "{", "null", "[]", '{"problem": 5}', '{"problem": "0x1x1"}', good]
    log.write_bytes("\n".join(lines).encode() + b"\n\xff\xfe")
    assert read_misses(log) == [PROBLEM]
    assert len(caplog.records) == 7
    assert f"{log}:7" in caplog.text
    assert read_misses(tmp_path / "none") == []


def test_an_unwritable_miss_log_is_silent(tmp_path, caplog, h200):
    (tmp_path / "file").write_text("")
    MissLog(tmp_path / "file" / "misses.jsonl").add(PROBLEM, "H200")
    assert not [r for r in caplog.records if r.levelname == "WARNING"]


def test_an_unaligned_problem_survives_the_log(tmp_path):
    odd = replace(PROBLEM, aligned=False, batch=3)
    MissLog(tmp_path / "m.jsonl").add(odd, "H200")
    assert read_misses(tmp_path / "m.jsonl") == [odd]


# Explanations


def test_explain_names_the_entry_and_the_reason(fake_gpu, entry_for, h200):
    path = dispatcher().store.put(entry_for(PROBLEM))
    decision = explain(str(PROBLEM), gpu="H200")
    assert decision.entry == entry_for(PROBLEM)
    text = str(decision)
    assert str(path) in text
    assert "1.200x torch.matmul [1.150, 1.250]" in text
    assert json.loads(json.dumps(decision.to_dict()))["path"] == str(path)


def test_explain_shows_the_fastest_of_ours_where_torch_was_kept(fake_gpu, entry_for):
    ours = GemmConfig(swizzle="hilbert")
    dispatcher().store.put(entry_for(PROBLEM, config=TORCH, fastest=ours, fastest_ratio=0.9914))
    decision = explain(PROBLEM)
    assert decision.uses_torch
    assert f"\n  fastest of ours: 0.991x torch.matmul, {ours}\n" in str(decision)
    assert decision.to_dict()["entry"]["fastest"] == ours.to_dict()


def test_explain_of_tensors_is_explain_of_their_problem(fake_gpu, entry_for):
    dispatcher().store.put(entry_for(PROBLEM))
    a, b = torch.empty(64, 256, dtype=torch.float16), torch.empty(256, 128, dtype=torch.float16)
    assert explain(a, b).source == "cache"
    assert explain(a, b) == explain(PROBLEM)


def test_explain_shows_the_nearest_miss_and_what_differs(fake_gpu, entry_for):
    dispatcher().store.put(entry_for(near(2048), source="old"))
    decision = explain(PROBLEM)
    assert decision.near_miss.differences == {"m": (64, 2048), "source": ("aaaa", "old")}
    assert "source: wanted aaaa, found old" in str(decision)
    found = decision.to_dict()["near_miss"]["differences"]["m"]
    assert found == {"wanted": 64, "found": 2048}


def test_explain_of_a_predicted_entry_says_it_is_not_used(fake_gpu, entry_for):
    dispatcher().store.put(entry_for(PROBLEM, origin="predicted"))
    decision = explain(PROBLEM)
    assert decision.uses_torch
    assert "origin: wanted measured, found predicted" in str(decision)


@pytest.mark.parametrize(
    ("a", "b", "words"),
    [
        (torch.ones(2, 2, dtype=torch.int8), torch.ones(2, 2, dtype=torch.int8), "dtypes"),
        (torch.ones(3, 2, 2), torch.ones(3, 2, 2), "2-D product"),
        (torch.ones(0, 2), torch.ones(2, 2), "non-empty"),
        (torch.ones(4, 8)[:, ::2], torch.ones(4, 4), "neither row-major nor column-major"),
    ],
)
def test_explain_says_why_torch(fake_gpu, a, b, words):
    decision = explain(a, b)
    assert (decision.source, decision.config) == ("unsupported", TORCH)
    assert words in decision.reason
    assert words in str(decision)


def test_cpu_tensors_are_torchs():
    assert "CUDA" in explain(torch.ones(2, 2), torch.ones(2, 2)).reason


@pytest.mark.parametrize("arguments", [(5,), (None,), ("64x64x64", "b"), (torch.ones(2, 2),)])
def test_explain_refuses_other_arguments(fake_gpu, arguments):
    with pytest.raises(ProblemError):
        explain(*arguments)


def test_explain_refuses_unknown_gpus_and_texts(fake_gpu):
    with pytest.raises(HardwareError, match="gpu must be one of"):
        explain("64x64x64", gpu="H9000")
    with pytest.raises(ProblemError, match="0x4x4"):
        explain("0x4x4", gpu="H200")


def test_export_and_load(fake_gpu, tmp_path, entry_for):
    for m in (1, 2, 4):
        dispatcher().store.put(entry_for(near(m)))
    assert export_cache(tmp_path / "all.json") == 3
    assert export_cache(tmp_path / "one.json", [near(2)]) == 1
    assert load_cache(str(tmp_path / "one.json")) == 1
    with pytest.raises(CacheError, match="none"):
        load_cache(tmp_path / "none")


def test_a_loaded_file_is_where_it_was_when_the_folder_changes(
    fake_gpu, tmp_path, entry_for, h200, monkeypatch
):
    export_entries(tmp_path / "one.json", [entry_for(PROBLEM)])
    monkeypatch.chdir(tmp_path)
    assert load_cache("one.json") == 1
    monkeypatch.chdir("/")
    assert decide(PROBLEM, h200).source == "cache"


def test_check_config_names_the_field(h200):
    dispatch.check_config(GemmConfig(), PROBLEM, h200)
    with pytest.raises(ConfigError, match="num_warps must be"):
        dispatch.check_config(GemmConfig(num_warps=3), PROBLEM, h200)


# Threads and processes


def test_sixteen_threads_decide_once(made, store, h200, monkeypatch, at_once):
    looked, get = [], store.get
    monkeypatch.setattr(store, "get", lambda *a: (looked.append(1), time.sleep(0.01), get(*a))[2])
    decider = made()
    found = at_once(lambda: decider.decide(PROBLEM, h200))
    assert len(looked) == 1
    assert len({id(decision) for decision in found}) == 1


def test_a_forked_child_starts_afresh_even_while_the_lock_is_held(fake_gpu, h200):
    decide(PROBLEM, h200)
    held, done = threading.Event(), threading.Event()

    def hold():
        with dispatcher().lock, dispatcher().store._lock:
            held.set()
            done.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(10)  # so that a deadlock ends as a failure
        os._exit(0 if decide(near(5), h200).source == "miss" else 1)
    status = os.waitpid(child, 0)[1]
    done.set()
    holder.join()
    assert os.waitstatus_to_exitcode(status) == 0


def test_decisions_and_entries_pickle(entry_for):
    entry = entry_for(PROBLEM)
    decision = dispatch.Decision(PROBLEM, entry.config, "cache", "reason", entry)
    assert pickle.loads(pickle.dumps(decision)) == decision
    assert CacheEntry.from_json(pickle.loads(pickle.dumps(entry)).to_json()) == entry
