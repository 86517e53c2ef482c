"""read_studies: what searches stored, read without a search and without a trace."""

import logging
import sqlite3

import optuna
import pytest

from autoswizzle.config import TORCH, GemmConfig
from autoswizzle.errors import ArgumentError, TuneError
from autoswizzle.hardware import find_gpu
from autoswizzle.problem import GemmProblem
from autoswizzle.search.history import Failure, History
from autoswizzle.search.measure import Measurement
from autoswizzle.search.sampling import SearchSpace
from autoswizzle.search.storage import file_url, open_storage, quiet_optuna
from autoswizzle.search.studies import read_studies

PROBLEM = GemmProblem(512, 512, 512)
SPACE = SearchSpace(PROBLEM, find_gpu("H200"))
A, B, C, D = (GemmConfig(num_stages=stages) for stages in (2, 3, 4, 5))


@pytest.fixture(autouse=True)
def quiet():
    with quiet_optuna():
        yield


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/a study's 100% file.db"


@pytest.fixture
def store(stored_search, url):
    """Stores trials: store(outcomes, ...); those of stored_search by default."""

    def build(found=None, *, problem=PROBLEM, **options):
        stored_search.store(url, problem, found, **options)

    return build


def timed(config, time_us):
    return Measurement(config, time_us, time_us, time_us, "sustained"), None


def test_a_study_tells_what_was_tried(store, stored_search, url):
    store()
    [study] = read_studies(url)
    assert (study.chip, study.problem) == (SPACE.gpu.chip, PROBLEM)
    assert study.chip == "nvidia-sm90-132sms-60MiB-227KiB"
    assert len(study.records) == 6
    assert [item.time_us for item in study.measurements] == [30.0, 15.0, 40.0, 10.0]
    assert study.infeasible == {"CompileError": 1, "Hung": 1}
    assert study.measure_s == 3.0
    assert (study.torch_us, study.best) == (15.0, timed(D, 10.0)[0])
    assert study.curve == [(1, 30.0), (5, 10.0)]
    assert study.spearman == 1.0
    assert study.final == stored_search.FINAL
    assert study.outdated == 0


def test_each_problem_has_its_study(store, url):
    other = GemmProblem(512, 512, 1024)
    store([timed(A, 1.0)])
    store([timed(D, 1.0)], problem=other, gpu="A10")
    assert {(study.problem, study.best.config) for study in read_studies(url)} == {
        (PROBLEM, A),
        (other, D),
    }


def test_trials_of_an_earlier_kernel_do_not_count(store, url):
    store([timed(A, 1.0), timed(TORCH, 9.0)], revisions={"pointer": "old"})
    store([timed(B, 5.0), timed(A, 6.0)], revisions={"pointer": "new"})
    [study] = read_studies(url)
    assert [record.config for record in study.records] == [TORCH, B, A]
    assert study.curve == [(2, 5.0)]
    assert study.outdated == 1


def test_waiting_and_interrupted_trials_are_no_outcome(store, url):
    store([timed(A, 1.0)])
    history = History(url, SPACE, {})

    def stop(config):
        raise KeyboardInterrupt

    history.enqueue(B)
    with pytest.raises(KeyboardInterrupt):
        history.run_next(stop)
    history.enqueue(C)
    history.close()
    [study] = read_studies(url)
    assert [record.config for record in study.records] == [A]


def test_reading_changes_nothing(store, url, tmp_path):
    store()
    [path] = tmp_path.glob("*.db")
    before = path.read_bytes()
    assert len(read_studies(url)) == 1
    assert path.read_bytes() == before
    history = History(url, SPACE, {})  # and no lock is left
    history.close()


@pytest.mark.parametrize("name", ["a?b=c&d", "100%41", "é #;'"])
def test_a_folder_may_have_any_name(name, stored_search, tmp_path):
    path = tmp_path / name / "studies.sqlite3"
    url = file_url(path)
    stored_search.store(url, PROBLEM)
    [study] = read_studies(url)
    assert len(study.records) == 6
    for beside in path.parent.iterdir():
        beside.unlink()
    path.write_bytes(b"no database " * 400)
    open_storage(url).engine.dispose()
    assert path.with_name("studies.sqlite3.damaged-1").read_bytes() == b"no database " * 400
    assert read_studies(url) == []
    assert list(tmp_path.iterdir()) == [path.parent]


