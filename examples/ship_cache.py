"""Export tuned entries to one file and read them back, as a model would ship them.

On a machine without tuned entries: `autoswizzle tune` (with a GPU) or `autoswizzle demo` first.
"""

import tempfile
from pathlib import Path

import autoswizzle


def main() -> None:
    """Export to a temporary file, then load it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tuned.json"
        count = autoswizzle.export_cache(path)
        print(f"{count} entries in {path.name}, {path.stat().st_size} bytes")
        if not count:
            print("nothing is tuned on this machine yet: autoswizzle tune, or autoswizzle demo")
            return
        found = autoswizzle.load_cache(path)  # now searched before every other place
        print(f"{found} of them can be used by this process")


if __name__ == "__main__":
    main()
