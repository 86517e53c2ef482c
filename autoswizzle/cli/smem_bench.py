"""`autoswizzle smem --bench`: the mma.sync kernel under every shared-memory layout, measured."""

from typing import Any

from autoswizzle.cli.failures import note
from autoswizzle.cli.options import gpu_line, need_triton, present_gpu
from autoswizzle.errors import UnavailableError
from autoswizzle.problem import GemmProblem
from autoswizzle.report.layouts import counter_table, layout_table
from autoswizzle.report.tables import print_json
from autoswizzle.smem_bench import bench_layouts, count_conflicts, layout_configs


def bench(problem: GemmProblem, rep_ms: float, device: int, as_json: bool) -> None:
    """Time every experiment of smem_bench on one GPU; count its conflicts where ncu can."""
    need_triton()
    gpu = present_gpu(device)
    counting = True
    reports: dict[str, Any] = {}
    for name, configs in layout_configs().items():
        rows = bench_layouts(problem, configs, rep_ms=rep_ms, device=device, gpu=gpu)
        counts = None
        if counting:
            try:
                counts = count_conflicts(problem, configs)
            except UnavailableError as error:
                note(f"no counters: {error}")
                counting = False
        reports[name] = {"rows": [row.to_dict() for row in rows], "counted": counts}
        if not as_json:
            print(f"{name}: {problem} on {gpu_line(gpu)}")
            print(layout_table(rows, problem))
            if counts is not None:
                print(f"\n{counter_table(rows, counts, problem)}")
            print()
    if as_json:
        print_json({"problem": str(problem), "gpu": gpu.name, "experiments": reports})
