"""A small search of known outcomes, stored as a real one is."""

from pathlib import Path

from sqlalchemy import make_url

from autoswizzle.config import TORCH, GemmConfig
from autoswizzle.hardware import find_gpu
from autoswizzle.search.finals import Final
from autoswizzle.search.history import Failure, History
from autoswizzle.search.measure import Measurement
from autoswizzle.search.sampling import SearchSpace
from autoswizzle.search.storage import quiet_optuna

A, B, C, D = (GemmConfig(num_stages=stages) for stages in (2, 3, 4, 5))
E = GemmConfig(swizzle="hilbert")


def timed(config, time_us):
    return Measurement(config, time_us, time_us, time_us, "sustained")


FINAL = Final(D, D, 1.5, 1.4, 1.6, (timed(D, 10.0),), (timed(D, 10.0), timed(TORCH, 15.0)))


def outcomes(kind="CompileError"):
    """What became of each trial, and the time predicted for it."""
    return (
        (timed(A, 30.0), 20.0),
        (timed(TORCH, 15.0), None),
        (Failure(B, kind, "too much"), 1.0),
        (timed(C, 40.0), 30.0),
        (timed(D, 10.0), 10.0),
        (Failure(E, "Hung", "no answer"), 2.0),
    )


def store(url, problem, found=None, *, gpu="H200", revisions=None, final=None, kind="CompileError"):
    """A study of these trials, half a second of the GPU each; without any of outcomes()."""
    complete = found is None
    found = outcomes(kind) if complete else found
    space = SearchSpace(problem, find_gpu(gpu))
    if url.startswith("sqlite"):
        Path(make_url(url).database).parent.mkdir(exist_ok=True)
    with quiet_optuna():
        history = History(url, space, revisions or {})
        for outcome, predicted_us in found:
            history.enqueue(outcome.config, predicted_us)
            history.run_next(lambda config, outcome=outcome: (outcome, 0.5))
        if complete or final is not None:
            history.save_final({"finalists": [], "final": final or FINAL.to_dict()})
        history.close()
