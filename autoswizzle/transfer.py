"""What tuned entries know of like problems: where the search of another one starts."""

import math
from collections.abc import Iterable
from dataclasses import replace
from itertools import islice

from autoswizzle.cache.entry import CacheEntry
from autoswizzle.cache.key import key_for
from autoswizzle.cache.store import EXTENTS
from autoswizzle.config import GemmConfig
from autoswizzle.hardware import Gpu
from autoswizzle.problem import GemmProblem
from autoswizzle.search.sampling import SearchSpace

KNOWN = 4  # configurations: a fifth of a quick search, and those on both sides of two extents

# Distances are in doublings of an extent. Origin: the screened times of
# benchmarks/results/h200/suite-*-large.json, wherever one problem's winner was tried on another. At
# the same extents in another layout or dtype, nine of ten come within 3 % of the fastest that was
# tried there, at a distance below 4 within 6 %, farther away within 11 %.
OTHER_LAYOUT = 0.5
OTHER_DTYPE = 0.25  # of equal size: the same kernels, instructions and traffic
FAR = 4.0  # a factor 16 in all; from there on none is tried


def known_configs(
    problem: GemmProblem, gpu: Gpu, entries: Iterable[CacheEntry], count: int = KNOWN
) -> list[GemmConfig]:
    """The count fastest configurations of ours on gpu for the problems nearest to problem.

    Nearest first, of equally near ones those that beat torch first, each once, legal for problem
    and in its search space. Entries of another source or triton count too, those of problem itself
    included: they are only ideas to be measured.
    """
    wanted = key_for(problem, gpu)
    near = []
    for entry in entries:
        key = replace(entry.key, problem=problem, triton=wanted.triton, source=wanted.source)
        lost = entry.config.kernel == "torch"
        idea = entry.fastest if lost else entry.config
        if key == wanted and entry.origin == "measured" and idea is not None:
            other = entry.key.problem
            near.append((_distance(problem, other), lost, str(other), str(idea), idea))
    near.sort(key=lambda found: found[:4])  # the texts decide ties, whatever the entries' order
    searched = SearchSpace(problem, gpu)
    ideas = dict.fromkeys(config for distance, *_, config in near if distance < FAR)
    return list(islice((idea for idea in ideas if searched.why_outside(idea) is None), count))


def _distance(one: GemmProblem, other: GemmProblem) -> float:
    """How far apart two problems are, infinitely if elements differ in size or precision."""
    if (one.itemsize, one.precision) != (other.itemsize, other.precision):
        return math.inf
    doublings = (abs(math.log2(getattr(one, name) / getattr(other, name))) for name in EXTENTS)
    layout = OTHER_LAYOUT * (one.layout != other.layout)
    dtype = OTHER_DTYPE * (one.dtype != other.dtype)
    return round(sum(doublings) + layout + dtype, 6)  # a last bit breaks no tie
