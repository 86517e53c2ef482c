"""Items shared among workers in threads."""

import signal
import threading
import time

import pytest

from autoswizzle.search.crew import Crew


def nothing():
    pass


def test_results_keep_the_order_of_the_items_and_each_is_done_once():
    done = []

    def worker(name, pause):
        def work(item):
            time.sleep(pause * item)
            done.append((name, item))
            return item * 10

        return work

    crew = Crew([worker("a", 0.02), worker("b", 0.01)], nothing)
    assert crew.run([5, 1, 3, 2, 4]) == [50, 10, 30, 20, 40]
    assert sorted(item for _, item in done) == [1, 2, 3, 4, 5]
    assert {name for name, _ in done} == {"a", "b"}


def test_workers_are_busy_at_the_same_time():
    both = threading.Barrier(2, timeout=10)

    def work(item):
        both.wait()
        return item

    assert Crew([work, work], nothing).run([1, 2]) == [1, 2]


def test_an_item_that_is_busy_elsewhere_comes_again_after_the_others():
    asked = []

    def work(item):
        asked.append(item)
        return None if item == "busy" and asked.count("busy") < 3 else item

    assert Crew([work], nothing).run(["busy", "free"]) == ["busy", "free"]
    assert asked[:2] == ["busy", "free"]
    assert asked.count("busy") == 3


def test_an_error_ends_the_others_and_is_raised():
    ended, both = threading.Event(), threading.Barrier(2, timeout=10)

    def work(item):
        both.wait()
        if item == 1:
            raise ValueError("no")
        ended.wait(30)
        raise KeyboardInterrupt

    began = time.monotonic()
    with pytest.raises(ValueError, match="no"):
        Crew([work, work], ended.set).run([1, 2, 3])
    assert ended.is_set()
    assert time.monotonic() - began < 2


@pytest.mark.parametrize("deaf", [False, True])
def test_an_interrupt_ends_all_within_two_seconds(deaf):
    """Even if a thread computes and does not hear of it."""
    ended = threading.Event()

    def work(item):
        ended.wait(30)
        time.sleep(5 if deaf else 0)
        raise KeyboardInterrupt

    crew = Crew([work, work], ended.set)
    timer = threading.Timer(0.3, signal.raise_signal, [signal.SIGINT])
    timer.start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        crew.run([1, 2, 3, 4])
    assert time.monotonic() - began < 2
    assert ended.is_set()


def test_no_items_no_results():
    assert Crew([nothing], nothing).run([]) == []
