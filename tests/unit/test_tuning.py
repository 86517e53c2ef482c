"""Tuning on several GPUs and with several processes, around fake laboratories."""

import signal
import threading
import time
from contextlib import closing
from functools import partial
from importlib import import_module
from itertools import islice

import optuna
import pytest

from autoswizzle import tuning
from autoswizzle.cache.index import read_entries
from autoswizzle.cache.store import CacheStore, shared_store
from autoswizzle.cli.app import run
from autoswizzle.config import TORCH, GemmConfig
from autoswizzle.errors import ArgumentError, TuneError
from autoswizzle.hardware import find_gpu
from autoswizzle.laboratory import revisions
from autoswizzle.problem import GemmProblem
from autoswizzle.search.ahead import AheadOfNeed
from autoswizzle.search.bench import Screening
from autoswizzle.search.claims import Claims
from autoswizzle.search.finals import Final
from autoswizzle.search.history import History
from autoswizzle.search.measure import Measurement
from autoswizzle.search.sampling import SearchSpace
from autoswizzle.search.study import SearchResult
from autoswizzle.space import candidates
from autoswizzle.transfer import KNOWN

H200 = find_gpu("H200")
OURS = GemmConfig(swizzle="hilbert")
PROBLEMS = [f"{16 * m}x64x64" for m in range(1, 7)]


def found():
    own, torch = Measurement(OURS, 8.0, 7.9, 8.1, "x"), Measurement(TORCH, 10.0, 9.9, 10.1, "x")
    final = Final(OURS, OURS, 1.25, 1.2, 1.3, (own, torch), (own, torch))
    return SearchResult(own, (own, torch), (), None, "trials", final)


class Searches:
    """Stands for the search of every laboratory: records device and m, answers after pause."""

    def __init__(self):
        self.made = []
        self.announced = []
        self.pause = 0.05
        self.error = None

    def __call__(self, laboratory, problem):
        self.made.append((laboratory._device, problem.m))
        if self.error is not None:
            raise self.error
        time.sleep(self.pause)
        return found()

    @property
    def sizes(self):
        return sorted(m for _, m in self.made)


def interrupt_at(sharing, log, lines):
    """Interrupts this process when log has that many lines; the list returned then holds when."""
    interrupted = []

    def interrupt():
        sharing.wait_for_lines(log, lines)
        interrupted.append(time.monotonic())
        signal.raise_signal(signal.SIGINT)

    threading.Thread(target=interrupt).start()
    return interrupted


def test_an_interrupt_ends_every_gpus_processes_and_blames_no_candidate(
    fresh, sharing, monkeypatch, tmp_path
):
    """The real laboratory, with workers that hang instead of measuring."""
    tasks = import_module("shared_tasks")
    log, pools, wanted = tmp_path / "log", [], list(map(GemmProblem.parse, PROBLEMS[:2]))

    def compilers(gpu, gpus):
        pools.append(AheadOfNeed(tasks.fake_compilers, workers=1, limit_s=60))
        return pools[-1]

    monkeypatch.setattr("autoswizzle.laboratory.compilers_for", compilers)
    monkeypatch.setattr(
        "autoswizzle.search.bench.Bench", lambda gpu, run, device: partial(tasks.stuck_bench, log)
    )
    monkeypatch.setattr(tuning, "detect", lambda device: H200)
    interrupted = interrupt_at(sharing, log, 2)
    storage = f"sqlite:///{tmp_path}/s.db"
    with pytest.raises(KeyboardInterrupt):
        tuning.tune(wanted, devices=[0, 1], storage=storage)
    assert time.monotonic() - interrupted[0] < 2
    assert len(pools) == 1
    for problem in wanted:
        with closing(History(storage, SearchSpace(problem, H200), revisions())) as history:
            outcomes = [record.outcome for record in history.records()]
        assert all(item is None or isinstance(item, Measurement) for item in outcomes)
        assert len(outcomes) > sum(item is not None for item in outcomes) > 0
    with closing(Claims(storage)) as claims:
        running = claims._study.get_trials(states=(optuna.trial.TrialState.RUNNING,))
        assert [trial.user_attrs["name"] for trial in running] == ["presence"]


@pytest.mark.parametrize("wanted", [1, 3])
def test_an_interrupt_ends_what_ranks(fresh, sharing, monkeypatch, tmp_path, wanted):
    tasks = import_module("shared_tasks")
    log = tmp_path / "log"
    stuck = partial(tasks.stuck, log)
    monkeypatch.setattr("autoswizzle.laboratory.Ranker", lambda gpu: stuck)
    monkeypatch.setattr(tuning, "detect", lambda device: H200)
    interrupted = interrupt_at(sharing, log, 1)
    with pytest.raises(KeyboardInterrupt):
        tuning.tune(PROBLEMS[:wanted])
    assert time.monotonic() - interrupted[0] < 2


