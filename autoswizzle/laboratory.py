"""One GPU and its processes: candidates compile ahead in parallel and run in isolation."""

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any

from autoswizzle import kernels
from autoswizzle.config import TORCH, GemmConfig
from autoswizzle.hardware import Gpu
from autoswizzle.problem import GemmProblem
from autoswizzle.settings import settings
from autoswizzle.simulator.ranking import shortlist
from autoswizzle.simulator.resources import Resources
from autoswizzle.space import FAMILIES
from autoswizzle.toolchain import triton_version

if TYPE_CHECKING:
    import torch

    from autoswizzle.search.effort import Effort
    from autoswizzle.search.measure import Measurement, Race
    from autoswizzle.search.study import Progress, SearchResult
    from autoswizzle.search.workers import AheadOfNeed, Worker

COMPILE_S = 120.0  # limit of one compilation
COMPILERS = max(1, min(16, (os.cpu_count() or 2) - 1))  # processes; each imports torch: about 1 GB
MEMO = "compiled"  # in the cache folder: resources of what was compiled once


@dataclass(frozen=True, slots=True)
class Compiler:
    """Worker factory: compiles for gpu, which need not be here."""

    gpu: Gpu

    def __call__(self) -> Callable[[tuple[GemmConfig, GemmProblem]], Resources]:
        """The function that takes the tasks."""
        return lambda task: kernels.compile_for(*task, self.gpu)


def compilers_for(gpu: Gpu) -> "AheadOfNeed[tuple[GemmConfig, GemmProblem], Resources]":
    """Processes that compile for gpu, remembering on disk what they compiled."""
    from autoswizzle.search.workers import AheadOfNeed

    sources = "".join(kernels.source_hash(name) for name in FAMILIES)
    return AheadOfNeed(
        Compiler(gpu),
        workers=COMPILERS,
        limit_s=COMPILE_S,
        memo=settings().cache_dir / MEMO,
        key=f"{gpu.capability} {triton_version()} {sources}",
    )


def compile_ahead(configs: Sequence[GemmConfig], problem: GemmProblem, gpu: Gpu) -> None:
    """Compile configs in parallel into triton's cache; raises CompileError of the first that fails.

    A launch in this process then finds them there.
    """
    with compilers_for(gpu) as compilers:
        compilers.prefetch([(config, problem) for config in configs])
        for config in configs:
            compilers((config, problem))


def run_kernel(
    config: GemmConfig,
    problem: GemmProblem,
    a: "torch.Tensor",
    b: "torch.Tensor",
    out: "torch.Tensor",
) -> None:
    """Launch one of our kernels (a function of its own, so that workers can name it)."""
    kernels.run(config, problem, a, b, out)


class Laboratory:
    """Searches problems on CUDA device number device; its processes start at need, end with it.

    effort: the budget of each search. storage: an Optuna storage URL, None keeps nothing.
    """

    def __init__(self, gpu: Gpu, device: int, effort: "Effort", storage: str | None) -> None:
        self.gpu = gpu
        self.effort = effort
        self.storage = storage
        self._device = device
        self._open = ExitStack()

    @cached_property
    def compilers(self) -> "AheadOfNeed[tuple[GemmConfig, GemmProblem], Resources]":
        """The processes that compile, and what they compiled before."""
        return self._open.enter_context(compilers_for(self.gpu))

    @cached_property
    def bench(self) -> "Worker[Any, Any]":
        """The process that measures."""
        from autoswizzle.search.bench import Bench
        from autoswizzle.search.workers import Worker

        bench = Bench(self.gpu, run_kernel, self._device)
        return self._open.enter_context(Worker(bench, limit_s=self.effort.candidate_s))

    def search(
        self,
        problem: GemmProblem,
        progress: "Callable[[Progress], None] | None" = None,
    ) -> "SearchResult":
        """Search problem; raises TuneError when no configuration of ours could be used."""
        from autoswizzle.search.bench import Racing, Screening
        from autoswizzle.search.study import search

        def measure(config: GemmConfig) -> "Measurement":
            found: Measurement = self.bench(Screening(problem, config, self.effort.screening_ms))
            return found

        def race(configs: Sequence[GemmConfig], seed: int) -> "Race":
            task = Racing(problem, tuple(configs), self.effort.final_ms, seed)
            found: Race = self.bench(task)
            return found

        seeds = shortlist(problem, self.gpu)
        self.compilers.prefetch([(seed.config, problem) for seed in seeds[: self.effort.seeds]])
        self.bench(
            Screening(problem, TORCH, 1.0)
        )  # starts it and makes the operands, off the clock
        return search(
            problem,
            self.gpu,
            measure=measure,
            compile=lambda config: self.compilers((config, problem)),
            prefetch=lambda configs: self.compilers.prefetch([(c, problem) for c in configs]),
            lookahead=COMPILERS,
            predictions=seeds,
            effort=self.effort,
            storage=self.storage,
            progress=progress,
            race=race,
            revisions={name: kernels.source_hash(name) for name in FAMILIES},
        )

    def __enter__(self) -> "Laboratory":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._open.close()
