"""Tuning on a Dask cluster: a real one, of three worker processes with fake GPUs."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from importlib import import_module
from pathlib import Path
from uuid import uuid4

import dask
import distributed
import pytest
from distributed.utils import get_mp_context

from autoswizzle import cluster, tuning
from autoswizzle.cache.index import read_entries
from autoswizzle.cache.store import shared_store
from autoswizzle.cli.app import run
from autoswizzle.cluster import connected, free_gpu
from autoswizzle.errors import ArgumentError, UnavailableError
from autoswizzle.problem import GemmProblem

SLOW_IMPORTS = ["distributed", "torch", "autoswizzle.tuning", "autoswizzle.search.study"]
FAILS, KILLS = 96, 112  # as cluster_preload
PROBLEMS = [f"{16 * m}x64x64" for m in range(1, 5)]


class Workers:
    """The cluster's workers: what they did, and what they shall do."""

    def __init__(self, folder, local):
        self.folder = folder
        self.cluster = local
        self.backend = backend_of(local)

    @property
    def log(self):
        """What they did since the last clear: (event, m, process id)."""
        path = self.folder / "log"
        lines = path.read_text().split() if path.exists() else []
        return list(zip(lines[::3], map(int, lines[1::3]), map(int, lines[2::3]), strict=True))

    def clear(self):
        for path in self.folder.iterdir():
            path.unlink()

    def set(self, *names):
        for name in names:
            (self.folder / name).touch()

    def wait_for_hung(self):
        """The process id of the worker whose search hangs, as soon as one does."""
        hung = self.folder / "hung"
        wait_until(lambda: hung.exists() and hung.read_text())
        return int(hung.read_text())


def wait_until(condition, limit_s=60):
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def local_cluster(workers, **options):
    """A cluster of this host, on ports that the system chooses."""
    return distributed.LocalCluster(
        n_workers=workers,
        host="127.0.0.1",
        scheduler_port=0,
        dashboard_address="127.0.0.1:0",
        **options,
    )


@pytest.fixture(scope="module")
def forked():
    """Dask forks its workers from a process that has the slow imports, rather than spawn them."""
    with dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"}):
        context = get_mp_context()  # at its first call Dask sets imports of its own
        context.set_forkserver_preload(SLOW_IMPORTS)
        yield


@pytest.fixture(scope="module")
def started(forked, tmp_path_factory):
    folder = tmp_path_factory.mktemp("cluster")
    (folder / "searches").mkdir()
    env = {"SEARCHES": str(folder / "searches"), "AUTOSWIZZLE_CACHE_DIR": str(folder / "cache")}
    with (
        local_cluster(
            3,
            threads_per_worker=2,
            memory_limit=None,
            local_directory=str(folder / "dask"),
            preload=str(Path(__file__).with_name("cluster_preload.py")),
            env=env,
        ) as local,
    ):
        yield Workers(folder / "searches", local)


@pytest.fixture
def workers(started, fresh, monkeypatch):
    """The workers, idle, and a driver with an empty cache, no triton and no GPU."""
    started.cluster.wait_for_workers(2)  # one may be starting again
    started.clear()
    monkeypatch.setattr(tuning, "triton_version", lambda: None)
    return started


@pytest.fixture
def idle(fresh):
    """A cluster without workers."""
    with local_cluster(0) as local:
        yield local


def backend_of(local):
    return local.scheduler_address.replace("tcp://", "dask://")


def sizes(entries):
    return sorted(entry.key.problem.m for entry in entries)


def test_what_the_driver_or_a_worker_has_is_skipped_and_kept(workers, tmp_path):
    assert tuning.tune(PROBLEMS[:2], backend=workers.backend, progress=False, force=True).ok
    workers.clear()
    assert run(["tune", PROBLEMS[0], "--backend", workers.backend]) == 0
    out = tmp_path / "out.json"
    known = tuning.tune(PROBLEMS[:2], backend=workers.backend, out=out)
    assert [result.skipped for result in known.results] == [True, True]
    assert workers.log == []
    assert sizes(read_entries(out)[0]) == [16, 32]
    assert tuning.tune(PROBLEMS[:1], backend=workers.backend, force=True).ok
    assert [(event, m) for event, m, _ in workers.log] == [("begin", 16), ("end", 16)]


