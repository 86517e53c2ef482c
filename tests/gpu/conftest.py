"""GPU tests: marked and, without a GPU, skipped with the reason."""

from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = [item for item in items if HERE in item.path.parents]
    skip = pytest.mark.skip(reason="needs a CUDA GPU: torch.cuda finds none")
    for item in here:
        item.add_marker(pytest.mark.gpu)
        if not torch.cuda.is_available():
            item.add_marker(skip)
