"""One GPU and its processes: candidates compile ahead in parallel and run in isolation."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, Any

from autoswizzle import kernels
from autoswizzle.config import TORCH, GemmConfig
from autoswizzle.errors import CandidateError, TuneError
from autoswizzle.hardware import Gpu
from autoswizzle.problem import GemmProblem
from autoswizzle.settings import settings
from autoswizzle.simulator.ranking import Prediction, shortlist
from autoswizzle.simulator.resources import Resources
from autoswizzle.space import FAMILIES
from autoswizzle.toolchain import triton_version

if TYPE_CHECKING:
    import torch

    from autoswizzle.search.ahead import AheadOfNeed
    from autoswizzle.search.effort import Effort
    from autoswizzle.search.measure import Measurement, Race
    from autoswizzle.search.study import Progress, SearchResult
    from autoswizzle.search.timing import Turn
    from autoswizzle.search.workers import Worker

COMPILE_S = 120.0  # limit of one compilation
RANK_S = 600.0  # limit of ranking one problem: minutes for a million tiles
COMPILERS = 16  # processes for each GPU, while there are cores; each imports torch: about 1 GB
MEMO = "compiled"  # in the cache folder: resources of what was compiled once


@dataclass(frozen=True, slots=True)
class Compiler:
    """Worker factory: compiles for gpu, which need not be here."""

    gpu: Gpu

    def __call__(self) -> Callable[[tuple[GemmConfig, GemmProblem]], Resources]:
        """The function that takes the tasks."""
        return lambda task: kernels.compile_for(*task, self.gpu)


def compiling_processes(gpus: int = 1) -> int:
    """How many compile for so many GPUs; one core is left to the rest."""
    from joblib import cpu_count

    cores: int = cpu_count()
    return max(1, min(gpus * COMPILERS, cores - 1))


def compilers_for(
    gpu: Gpu, gpus: int = 1
) -> "AheadOfNeed[tuple[GemmConfig, GemmProblem], Resources]":
    """Processes that compile for so many GPUs of a kind, remembering on disk what they compiled."""
    from autoswizzle.search.ahead import AheadOfNeed

    return AheadOfNeed(
        Compiler(gpu),
        workers=compiling_processes(gpus),
        limit_s=COMPILE_S,
        memo=settings().cache_dir / MEMO,
        key=f"{gpu.capability} {revisions()}",
    )


def compile_ahead(configs: Sequence[GemmConfig], problem: GemmProblem, gpu: Gpu) -> None:
    """Compile configs in parallel into triton's cache; raises CompileError of the first that fails.

    A launch in this process then finds them there.
    """
    with closing(compilers_for(gpu)) as compilers:
        compilers.complete([(config, problem) for config in configs])


def revisions() -> dict[str, str]:
    """By family, what the times of its kernels depend on: their source and the compiler."""
    return {name: f"{kernels.source_hash(name)} {triton_version()}" for name in FAMILIES}


def run_kernel(
    config: GemmConfig,
    problem: GemmProblem,
    a: "torch.Tensor",
    b: "torch.Tensor",
    out: "torch.Tensor",
) -> None:
    """Launch one of our kernels (a function of its own, so that workers can name it)."""
    kernels.run(config, problem, a, b, out)


@dataclass(frozen=True, slots=True)
class Ranker:
    """Worker factory: ranks for gpu, which need not be here."""

    gpu: Gpu

    def __call__(self) -> Callable[[GemmProblem], list[Prediction]]:
        """The function that takes the tasks."""
        return lambda problem: shortlist(problem, self.gpu)


class Compilers:
    """The compiling processes of each kind of GPU, and the one that ranks what to try: started at
    need, shared by the laboratories of gpus.
    """

    def __init__(self, gpus: Sequence[Gpu] = ()) -> None:
        self._counts = Counter(gpus)
        self._by_gpu: dict[Gpu, AheadOfNeed[tuple[GemmConfig, GemmProblem], Resources]] = {}
        self._rankers: dict[Gpu, AheadOfNeed[GemmProblem, list[Prediction]]] = {}
        self._lock = Lock()

    def of(self, gpu: Gpu) -> "AheadOfNeed[tuple[GemmConfig, GemmProblem], Resources]":
        """The processes that compile for gpu, and what they compiled before."""
        with self._lock:
            if gpu not in self._by_gpu:
                self._by_gpu[gpu] = compilers_for(gpu, max(1, self._counts[gpu]))
            return self._by_gpu[gpu]

    def ranked(self, problem: GemmProblem, gpu: Gpu) -> list[Prediction]:
        """The shortlist of problem on gpu, made in another process as threads would wait for it."""
        from autoswizzle.search.ahead import AheadOfNeed

        with self._lock:
            if gpu not in self._rankers:
                self._rankers[gpu] = AheadOfNeed(Ranker(gpu), workers=1, limit_s=RANK_S)
        return self._rankers[gpu](problem)

    def close(self) -> None:
        """Kill them; whoever waits for one gets an error."""
        with self._lock:
            for compilers in self._by_gpu.values():
                compilers.close()
            for ranker in self._rankers.values():
                ranker.close()


class Laboratory:
    """Searches problems on CUDA device number device; its processes start at need, end with close.

    effort: the budget of each search. storage: an Optuna storage URL, None keeps nothing.
    compilers: shared with other laboratories, and then closed by their owner.
    """

    def __init__(
        self,
        gpu: Gpu,
        device: int,
        effort: "Effort",
        storage: str | None,
        compilers: Compilers | None = None,
    ) -> None:
        self.gpu = gpu
        self.effort = effort
        self.storage = storage
        self._device = device
        self._open = ExitStack()
        self._ended = False
        if compilers is None:
            compilers = Compilers()
            self._open.callback(compilers.close)
        self._compilers = compilers

    @property
    def compilers(self) -> "AheadOfNeed[tuple[GemmConfig, GemmProblem], Resources]":
        """The processes that compile, and what they compiled before."""
        return self._compilers.of(self.gpu)

    @cached_property
    def bench(self) -> "Worker[Any, Any]":
        """The process that measures."""
        from autoswizzle.search.bench import Bench
        from autoswizzle.search.workers import Worker

        bench = Bench(self.gpu, run_kernel, self._device)
        return self._open.enter_context(closing(Worker(bench, limit_s=self.effort.candidate_s)))

    def announce(self, problem: GemmProblem, seeds: Sequence[GemmConfig] = ()) -> list[Prediction]:
        """Rank, from any thread, and start compiling what the search of problem will try first."""
        from autoswizzle.search.plan import spread

        self.compilers.start()
        self.compilers.prefetch([(config, problem) for config in seeds])
        predictions = self._compilers.ranked(problem, self.gpu)
        first = spread([item.config for item in predictions], self.effort.seeds)
        self.compilers.prefetch([(config, problem) for config in first])
        return predictions

    def search(
        self,
        problem: GemmProblem,
        progress: "Callable[[Progress], None] | None" = None,
        seeds: Sequence[GemmConfig] = (),
    ) -> "SearchResult":
        """Search problem, seeds before predictions.

        Raises TuneError when nothing or nothing of ours could be used.
        """
        from autoswizzle.search.bench import Racing, Screening
        from autoswizzle.search.study import search

        def compiled(config: GemmConfig) -> Resources:
            with self._interruptible():
                return self.compilers((config, problem))

        def prefetch(configs: Sequence[GemmConfig]) -> None:
            with self._interruptible():
                self.compilers.prefetch([(config, problem) for config in configs])

        def measure(config: GemmConfig) -> "Measurement":
            with self._interruptible():
                found: Measurement = self.bench(
                    Screening(problem, config, self.effort.screening_ms)
                )
            return found

        def race(configs: Sequence[GemmConfig], seed: int, turn: "Turn") -> "Race":
            each_ms = self.effort.final_ms / len(configs)
            task = Racing(problem, tuple(configs), each_ms, seed, turn)
            with self._interruptible():
                found: Race = self.bench(task)
            return found

        try:
            with self._interruptible():
                predictions = self.announce(problem, seeds)
                self.bench(Screening(problem, TORCH, 1.0))  # starts it, makes operands, uncounted
        except CandidateError as error:  # memory for no operands, say: other problems go on
            raise TuneError(f"{problem} can't be measured: {error.kind}: {error}") from error
        return search(
            problem,
            self.gpu,
            measure=measure,
            compile=compiled,
            prefetch=prefetch,
            lookahead=compiling_processes(),
            predictions=predictions,
            seeds=seeds,
            effort=self.effort,
            storage=self.storage,
            progress=progress,
            race=race,
            revisions=revisions(),
        )

    def close(self) -> None:
        """End its processes, those of shared compilers aside."""
        self._open.close()

    def end(self) -> None:
        """Make search, in another thread, raise KeyboardInterrupt; shared compilers go on."""
        self._ended = True
        if "bench" in self.__dict__:
            self.bench.end()

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """What fails after end() did so because of it: no outcome of a candidate's."""
        try:
            if not self._ended:
                yield
        except Exception:
            if not self._ended:
                raise
        if self._ended:
            raise KeyboardInterrupt
