"""`autoswizzle report`: what was tuned, and what it brings; needs no GPU."""

import logging
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autoswizzle.cache.files import write_atomic
from autoswizzle.cache.store import CacheStore
from autoswizzle.cli.entries import entries_of, existing
from autoswizzle.cli.failures import note
from autoswizzle.cli.options import Json, Storage, output_file, parsed
from autoswizzle.errors import TuneError, printable
from autoswizzle.report.page import page
from autoswizzle.report.tables import print_json
from autoswizzle.report.tuned import Summary, Tuned, by_gpu, entry_table, study_table
from autoswizzle.settings import settings

if TYPE_CHECKING:
    from autoswizzle.search.studies import Study

_log = logging.getLogger(__name__)


def report(
    files: Annotated[
        list[Path] | None,
        typer.Option(
            "--file",
            parser=parsed(existing),
            metavar="PATH",
            help="More entries: a cache file or folder.",
        ),
    ] = None,
    storage: Storage = None,
    html: Annotated[
        Path | None,
        typer.Option(
            "--html",
            parser=parsed(output_file),
            metavar="FILE",
            help="Also write one page that needs no other file.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show what was tuned, and what it brings.

    By GPU: each problem's winner against torch, and how its search went. From the user's cache
    folder, its studies and the files named.
    """
    mine = CacheStore(settings().cache_dir, shipped=False).entries()
    entries = [stored.entry for stored in (*mine, *entries_of(files or []))]
    gpus = by_gpu(entries, _studies(storage))
    if html is not None:
        write_atomic(html, page(gpus))
        note(f"written: {html}")
    every = Summary.of(entry for gpu in gpus for entry in gpu.entries)
    if as_json:
        print_json({"summary": asdict(every), "gpus": [gpu.to_dict() for gpu in gpus]})
        return
    if not gpus:
        print(f"nothing tuned in {printable(settings().cache_dir)}")
        print("to fill it: autoswizzle tune 4096x4096x4096:bf16:nt    # on a machine with a GPU")
        return
    print("\n\n".join(map(_text, gpus)))
    if len(gpus) > 1:
        print(f"\nall GPUs: {every}")


def _studies(storage: str | None) -> Sequence["Study"]:
    """The studies of the storage named, or of the cache folder's, which may be damaged."""
    from autoswizzle.tuning import STUDIES

    default = settings().cache_dir / STUDIES
    if storage is None and not default.exists():
        return []  # and no search is loaded
    from autoswizzle.search.storage import file_url
    from autoswizzle.search.studies import read_studies

    if storage is not None:
        return read_studies(storage)
    try:
        return read_studies(file_url(default))
    except TuneError as error:
        _log.warning("ignoring the studies: %s", error)
        return []


def _text(gpu: Tuned) -> str:
    parts = [gpu.title]
    if gpu.entries:
        parts += [entry_table(gpu.entries), str(gpu.summary)]
    if gpu.studies:
        parts += ["", "searches", study_table(gpu.studies)]
    return "\n".join(parts)
