"""`autoswizzle tune`: search, and keep the best configuration of each problem."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autoswizzle.cache.files import as_path, check_writable
from autoswizzle.cache.store import check_cache_file
from autoswizzle.cli.failures import FAILED, complain, note
from autoswizzle.cli.options import Device, Json, choice, integer, parsed, positive, present_gpu
from autoswizzle.cli.worklist import work_list
from autoswizzle.errors import ArgumentError
from autoswizzle.misses import FILE_NAME as MISSES
from autoswizzle.misses import read_misses
from autoswizzle.problem import ITEMSIZE
from autoswizzle.report.tables import print_json, table
from autoswizzle.search.effort import EFFORTS
from autoswizzle.settings import settings

if TYPE_CHECKING:
    from autoswizzle.tuning import TuneReport, TuneResult


def _storage(text: str) -> str:
    if re.match(r"[a-z][a-z0-9+]*://", text) is None:
        raise ArgumentError(
            f"must be a URL, like sqlite:///study.db or postgresql://host/name, got {text!r}"
        )
    return text


def tune(
    shapes: Annotated[
        list[str] | None,
        typer.Argument(metavar="PROBLEM", help="Like 4096x14336x4096:bf16:nt.", show_default=False),
    ] = None,
    file: Annotated[
        list[Path] | None,
        typer.Option("--file", metavar="FILE", help="More problems: text, .csv or .jsonl."),
    ] = None,
    from_misses: Annotated[
        bool,
        typer.Option(
            "--from-misses", help="Also what programs multiplied untuned on this machine."
        ),
    ] = False,
    dtype: Annotated[
        str | None,
        typer.Option(
            "--dtype", parser=choice(*ITEMSIZE), metavar="DTYPE", help="Where none is spelled out."
        ),
    ] = None,
    effort: Annotated[
        str,
        typer.Option("--effort", parser=choice(*EFFORTS), metavar="NAME", help=", ".join(EFFORTS)),
    ] = "standard",
    trials: Annotated[
        int | None,
        typer.Option(
            "--trials",
            parser=integer(1),
            metavar="N",
            help="Configurations tried for each problem.",
        ),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            "--seconds", parser=positive, metavar="S", help="Search time for each problem."
        ),
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option(
            "--storage",
            parser=parsed(_storage),
            metavar="URL",
            help="Study storage. Default: SQLite, in the cache.",
        ),
    ] = None,
    device: Device = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            parser=parsed(as_path),
            metavar="FILE",
            help="Also add the entries to this cache file.",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Tune again what has an entry.")] = False,
    as_json: Json = False,
) -> None:
    """Find and keep the fastest configurations.

    Searches each PROBLEM on this machine's GPU, keeps it before the next starts, and skips what is
    tuned. Interrupted, it keeps what it measured.
    """
    missed = read_misses(settings().cache_dir / MISSES) if from_misses else []
    problems = work_list(shapes or [], file or [], dtype, missed)
    if out is not None:
        check_cache_file(out)
    present_gpu(device)
    if out is not None:
        check_writable(out.absolute().parent)
    from autoswizzle.tuning import tune as tune_problems

    try:
        report = tune_problems(
            problems,
            effort=effort,
            storage=storage,
            devices=[device],
            out=out,
            trials=trials,
            seconds=seconds,
            force=force,
        )
    except KeyboardInterrupt:
        note("what was measured is kept: the same command continues from it")
        raise
    if as_json:
        print_json(report.to_dict())
    else:
        _print_report(report)
    failed = [result for result in report.results if result.error is not None]
    if failed:
        complain(f"{len(failed)} of {len(report.results)} problems failed, the others are kept:")
        for result in failed:
            complain(f"{result.problem}: {result.error}")
        raise typer.Exit(FAILED)


def _print_report(report: "TuneReport") -> None:
    titles = ("problem", "chosen", "us", "torch us", "vs torch", "trials", "result")
    print(table(titles, [_row(result) for result in report.results]))


def _row(result: "TuneResult") -> tuple[object, ...]:
    entry = result.entry
    if entry is None:
        return (str(result.problem), "-", None, None, None, result.measured, "failed")
    verdict = "tuned"
    if entry.config.kernel == "torch":
        verdict = "tuned, torch kept: nothing beat it by the margin"
    if result.skipped:
        verdict = "skipped: tuned before"
    return (
        str(result.problem),
        str(entry.config),
        entry.time_us,
        entry.torch_us,
        entry.ratio,
        result.measured,
        verdict,
    )
