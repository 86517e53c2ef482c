"""Predictions for users: a problem in its text form, a GPU by name, no GPU needed."""

from autoswizzle.calibration import calibrated
from autoswizzle.config import GemmConfig, check_type
from autoswizzle.hardware import Gpu, as_gpu, detect
from autoswizzle.problem import GemmProblem, as_problem
from autoswizzle.simulator import ranking
from autoswizzle.simulator.ranking import Prediction


def rank(
    problem: GemmProblem | str, *, gpu: Gpu | str | None = None, top: int = 20
) -> list[Prediction]:
    """The `top` configurations of least predicted time for problem, best first.

    problem: or its text form ("4096x14336x4096:bf16:nt"). gpu: facts, a name of the catalogue
    ("H200"), or None for device 0. Times in us. Raises ProblemError, ArgumentError (top),
    HardwareError, UnavailableError (no GPU).
    """
    return ranking.rank(as_problem(problem), _gpu(gpu), top)


def simulate(
    problem: GemmProblem | str, config: GemmConfig, *, gpu: Gpu | str | None = None
) -> Prediction:
    """What config is predicted to do: L2 hit rate, DRAM bytes, waves, residency, time, terms.

    problem, gpu: as for rank. Raises ConfigError when config can't run problem there.
    """
    check_type(config)
    return ranking.predict(as_problem(problem), config, _gpu(gpu))


def _gpu(gpu: Gpu | str | None) -> Gpu:
    return calibrated(detect(0)) if gpu is None else as_gpu(gpu)
