"""What a search may try, and which configuration it tries next."""

import itertools
import math
import random
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

import optuna

from autoswizzle import space
from autoswizzle.config import GROUPED_SWIZZLES, GemmConfig
from autoswizzle.errors import check_choice
from autoswizzle.hardware import Gpu
from autoswizzle.problem import GemmProblem
from autoswizzle.simulator.resources import estimate, why_infeasible

STEPS = 100  # of the walk from a proposal that was tried to one that was not

Branches = Mapping[str, Mapping[str, tuple[Any, ...]]]


class SearchSpace:
    """The configurations a search of one problem on one GPU may run.

    branches: for each kernel family the values of its tunables, space.branches by default. torch
    and the default configuration always belong to it.
    """

    def __init__(self, problem: GemmProblem, gpu: Gpu, branches: Branches | None = None) -> None:
        self.problem = problem
        self.gpu = gpu
        self.branches = space.branches(problem, gpu) if branches is None else branches
        self.default = space.default_config(problem, gpu)
        self._firsts: dict[str, GemmConfig | None] = {}

    def why_outside(self, config: GemmConfig) -> str | None:
        """Why config is not to be tried, None when it may be."""
        reason = space.why_illegal(config, self.problem, self.gpu)
        if reason is not None or config.kernel == "torch" or config == self.default:
            return reason
        tunables = self.branches.get(config.kernel)
        if tunables is None:
            return f"kernel must be one of {', '.join(self.branches)}, got {config.kernel!r}"
        for name, values in _in_play(tunables, config.swizzle):
            value = getattr(config, name)
            if value not in values:
                return f"{name} must be one of {', '.join(map(str, values))}, got {value!r}"
        return None

    def is_worth_trying(self, config: GemmConfig) -> bool:
        """Whether config belongs to the space and, by the closed form, fits on the GPU."""
        if self.why_outside(config) is not None:
            return False
        return why_infeasible(estimate(config, self.problem, self.gpu), self.gpu) is None

    def configs(self, kernel: str | None = None) -> Iterator[GemmConfig]:
        """Every configuration of the branches, or of one, that is worth trying."""
        branches = self.branches if kernel is None else {kernel: self.branches[kernel]}
        candidates = space.candidates(self.problem, self.gpu, branches)
        yield from filter(self.is_worth_trying, candidates)

    def suggest(self, trial: optuna.Trial) -> GemmConfig:
        """The configuration an Optuna trial proposes; it may be illegal."""
        kernel = trial.suggest_categorical("kernel", list(self.branches))
        chosen: dict[str, Any] = {}
        for name, values in self.branches[kernel].items():
            if name == "group_size":
                continue
            chosen[name] = _suggest(trial, f"{kernel}.{name}", values)
        sizes = self.branches[kernel].get("group_size")
        if sizes and chosen.get("swizzle", _DEFAULT_SWIZZLE) in GROUPED_SWIZZLES:
            chosen["group_size"] = _suggest(trial, f"{kernel}.group_size", sizes)
        return GemmConfig(kernel=kernel, **chosen)

    def near(
        self, config: GemmConfig, taken: Collection[GemmConfig], generator: random.Random
    ) -> GemmConfig | None:
        """The first that is not taken on a random walk over what is worth trying, from config or,
        if it is not, from the closest that becomes of one that is.
        """
        place = config if self.is_worth_trying(config) else self._mended(config, taken, generator)
        if place is None:
            return None
        for _ in range(STEPS):
            if place not in taken:
                return place
            neighbour = self._neighbour(place, generator)
            if self.is_worth_trying(neighbour):
                place = neighbour
        return None

    def _mended(
        self, config: GemmConfig, taken: Collection[GemmConfig], generator: random.Random
    ) -> GemmConfig | None:
        """One of config's family that is worth trying, with as many of its values as can be had,
        alone or two at once: some are legal together only, as a block_n and its slices.
        """
        known = [
            other
            for other in taken
            if other.kernel == config.kernel and self.is_worth_trying(other)
        ]
        known.sort(key=str)  # a set's order is another in every process
        mended = generator.choice(known) if known else self._any_of(config.kernel)
        if mended is None:
            return None
        names = list(self.branches[config.kernel])
        generator.shuffle(names)
        for count in (1, 2):
            lacking = [name for name in names if getattr(mended, name) != getattr(config, name)]
            for together in itertools.combinations(lacking, count):
                values = {name: getattr(config, name) for name in together}
                changed = _settled(replace(mended, **values))
                if self.is_worth_trying(changed):
                    mended = changed
        return mended

    def _any_of(self, kernel: str) -> GemmConfig | None:
        """The first configuration of a family that is worth trying."""
        if kernel not in self._firsts:
            branch = {kernel: self.branches[kernel]}
            found = space.candidates(self.problem, self.gpu, branch)
            self._firsts[kernel] = next(filter(self.is_worth_trying, found), None)
        return self._firsts[kernel]

    def _neighbour(self, config: GemmConfig, generator: random.Random) -> GemmConfig:
        """The same with one tunable drawn anew; it may be illegal."""
        tunables = self.branches[config.kernel]
        name = generator.choice(list(dict(_in_play(tunables, config.swizzle))))
        return _settled(replace(config, **{name: generator.choice(tunables[name])}))

    def as_trial(self, config: GemmConfig, value: float | None) -> optuna.trial.FrozenTrial | None:
        """The finished Optuna trial of config, None if the branches do not hold it.

        value None: the configuration could not be used.
        """
        tunables = self.branches.get(config.kernel)
        if tunables is None:
            return None
        params: dict[str, Any] = {"kernel": config.kernel}
        distributions: dict[str, Any] = {
            "kernel": optuna.distributions.CategoricalDistribution(list(self.branches))
        }
        for name, values in _in_play(tunables, config.swizzle):
            if getattr(config, name) not in values:
                return None
            key = f"{config.kernel}.{name}"
            distributions[key] = _distribution(values)
            params[key] = _encoded(getattr(config, name), values)
        states = optuna.trial.TrialState
        return optuna.create_trial(
            state=states.PRUNED if value is None else states.COMPLETE,
            value=value,
            params=params,
            distributions=distributions,
        )


