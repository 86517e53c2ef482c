"""`autoswizzle explain`: what a problem would run as, from which entry, and why."""

from autoswizzle.cli.options import GpuName, Json, Problem, chosen_gpu
from autoswizzle.report.tables import print_json


def explain(problem: Problem, gpu: GpuName = None, as_json: Json = False) -> None:
    """Show what would run, and why.

    The entry PROBLEM is served from, or the nearest one and the fields that differ.
    """
    target = chosen_gpu(gpu)
    from autoswizzle.dispatch import explain as decision_for

    decision = decision_for(problem, gpu=target)
    if as_json:
        print_json({"gpu": target.name, **decision.to_dict()})
    else:
        print(decision)
