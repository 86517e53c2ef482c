"""What a worker that owns a GPU does: it screens configurations and holds races."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from autoswizzle.config import GemmConfig
from autoswizzle.hardware import Gpu
from autoswizzle.problem import GemmProblem
from autoswizzle.search.measure import Measurement, Measurer, Race, Run
from autoswizzle.search.timing import SHORT, Turn


@dataclass(frozen=True, slots=True)
class Screening:
    """Measure one configuration (Measurer.measure)."""

    problem: GemmProblem
    config: GemmConfig
    budget_ms: float
    method: str = "sustained"


@dataclass(frozen=True, slots=True)
class Racing:
    """Time configurations in turns (Measurer.race), on inputs made from seed."""

    problem: GemmProblem
    configs: tuple[GemmConfig, ...]
    budget_ms: float
    seed: int
    turn: Turn = SHORT


Task = Screening | Racing
MakeMeasurer = Callable[[GemmProblem, int], Measurer]


@dataclass(frozen=True, slots=True)
class Bench:
    """Worker factory: the bench of CUDA device number device; run is Measurer's, picklable."""

    gpu: Gpu
    run: Run
    device: int = 0

    def __call__(self) -> Callable[[Task], Measurement | Race]:
        """The function that takes the tasks; called in the worker."""
        torch.cuda.set_device(self.device)
        where = torch.device("cuda", self.device)
        return Tasks(
            lambda problem, seed: Measurer(problem, self.gpu, self.run, device=where, seed=seed)
        )


class Tasks:
    """Carries out tasks; the operands of one problem and seed are kept until another comes."""

    def __init__(self, make: MakeMeasurer) -> None:
        self._make = make
        self._key: tuple[GemmProblem, int] | None = None
        self._measurer: Measurer | None = None

    def __call__(self, task: Task) -> Measurement | Race:
        """The outcome of task; raises what Measurer raises."""
        if isinstance(task, Racing):
            racers = self._measurer_of(task.problem, task.seed)
            return racers.race(task.configs, task.budget_ms, task.turn)
        measurer = self._measurer_of(task.problem, 0)
        return measurer.measure(task.config, task.budget_ms, task.method)

    def _measurer_of(self, problem: GemmProblem, seed: int) -> Measurer:
        if self._measurer is None or self._key != (problem, seed):
            self._measurer = None  # frees the other problem's operands first
            self._measurer = self._make(problem, seed)
            self._key = (problem, seed)
        return self._measurer