def test_a_worker_starts_from_what_it_knows_unless_from_scratch(workers):
    def known():
        return int((workers.folder / "seeds 16").read_text())

    assert tuning.tune(PROBLEMS[1:2], backend=workers.backend, force=True).ok
    assert tuning.tune(PROBLEMS[:1], backend=workers.backend, force=True).ok
    assert known() > 0
    command = ["tune", PROBLEMS[0], "--force", "--from-scratch", "--backend", workers.backend]
    assert run(command) == 0
    assert known() == 0


def test_a_worker_is_told_the_margin(workers):
    command = ["tune", PROBLEMS[0], "--force", "--margin", "1", "--backend", workers.backend]
    assert run(command) == 0
    assert (workers.folder / "margin 16").read_text() == "0.01"


def test_a_worker_without_a_gpu_is_passed_over(workers):
    workers.cluster.wait_for_workers(3)
    workers.set("no GPU 0", "no GPU 1")
    report = tuning.tune(PROBLEMS, backend=workers.backend, force=True)
    assert report.ok
    assert len({process for _, _, process in workers.log}) == 1
    workers.set("no GPU 2")
    [result] = tuning.tune(PROBLEMS[:1], backend=workers.backend, force=True).results
    assert result.error.startswith("no CUDA device: torch finds none (on tcp://")


def test_a_worker_without_the_code_is_passed_over(workers, tmp_path, monkeypatch):
    (tmp_path / "only_here.py").write_text("def work(device, task): return task\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    work = import_module("only_here").work
    with connected(workers.backend) as reached:
        [(task, failure)] = reached.run(work, ["a task"])
    assert task == "a task"
    assert str(failure).startswith("No module named 'only_here' (on tcp://")


def test_two_searches_are_never_on_one_gpu(workers):
    workers.set("one GPU")
    assert tuning.tune(PROBLEMS, backend=workers.backend, force=True).ok
    log = workers.log
    assert [event for event, _, _ in log] == ["begin", "end"] * 4
    assert [m for _, m, _ in log[::2]] == [m for _, m, _ in log[1::2]]


def test_a_search_that_fails_everywhere_is_a_failed_result(workers):
    failed, fine = tuning.tune([f"208x{FAILS}x64", "240x64x64"], backend=workers.backend).results
    assert fine.entry is not None
    assert failed.entry is None
    assert failed.error.startswith("every candidate failed (on tcp://")
    tried = [process for event, m, process in workers.log if (event, m) == ("begin", 208)]
    assert len(tried) == len(set(tried)) >= 2
    assert sizes(stored.entry for stored in shared_store().entries()) == [240]


def test_an_interrupt_ends_the_driver_at_once(workers, capsys):
    workers.set("hang")
    interrupted = []

    def interrupt():
        workers.wait_for_hung()
        interrupted.append(time.monotonic())
        signal.raise_signal(signal.SIGINT)

    threading.Thread(target=interrupt).start()
    assert run(["tune", PROBLEMS[0], "--force", "--backend", workers.backend]) == 130
    assert time.monotonic() - interrupted[0] < 2
    assert "kept" in capsys.readouterr().err
    workers.set("go on")
    wait_until(lambda: "end" in {event for event, _, _ in workers.log})


def test_a_killed_worker_costs_a_retry_and_no_problem_is_lost_or_doubled(workers, tmp_path):
    workers.set("hang")
    killer = threading.Thread(target=lambda: os.kill(workers.wait_for_hung(), signal.SIGKILL))
    killer.start()
    problems = [f"{16 * m}x128x64" for m in range(1, 13)]
    report = tuning.tune(problems, backend=workers.backend, out=tmp_path / "out.json")
    killer.join()
    assert report.ok
    assert [result.problem for result in report.results] == list(map(GemmProblem.parse, problems))
    wanted = [16 * m for m in range(1, 13)]
    assert sizes(stored.entry for stored in shared_store().entries()) == wanted
    assert sizes(read_entries(tmp_path / "out.json")[0]) == wanted
    assert sorted(m for event, m, _ in workers.log if event == "end") == wanted
    begun = Counter(m for event, m, _ in workers.log if event == "begin")
    assert sorted(begun.values()) == [1] * 11 + [2]
    assert len({process for event, _, process in workers.log if event == "end"}) > 1


def test_a_problem_that_kills_its_workers_is_a_failed_result(workers, monkeypatch):
    monkeypatch.setattr(workers.cluster.scheduler, "allowed_failures", 0)
    report = tuning.tune([f"224x{KILLS}x64", "240x64x64"], backend=workers.backend)
    killed, fine = report.results
    assert killed.error.startswith("1 Dask workers died while at it, the last one tcp://")
    assert fine.entry is not None
    assert [m for event, m, _ in workers.log if event == "begin"].count(224) == 1


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"backend": "ray://here:1"}, "backend must be dask://HOST:PORT, got 'ray://here:1'"),
        ({"backend": "dask://here"}, "backend must be dask://HOST:PORT"),
        ({"backend": "dask://me@here:1"}, "backend must be dask://HOST:PORT"),
        ({"backend": "dask://here:1/x"}, "backend must be dask://HOST:PORT"),
        ({"backend": 5}, "backend must be dask://HOST:PORT, got 5"),
        ({"backend": "dask://here:1", "devices": [0]}, "devices must be left out with backend"),
        ({"backend": "dask://here:1", "storage": "sqlite:///s"}, "an SQLite file serves one host"),
        ({"backend": "dask://here:1", "effort": "mild"}, "effort must be one of"),
        ({"backend": "dask://here:1", "margin": 2}, "margin must be a number from 0 to below 1"),
    ],
)
def test_bad_arguments_are_found_before_the_cluster(fresh, options, named):
    with pytest.raises(ArgumentError, match=re.escape(named)):
        tuning.tune(PROBLEMS, **options)