_DEFAULT_SWIZZLE = GemmConfig().swizzle


def _settled(config: GemmConfig) -> GemmConfig:
    """The same without a group size that its order does not read."""
    if config.swizzle in GROUPED_SWIZZLES:
        return config
    return replace(config, group_size=GemmConfig().group_size)


def _in_play(
    tunables: Mapping[str, tuple[Any, ...]], swizzle: str
) -> Iterator[tuple[str, tuple[Any, ...]]]:
    for name, values in tunables.items():
        if name != "group_size" or swizzle in GROUPED_SWIZZLES:
            yield name, values


def _ordinal(values: tuple[Any, ...]) -> bool:
    return len(values) > 1 and all(type(value) is int for value in values)


def _distribution(values: tuple[Any, ...]) -> optuna.distributions.BaseDistribution:
    """Numbers are searched by their rank, so that the sampler knows which are neighbours."""
    if _ordinal(values):
        return optuna.distributions.IntDistribution(0, len(values) - 1)
    return optuna.distributions.CategoricalDistribution(values)


def _encoded(value: object, values: tuple[Any, ...]) -> object:
    return values.index(value) if _ordinal(values) else value


def _suggest(trial: optuna.Trial, key: str, values: tuple[Any, ...]) -> object:
    if _ordinal(values):
        return values[trial.suggest_int(key, 0, len(values) - 1)]
    return trial.suggest_categorical(key, values)


def _tpe(seed: int) -> optuna.samplers.BaseSampler:
    return optuna.samplers.TPESampler(
        seed=seed, multivariate=True, group=True, constant_liar=True, n_startup_trials=10
    )


def _gp(seed: int) -> optuna.samplers.BaseSampler:
    return optuna.samplers.GPSampler(seed=seed)


def _random(seed: int) -> optuna.samplers.BaseSampler:
    return optuna.samplers.RandomSampler(seed=seed)


SAMPLERS: Mapping[str, Callable[[int], optuna.samplers.BaseSampler]] = {
    "tpe": _tpe,
    "gp": _gp,
    "random": _random,
}


class Proposer:
    """Proposes configurations that are legal and new, learning from those that were measured.

    The sampler's own study lives in memory and is refilled from the stored trials, so a space that
    gained or lost values since they were made is no obstacle.
    """

    def __init__(self, searched: SearchSpace, sampler: str, seed: int) -> None:
        check_choice("sampler", sampler, SAMPLERS)
        self._space = searched
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            self._study = optuna.create_study(sampler=SAMPLERS[sampler](seed))
        self._open: dict[GemmConfig, optuna.Trial] = {}
        self._random = random.Random(seed)
        self._rest: dict[str, list[GemmConfig]] = {}

    def learn(self, config: GemmConfig, time_us: float | None) -> None:
        """Take note of a measured time, or that config could not be used (None)."""
        value = None if time_us is None else math.log(time_us)
        trial = self._open.pop(config, None)
        if trial is not None:
            state = optuna.trial.TrialState.PRUNED if value is None else None
            self._study.tell(trial, value, state=state)
            return
        finished = self._space.as_trial(config, value)
        if finished is not None:
            self._study.add_trial(finished)

    def propose(self, taken: Collection[GemmConfig]) -> GemmConfig | None:
        """A configuration that is not taken, None once the space is exhausted.

        The sampler's own, or what a random walk from there meets first, or any that is left: of its
        family, then of the others.
        """
        if not self._space.branches:
            return None
        trial = self._study.ask()
        config = self._space.suggest(trial)
        if config not in taken and self._space.is_worth_trying(config):
            self._open[config] = trial
            return config
        self._study.tell(trial, state=optuna.trial.TrialState.FAIL)
        found = self._space.near(config, taken, self._random)
        others = [kernel for kernel in self._space.branches if kernel != config.kernel]
        self._random.shuffle(others)
        for kernel in (config.kernel, *others):
            found = found or self._any_other(kernel, taken)
        return found

    def _any_other(self, kernel: str, taken: Collection[GemmConfig]) -> GemmConfig | None:
        if kernel not in self._rest:
            self._rest[kernel] = list(self._space.configs(kernel))
            self._random.shuffle(self._rest[kernel])
        while self._rest[kernel]:
            config = self._rest[kernel].pop()
            if config not in taken:
                return config
        return None
