import errno
import functools
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from autoswizzle.errors import (
    CandidateError,
    CompileError,
    LaunchError,
    TuneError,
    UnavailableError,
    WrongResultError,
)
from autoswizzle.search.ahead import AheadOfNeed
from autoswizzle.search.workers import Worker

FOLDER = str(Path(__file__).parent)


@pytest.fixture
def tasks(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    import worker_tasks

    return worker_tasks


@pytest.fixture
def worker(tasks):
    with closing(Worker(tasks.factory, limit_s=20)) as made:
        yield made


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def session_of(process):
    try:
        fields = (process / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return int(fields[3]) if len(fields) > 3 and fields[0] != "Z" else None


def wait_for(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_worker_lives_on_between_tasks(worker):
    first, _ = worker("a")
    second, done = worker("b")
    assert first == second != os.getpid()
    assert done == ("a", "b")


@pytest.mark.parametrize(
    ("task", "kind", "said"),
    [
        ("abort", "Died", "the process died of SIGABRT: Assertion `width > 0' failed"),
        ("segfault", "Died", "the process died of SIGSEGV"),
        ("exit", "Died", "the process died of exit status 3"),
        ("interrupt", "Died", "KeyboardInterrupt"),
        ("unpicklable", "Died", "pickle"),
        ("runtime", "RuntimeError", "an illegal memory access was encountered"),
        ("memory", "MemoryError", "out of memory"),
        ("system", "SystemError", "bad call"),
    ],
)
def test_what_a_worker_does_not_survive_costs_one_task(worker, task, kind, said):
    before, _ = worker("a")
    with pytest.raises(LaunchError) as caught:
        worker(task)
    assert caught.value.kind == kind
    assert said in str(caught.value)
    after, done = worker("b")
    assert after != before
    assert done == ("b",)
    assert not is_running(before)


def test_a_hang_is_cut_and_takes_its_children_along(tasks):
    with closing(Worker(tasks.factory, limit_s=1)) as worker:
        before, _ = worker("a")
        began = time.monotonic()
        with pytest.raises(LaunchError, match="no answer within 1 s") as caught:
            worker("hang")
        assert caught.value.kind == "Hung"
        assert time.monotonic() - began < 10
        assert not is_running(before)
        wait_for(lambda: not any(session_of(path) == before for path in Path("/proc").iterdir()))
        assert worker("b")[1] == ("b",)


@pytest.mark.parametrize(("task", "kind"), [("compile", CompileError), ("wrong", WrongResultError)])
def test_a_clean_failure_keeps_the_worker(worker, task, kind):
    before, _ = worker("a")
    with pytest.raises(kind) as caught:
        worker(task)
    assert caught.value.kind == kind.__name__
    assert worker("b")[0] == before


def test_errors_cross_the_border_with_their_kind(worker):
    with pytest.raises(CandidateError, match="no") as caught:
        worker("kind")
    assert caught.value.kind == "Special"
    with pytest.raises(UnavailableError, match="no driver"):
        worker("machine")


@pytest.mark.parametrize(
    ("name", "said"),
    [("broken_factory", "RuntimeError: no device"), ("dying_factory", "died of SIGABRT")],
)
def test_a_worker_that_can_not_start_is_an_error(tasks, name, said):
    with pytest.raises(TuneError, match="a worker can't start") as caught:
        Worker(getattr(tasks, name), limit_s=20)("a")
    assert said in str(caught.value)


def test_a_worker_that_dies_while_idle_costs_one_task(worker):
    pid, _ = worker("a")
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not is_running(pid))
    with pytest.raises(LaunchError, match="SIGKILL"):
        worker("b")
    assert worker("c")[1] == ("c",)


def test_the_environment_is_set_before_anything_runs(tasks):
    with closing(Worker(tasks.factory, limit_s=20, env={"AUTOSWIZZLE_TEST": "x"})) as worker:
        assert worker("env AUTOSWIZZLE_TEST") == "x"
    assert "AUTOSWIZZLE_TEST" not in os.environ


def test_a_worker_prints_nothing_of_its_own(worker, capfd):
    worker("print")
    with pytest.raises(LaunchError):
        worker("abort")
    assert capfd.readouterr() == ("", "")


def test_an_interrupt_kills_the_worker_at_once(tasks):
    worker = Worker(tasks.factory, limit_s=60)
    pid, _ = worker("a")
    timer = threading.Timer(0.5, signal.raise_signal, [signal.SIGINT])
    timer.start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        worker("hang")
    assert time.monotonic() - began < 2
    assert not is_running(pid)


def test_a_worker_ends_with_its_parent(tmp_path):
    script = (
        f"import sys; sys.path.insert(0, {FOLDER!r})\n"
        "import worker_tasks\n"
        "from autoswizzle.search.workers import Worker\n"
        "worker = Worker(worker_tasks.factory, limit_s=600)\n"
        "print(worker('a')[0], flush=True)\n"
        "worker('sleep 600')\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    pid = int(parent.stdout.readline())
    assert is_running(pid)
    parent.kill()
    parent.communicate()
    wait_for(lambda: not is_running(pid))


def test_a_script_without_a_main_guard_can_use_workers(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        f"import sys; sys.path.insert(0, {FOLDER!r})\n"
        "print('started')\n"
        "import worker_tasks\n"
        "from contextlib import closing\n"
        "from autoswizzle.search.workers import Worker\n"
        "with closing(Worker(worker_tasks.factory, limit_s=60)) as worker:\n"
        "    print(worker('a')[1])\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("started\n('a',)\n", "")


def ahead(tasks, log, **options):
    factory = functools.partial(tasks.recorded_factory, str(log))
    return AheadOfNeed(factory, **{"workers": 2, "limit_s": 20, **options})


def test_work_is_done_ahead_in_parallel_and_gpu_blind(tasks, tmp_path):
    with closing(ahead(tasks, tmp_path / "log")) as pool:
        pool.prefetch([f"touch {tmp_path / name}" for name in ("a", "b", "c")])
        wait_for(lambda: all((tmp_path / name).exists() for name in ("a", "b", "c")))
        assert pool("env CUDA_VISIBLE_DEVICES") == ""
        assert pool(f"touch {tmp_path / 'a'}")
        assert len((tmp_path / "a").read_text().splitlines()) == 1
        assert len((tmp_path / "log").read_text().splitlines()) == 2  # two workers


def test_workers_start_before_there_are_tasks_and_once(tasks, tmp_path):
    log = tmp_path / "log"
    with closing(ahead(tasks, log, workers=3)) as pool:
        pool.start()
        pool.start()
        wait_for(lambda: log.exists() and len(log.read_text().splitlines()) == 3)
        assert pool("a")[1][-1] == "a"
    assert len(log.read_text().splitlines()) == 3


def test_a_worker_that_can_not_be_started_ahead_says_why_with_its_task(tasks):
    with closing(AheadOfNeed(tasks.broken_factory, workers=1, limit_s=20)) as pool:
        pool.start()
        with pytest.raises(TuneError, match="a worker can't start"):
            pool("a")


def test_a_start_that_is_interrupted_leaves_no_answer_for_the_first_task(tasks):
    with closing(Worker(tasks.late_factory, limit_s=20)) as worker:
        timer = threading.Timer(0.5, signal.raise_signal, [signal.SIGINT])
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            worker.start()
        assert worker("a") == "a"


def test_a_process_that_the_system_refuses_is_an_error_of_this_package(tasks, monkeypatch):
    def refuse(*args, **options):
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr("subprocess.Popen", refuse)
    with pytest.raises(TuneError, match=r"a worker can't start: .*temporarily"):
        Worker(tasks.factory, limit_s=20)("a")


def test_closing_does_not_wait_for_workers_that_start(tasks):
    pool = AheadOfNeed(tasks.slow_factory, workers=2, limit_s=20)
    pool.start()
    time.sleep(0.2)
    began = time.monotonic()
    pool.close()
    assert time.monotonic() - began < 2


def test_a_failure_ahead_is_raised_when_asked_for_and_spares_the_others(tasks, tmp_path):
    with closing(ahead(tasks, tmp_path / "log", limit_s=2)) as pool:
        pool.prefetch(["abort", "hang", "compile", "a", "b"])
        assert pool("a")[1][-1] == "a"
        assert pool("b")[1][-1] == "b"
        for task, kind in (("abort", "Died"), ("hang", "Hung"), ("compile", "CompileError")):
            for _ in range(2):
                with pytest.raises(CandidateError) as caught:
                    pool(task)
                assert caught.value.kind == kind


def test_results_and_rejections_are_remembered_under_their_key(tasks, tmp_path):
    log, memo = tmp_path / "log", tmp_path / "memo"

    def started():
        return len(log.read_text().splitlines()) if log.exists() else 0

    with closing(ahead(tasks, log, workers=1, memo=memo, key="k1")) as pool:
        first = pool("a")
        with pytest.raises(CompileError, match="PassManager"):
            pool("compile")
        with pytest.raises(LaunchError):
            pool("memory")
    assert started() == 1
    with closing(ahead(tasks, log, workers=1, memo=memo, key="k1")) as pool:
        assert pool("a") == first
        with pytest.raises(CompileError, match="PassManager"):
            pool("compile")
        assert started() == 1  # no worker was needed
        with pytest.raises(LaunchError):
            pool("memory")  # another run may have the memory
        assert started() == 2
    with closing(ahead(tasks, log, workers=1, memo=memo, key="k2")) as pool:
        assert pool("a") != first
    assert started() == 3


def test_closing_does_not_wait_for_work_in_progress(tasks, tmp_path):
    pool = ahead(tasks, tmp_path / "log", limit_s=600)
    pool("a")
    pool.prefetch(["hang", "hang 2", "hang 3", "hang 4"])
    time.sleep(0.2)
    began = time.monotonic()
    pool.close()
    assert time.monotonic() - began < 2


def test_candidate_errors_keep_their_kind_when_pickled():
    error = pickle.loads(pickle.dumps(LaunchError("no answer", "Hung")))
    assert (str(error), error.kind) == ("no answer", "Hung")
    assert CompileError("x").kind == "CompileError"
