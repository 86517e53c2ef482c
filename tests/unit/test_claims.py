"""Claims to problems in a storage that several processes share."""

import sqlite3
import time
from contextlib import suppress

import pytest

from autoswizzle.errors import TuneError
from autoswizzle.search import claims as module
from autoswizzle.search.claims import Claims


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/studies.db"


@pytest.fixture
def opened(url):
    made = []

    def build():
        made.append(Claims(url))
        return made[-1]

    yield build
    for claims in made:
        claims.close()


def test_a_name_is_one_claimants_until_released(opened):
    one, two = opened(), opened()
    assert one.claim("a")
    assert not two.claim("a")
    assert two.claim("b")
    one.release("a")
    assert two.claim("a")
    assert not one.claim("a")


def test_a_claim_ends_with_its_block_and_with_its_claims(opened):
    one, two = opened(), opened()
    with suppress(KeyboardInterrupt), one.claimed("a") as held:
        assert held
        with two.claimed("a") as again:
            assert not again
        assert not two.claim("a")  # the failed claim did not end the real one
        raise KeyboardInterrupt
    assert two.claim("a")
    two.close()
    assert one.claim("a")


def test_verdicts_are_everybodys(opened):
    one, two = opened(), opened()
    assert two.verdict("a") is None
    one.save_verdict("a", {"time_us": 1.5})
    assert two.verdict("a") == {"time_us": 1.5}
    assert two.verdict("b") is None


def test_of_two_claims_made_at_once_the_first_holds(opened, monkeypatch):
    """Both saw no claim before they made their own."""
    one, two = opened(), opened()
    real = Claims._add

    def add(self, name):
        number = real(self, name)
        if self is one:
            assert not two.claim(name)
        return number

    monkeypatch.setattr(Claims, "_add", add)
    seen = [{}, {}]
    live = Claims._live
    monkeypatch.setattr(
        Claims, "_live", lambda self, name: seen.pop() if seen else live(self, name)
    )
    assert one.claim("a")
    assert not seen


def test_the_claim_of_a_killed_process_is_free_at_once(opened, url, tmp_path, sharing):
    claims = opened()
    holder = sharing.start("hold", url, tmp_path / "log", "a")
    sharing.wait_for_lines(tmp_path / "log", 1, [holder])
    assert sharing.lines(tmp_path / "log") == ["True"]
    assert not claims.claim("a")
    holder.kill()
    holder.communicate()
    assert claims.claim("a")


def moved(url, host="elsewhere"):
    """Make every claim so far another host's."""
    with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
        connection.execute(
            "UPDATE trial_user_attributes SET value_json = json_set(value_json, '$.host', ?) "
            "WHERE key = 'worker'",
            (host,),
        )


def silence(url, seconds):
    """As if no heartbeat had come for so long."""
    with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
        connection.execute(
            "UPDATE trial_heartbeats SET heartbeat = datetime('now', ?)", (f"-{seconds} seconds",)
        )


def test_another_hosts_claim_ends_when_its_heartbeat_is_silent(opened, url, monkeypatch):
    theirs, ours = opened(), opened()
    assert theirs.claim("a")
    moved(url)
    assert not ours.claim("a")
    silence(url, module.GRACE_S - 30)
    assert not ours.claim("a")
    silence(url, module.GRACE_S + 5)
    assert ours.claim("a")
    theirs.release("a")  # it wakes up: that is no error, and the claim stays ours
    assert not theirs.claim("a")


def test_a_claim_is_kept_alive(opened, url, monkeypatch):
    monkeypatch.setattr(module, "HEARTBEAT_S", 0.05)
    claims, other = opened(), opened()
    assert claims.claim("a")
    moved(url)
    silence(url, module.GRACE_S + 5)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        time.sleep(0.1)
        with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
            beats = "SELECT max(julianday('now') - julianday(heartbeat)) FROM trial_heartbeats"
            if connection.execute(beats).fetchone()[0] * 86400 < 10:
                break
    assert not other.claim("a")


def test_a_file_in_use_on_another_host_is_refused_in_one_line(opened, url):
    opened()
    moved(url)
    with pytest.raises(TuneError) as refused:
        Claims(url)
    message = str(refused.value)
    assert "in use on host elsewhere" in message
    assert "postgresql://" in message
    assert "\n" not in message
    silence(url, module.GRACE_S + 5)
    opened()  # that host is gone


def test_four_processes_do_each_problem_once_and_lose_no_trial_to_a_kill(url, tmp_path, sharing):
    sharing.four_share(url, tmp_path)


def test_a_server_that_does_not_answer_is_named_without_its_password():
    pytest.importorskip("psycopg", reason="the driver is an extra")
    with pytest.raises(TuneError, match=r"storage postgresql\+psycopg://me:\*\*\*@") as unusable:
        Claims("postgresql+psycopg://me:secret@127.0.0.1:1/name")
    assert "secret" not in str(unusable.value)
    assert "\n" not in str(unusable.value)
