from threading import Barrier

import optuna
import pytest

from autoswizzle.config import TORCH, GemmConfig
from autoswizzle.errors import LaunchError
from autoswizzle.hardware import find_gpu
from autoswizzle.problem import GemmProblem
from autoswizzle.search.history import Failure, History, interrupted, measured, taken
from autoswizzle.search.measure import Measurement
from autoswizzle.search.sampling import SearchSpace

SPACE = SearchSpace(GemmProblem(512, 512, 512), find_gpu("H200"))
ONE, TWO = GemmConfig(block_m=64), GemmConfig(block_m=32)


def measure(config):
    return Measurement(config, 10.0, 9.0, 11.0, "sustained")


def run_next(history, evaluate=measure):
    history.run_next(lambda config: (evaluate(config), 0.0))


@pytest.fixture(autouse=True)
def quiet():
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.CRITICAL)
    yield
    optuna.logging.set_verbosity(before)


@pytest.fixture(params=["memory", "sqlite"])
def history(request, tmp_path):
    storage = None if request.param == "memory" else f"sqlite:///{tmp_path}/x.db"
    made = History(storage, SPACE, {})
    yield made
    made.close()


def test_a_configuration_enqueued_by_two_workers_runs_once(history):
    for config in (ONE, ONE, TWO, ONE):
        history.enqueue(config)
    ran = []
    for _ in range(4):
        run_next(history, lambda config: ran.append(config) or measure(config))
    assert ran == [ONE, TWO]
    assert [record.config for record in history.records()] == [ONE, TWO]


def test_an_empty_queue_runs_nothing(history):
    run_next(history, lambda config: pytest.fail("nothing was enqueued"))
    assert history.records() == []


def test_records_tell_what_became_of_each(history):
    for config in (ONE, TORCH, TWO):
        history.enqueue(config, 12.5)
    run_next(history)
    run_next(history, lambda config: Failure(config, "Hung", "no answer"))
    first, second, third = history.records()
    assert (first.outcome, first.time_us, first.predicted_us) == (measure(ONE), 10.0, 12.5)
    assert (second.outcome, second.time_us) == (Failure(TORCH, "Hung", "no answer"), None)
    assert (third.state, third.outcome) == ("waiting", None)
    assert measured(history.records()) == [measure(ONE)]
    assert taken(history.records()) == {ONE, TORCH, TWO}


def test_an_interrupted_configuration_is_free_once(history):
    def stop(config):
        raise KeyboardInterrupt

    for turn in range(2):
        history.enqueue(ONE)
        assert taken(history.records()) == {ONE}
        with pytest.raises(KeyboardInterrupt):
            run_next(history, stop)
        assert interrupted(history.records()) == ([ONE] if turn == 0 else [])
    assert taken(history.records()) == {ONE}


def test_a_trial_is_running_while_it_is_evaluated(history):
    def look(config):
        assert [record.state for record in history.records()] == ["running"]
        return measure(config)

    history.enqueue(ONE)
    run_next(history, look)
    assert [record.state for record in history.records()] == ["finished"]


def test_two_at_a_time_one_evaluates_while_the_other_is_stored(tmp_path):
    history = History(f"sqlite:///{tmp_path}/x.db", SPACE, {})
    configs = [GemmConfig(group_size=size) for size in (1, 2, 3, 4, 6, 8)]
    for config in configs:
        history.enqueue(config)
    both = Barrier(2, timeout=30)  # neither goes on before the other has begun

    def evaluate(config):
        both.wait()
        return measure(config), 0.5

    history.run_next(evaluate, 4)
    states = [record.state for record in history.records()]
    assert states == ["finished"] * 4 + ["waiting"] * 2
    assert measured(history.records()) == [measure(config) for config in configs[:4]]
    history.close()


def test_of_two_at_a_time_an_interrupt_ends_both(tmp_path):
    history = History(f"sqlite:///{tmp_path}/x.db", SPACE, {})
    for config in (ONE, TWO):
        history.enqueue(config)
    both = Barrier(2, timeout=30)

    def evaluate(config):
        both.wait()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        history.run_next(evaluate, 2)
    assert interrupted(history.records()) == [ONE, TWO]
    history.close()


def test_foreign_trials_are_ignored(tmp_path):
    url = f"sqlite:///{tmp_path}/x.db"
    history = History(url, SPACE, {})
    history.enqueue(ONE)
    run_next(history)
    study = optuna.load_study(study_name=history.name, storage=url)
    for attributes in (
        {},
        {"config": 3},
        {"config": {"kernel": "cutlass"}},
        {"config": {"kernel": "pointer", "new_field": 1}},
        {"config": {"kernel": "pointer"}, "outcome": {"time_us": 1.0, "config": {}, "new": 2}},
        {"config": {"kernel": "pointer"}, "outcome": "fast"},
        {"config": {"kernel": "pointer"}, "seconds": 10**400},
        {"config": {"kernel": "pointer"}, "seconds": True},
        {"config": {"kernel": "pointer"}, "predicted_us": -(10**400)},
    ):
        study.add_trial(optuna.create_trial(value=1.0, user_attrs=attributes))
    assert [record.config for record in history.records()] == [ONE]
    history.close()


def test_an_error_of_the_bench_leaves_the_trial_interrupted(history):
    def fail(config):
        raise LaunchError("not caught by the bench")

    history.enqueue(ONE)
    with pytest.raises(LaunchError):
        run_next(history, fail)
    assert interrupted(history.records()) == [ONE]


def test_a_dead_workers_trial_that_another_process_ends_meanwhile(history, monkeypatch):
    def beaten(*_, **__):
        raise optuna.exceptions.UpdateFinishedTrialError

    history._study.ask()
    monkeypatch.setattr("autoswizzle.search.history.is_alive", lambda *_: False)
    monkeypatch.setattr(history._study, "tell", beaten)
    history.release_dead_workers()
