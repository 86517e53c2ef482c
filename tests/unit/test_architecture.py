"""Imports point only backwards along the data flow, and siblings never meet."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = {"autoswizzle": ROOT / "autoswizzle", "autoswizzle.cache": ROOT / "cache"}
FOLDERS["autoswizzle.kernels"] = ROOT / "kernels"
RANKS = [
    ("errors",),
    ("settings", "variety"),
    ("problem", "hardware", "smem", "toolchain"),
    ("config", "operands", "misses", "records", "calibration"),
    ("space",),
    ("simulator",),
    ("kernels", "search", "cache", "cluster"),
    ("laboratory", "forecast", "microbench", "results", "transfer"),
    ("verdicts",),
    ("tuning", "dispatch", "order_bench", "smem_bench"),
    ("recall",),
    ("plans",),
    ("autograd", "inductor"),
    ("graph",),
    ("ops",),
    ("layers",),
    ("routes",),
    ("patching", "recording"),
    ("report",),
    ("cli",),
    ("__main__",),
]
RANK = {name: rank for rank, names in enumerate(RANKS) for name in names}
PUBLIC = "autoswizzle"


def _modules() -> list[tuple[str, Path]]:
    found = []
    for package, folder in FOLDERS.items():
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            name = ".".join([package, *(part for part in parts if part != "__init__")])
            found.append((name, path))
    return found


def _imports(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            base = node.module or ""
            names |= {f"{base}.{alias.name}" for alias in node.names} | {base}
    return {name for name in names if name.startswith("autoswizzle.")}


def _top(module: str) -> str:
    return module.split(".")[1]


@pytest.mark.parametrize(("name", "path"), _modules(), ids=lambda value: str(value)[-40:])
def test_imports_point_backwards(name: str, path: Path) -> None:
    if name == PUBLIC:
        return
    own = _top(name)
    assert own in RANK, f"{name} has no rank"
    for imported in _imports(path):
        other = _top(imported)
        if other == own or other not in RANK:
            continue
        assert RANK[other] < RANK[own], f"{name} (rank {RANK[own]}) imports {imported}"


def test_every_rank_is_seen() -> None:
    tops = {_top(name) for name, _ in _modules() if name != PUBLIC}
    assert tops <= set(RANK)
    assert {"problem", "space", "simulator", "kernels", "cache", "search"} <= tops