@pytest.fixture
def tried(fresh, fake_laboratory, monkeypatch):
    """Tunes problems quickly; returns what each search measured first."""
    made = []

    class Recorded(fake_laboratory.FakeLaboratory):
        def __init__(self, *given):
            super().__init__(*given)
            made.append(self)

    monkeypatch.setattr(tuning, "Laboratory", Recorded)
    monkeypatch.setattr(tuning, "detect", lambda device: H200)
    monkeypatch.setattr("autoswizzle.verdicts.versions", lambda: {"torch": "2.11"})

    def answer(*problems, **options):
        assert tuning.tune(problems, effort="quick", progress=False, **options).ok
        tasks = [task for task in made[-1].bench.tasks if isinstance(task, Screening)]
        first = {problem: [] for problem in problems}
        for task in tasks:
            first[task.problem].append(task.config)
        return [configs[1:] for configs in first.values()]  # without torch, which starts the bench

    return answer


LARGE = GemmProblem(4096, 6144, 4096, "bf16", "nt")


@pytest.fixture
def odd(fake_laboratory):
    """Configurations that are legal for LARGE and not among its predictions."""
    predicted = set(fake_laboratory.seeds(LARGE))
    return [item for item in islice(candidates(LARGE, H200), 40) if item not in predicted][:6]


def keep(entry_for, m, config, **changes):
    shared_store().put(entry_for(LARGE.with_m(m), config=config, **changes))


def test_a_search_starts_from_what_won_for_like_problems(tried, odd, entry_for, fake_laboratory):
    keep(entry_for, 8192, odd[0])
    keep(entry_for, 1024, odd[1])
    keep(entry_for, 4096, odd[2], gpu=find_gpu("A100-40GB"))
    keep(entry_for, 2048, TORCH)
    [first] = tried(LARGE)
    assert first[:3] == [odd[0], odd[1], fake_laboratory.seeds(LARGE)[1]]


def test_a_search_starts_from_the_fastest_of_ours_where_torch_was_kept(tried, odd, entry_for):
    keep(entry_for, 8192, TORCH, fastest=odd[0], fastest_ratio=1.01)
    keep(entry_for, 2048, odd[1])
    [first] = tried(LARGE)
    assert first[:2] == [odd[1], odd[0]]


def test_force_tries_its_own_outdated_configuration_first(tried, odd, entry_for):
    keep(entry_for, 8192, odd[0])
    keep(entry_for, 4096, odd[1], source="older")
    [first] = tried(LARGE, force=True)
    assert first[:2] == [odd[1], odd[0]]


def test_what_was_tuned_a_moment_ago_is_known_to_the_next(tried, fake_laboratory):
    larger = LARGE.with_m(8192)
    _, first = tried(LARGE, larger)
    assert first[0] == fake_laboratory.winner(LARGE)
    assert fake_laboratory.winner(LARGE) != fake_laboratory.seeds(larger)[1]


def test_a_search_from_scratch_knows_nothing(tried, odd, entry_for, fake_laboratory):
    keep(entry_for, 4096, odd[0], source="older")
    [first] = tried(LARGE, from_scratch=True)
    assert first[0] == fake_laboratory.seeds(LARGE)[1]


@pytest.mark.parametrize(("trials", "known"), [(3, 0), (4, 1), (11, 2), (None, KNOWN)])
def test_predictions_keep_most_of_few_trials(tried, odd, entry_for, trials, known):
    for place, config in enumerate(odd):
        keep(entry_for, 2048 + 16 * place, config)
    [first] = tried(LARGE, trials=trials)
    assert set(first[:known]) == set(odd[len(odd) - known :])
    assert first[known] not in odd


@pytest.mark.parametrize("from_scratch", [False, True])
def test_what_is_known_of_the_next_problem_compiles_meanwhile(
    searches, entry_for, monkeypatch, from_scratch
):
    announced = []
    monkeypatch.setattr(
        tuning.Laboratory, "announce", lambda self, problem, seeds: announced.append(seeds)
    )
    shared_store().put(entry_for(PROBLEMS[2], config=OURS, source="older"))
    tuning.tune(PROBLEMS[:2], from_scratch=from_scratch)
    assert announced == ([[]] if from_scratch else [[OURS]])


