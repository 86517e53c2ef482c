"""A laboratory whose compilers and GPU answer from formulas."""

from functools import cache

from autoswizzle.config import TORCH
from autoswizzle.errors import CompileError
from autoswizzle.hardware import find_gpu
from autoswizzle.laboratory import Laboratory
from autoswizzle.search.bench import Screening
from autoswizzle.search.measure import Measurement, Race
from autoswizzle.simulator.ranking import shortlist
from autoswizzle.simulator.resources import Resources

H200 = find_gpu("H200")


@cache
def seeds(problem):
    """What a search of problem tries first."""
    return [item.config for item in shortlist(problem, H200)]


def winner(problem):
    """Of ours the fastest: neither the first seed nor the default."""
    return seeds(problem)[3]


class Bench:
    """Stands for the GPU's worker: the winner takes 100 us, torch torch_us, all others 150."""

    def __init__(self, torch_us):
        self.torch_us = torch_us
        self.tasks = []

    def __call__(self, task):
        self.tasks.append(task)
        if isinstance(task, Screening):
            return self.measurement(task.config, task.problem)
        measurements = tuple(self.measurement(config, task.problem) for config in task.configs)
        return Race(measurements, tuple((item.time_us,) * 20 for item in measurements))

    def measurement(self, config, problem):
        ours_us = 100.0 if config == winner(problem) else 150.0
        us = self.torch_us if config == TORCH else ours_us
        return Measurement(config, us, us, us, "sustained", host_us=5.0)


class Compilers:
    """Stands for the compiling processes; refuses each problem's first seed."""

    def __init__(self):
        self.announced = []

    def of(self, gpu):
        assert gpu == H200
        return self

    def ranked(self, problem, gpu):
        return shortlist(problem, gpu)

    def close(self):
        pass

    def start(self):
        """Nothing to start."""

    def prefetch(self, tasks):
        self.announced += tasks

    def complete(self, tasks):
        self.prefetch(tasks)
        for task in tasks:
            self(task)

    def __call__(self, task):
        assert task in self.announced, "compiled without notice"
        config, problem = task
        if config == seeds(problem)[0]:
            raise CompileError("ptxas gives up")
        return Resources(128, 100_000, 8)


class FakeLaboratory(Laboratory):
    """Searches as the real one does."""

    torch_us = 110.0

    def __init__(self, gpu, device, effort, storage, compilers=None):
        super().__init__(gpu, device, effort, storage, Compilers())
        self.bench = Bench(self.torch_us)
