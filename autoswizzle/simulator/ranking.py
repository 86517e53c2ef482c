"""What a configuration will do to a problem, and which configurations to try first."""

from bisect import insort
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import zip_longest
from typing import Any

from autoswizzle.config import GemmConfig
from autoswizzle.errors import ArgumentError, ConfigError, check_choice
from autoswizzle.hardware import Gpu
from autoswizzle.problem import GemmProblem
from autoswizzle.simulator.cost import Terms, dram_write_bytes, terms
from autoswizzle.simulator.l2 import measured_traffic
from autoswizzle.simulator.lru import Traffic, traffic
from autoswizzle.simulator.resources import Resources, estimate, resident_blocks, why_infeasible
from autoswizzle.simulator.work import Launch
from autoswizzle.space import candidates, cluster_size, grid, orders, tiles, why_illegal
from autoswizzle.variety import varied

# What a model of the L2 makes of a launch on a GPU; the last argument: bytes of an output element.
_MODELS: Mapping[str, Callable[[Launch, Gpu, int], Traffic]] = {
    "lru": lambda launch, gpu, _: traffic(launch, gpu.l2_effective_bytes),
    "l2": measured_traffic,
}


_TILES = 16  # whose orders shortlist ranks
_OF_A_FAMILY = 2  # of these are of each family that comes within _NEAR of the best, 1 of others
_NEAR = 1.2


