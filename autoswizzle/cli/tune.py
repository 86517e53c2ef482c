"""`autoswizzle tune`: search, and keep the best configuration of each problem."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autoswizzle.cache.files import as_path, check_writable
from autoswizzle.cache.store import check_cache_file
from autoswizzle.cli.failures import FAILED, complain, note
from autoswizzle.cli.model_config import TOKENS, projections
from autoswizzle.cli.options import (
    Json,
    Storage,
    choice,
    integer,
    is_extent,
    parsed,
    percent,
    positive,
    present_gpu,
)
from autoswizzle.cli.worklist import work_list
from autoswizzle.cluster import scheduler_of
from autoswizzle.config import MARGIN
from autoswizzle.errors import ArgumentError
from autoswizzle.misses import FILE_NAME as MISSES
from autoswizzle.misses import read_misses
from autoswizzle.problem import ITEMSIZE
from autoswizzle.records import read_record
from autoswizzle.report.tables import print_json, table
from autoswizzle.search.effort import EFFORTS
from autoswizzle.settings import settings

if TYPE_CHECKING:
    from autoswizzle.results import TuneReport, TuneResult


def _tokens(text: str | None) -> Sequence[int]:
    if text is None:
        return TOKENS
    words = text.split(",")
    tokens = [int(word) if is_extent(word) else 0 for word in words]
    if 0 in tokens:
        raise ArgumentError(f"--tokens must be positive integers like 1,2,4, got {text!r}")
    return tokens


def _backend(text: str) -> str:
    scheduler_of(text)
    return text


def _numbers(text: str) -> list[int]:
    """The device numbers that --gpus names, each once; none for all."""
    if text == "all":
        return []
    words = text.split(",")
    if not all(map(is_extent, words)):
        raise ArgumentError(f"must be all or numbers like 0,1, got {text!r}")
    return list(dict.fromkeys(map(int, words)))


Gpus = Annotated[
    Any,
    typer.Option(
        "--gpus",
        parser=parsed(_numbers),
        metavar="all|N,N...",
        help="Instead of --device: share the problems among these.",
        show_default=False,
    ),
]


def _devices(gpus: list[int] | None, device: int | None) -> list[int]:
    """The CUDA devices to use, each present; raises as present_gpu."""
    if gpus == []:
        present_gpu(0)
        import torch

        return list(range(torch.cuda.device_count()))
    numbers = gpus or [device or 0]
    for number in numbers:
        present_gpu(number)
    return numbers


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
    from_record: Annotated[
        list[Path] | None,
        typer.Option(
            "--from-record",
            metavar="FILE",
            help='Also those of a recorded run: JSON Lines with "problem" and "count".',
        ),
    ] = None,
    hf_config: Annotated[
        Path | None,
        typer.Option(
            "--hf-config",
            metavar="FILE",
            help="Also the projections of a decoder model: its Hugging Face config.json.",
        ),
    ] = None,
    tokens: Annotated[
        str | None,
        typer.Option(
            "--tokens",
            metavar="N,N...",
            help="Rows of --hf-config's products. Default: powers of two up to 8192.",
        ),
    ] = None,
    tp: Annotated[
        int,
        typer.Option(
            "--tp",
            parser=integer(1),
            metavar="N",
            help="GPUs that share each layer of --hf-config (tensor parallelism).",
        ),
    ] = 1,
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
    margin: Annotated[
        float | None,
        typer.Option(
            "--margin",
            parser=percent,
            metavar="PERCENT",
            help=f"By how much a winner must be faster than torch. Default: {100 * MARGIN:g}.",
        ),
    ] = None,
    storage: Storage = None,
    device: Annotated[
        int | None,
        typer.Option(
            "--device",
            parser=integer(0),
            metavar="N",
            help="CUDA device, counted among those visible. Default: 0.",
        ),
    ] = None,
    gpus: Gpus = None,
    backend: Annotated[
        str | None,
        typer.Option(
            "--backend",
            parser=parsed(_backend),
            metavar="dask://HOST:PORT",
            help="Instead of here: on the workers of this Dask scheduler, each on its own GPUs.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            parser=parsed(as_path),
            metavar="FILE",
            help="Also add the entries to this cache file.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the problems, and tune none.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Tune again what has an entry.")] = False,
    from_scratch: Annotated[
        bool,
        typer.Option("--from-scratch", help="Leave out what entries of like problems know."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Find and keep the fastest configurations.

    Searches each PROBLEM on this machine's GPU, keeps it before the next starts, and skips what is
    tuned, here or by another process on the same --storage. Interrupted, it keeps what it measured.
    """
    where = {"--device": device, "--gpus": gpus, "--backend": backend}
    given = [name for name, value in where.items() if value is not None]
    if len(given) > 1:
        raise ArgumentError(f"{given[0]} must go without {given[1]}, got both")
    more = read_misses(settings().cache_dir / MISSES) if from_misses else []
    for path in from_record or []:
        more += read_record(path)
    if hf_config is not None:
        more += projections(hf_config, _tokens(tokens), tp, dtype)
    elif tokens is not None or tp != 1:
        raise ArgumentError("--tokens and --tp are about --hf-config, which must be given too")
    problems = work_list(shapes or [], file or [], dtype, more)
    if dry_run:
        if as_json:
            print_json([str(problem) for problem in problems])
        else:
            print(*problems, sep="\n")
        return
    if out is not None:
        check_cache_file(out)
    devices = _devices(gpus, device) if backend is None else None
    if out is not None:
        check_writable(out.absolute().parent)
    from autoswizzle.tuning import tune as tune_problems

    try:
        report = tune_problems(
            problems,
            effort=effort,
            storage=storage,
            devices=devices,
            backend=backend,
            out=out,
            trials=trials,
            seconds=seconds,
            margin=None if margin is None else margin / 100,
            force=force,
            from_scratch=from_scratch,
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
        verdict = "tuned, torch kept: no clear win"
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