@pytest.mark.parametrize("absent", [None, "sqlite://"])
def test_a_storage_that_is_not_there_is_named_and_not_made(url, tmp_path, absent):
    with pytest.raises(ArgumentError, match="storage must be one that exists, got 'sqlite:"):
        read_studies(absent or url)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"no database", b"SQLite format 3\0" + bytes(5000)])
def test_a_file_that_is_no_storage_is_named_and_left_alone(content, store, url, tmp_path):
    store([])
    [path] = tmp_path.glob("*.db")
    path.write_bytes(content)
    with pytest.raises(TuneError, match=r"can't be used"):
        read_studies(url)
    assert path.read_bytes() == content


def test_a_storage_without_its_version_is_not_repaired(store, url, tmp_path):
    store()
    [path] = tmp_path.glob("*.db")
    with sqlite3.connect(path) as connection:
        connection.execute("delete from version_info")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(TuneError, match=r"can't be used"):
        read_studies(url)
    assert path.read_bytes() == before


@pytest.mark.parametrize("ratio", ["fast", float("nan"), float("inf"), 0, None])
def test_a_final_without_a_sane_ratio_is_none(ratio, store, stored_search, url):
    store(final={**stored_search.FINAL.to_dict(), "ratio": ratio})
    assert read_studies(url)[0].final is None


def test_a_storage_of_another_optuna_is_named(store, url, tmp_path):
    store()
    [path] = tmp_path.glob("*.db")
    with sqlite3.connect(path) as connection:
        connection.execute("update alembic_version set version_num = 'v99.0.0.a'")
    with pytest.raises(TuneError, match="no longer compatible"):
        read_studies(url)


def test_a_malformed_url_is_an_argument_error():
    with pytest.raises(ArgumentError, match="storage must be"):
        read_studies("nonsense://x")


def test_foreign_studies_and_trials_are_left_out(store, url):
    store(final={"ratio": "fast"})
    optuna.create_study(study_name="somebody's", storage=url)
    study = optuna.load_study(study_name=f"{SPACE.gpu.chip} {PROBLEM}", storage=url)
    good = {"config": {"kernel": "pointer"}, "outcome": timed(GemmConfig(), 1.0)[0].to_dict()}
    for changes in (
        {"config": 3},
        {"outcome": "fast"},
        {"outcome": {**good["outcome"], "time_us": "fast"}},
        {"outcome": {**good["outcome"], "time_us": float("nan")}},
        {"seconds": "long"},
        {"seconds": float("inf")},
        {"predicted_us": "soon"},
    ):
        study.add_trial(optuna.create_trial(value=1.0, user_attrs={**good, **changes}))
    [found] = read_studies(url)
    assert len(found.records) == 6
    assert found.final is None


def test_a_damaged_study_costs_no_other(store, url, tmp_path, caplog):
    store([timed(A, 1.0)])
    store([timed(A, 1.0)], problem=GemmProblem(512, 512, 64))
    [path] = tmp_path.glob("*.db")
    with sqlite3.connect(path) as connection:
        where = "key = 'outcome' and trial_id = 1"
        connection.execute(f"update trial_user_attributes set value_json = '{{' where {where}")
    with caplog.at_level(logging.WARNING, "autoswizzle"):
        [study] = read_studies(url)
    assert study.problem == GemmProblem(512, 512, 64)
    [message] = caplog.messages
    assert message.startswith(
        "ignoring study 'nvidia-sm90-132sms-60MiB-227KiB 512x512x512:bf16:nn'"
    )


def test_words_for_a_terminal_carry_no_codes(store, url):
    store([(Failure(A, "\x1b[31mRed", "x"), None)])
    [study] = read_studies(url)
    assert study.infeasible == {"'\\x1b[31mRed'": 1}
