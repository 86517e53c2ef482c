"""`autoswizzle demo`: the main job from end to end, as far as this machine allows."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib import metadata
from typing import Any

from autoswizzle.cache.entry import CacheEntry
from autoswizzle.cache.key import key_for
from autoswizzle.cache.store import CacheStore
from autoswizzle.cli.options import need_triton, present_gpu
from autoswizzle.config import GemmConfig
from autoswizzle.errors import CompileError, TuneError, UnavailableError, printable
from autoswizzle.hardware import Gpu, find_gpu
from autoswizzle.problem import GemmProblem
from autoswizzle.report.tables import table
from autoswizzle.settings import settings
from autoswizzle.simulator.ranking import Prediction, rank
from autoswizzle.simulator.resources import Resources, resident_blocks
from autoswizzle.space import candidates, orders, tiles
from autoswizzle.toolchain import triton_version

TARGET = "H200"  # what the demo ranks and compiles for where there is no GPU
PROBLEM = GemmProblem(4096, 4096, 4096, "bf16", "nt")
TUNED = (PROBLEM, GemmProblem(8192, 8192, 8192, "fp16"), GemmProblem(128, 6144, 4096, "bf16", "nt"))
ATTEMPTS = 8  # candidates of a family compiled at most, 1 to 3 s each
SMALL = (300, 400, 160)  # m, n, k run in the interpreter: ragged in every block size
CHILD_SECONDS = 150


def demo() -> None:
    """Show the main job from end to end.

    With a GPU: tune three problems and serve them from the cache in a second process. Without one:
    rank and compile for an H200, run the best pointer kernel in Triton's interpreter, keep and
    explain a predicted entry.
    """
    need_triton()
    began = time.monotonic()
    gpu = _present()
    if gpu is None:
        _without_gpu(find_gpu(TARGET))
    else:
        _with_gpu(gpu)
    print(f"\nDone in {time.monotonic() - began:.0f} s.")


def _present() -> Gpu | None:
    try:
        return present_gpu(0)
    except UnavailableError:
        return None


def _with_gpu(gpu: Gpu) -> None:
    from autoswizzle.tuning import tune

    print(f"1. Tune three problems on this {gpu.name} and keep the results.")
    report = tune(TUNED, effort="quick")
    failed = [f"{result.problem}: {result.error}" for result in report.results if result.error]
    if failed:
        raise TuneError("; ".join(failed))
    print("\n2. Multiply them in a second process, as a program of yours would.")
    served = _child("serve", {"problems": [str(problem) for problem in TUNED]})["served"]
    titles = ("problem", "from", "runs", "right", "x torch.matmul")
    print(table(titles, [tuple(row.values()) for row in served]))
    wrong = [row["problem"] for row in served if not row["right"]]
    if wrong:
        raise TuneError(f"the product must be torch's, it is not for {', '.join(wrong)}")
    _next_steps("autoswizzle tune MxNxK:bf16:nt    # your shapes", f"autoswizzle explain {PROBLEM}")


def _without_gpu(gpu: Gpu) -> None:
    print(f"No CUDA device here: ranking and compiling for an {gpu.name} instead.\n")
    print(f"1. Rank every configuration of {PROBLEM} with the L2 and time model.")
    began = time.monotonic()
    configs = list(candidates(PROBLEM, gpu))
    [first] = rank(PROBLEM, gpu, 1, configs)
    took = time.monotonic() - began
    print(f"   {len(configs)} legal configurations in {took:.1f} s; the first is {first.config}.")

    print(f"\n2. Compile the best of each kernel family for the {gpu.name} with its real compiler.")
    families = dict.fromkeys(config.kernel for config in configs)
    compiled = {family: _compiled(family, gpu) for family in families}
    titles = ("configuration", "us predicted", "registers", "shared KiB", "blocks/SM", "spills")
    print(table(titles, [_row(item, gpu) for family in families for item in compiled[family]]))
    chosen = compiled["pointer"][-1].prediction

    small = GemmProblem(*SMALL, "fp16", "nn")
    print(f"\n3. Run the best pointer kernel in Triton's interpreter on {small}.")
    request = {"problem": str(small), "config": chosen.config.to_dict()}
    answer = _child("interpret", request, {"TRITON_INTERPRET": "1"})
    if not answer["equal"]:
        raise TuneError(f"{chosen.config} must equal torch.matmul on {small}, it does not")
    print(f"   {chosen.config}: every element equals torch's.")

    print("\n4. Keep it as a predicted entry, which is never used for dispatch by default.")
    path = CacheStore(settings().cache_dir).put(_predicted_entry(chosen, gpu))
    print(f"   {printable(path)}")

    print("\n5. Explain what the problem would run as.")
    from autoswizzle.dispatch import explain

    print(explain(PROBLEM, gpu=gpu))
    _next_steps(
        f"autoswizzle rank {PROBLEM} --gpu {gpu.name}",
        f"autoswizzle simulate {PROBLEM} --gpu {gpu.name} --swizzle hilbert --explain",
        f"autoswizzle tune {PROBLEM}    # on a machine with a GPU",
    )


@dataclass(frozen=True, slots=True)
class Compiled:
    """A candidate and what the compiler says it takes."""

    prediction: Prediction
    resources: Resources


def _compiled(family: str, gpu: Gpu) -> list[Compiled]:
    """The family's tiles from the best on, up to the first that compiles without spills.

    Each in its best order; of one tile and number of warps only the best. Raises TuneError when
    ATTEMPTS of them all spill or fail.
    """
    from autoswizzle.kernels import compile_for

    waiting = [config for config in tiles(PROBLEM, gpu) if config.kernel == family]
    done: list[Compiled] = []
    for _ in range(ATTEMPTS):
        tile = rank(PROBLEM, gpu, 1, waiting)[0].config
        [best] = rank(PROBLEM, gpu, 1, orders(tile))
        waiting = [config for config in waiting if _tile(config) != _tile(tile)]
        with suppress(CompileError):
            done.append(Compiled(best, compile_for(best.config, PROBLEM, gpu)))
            if not done[-1].resources.spill_bytes:
                return done
    raise TuneError(f"{ATTEMPTS} {family} tiles of {PROBLEM} all spill registers on {gpu.name}")


def _tile(config: GemmConfig) -> tuple[int, ...]:
    return config.block_m, config.block_n, config.num_warps


def _row(item: Compiled, gpu: Gpu) -> tuple[object, ...]:
    resources = item.resources
    return (
        str(item.prediction.config),
        item.prediction.time_us,
        resources.registers,
        resources.shared_bytes / 1024,
        resident_blocks(resources, gpu),
        f"{resources.spill_bytes} B",
    )


def _predicted_entry(prediction: Prediction, gpu: Gpu) -> CacheEntry:
    from autoswizzle.kernels import source_hash

    config: GemmConfig = prediction.config
    return CacheEntry(
        key_for(prediction.problem, gpu, source_hash(config.kernel), triton_version()),
        config,
        time_us=prediction.time_us,
        date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        gpu=gpu.name,
        versions={"triton": metadata.version("triton"), "torch": metadata.version("torch")},
        origin="predicted",
    )


def _child(job: str, request: Mapping[str, Any], env: Mapping[str, str] | None = None) -> Any:  # noqa: ANN401
    """The JSON answer of demo_child in its own process; raises TuneError with its last words."""
    command = [sys.executable, "-m", "autoswizzle.cli.demo_child", job, json.dumps(request)]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=CHILD_SECONDS,
            env={**os.environ, **(env or {})},
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise TuneError(f"{job} must end within {CHILD_SECONDS} s") from None
    if done.returncode:
        raise TuneError(f"{job} failed: {done.stderr.strip().splitlines()[-1:]}")
    return json.loads(done.stdout)


def _next_steps(*commands: str) -> None:
    print("\nNext:")
    for command in commands:
        print(f"   {command}")
