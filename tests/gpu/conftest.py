"""GPU tests: marked and, without a GPU, skipped with the reason."""

import os
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
import torch

HERE = Path(__file__).parent
KILLER = pytest.StashKey[str]()  # the test whose fault made the process's CUDA context unusable


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = [item for item in items if HERE in item.path.parents]
    skip = pytest.mark.skip(reason="needs a CUDA GPU: torch.cuda finds none")
    for item in here:
        item.add_marker(pytest.mark.gpu)
        if not torch.cuda.is_available():
            item.add_marker(skip)


@pytest.fixture(scope="session")
def side_by_side() -> bool:
    """Whether pytest-xdist runs the tests: its workers compile side by side anyway."""
    return "PYTEST_XDIST_WORKER" in os.environ


@pytest.fixture(scope="session")
def wgmma_runner() -> Iterator[ModuleType]:
    """The module of that name beside this file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(HERE))
        yield import_module("wgmma_runner")


@pytest.fixture(autouse=True)
def cuda_context(request: pytest.FixtureRequest) -> Iterator[None]:
    """A fault belongs to the test that caused it: wait for the GPU after each; those that follow in
    the same process name the culprit.
    """
    killer = request.config.stash.get(KILLER, None)
    if killer is not None:
        pytest.fail(f"the CUDA context was lost in {killer}", pytrace=False)
    yield
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        request.config.stash[KILLER] = request.node.nodeid
        raise
