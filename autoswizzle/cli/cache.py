"""`autoswizzle cache`: look at, move, merge and clean up tuned entries; needs no GPU."""

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from autoswizzle.cache.entry import CacheEntry
from autoswizzle.cache.files import as_path
from autoswizzle.cache.index import Stored
from autoswizzle.cache.store import CacheStore, check_cache_file, export_entries
from autoswizzle.cli.entries import entries_of, existing, some_entries_of
from autoswizzle.cli.options import Device, Json, parsed
from autoswizzle.cli.verify import Sample, Tolerance, verify_entries
from autoswizzle.errors import ArgumentError, CacheError, ProblemError, printable
from autoswizzle.problem import GemmProblem
from autoswizzle.report.tables import print_json, table
from autoswizzle.report.tuned import state_of
from autoswizzle.settings import settings

DIGEST_SHOWN = 12  # hex digits that name an entry in `ls`
WRITER_SECONDS = 3600  # a temporary file older than this has no writer any more

app = typer.Typer(help="Look at, move, merge and clean up tuned entries.")


Places = Annotated[
    list[Path] | None,
    typer.Argument(
        parser=parsed(existing),
        metavar="PATH",
        help="Cache files or folders. Default: every place a lookup searches.",
        show_default=False,
    ),
]


@app.command("ls")
def list_entries(paths: Places = None, as_json: Json = False) -> None:
    """List entries, one a line.

    The problem, what was chosen, how it compares with torch, and whether a lookup may use it.
    """
    found = _entries(paths or [])
    if as_json:
        print_json([_listed(stored) for stored in found])
        return
    titles = ("id", "problem", "gpu", "chosen", "us", "vs torch", "state", "place", "date")
    print(table(titles, [tuple(_listed(stored).values()) for stored in found]))


@app.command("show")
def show(
    what: Annotated[
        str,
        typer.Argument(
            metavar="WHAT", help="A problem, the first digits of an id, or a cache file."
        ),
    ],
) -> None:
    """Print whole entries as JSON."""
    found = _matching(what)
    print_json([stored.entry.to_dict() for stored in found])


@app.command("export")
def export(
    path: Annotated[
        Path,
        typer.Argument(parser=parsed(as_path), metavar="FILE", help="Made, or added to."),
    ],
    problems: Annotated[
        list[Any] | None,
        typer.Argument(
            parser=parsed(GemmProblem.parse),
            metavar="PROBLEM",
            help="Which entries. Default: all of the user's folder.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Write entries to one file.

    The user's, all or those of PROBLEMs. An existing cache file keeps what it has.
    """
    check_cache_file(path)
    mine = [stored.entry for stored in _store().entries() if stored.place == "user"]
    chosen = [entry for entry in mine if not problems or entry.key.problem in problems]
    missing = [str(p) for p in problems or [] if p not in {e.key.problem for e in chosen}]
    if missing or not chosen:
        wanted = f"no entry for {', '.join(missing)}" if missing else "no entries"
        raise CacheError(f"cannot export: {wanted} in {settings().cache_dir}")
    total = export_entries(path, chosen)
    print(f"{printable(path)}: {len(chosen)} written, {total} in all")


@app.command("merge")
def merge(
    sources: Annotated[
        list[Path],
        typer.Argument(parser=parsed(existing), metavar="PATH", help="Files or folders."),
    ],
    into: Annotated[
        Path | None,
        typer.Option(
            "--into",
            parser=parsed(as_path),
            metavar="FILE",
            help="Default: the user's folder.",
        ),
    ] = None,
) -> None:
    """Add entries of other caches.

    Of two for one key the better measured stays.
    """
    if into is not None:
        check_cache_file(into)
    entries = [stored.entry for stored in some_entries_of(sources)]
    if into is not None:
        print(f"{printable(into)}: {export_entries(into, entries)} entries in all")
        return
    store = _store()
    store.check_writable()
    kept = {s.entry.key.digest: s.entry for s in store.entries() if s.place == "user"}
    added = 0
    for entry in entries:
        rival = kept.get(entry.key.digest)
        if rival is None or entry.better_than(rival):
            store.put(entry)
            kept[entry.key.digest] = entry
            added += 1
    print(f"{printable(store.user_dir)}: {added} of {len(entries)} entries added")


@app.command("verify")
def verify(
    paths: Places = None,
    sample: Sample = 5,
    tolerance: Tolerance = 5.0,
    device: Device = 0,
    as_json: Json = False,
) -> None:
    """Time entries against torch again.

    A sample of those for this GPU; exit 1 if one is wrong or lost more than the tolerance.
    """
    entries = [stored.entry for stored in _entries(paths or [])]
    verify_entries(entries, sample, tolerance, device, as_json)


@app.command("prune")
def prune(
    outdated: Annotated[
        bool,
        typer.Option("--outdated", help="Also entries of another triton version or kernel source."),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be removed.")
    ] = False,
) -> None:
    """Clean up the user's folder.

    Removes what killed writers left and copies of damaged files.
    """
    doomed = dict.fromkeys(_left_over(settings().cache_dir), "left over")
    if outdated:
        for stored in CacheStore(settings().cache_dir, shipped=False).entries():
            state = state_of(stored.entry)
            if stored.path is not None and state.startswith("outdated"):
                doomed[stored.path] = state
    for path, state in doomed.items():
        if not dry_run:
            _remove(path)
        print(f"{printable(path)}: {state}" + ("" if dry_run else ", removed"))
    print(f"{len(doomed)} files" + (" to remove" if dry_run else " removed"))


def _store() -> CacheStore:
    now = settings()
    return CacheStore(now.cache_dir, now.cache_path)


def _entries(paths: Sequence[Path]) -> list[Stored]:
    """Every usable entry of the paths, or of every place that a lookup searches."""
    if not paths:
        return list(_store().entries())
    return entries_of(paths)


def _matching(what: str) -> list[Stored]:
    if os.path.exists(what):  # noqa: PTH110  # False, not an error, for what names no file
        return some_entries_of([Path(what)])
    every = list(_store().entries())
    by_id = [stored for stored in every if len(what) >= 4 and _id(stored.entry).startswith(what)]
    if by_id:
        return by_id
    try:
        problem = GemmProblem.parse(what)
    except ProblemError:
        raise ArgumentError(
            f"an entry must be named by its problem, its id or its file, got {what!r}"
        ) from None
    found = [stored for stored in every if stored.entry.key.problem == problem]
    if not found:
        raise CacheError(f"no entry for {problem}")
    return found


def _id(entry: CacheEntry) -> str:
    return entry.key.digest


def _listed(stored: Stored) -> dict[str, Any]:
    entry = stored.entry
    return {
        "id": _id(entry)[:DIGEST_SHOWN],
        "problem": str(entry.key.problem),
        "gpu": entry.gpu or f"sm_{entry.key.capability}",
        "chosen": str(entry.config),
        "time_us": entry.time_us,
        "ratio": entry.ratio,
        "state": state_of(entry),
        "place": stored.place,
        "date": entry.date[:10],
    }


def _left_over(folder: Path) -> list[Path]:
    """Copies of damaged files, and temporary files too old to have a living writer."""
    aged = time.time() - WRITER_SECONDS
    temporary = []
    for path in folder.glob(".*.tmp"):
        with suppress(FileNotFoundError):  # its writer has just finished
            if path.stat().st_mtime < aged:
                temporary.append(path)
    return sorted([*folder.glob("*.damaged"), *temporary])


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise CacheError(f"cannot remove {path}: {error.strerror}") from error
