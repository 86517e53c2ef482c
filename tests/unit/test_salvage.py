"""Damaged SQLite files of studies: nothing raises, what can be read is kept (case S03)."""

import sqlite3
import sys
from pathlib import Path

import pytest

from autoswizzle.config import TORCH, GemmConfig
from autoswizzle.hardware import find_gpu
from autoswizzle.problem import GemmProblem
from autoswizzle.search.claims import Claims
from autoswizzle.search.history import History
from autoswizzle.search.salvage import damage, salvage
from autoswizzle.search.sampling import SearchSpace
from autoswizzle.search.storage import quiet_optuna

PROBLEM = GemmProblem(512, 512, 512)
CONFIGS = [TORCH, *(GemmConfig(block_m=m, num_stages=s) for m in (64, 128) for s in (2, 3, 4, 5))]
PAGE = 4096


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A file of ten trials, the last a failure, with a final and a verdict."""
    sys.path.insert(0, str(Path(__file__).parent))
    import stored_search

    sys.path.pop(0)
    path = tmp_path_factory.mktemp("whole") / "studies.db"
    failure = stored_search.Failure(GemmConfig(swizzle="hilbert"), "Hung", "no answer")
    found = [stored_search.timed(config, 10.0 + place) for place, config in enumerate(CONFIGS)]
    trials = [(outcome, None) for outcome in (*found, failure)]
    final = stored_search.FINAL.to_dict()
    stored_search.store(f"sqlite:///{path}", PROBLEM, trials, final=final)
    claims = Claims(f"sqlite:///{path}")
    claims.save_verdict("name", {"it": "stays"})
    claims.close()
    return path.read_bytes()


@pytest.fixture
def path(tmp_path, whole):
    path = tmp_path / "studies.db"
    path.write_bytes(whole)
    return path


def reopened(path):
    """The records and the final that a search finds."""
    with quiet_optuna():
        history = History(f"sqlite:///{path}", SearchSpace(PROBLEM, find_gpu("H200")), {})
    found = history.records(), history.final
    history.close()
    return found


def change(path, statement, *values):
    with sqlite3.connect(path) as connection:
        assert connection.execute(statement, values).rowcount > 0
    connection.close()


def test_a_file_without_damage_is_left_alone(path, caplog):
    records, final = reopened(path)
    assert len(records) == 10
    assert final is not None
    assert [item.name for item in path.parent.iterdir()] == [path.name]
    assert not caplog.records


def in_a_value(path):
    outcome = "UPDATE trial_user_attributes SET value_json = ? WHERE trial_id = 5 AND key = ?"
    change(path, outcome, '{"time_us": 1\0\0', "outcome")


def undecodable(path):
    outcome = "UPDATE trial_user_attributes SET value_json = ? WHERE trial_id = 5 AND key = ?"
    change(path, outcome.replace("?", "CAST(? AS TEXT)", 1), b'{"\xff": 1}', "outcome")


def in_a_key(path):
    key = "UPDATE trial_user_attributes SET key = CAST(? AS TEXT) WHERE trial_id = 5 AND key = ?"
    change(path, key, b"outc\xffme", "outcome")


def in_a_state(path):
    change(path, "UPDATE trials SET state = 'COMPLETF' WHERE trial_id = 5")


def in_a_date(path):
    change(path, "UPDATE trials SET datetime_complete = 'soon' WHERE trial_id = 5")


def in_the_last_bytes(path):
    path.write_bytes(path.read_bytes()[:-20])


@pytest.mark.parametrize(
    "damaged", [in_a_value, undecodable, in_a_key, in_a_state, in_a_date, in_the_last_bytes]
)
def test_a_damaged_value_costs_its_trial_alone(path, caplog, damaged):
    before, final = reopened(path)
    damaged(path)
    content = path.read_bytes()
    records, kept = reopened(path)
    assert len(records) >= 9
    expected = [(item.config, item.outcome) for item in before]
    assert [(item.config, item.outcome) for item in records] == [
        pair for pair in expected if pair[0] in {item.config for item in records}
    ]
    assert kept == final
    aside = path.with_name("studies.db.damaged-1")
    assert aside.read_bytes() == content
    [record] = caplog.records
    message = record.getMessage()
    assert str(path) in message
    assert f"kept as {aside.name}" in message
    assert f"{len(records)} trials that can be read" in message
    assert message.isprintable()
    caplog.clear()
    assert reopened(path)[0] == records  # the new file is whole
    assert not caplog.records


def test_verdicts_survive(path):
    in_a_value(path)
    claims = Claims(f"sqlite:///{path}")
    assert claims.verdict("name") == {"it": "stays"}
    claims.close()


@pytest.mark.parametrize("fill", [b"\0", b"\xa5"], ids=["zeros", "junk"])
def test_most_pages_are_not_needed(path, whole, fill):
    pages, kept = len(whole) // PAGE, []
    for page in range(pages):
        path.write_bytes(whole[: page * PAGE] + fill * PAGE + whole[(page + 1) * PAGE :])
        before = path.read_bytes()
        if page == 0:
            assert damage(path, 1) == "file is not a database"
        kept.append(sum(len(study.trials) for study in salvage(path)))
        assert path.read_bytes() == before
        assert [file.name for file in path.parent.iterdir()] == [path.name]
    assert max(kept) == 10
    assert sum(count == 10 for count in kept) >= 0.7 * pages


@pytest.mark.parametrize("left", [0, 50, PAGE, 2 * PAGE + 7, -3 * PAGE, -PAGE, -1])
def test_a_file_cut_anywhere_is_read(path, whole, left):
    path.write_bytes(whole[:left])
    assert sum(len(study.trials) for study in salvage(path)) <= 10


def test_a_search_goes_on_where_half_of_the_file_is_lost(path, whole):
    path.write_bytes(whole[: len(whole) // 2])
    assert len(reopened(path)[0]) < 10


def test_what_the_log_ahead_holds_counts(path):
    """A killed process leaves its last trials in the file's log alone."""
    keep = sqlite3.connect(path)  # an open reader, so that closing does not empty the log
    keep.execute("PRAGMA journal_mode=WAL")
    keep.execute("SELECT count(*) FROM trials").fetchone()
    in_a_value(path)
    records, _ = reopened(path)
    keep.close()
    assert len(records) == 9
