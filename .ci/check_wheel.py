"""Assert what the wheel and the sdist hold: check_wheel.py WHEEL SDIST."""

import sys
import tarfile
import zipfile
from pathlib import Path


def main(wheel: str, sdist: str) -> None:
    """Every module of the source tree is in the wheel, and nothing is installed beside it."""
    root = Path(__file__).parents[1]
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    expected = {"autoswizzle/py.typed"}
    for folder, package in (
        ("autoswizzle", ""),
        ("cache", "autoswizzle/"),
        ("kernels", "autoswizzle/"),
    ):
        expected |= {package + str(p.relative_to(root)) for p in (root / folder).rglob("*.py")}
    expected |= {f"autoswizzle/{p.relative_to(root)}" for p in root.glob("cache/shipped/*.json")}
    assert names == expected, sorted(names ^ expected)
    with tarfile.open(sdist) as packed_source:
        packed = {name.partition("/")[2] for name in packed_source.getnames()}
    for needed in ("tests/unit", "tests/gpu", "examples", "LICENSE", "README.md"):
        assert needed in packed, needed
    print(f"wheel holds {len(names)} files, sdist {len(packed)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
