"""What runs a problem: a tuned kernel configuration or torch.matmul, and why."""

import hashlib
import logging
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any

import torch

from autoswizzle import kernels
from autoswizzle.cache.entry import CacheEntry
from autoswizzle.cache.files import as_path
from autoswizzle.cache.index import Stored
from autoswizzle.cache.key import CacheKey, key_for
from autoswizzle.cache.store import CacheStore, NearMiss, export_entries, shared_store
from autoswizzle.calibration import calibrated
from autoswizzle.config import MARGIN, TORCH, GemmConfig
from autoswizzle.errors import ConfigError, ProblemError, printable
from autoswizzle.hardware import Gpu, as_gpu, detect
from autoswizzle.misses import FILE_NAME, MissLog
from autoswizzle.operands import as_matrices, is_regular, problem_of, why_torch
from autoswizzle.problem import GemmProblem, as_problem, as_problems
from autoswizzle.settings import Settings, settings
from autoswizzle.space import why_illegal
from autoswizzle.toolchain import triton_version

if TYPE_CHECKING:
    from autoswizzle.kernels.bound import Launcher

MAX_MEMOS = 65536  # decisions a process remembers, about 1 kB each, before it starts afresh
_UNTUNED = ("miss", "nearest", "model")  # sources of what no own entry decided

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Decision:
    """What runs a problem, and why.

    problem: None where the operands pose none. source: config (the caller's), cache (the user's or
    a read-only place), shipped, nearest (a neighbour's configuration), model (predicted), miss (no
    usable entry), disabled, unsupported (no case for our kernels). entry, path: what it was read
    from. near_miss: the closest other entry, only from explain.
    """

    problem: GemmProblem | None
    config: GemmConfig
    source: str
    reason: str
    entry: CacheEntry | None = None
    path: Path | None = None
    near_miss: NearMiss | None = None

    @property
    def uses_torch(self) -> bool:
        """Whether torch.matmul runs it."""
        return self.config.kernel == "torch"

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready mapping of every field."""
        miss = self.near_miss
        return {
            "problem": None if self.problem is None else str(self.problem),
            "config": self.config.to_dict(),
            "source": self.source,
            "reason": self.reason,
            "entry": None if self.entry is None else self.entry.to_dict(),
            "path": None if self.path is None else str(self.path),
            "near_miss": None
            if miss is None
            else {
                "entry": miss.stored.entry.to_dict(),
                "path": None if miss.stored.path is None else str(miss.stored.path),
                "differences": {
                    name: {"wanted": wanted, "found": found}
                    for name, (wanted, found) in miss.differences.items()
                },
            },
        }

    def __str__(self) -> str:
        lines = [f"{self.problem or 'no GEMM problem'}: {self.config}", f"  {self.reason}"]
        if self.entry is not None and self.entry.ratio is not None:
            entry = self.entry
            interval = (
                f"[{entry.ratio_low or entry.ratio:.3f}, {entry.ratio_high or entry.ratio:.3f}]"
            )
            lines.append(f"  {entry.ratio:.3f}x torch.matmul {interval}, {entry.method} timing")
        if self.entry is not None and self.entry.fastest is not None:
            ratio = f"{self.entry.fastest_ratio:.3f}x torch.matmul"
            lines.append(f"  fastest of ours: {ratio}, {self.entry.fastest}")
        if self.path is not None:
            lines.append(f"  from {printable(self.path)}")
        if self.near_miss is not None:
            lines.append(f"  nearest other entry: {self.near_miss}")
        return "\n".join(lines)


class Dispatcher:
    """Decides, and remembers what it decided; safe to use from several threads.

    triton: its version, asked for by the first decision, as that reads files: a capture makes none.
    rank: (problem, gpu) -> the configuration the model predicts best, for the policy "model".
    """

    def __init__(
        self,
        settings: Settings,
        store: CacheStore,
        triton: Callable[[], tuple[int, int] | None],
        rank: Callable[[GemmProblem, Gpu], GemmConfig] | None = None,
    ) -> None:
        self.settings, self.store, self._triton = settings, store, triton
        self._rank = rank or _predicted_best
        self._misses = MissLog(settings.cache_dir / FILE_NAME)
        self._memo: dict[tuple[GemmProblem, Gpu], Decision] = {}
        self.plans: dict[tuple[object, ...], Any] = {}  # by operand facts, filled by ops
        self._claimed: set[tuple[GemmProblem, Gpu]] = set()
        self.lock = RLock()
        store.watch(self.forget)

    def decide(self, problem: GemmProblem, gpu: Gpu) -> Decision:
        """What runs problem on gpu."""
        decision = self._memo.get((problem, gpu))
        if decision is None:
            with self.lock:
                decision = self.foresee(problem, gpu)
                remember(self._memo, (problem, gpu), decision)
                if decision.source in _UNTUNED:
                    self._misses.add(problem, gpu.name)
        return decision

    def foresee(self, problem: GemmProblem, gpu: Gpu) -> Decision:
        """What decide returns; the problem is not logged as one that was multiplied."""
        with self.lock:
            return self._memo.get((problem, gpu)) or self._decide(problem, gpu)

    def is_tuned(self, problem: GemmProblem, gpu: Gpu) -> bool:
        """Whether problem has an entry for some m, its own or another."""
        return bool(self.store.extents(self._key(problem, gpu)))

    def fingerprint(self) -> str:
        """Hex digest of every entry a decision may rest on, and of the policy."""
        verdicts = sorted((s.entry.key.digest, str(s.entry.config)) for s in self.store.entries())
        facts = (verdicts, self.settings.on_miss, self.settings.disabled, self._triton())
        return hashlib.sha256(repr(facts).encode()).hexdigest()

    def claim(self, problem: GemmProblem, gpu: Gpu) -> bool:
        """Whether the caller is the first to tune a problem; the others use torch meanwhile."""
        with self.lock:
            first = (problem, gpu) not in self._claimed
            self._claimed.add((problem, gpu))
        return first

    def forget(self) -> None:
        """Drop what was decided: an entry or a place was added."""
        self._memo, self.plans = {}, {}  # new ones, so that a late writer fills the old

    def near_miss(self, problem: GemmProblem, gpu: Gpu) -> NearMiss | None:
        """The stored entry closest to problem on gpu that is not its own."""
        return self.store.nearest(self._key(problem, gpu), kernels.current_source)

    def _key(self, problem: GemmProblem, gpu: Gpu) -> CacheKey:
        return key_for(problem, gpu, triton=self._triton())

    def _decide(self, problem: GemmProblem, gpu: Gpu) -> Decision:
        if self.settings.disabled:
            return Decision(problem, TORCH, "disabled", "AUTOSWIZZLE_DISABLE=1")
        if self._triton() is None:
            return Decision(problem, TORCH, "unsupported", "triton is not installed")
        stored = self.store.get(self._key(problem, gpu), kernels.current_source)
        if stored is None or not _legal(stored, problem, gpu):
            return self._miss(problem, gpu)
        source = "shipped" if stored.place == "shipped" else "cache"
        return Decision(
            problem,
            stored.entry.config,
            source,
            f"the {stored.place} entry of {stored.entry.date or 'unknown date'}",
            stored.entry,
            stored.path,
        )

    def _miss(self, problem: GemmProblem, gpu: Gpu) -> Decision:
        policy = self.settings.on_miss
        decision = Decision(problem, TORCH, "miss", "no entry for this problem on this GPU")
        if policy == "nearest":
            decision = self._nearest(problem, gpu)
        elif policy == "model":
            config = self._rank(problem, gpu)
            reason = "no entry; the model's best (AUTOSWIZZLE_ON_MISS=model)"
            decision = Decision(problem, config, "model", reason)
        _log.info("%s on %s: %s; %s", problem, gpu.name, decision.config, decision.reason)
        return decision

    def _nearest(self, problem: GemmProblem, gpu: Gpu) -> Decision:
        below, above = self.store.around(self._key(problem, gpu), kernels.current_source)
        reason = "no entry, and none within a factor of 2 in m on both sides"
        if below is None or above is None:
            return Decision(problem, TORCH, "miss", reason)
        extents = f"m = {below.entry.key.problem.m} and {above.entry.key.problem.m}"
        if not (below.entry.beats_torch and above.entry.beats_torch):
            needed = f"{100 * MARGIN:.0f} %"
            reason = f"no entry; not both {extents} beat torch by {needed}"
            return Decision(problem, TORCH, "miss", reason)
        illegal = why_illegal(above.entry.config, problem, gpu)
        if illegal is not None:
            return Decision(problem, TORCH, "miss", f"no entry; {extents} do not fit: {illegal}")
        reason = f"no entry; both {extents} beat torch"
        return Decision(problem, above.entry.config, "nearest", reason, above.entry, above.path)


def remember(memo: dict[Any, Any], key: object, value: object) -> None:
    """Add to a memo that starts afresh when it is full."""
    if len(memo) >= MAX_MEMOS:
        memo.clear()
    memo[key] = value


@lru_cache(maxsize=1)
def dispatcher() -> Dispatcher:
    """The dispatcher of this process, made at the first call; a forked child makes its own."""
    _show_log(settings().log_level)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_start_afresh)
    return Dispatcher(settings(), shared_store(), triton_version)


def decide(problem: GemmProblem, gpu: Gpu) -> Decision:
    """What torch tensors of this problem on this GPU run on."""
    return dispatcher().decide(problem, gpu)


def explain(
    a: torch.Tensor | GemmProblem | str,
    b: torch.Tensor | None = None,
    *,
    gpu: Gpu | str | None = None,
) -> Decision:
    """What autoswizzle.matmul(a, b) would run and why, with the nearest other entry.

    a: the left operand, or a problem, or its text form ("4096x14336x4096:bf16:nt").
    gpu: another GPU than the operands' (or device 0), by name or facts; needs no GPU here.
    Raises ProblemError for other arguments, HardwareError for an unknown GPU, UnavailableError
    when there is no GPU and none is named.
    """
    facts = None if gpu is None else as_gpu(gpu)
    if isinstance(a, torch.Tensor):
        if not isinstance(b, torch.Tensor):
            raise ProblemError(f"b must be a tensor, got {b!r:.80}")
        reason = why_torch(a, b)
        if reason is not None:
            return Decision(None, TORCH, "unsupported", reason)
        posed = pose(a, b)
        if isinstance(posed, str):
            return Decision(None, TORCH, "unsupported", posed)
        problem, device = posed, a.get_device()
    else:
        if b is not None:
            raise ProblemError(f"explain must get two tensors or one problem, got {a!r:.80}")
        if not isinstance(a, (GemmProblem, str)):
            raise ProblemError(f"a must be a tensor, a problem or its text, got {a!r:.80}")
        problem, device = as_problem(a), 0
    facts = facts or gpu_of(device)
    decision = dispatcher().foresee(problem, facts)
    return replace(decision, near_miss=dispatcher().near_miss(problem, facts))


def pose(a: torch.Tensor, b: torch.Tensor) -> GemmProblem | str:
    """The problem that operands our kernels may take pose, or why they pose none."""
    matrices = as_matrices(a, b)
    if matrices is None:
        return "the operands do not make one non-empty 2-D product"
    if not all(map(is_regular, matrices)):
        return "an operand is neither row-major nor column-major"
    return problem_of(*matrices)


def gpu_of(device: int) -> Gpu:
    """The facts of a CUDA device; raises UnavailableError."""
    return detect(device)


def check_config(config: GemmConfig, problem: GemmProblem, gpu: Gpu) -> None:
    """Raises ConfigError when the caller's config can't run problem on gpu."""
    illegal = why_illegal(config, problem, gpu)
    if illegal is not None:
        raise ConfigError(f"{illegal} (config {config}, problem {problem})")


def bind_kernel(
    config: GemmConfig, problem: GemmProblem, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor
) -> "Launcher":
    """Compile and load the kernel that multiplies operands like these; see kernels.bind."""
    return kernels.bind(config, problem, a, b, out)


def load_cache(path: str | os.PathLike[str]) -> int:
    """Search a cache file or folder before every other place; returns its number of entries.

    Raises ArgumentError for what names no file or folder, CacheError when it holds no usable entry.
    """
    return dispatcher().store.add_read_only(as_path(path).absolute())


def export_cache(
    path: str | os.PathLike[str], problems: Iterable[GemmProblem | str] | None = None
) -> int:
    """Write the user's entries (of some problems) into one JSON file; returns how many it holds.

    An existing cache file is added to. Raises ArgumentError for what names no file, ProblemError
    for bad problems, CacheError when path can't be written or is another kind of file.
    """
    file = as_path(path)
    wanted = None if problems is None else as_problems(problems)
    found = (stored for stored in dispatcher().store.entries() if stored.place == "user")
    chosen = [s.entry for s in found if wanted is None or s.entry.key.problem in wanted]
    return export_entries(file, chosen)


def _legal(stored: Stored, problem: GemmProblem, gpu: Gpu) -> bool:
    illegal = why_illegal(stored.entry.config, problem, gpu)
    if illegal is not None:
        _log.warning("ignoring the entry for %s in %s: %s", problem, stored.path, illegal)
    return illegal is None


def _predicted_best(problem: GemmProblem, gpu: Gpu) -> GemmConfig:
    from autoswizzle.simulator.ranking import shortlist

    ranked = shortlist(problem, calibrated(gpu), count=1)
    return ranked[0].config if ranked else TORCH


def _start_afresh() -> None:
    dispatcher.cache_clear()
    shared_store.cache_clear()


def _show_log(level: str) -> None:
    """Print the package's log when the user asked for more than warnings."""
    logger = logging.getLogger("autoswizzle")
    if level != "warning":
        logger.setLevel(level.upper())
        if not logger.hasHandlers():
            logger.addHandler(logging.StreamHandler())