@pytest.fixture
def searches(fresh, monkeypatch):
    fake = Searches()
    monkeypatch.setattr(
        tuning.Laboratory, "search", lambda self, problem, _, seeds: fake(self, problem)
    )
    monkeypatch.setattr(
        tuning.Laboratory, "announce", lambda self, problem, _: fake.announced.append(problem.m)
    )
    monkeypatch.setattr(tuning, "detect", lambda device: H200)
    monkeypatch.setattr("autoswizzle.verdicts.versions", lambda: {"torch": "2.11"})
    monkeypatch.setattr("autoswizzle.cli.tune.present_gpu", lambda device: H200)
    return fake


def test_problems_are_shared_among_the_gpus_and_reported_in_order(searches, tmp_path):
    out = tmp_path / "f.json"
    report = tuning.tune(PROBLEMS, devices=[0, 2], out=out)
    assert report.ok
    assert [result.problem for result in report.results] == list(map(GemmProblem.parse, PROBLEMS))
    assert {device for device, _ in searches.made} == {0, 2}
    assert searches.sizes == [16 * m for m in range(1, 7)]
    assert len(read_entries(out)[0]) == 6


@pytest.mark.parametrize("gpus", [1, 2])
def test_the_next_problem_without_an_entry_compiles_meanwhile(searches, gpus):
    tuning.tune(PROBLEMS[2:3])
    tuning.tune(PROBLEMS, devices=range(gpus))
    assert sorted(searches.announced) == [16 * m for m in range(1 + gpus, 7) if m != 3]


def test_equal_gpus_share_their_compilers(searches, monkeypatch):
    made, used = [], []

    class Pool:
        def close(self):
            made.append("closed")

    monkeypatch.setattr(
        "autoswizzle.laboratory.compilers_for", lambda gpu, gpus: made.append(gpu) or Pool()
    )
    monkeypatch.setattr(
        tuning, "detect", lambda device: H200 if device < 2 else find_gpu("A100-40GB")
    )
    both = threading.Barrier(3, timeout=20)

    def search(self, problem, progress, seeds):
        used.append((self.gpu, self.compilers))
        both.wait()
        return found()

    monkeypatch.setattr(tuning.Laboratory, "search", search)
    assert tuning.tune(PROBLEMS[:3], devices=[0, 1, 2]).ok
    assert sorted(gpu.name for gpu in made[:2]) == sorted({gpu.name for gpu, _ in used})
    assert made[2:] == ["closed", "closed"]
    assert len({id(compilers) for _, compilers in used}) == 2


def test_an_entry_is_of_the_gpu_it_was_measured_on(searches, monkeypatch):  # G02
    gpus = [H200, find_gpu("A100-40GB")]
    monkeypatch.setattr(tuning, "detect", lambda device: gpus[device])
    for device, gpu in enumerate(gpus):
        [result] = tuning.tune(PROBLEMS[:1], devices=[device]).results
        assert not result.skipped
        found = result.entry.key
        assert (found.num_sms, found.l2_bytes) == (gpu.num_sms, gpu.l2_bytes)
        assert result.entry.gpu == gpu.name
    assert [device for device, _ in searches.made] == [0, 1]


@pytest.mark.parametrize(
    ("devices", "named"), [([], "devices must be a list"), ([1, 1], "must name each GPU once")]
)
def test_devices_are_named_once(searches, devices, named):
    with pytest.raises(ArgumentError, match=named):
        tuning.tune(PROBLEMS, devices=devices)


def other_host(monkeypatch, tmp_path, name):
    """As a host with the same storage and a cache folder of its own."""
    store = CacheStore(tmp_path / name, shipped=False)
    monkeypatch.setattr(tuning, "shared_store", lambda: store)
    return store


def test_a_verdict_of_another_host_is_taken_over(searches, monkeypatch, tmp_path):
    storage = f"sqlite:///{tmp_path}/shared.db"
    other_host(monkeypatch, tmp_path, "one")
    tuning.tune(PROBLEMS[:2], storage=storage)
    store = other_host(monkeypatch, tmp_path, "two")
    report = tuning.tune(PROBLEMS[:3], storage=storage)
    assert searches.sizes == [16, 32, 48]
    assert [result.skipped for result in report.results] == [True, True, False]
    assert {stored.entry.key.problem.m for stored in store.entries()} == {16, 32, 48}
    tuning.tune(PROBLEMS[:1], storage=storage, force=True)
    assert searches.sizes == [16, 16, 32, 48]