@dataclass(frozen=True, slots=True)
class Prediction:
    """One configuration's predicted run.

    l2_hit_rate: 0..1, of operand tiles. waves: work items over those resident at once. resident:
    programs the GPU holds at once (a cluster is one). time_us and its terms: microseconds.
    """

    problem: GemmProblem
    config: GemmConfig
    l2_hit_rate: float
    dram_read_bytes: int
    dram_write_bytes: int
    waves: float
    resident: int
    time_us: float
    terms: Mapping[str, float]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready mapping; the problem in its text form."""
        changed = {"problem": str(self.problem), "config": self.config.to_dict()}
        return asdict(self) | changed


def predict(
    problem: GemmProblem,
    config: GemmConfig,
    gpu: Gpu,
    resources: Resources | None = None,
    model: str = "lru",
) -> Prediction:
    """Predict one configuration, from a compiled kernel's resources or the closed form's.

    model: of the L2, "lru" (whole-tile LRU of the effective capacity) or "l2" (as DRAM counters
    show it, l2.py). Raises ConfigError with the reason when config is illegal or no block of it
    fits.
    """
    follow = _follower(problem, gpu, model)
    reason = why_illegal(config, problem, gpu)
    if reason is None and config.kernel == "torch":
        reason = "kernel must be one of ours to be predicted, got 'torch'"
    if reason is None:
        resources = resources or estimate(config, problem, gpu)
        reason = why_infeasible(resources, gpu)
    if reason is not None or resources is None:
        raise ConfigError(f"{config}: {reason}")
    return _predicted(problem, config, gpu, resources, follow)


def rank(
    problem: GemmProblem,
    gpu: Gpu,
    top: int = 20,
    configs: Iterable[GemmConfig] | None = None,
    model: str = "lru",
) -> list[Prediction]:
    """The `top` configurations of least predicted time, then least DRAM traffic.

    configs: the ones to rank, every candidate by default; those that are illegal or do not fit are
    left out. A prediction is only finished while it can still be among the best: reading each
    operand once bounds its traffic and so its time from below.
    """
    follow = _follower(problem, gpu, model)
    if type(top) is not int or top < 1:
        raise ArgumentError(f"top must be an integer of at least 1, got {top!r}")
    if configs is None:
        configs = candidates(problem, gpu)
    else:
        configs = (c for c in configs if c.kernel != "torch" and not why_illegal(c, problem, gpu))
    least_bytes = problem.min_bytes - dram_write_bytes(problem)
    bounded = []
    for config in configs:
        resources = estimate(config, problem, gpu)
        if resident_blocks(resources, gpu):
            least = _terms(config, problem, gpu, resources, least_bytes).total
            bounded.append((least, resources, config))
    bounded.sort(key=lambda entry: entry[0])
    best: list[Prediction] = []
    for least, resources, config in bounded:
        if len(best) == top and _order(best[-1]) <= (least, least_bytes):
            break
        insort(best, _predicted(problem, config, gpu, resources, follow), key=_order)
        del best[top:]
    return best


def shortlist(
    problem: GemmProblem, gpu: Gpu, count: int = 200, model: str = "lru"
) -> list[Prediction]:
    """Up to count predictions to try first: the best order of each promising tile, then the second
    best of each, and so on. The promising tiles are 16, among them one of every legal family.

    Many configurations share one predicted time, as the model does not see all that tells them
    apart; a search that starts with different tiles learns more than from the best ones of rank.
    Of a tile's stages the deepest of the least time is taken, then the fewest output slices.
    """
    follow = _follower(problem, gpu, model)
    least_bytes = problem.min_bytes - dram_write_bytes(problem)
    bounded: dict[GemmConfig, tuple[tuple[float, int, int], Resources, GemmConfig]] = {}
    for config in tiles(problem, gpu):
        resources = estimate(config, problem, gpu)
        if resident_blocks(resources, gpu):
            least = _terms(config, problem, gpu, resources, least_bytes).total
            found = ((least, -config.num_stages, config.epilogue_subtile), resources, config)
            key = replace(config, num_stages=1, epilogue_subtile=1)
            # one consumer of 8 warps, two of 4: alike; so are more sums or loads in fewer threads
            if config.warp_specialize == "cooperative" or config.kernel in ("gemv", "skinny"):
                key = replace(key, num_warps=4)
            bounded[key] = min(bounded.get(key, found), found, key=lambda entry: entry[0])
    ordered = sorted(bounded.values(), key=lambda entry: entry[0])
    of_families = {config.kernel: config for *_, config in reversed(ordered)}
    promising = varied(
        ordered,
        kind=lambda entry: entry[-1].kernel,
        most=_OF_A_FAMILY,
        near=lambda entry: (
            entry[0][0] <= _NEAR * ordered[0][0][0]
            or entry[-1] is of_families[entry[-1].kernel]  # the model may misjudge a family
        ),
    )[:_TILES]
    columns = [
        sorted(
            (_predicted(problem, order, gpu, resources, follow) for order in orders(config)),
            key=_order,
        )
        for _, resources, config in promising
    ]
    columns.sort(key=lambda column: _order(column[0]))
    rows = zip_longest(*columns)
    return [found for row in rows for found in row if found is not None][:count]


def _follower(problem: GemmProblem, gpu: Gpu, model: str) -> Callable[[Launch], Traffic]:
    """The model, by name, for launches of problem; each is followed once."""
    check_choice("model", model, _MODELS)

    @cache
    def follow(launch: Launch) -> Traffic:
        itemsize = problem.out_itemsize if launch.split_k == 1 else 4
        return _MODELS[model](launch, gpu, itemsize)

    if model == "l2":
        return follow
    # to the plain cache these are one launch (see Launch)
    return lambda launch: follow(replace(launch, stages=1, persistent=True))


def _order(prediction: Prediction) -> tuple[float, int]:
    return prediction.time_us, prediction.dram_read_bytes


def _terms(
    config: GemmConfig, problem: GemmProblem, gpu: Gpu, resources: Resources, read_bytes: float
) -> Terms:
    blocks = resident_blocks(resources, gpu)
    return terms(config, problem, gpu, blocks, read_bytes, spill_bytes=resources.spill_bytes)


def _predicted(
    problem: GemmProblem,
    config: GemmConfig,
    gpu: Gpu,
    resources: Resources,
    follow: Callable[[Launch], Traffic],
) -> Prediction:
    resident = resident_blocks(resources, gpu) * gpu.num_sms // cluster_size(config)
    grid_m, grid_n = grid(config, problem)
    items = problem.batch * grid_m * grid_n * config.split_k
    launch = Launch(
        problem.m, problem.n, problem.k,
        config.block_m * config.cluster_m, config.block_n * config.cluster_n, config.block_k,
        problem.itemsize, config.swizzle, config.group_size, min(resident, items), problem.batch,
        config.split_k, config.num_stages, config.persistent,
    )  # fmt: skip
    operands = follow(launch)
    parts = _terms(config, problem, gpu, resources, operands.miss_bytes)
    return Prediction(
        problem=problem,
        config=config,
        l2_hit_rate=operands.hit_rate,
        dram_read_bytes=operands.miss_bytes,
        dram_write_bytes=dram_write_bytes(problem),
        waves=items / resident,
        resident=resident,
        time_us=parts.total,
        terms=asdict(parts),
    )
