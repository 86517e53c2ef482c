"""`autoswizzle bench`: one configuration under every tile order, measured and predicted."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autoswizzle.cli.options import (
    Device,
    Json,
    L2Mb,
    NumSms,
    choice,
    gpu_line,
    need_triton,
    positive,
    present_gpu,
)
from autoswizzle.cli.tunables import (
    Block,
    Kernel,
    Persistent,
    Set,
    Stages,
    Warps,
    chosen_config,
)
from autoswizzle.cli.worklist import with_dtype
from autoswizzle.config import GemmConfig
from autoswizzle.errors import ConfigError
from autoswizzle.hardware import Gpu
from autoswizzle.problem import PRECISIONS, TEXT_FORM, GemmProblem
from autoswizzle.report.orders import correlations, order_table
from autoswizzle.report.tables import print_json
from autoswizzle.space import grid, why_illegal

if TYPE_CHECKING:
    from autoswizzle.order_bench import OrderRow


def bench(
    shape: Annotated[str, typer.Argument(metavar="PROBLEM", help=TEXT_FORM)],
    dtype: Annotated[
        str | None,
        typer.Option(
            "--dtype",
            parser=choice("fp16", "bf16", "fp32"),
            metavar="DTYPE",
            help="fp16, bf16, or fp32, which runs as tf32 and as ieee. Default: bf16.",
        ),
    ] = None,
    kernel: Kernel = None,
    block: Block = None,
    warps: Warps = None,
    stages: Stages = None,
    persistent: Persistent = False,
    assignments: Set = None,
    timing: Annotated[
        str,
        typer.Option(
            "--timing",
            parser=choice("burst", "sustained"),
            metavar="HOW",
            help="burst: single calls, the L2 flushed before each. sustained: back to back.",
        ),
    ] = "burst",
    warmup: Annotated[
        float, typer.Option("--warmup", parser=positive, metavar="MS", help="For each order.")
    ] = 25.0,
    rep: Annotated[
        float, typer.Option("--rep", parser=positive, metavar="MS", help="Timing of each order.")
    ] = 100.0,
    device: Device = 0,
    num_sms: NumSms = None,
    l2_mb: L2Mb = None,
    as_json: Json = False,
) -> None:
    """Time every tile order of one kernel.

    Checks each order's product, then prints its time beside the predicted L2 hit rate and DRAM
    traffic, and the rank correlation between them.
    """
    problems = _precisions(shape, with_dtype(shape, dtype))
    need_triton()
    gpu = present_gpu(device).with_overrides(num_sms, l2_mb)
    config = chosen_config(
        problems[0],
        gpu,
        kernel=kernel,
        block=block,
        num_warps=warps,
        num_stages=stages,
        persistent=persistent or None,
        assignments=assignments or [],
    )
    for problem in problems:
        reason = why_illegal(config, problem, gpu)
        if reason is not None:
            raise ConfigError(f"{config} on {problem}: {reason}")
    from autoswizzle.order_bench import bench_orders

    reports = []
    for problem in problems:
        rows = bench_orders(
            problem,
            config,
            timing=timing,
            warmup_ms=warmup,
            rep_ms=rep,
            device=device,
            gpu=gpu,
        )
        how = {"timing": timing, "warmup_ms": warmup, "rep_ms": rep}
        reports.append(_report(problem, config, gpu, how, rows))
        if not as_json:
            print(_heading(reports[-1], gpu, config, problem))
            print(order_table(rows))
            print(_correlation_lines(reports[-1]["spearman"]), end="\n\n")
    if as_json:
        print_json(reports)


def _precisions(text: str, problem: GemmProblem) -> list[GemmProblem]:
    """The problem, or for fp32 without a stated precision the problem in each."""
    if problem.dtype != "fp32" or set(PRECISIONS) & set(text.split(":")):
        return [problem]
    return [replace(problem, precision=precision) for precision in ("tf32", "ieee")]


def _report(
    problem: GemmProblem,
    config: GemmConfig,
    gpu: Gpu,
    how: dict[str, Any],
    rows: Sequence["OrderRow"],
) -> dict[str, Any]:
    from autoswizzle.verdicts import versions

    return {
        "problem": str(problem),
        "gpu": gpu.name,
        "num_sms": gpu.num_sms,
        "l2_effective_bytes": gpu.l2_effective_bytes,
        "config": config.to_dict(),
        "resident": rows[0].prediction.resident,
        "launch": "persistent" if config.persistent else "one program per tile",
        **how,
        "versions": versions(),
        "rows": [row.to_dict() for row in rows],
        "spearman": correlations(rows),
    }


def _heading(report: dict[str, Any], gpu: Gpu, config: GemmConfig, problem: GemmProblem) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in report["versions"].items())
    grid_m, grid_n = grid(config, problem)
    blocks = report["resident"] / gpu.num_sms
    return "\n".join(
        (
            f"{gpu_line(gpu)}, {versions}",
            f"{problem}, tiles {config.block_m}x{config.block_n}x{config.block_k} "
            f"({grid_m} x {grid_n}), {config.num_warps} warps, {config.num_stages} stages",
            f"capacity {report['resident']} programs ({blocks:g} an SM), {report['launch']}",
            f"{report['timing']} timing, {report['warmup_ms']:g} ms warm-up and "
            f"{report['rep_ms']:g} ms an order, every product checked",
        )
    )


def _correlation_lines(found: dict[str, float | None]) -> str:
    names = {
        "hit_rate_tflops": "Spearman(predicted hit rate, TFLOPS)",
        "dram_time": "Spearman(predicted DRAM reads, time)",
    }
    return "\n".join(
        f"{title} = " + ("undefined" if found[name] is None else f"{found[name]:.3f}")
        for name, title in names.items()
    )