@pytest.mark.parametrize("option", [["--device", "0"], ["--gpus", "all"]])
def test_the_command_line_says_the_same_in_one_line(fresh, capsys, option):
    assert run(["tune", PROBLEMS[0], "--backend", "dask://here:1", *option]) == 2
    assert capsys.readouterr().err == f"error: {option[0]} must go without --backend, got both\n"


def test_nobody_at_the_address_is_one_line(fresh, capsys, monkeypatch):
    monkeypatch.setattr(cluster, "CONNECT_S", 0.5)
    assert run(["tune", PROBLEMS[0], "--backend", "dask://127.0.0.1:9"]) == 1
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("error: no Dask scheduler")
    assert "127.0.0.1:9" in err


def test_dask_that_is_missing_is_named(fresh, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(UnavailableError, match=r"pip install 'autoswizzle\[dask\]'"):
        tuning.tune(PROBLEMS, backend="dask://here:1")


def test_a_cluster_without_workers_is_given_up(idle, monkeypatch):
    monkeypatch.setattr(cluster, "NO_WORKER_S", 0.2)
    monkeypatch.setattr(cluster, "CHECK_S", 0.1)
    with pytest.raises(UnavailableError, match="has had no worker for"):
        tuning.tune(PROBLEMS, backend=backend_of(idle))


def test_a_scheduler_that_goes_is_said(idle, monkeypatch):
    monkeypatch.setattr(cluster, "CONNECT_S", 0.5)
    threading.Timer(0.5, idle.close).start()
    with pytest.raises(UnavailableError, match="is gone"):
        tuning.tune(PROBLEMS, backend=backend_of(idle))


def test_each_gpu_is_had_once_on_the_host():
    gpus = [f"{uuid4()} {number}" for number in range(2)]
    hold = f"""
import time
from autoswizzle.cluster import free_gpu
with free_gpu({gpus}, 0) as number:
    print(number, flush=True)
    time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", hold], stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout.readline() == "0\n"
            with free_gpu(gpus, 0) as first, free_gpu(gpus, 0) as second:
                assert (first, second) == (1, None)
            with free_gpu(gpus, 0) as again:
                assert again == 1
        finally:
            other.kill()
    with free_gpu(gpus, 0) as freed:
        assert freed == 0
