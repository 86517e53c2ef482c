"""Predictions for users: a problem in its text form, a GPU by name, no GPU needed."""

from autoswizzle.calibration import calibrated
from autoswizzle.config import GemmConfig
from autoswizzle.errors import HardwareError
from autoswizzle.hardware import Gpu, detect, find_gpu
from autoswizzle.problem import GemmProblem
from autoswizzle.simulator import ranking
from autoswizzle.simulator.ranking import Prediction


def rank(
    problem: GemmProblem | str, *, gpu: Gpu | str | None = None, top: int = 20
) -> list[Prediction]:
    """The `top` configurations of least predicted time for problem, best first.

    problem: or its text form ("4096x14336x4096:bf16:nt"). gpu: facts, a name of the catalogue
    ("H200"), or None for device 0. Raises ProblemError, HardwareError, UnavailableError (no GPU).
    """
    return ranking.rank(_problem(problem), _gpu(gpu), top)


def simulate(
    problem: GemmProblem | str, config: GemmConfig, *, gpu: Gpu | str | None = None
) -> Prediction:
    """What config is predicted to do: L2 hit rate, DRAM bytes, waves, residency, time, terms.

    problem, gpu: as for rank. Raises ConfigError when config can't run problem there.
    """
    return ranking.predict(_problem(problem), config, _gpu(gpu))


def _problem(problem: GemmProblem | str) -> GemmProblem:
    return GemmProblem.parse(problem) if isinstance(problem, str) else problem


def _gpu(gpu: Gpu | str | None) -> Gpu:
    if gpu is None:
        return calibrated(detect(0))
    if isinstance(gpu, str):
        return find_gpu(gpu)
    if not isinstance(gpu, Gpu):
        raise HardwareError(f"gpu must be a Gpu, a name or None, got {gpu!r}")
    return gpu
