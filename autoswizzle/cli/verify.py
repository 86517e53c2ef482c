"""`autoswizzle cache verify`: whether stored entries still hold on this machine."""

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated

import typer

from autoswizzle.cache.entry import CacheEntry
from autoswizzle.cache.key import key_for
from autoswizzle.cli.failures import FAILED, one_line
from autoswizzle.cli.options import integer, need_triton, positive, present_gpu
from autoswizzle.config import TORCH
from autoswizzle.errors import AutoswizzleError, CacheError, CandidateError, LaunchError
from autoswizzle.hardware import Gpu
from autoswizzle.report.tables import print_json, table
from autoswizzle.search.effort import EFFORTS
from autoswizzle.toolchain import triton_version

RACE_MS = EFFORTS["standard"].final_ms / 2  # of GPU time for each side of a comparison


@dataclass(frozen=True, slots=True)
class Verdict:
    """One entry timed again. ratio: torch's time over the entry's; drift: its relative change."""

    problem: str
    config: str
    stored_ratio: float | None
    ratio: float | None
    drift: float | None
    result: str


Sample = Annotated[
    int, typer.Option("--sample", parser=integer(1), metavar="N", help="Entries to time again.")
]
Tolerance = Annotated[
    float,
    typer.Option(
        "--tolerance", parser=positive, metavar="PERCENT", help="Loss against torch that fails."
    ),
]


def usable_here(entries: Sequence[CacheEntry], gpu: Gpu) -> list[CacheEntry]:
    """The measured entries of own kernels that a lookup on gpu may find."""
    version = triton_version()
    return [
        entry
        for entry in entries
        if entry.origin == "measured"
        and entry.config != TORCH
        and entry.key == key_for(entry.key.problem, gpu, entry.key.source, version)
    ]


def verify_entries(
    entries: Sequence[CacheEntry], sample: int, tolerance: float, device: int, as_json: bool
) -> None:
    """Time a sample of entries against torch and print how they drifted; exits 1 if one failed."""
    need_triton()
    gpu = present_gpu(device)
    usable = usable_here(entries, gpu)
    if not usable:
        raise CacheError(f"no entry of a kernel for this {gpu.name} to verify")
    chosen = random.Random(0).sample(usable, min(sample, len(usable)))
    verdicts = [_verify(entry, gpu, device, tolerance / 100) for entry in chosen]
    if as_json:
        print_json([asdict(verdict) for verdict in verdicts])
    else:
        titles = ("problem", "configuration", "stored", "now", "drift %", "result")
        print(table(titles, [_row(verdict) for verdict in verdicts]))
    if any(verdict.result != "ok" for verdict in verdicts):
        raise typer.Exit(FAILED)


def _verify(entry: CacheEntry, gpu: Gpu, device: int, tolerance: float) -> Verdict:
    problem, config = str(entry.key.problem), str(entry.config)
    try:
        ratio = _ratio(entry, gpu, device)
    except CandidateError as error:
        return Verdict(problem, config, entry.ratio, None, None, str(error))
    drift = None if entry.ratio is None else ratio / entry.ratio - 1
    lost = drift is not None and drift < -tolerance
    return Verdict(problem, config, entry.ratio, ratio, drift, "drifted" if lost else "ok")


def _ratio(entry: CacheEntry, gpu: Gpu, device: int) -> float:
    """Torch's time over that of the entry's configuration, as a final judges it, after a check of
    its product.
    """
    import torch

    from autoswizzle import kernels
    from autoswizzle.search.measure import Measurer

    try:
        with torch.cuda.device(device):
            measurer = Measurer(entry.key.problem, gpu, kernels.run, device=f"cuda:{device}")
            ratio, _, _ = measurer.race([entry.config, TORCH], RACE_MS).ratio()
    except AutoswizzleError:
        raise
    except RuntimeError as error:  # torch's: no memory, for cuBLAS's workspace say, or a bad launch
        raise LaunchError(one_line(error), type(error).__name__) from error
    return ratio


def _row(verdict: Verdict) -> tuple[object, ...]:
    drift = None if verdict.drift is None else 100 * verdict.drift
    return (
        verdict.problem,
        verdict.config,
        verdict.stored_ratio,
        verdict.ratio,
        drift,
        verdict.result,
    )
