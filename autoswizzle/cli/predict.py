"""`autoswizzle rank` and `autoswizzle simulate`: what the model expects, no GPU needed."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autoswizzle.cli.options import (
    GpuName,
    GroupSize,
    Json,
    L2Mb,
    NumSms,
    Problem,
    choice,
    chosen_gpu,
    gpu_line,
    integer,
    plot_to,
)
from autoswizzle.cli.tunables import (
    Block,
    Kernel,
    Persistent,
    Set,
    Stages,
    SwizzleName,
    Warps,
    chosen_config,
)
from autoswizzle.errors import ConfigError
from autoswizzle.hardware import Gpu
from autoswizzle.report.tables import byte_size, fields, print_json, table
from autoswizzle.space import default_config, orders, why_illegal

if TYPE_CHECKING:
    from autoswizzle.simulator.ranking import Prediction

Model = Annotated[
    str,
    typer.Option(
        "--model",
        parser=choice("lru", "l2"),
        metavar="NAME",
        help="Of the L2: lru, whole tiles least recently used, or l2, as DRAM counters show it.",
    ),
]


def rank(
    problem: Problem,
    gpu: GpuName = None,
    top: Annotated[
        int, typer.Option("--top", parser=integer(1), metavar="N", help="How many to print.")
    ] = 20,
    model: Model = "lru",
    plot: Annotated[
        Path | None,
        plot_to("Draw their terms."),
    ] = None,
    num_sms: NumSms = None,
    l2_mb: L2Mb = None,
    as_json: Json = False,
) -> None:
    """Rank configurations by predicted time.

    Every legal one of PROBLEM takes part. Needs no GPU.
    """
    from autoswizzle.simulator import ranking

    target = chosen_gpu(gpu, num_sms, l2_mb)
    predictions = ranking.rank(problem, target, top=top, model=model)
    if not predictions:
        why = why_illegal(default_config(problem, target), problem, target)
        raise ConfigError(f"no configuration of {problem} is legal on {target.name}: {why}")
    if plot is not None:
        from autoswizzle.report.plots import plot_terms

        plot_terms(predictions, f"{problem} on {target.name}", plot)
    if as_json:
        print_json({**_header(problem, target), "ranking": [p.to_dict() for p in predictions]})
        return
    print(f"{problem} on {gpu_line(target)}")
    titles = ("#", "configuration", "us", "TFLOPS", "L2 hit %", "DRAM", "waves", "resident")
    print(table(titles, [(i, *_ranked_row(p)) for i, p in enumerate(predictions, 1)]))


def simulate(
    problem: Problem,
    gpu: GpuName = None,
    kernel: Kernel = None,
    block: Block = None,
    swizzle: SwizzleName = None,
    group_size: GroupSize = None,
    warps: Warps = None,
    stages: Stages = None,
    persistent: Persistent = False,
    assignments: Set = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Also print the terms of the predicted time.")
    ] = False,
    model: Model = "lru",
    plot: Annotated[
        Path | None,
        plot_to("Draw DRAM traffic and time of this tile in every order, over the group size."),
    ] = None,
    num_sms: NumSms = None,
    l2_mb: L2Mb = None,
    as_json: Json = False,
) -> None:
    """Predict one configuration.

    Its L2 hit rate, DRAM traffic, waves and time on PROBLEM. Needs no GPU.
    """
    from autoswizzle.simulator import ranking

    target = chosen_gpu(gpu, num_sms, l2_mb)
    config = chosen_config(
        problem,
        target,
        kernel=kernel,
        block=block,
        swizzle=swizzle,
        group_size=group_size,
        num_warps=warps,
        num_stages=stages,
        persistent=persistent or None,
        assignments=assignments or [],
    )
    prediction = ranking.predict(problem, config, target, model=model)
    if plot is not None:
        from autoswizzle.report.plots import plot_traffic

        found: dict[str, list[Prediction]] = {}
        for other in orders(config):
            found.setdefault(other.swizzle, []).append(
                ranking.predict(problem, other, target, model=model)
            )
        plot_traffic(found, f"{problem} on {target.name}, {config}", plot)
    if as_json:
        print_json({**_header(problem, target), **prediction.to_dict()})
        return
    print(fields([*_pairs(prediction, target), *(_terms(prediction) if explain else [])]))


def _header(problem: Problem, gpu: Gpu) -> dict[str, Any]:
    return {
        "problem": str(problem),
        "gpu": gpu.name,
        "num_sms": gpu.num_sms,
        "l2_effective_bytes": gpu.l2_effective_bytes,
    }


def _ranked_row(prediction: "Prediction") -> tuple[object, ...]:
    traffic = prediction.dram_read_bytes + prediction.dram_write_bytes
    return (
        str(prediction.config),
        prediction.time_us,
        prediction.problem.flops / prediction.time_us / 1e6,
        100 * prediction.l2_hit_rate,
        byte_size(traffic),
        prediction.waves,
        prediction.resident,
    )


def _pairs(prediction: "Prediction", gpu: Gpu) -> list[tuple[str, object]]:
    return [
        ("problem", str(prediction.problem)),
        ("gpu", gpu_line(gpu)),
        ("configuration", str(prediction.config)),
        ("L2 hit rate", f"{100 * prediction.l2_hit_rate:.2f} %"),
        ("DRAM read", byte_size(prediction.dram_read_bytes)),
        ("DRAM written", byte_size(prediction.dram_write_bytes)),
        ("resident", f"{prediction.resident} programs"),
        ("waves", f"{prediction.waves:.2f}"),
        ("time", f"{prediction.time_us:.1f} us"),
        ("rate", f"{prediction.problem.flops / prediction.time_us / 1e6:.1f} TFLOPS"),
    ]


def _terms(prediction: "Prediction") -> list[tuple[str, object]]:
    return [(f"  {name}", f"{us:.2f} us") for name, us in prediction.terms.items()]
