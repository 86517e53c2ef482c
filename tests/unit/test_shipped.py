"""The cache files that come with the package."""

import json

import pytest

from autoswizzle.cache.entry import CacheEntry
from autoswizzle.cache.key import key_for
from autoswizzle.cache.store import SHIPPED
from autoswizzle.hardware import find_gpu
from autoswizzle.kernels import current_source
from autoswizzle.space import families, why_illegal

FILES = sorted(SHIPPED.glob("*.json"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_shipped_entries_are_whole_measured_and_legal(path, monkeypatch):
    entries = [CacheEntry.from_dict(item) for item in json.loads(path.read_text())["entries"]]
    assert entries
    assert len({entry.key for entry in entries}) == len(entries)
    for entry in entries:
        gpu = find_gpu(entry.gpu)
        problem = entry.key.problem
        version = tuple(map(int, entry.key.triton.split(".")))
        monkeypatch.setattr(families, "triton_version", lambda version=version: version)
        source = "" if entry.config.kernel == "torch" else current_source(entry.config.kernel)
        assert entry.key == key_for(problem, gpu, source, version)
        assert why_illegal(entry.config, problem, gpu) is None
        assert entry.origin == "measured"
        assert entry.config.kernel == "torch" or entry.beats_torch
        assert entry.fastest is None or why_illegal(entry.fastest, problem, gpu) is None
        assert entry.versions["torch"]
        assert entry.date