def test_a_verdict_of_another_margin_is_taken_over_unless_forced(
    tried, monkeypatch, tmp_path, fake_laboratory
):
    """Ours is 1.5 % faster."""
    monkeypatch.setattr(fake_laboratory.FakeLaboratory, "torch_us", 101.5)
    storage, problem = f"sqlite:///{tmp_path}/shared.db", LARGE
    fastest = fake_laboratory.winner(problem)
    store = other_host(monkeypatch, tmp_path, "one")
    tried(problem, storage=storage)
    [kept] = [stored.entry for stored in store.entries()]
    assert (kept.config, kept.fastest) == (TORCH, fastest)
    store = other_host(monkeypatch, tmp_path, "two")
    tried(problem, storage=storage, margin=0.01)
    assert [stored.entry for stored in store.entries()] == [kept]
    tried(problem, storage=storage, margin=0.01, force=True)
    entries = {stored.entry.config: stored.entry for stored in store.entries()}
    assert entries[fastest].ratio == pytest.approx(1.015)
    assert not entries[fastest].beats_torch  # by 2 %, which nearest asks for


@pytest.mark.parametrize(
    ("margin", "wins"), [(None, False), (0.0, True), (0.014, True), (0.5, False)]
)
def test_a_margin_decides_what_wins(tried, monkeypatch, fake_laboratory, margin, wins):
    """Ours is 1.5 % faster."""
    monkeypatch.setattr(fake_laboratory.FakeLaboratory, "torch_us", 101.5)
    tried(LARGE, margin=margin)
    [entry] = [stored.entry for stored in shared_store().entries()]
    assert entry.config == (fake_laboratory.winner(LARGE) if wins else TORCH)


def test_another_margin_decides_a_finished_search_without_measuring(
    tried, odd, entry_for, monkeypatch, fake_laboratory
):
    """Ours is 1.5 % faster; what was learnt of like problems since is tried unless from scratch."""
    monkeypatch.setattr(fake_laboratory.FakeLaboratory, "torch_us", 101.5)
    tried(LARGE)
    keep(entry_for, 8192, odd[0])
    with monkeypatch.context() as unraced:
        unraced.delattr("autoswizzle.search.study.run_final")
        assert tried(LARGE, force=True, from_scratch=True, margin=0.01) == [[]]
    entries = [stored.entry for stored in shared_store().entries() if stored.place == "user"]
    assert fake_laboratory.winner(LARGE) in [e.config for e in entries if e.key.problem == LARGE]
    assert tried(LARGE, force=True, margin=0.01) == [[odd[0]]]


def test_another_versions_verdict_is_not(searches, monkeypatch, tmp_path):
    storage = f"sqlite:///{tmp_path}/shared.db"
    other_host(monkeypatch, tmp_path, "one")
    tuning.tune(PROBLEMS[:1], storage=storage)
    other_host(monkeypatch, tmp_path, "two")
    monkeypatch.setattr("autoswizzle.kernels.current_source", lambda kernel: "changed")
    tuning.tune(PROBLEMS[:1], storage=storage)
    assert searches.sizes == [16, 16]


def test_a_problem_another_process_has_waits_and_is_taken_from_it(searches, monkeypatch, tmp_path):
    storage = f"sqlite:///{tmp_path}/shared.db"
    other_host(monkeypatch, tmp_path, "one")
    tuning.tune(PROBLEMS[:1], storage=storage)
    claims = Claims(storage)
    [name] = claims._storage.get_study_user_attrs(claims._study_id)
    verdict = claims.verdict(name)
    claims.save_verdict(name, {})
    assert claims.claim(name)

    def finish():
        claims.save_verdict(name, verdict)
        claims.close()

    other_host(monkeypatch, tmp_path, "two")
    timer = threading.Timer(1, finish)
    timer.start()
    report = tuning.tune(PROBLEMS[:2], storage=storage)
    timer.join()
    assert [result.skipped for result in report.results] == [True, False]
    assert searches.sizes == [16, 32]


def test_a_failed_problem_is_free_for_others(searches, monkeypatch, tmp_path):
    storage = f"sqlite:///{tmp_path}/shared.db"
    searches.error = TuneError("every candidate failed")
    [result] = tuning.tune(PROBLEMS[:1], storage=storage).results
    assert result.error == "every candidate failed"
    searches.error = None
    assert tuning.tune(PROBLEMS[:1], storage=storage).ok


def test_an_interrupt_of_one_gpus_search_exits_130_and_keeps_what_is_done(
    searches, tmp_path, capsys
):
    out = tmp_path / "f.json"
    assert run(["tune", PROBLEMS[0], "--out", str(out)]) == 0
    searches.error = KeyboardInterrupt()
    assert run(["tune", *PROBLEMS, "--gpus", "0,1", "--out", str(out)]) == 130
    assert "kept" in capsys.readouterr().err
    assert [entry.key.problem.m for entry in read_entries(out)[0]] == [16]
