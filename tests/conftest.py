"""Fixtures of every kind of test."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest


@pytest.fixture
def at_once() -> Callable[..., list[Any]]:
    """What a function returns in each of 16 threads that call it together; raises what one does."""

    def run(work: Callable[[], Any], count: int = 16) -> list[Any]:
        barrier = threading.Barrier(count)

        def one(_: int) -> Any:
            barrier.wait()
            return work()

        with ThreadPoolExecutor(count) as pool:
            return list(pool.map(one, range(count)))

    return run
