"""The main job for real: tune, keep, reuse in a new process; then the tile orders of one kernel.

    python benchmarks/pipeline.py [--effort standard] [--out benchmarks/results/h200]

Tunes three problems into an empty cache folder, then a second process explains each decision and
checks matmul's product against torch in float64; then `autoswizzle bench` on the source article's
problem, with one program per tile and persistent. Writes pipeline.json and prints a short table.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

PROBLEMS = ("4096x4096x4096:bf16:nt", "8192x8192x8192:fp16:nn", "128x6144x4096:bf16:nt")
BENCH = ("8192x8192x8192", "--dtype", "fp16", "--block", "128x128x32")

SECOND_PROCESS = """
import json, sys
import torch
import autoswizzle
from autoswizzle.problem import GemmProblem
from autoswizzle.search.inputs import check, make_inputs

served = []
for text in sys.argv[1:]:
    problem = GemmProblem.parse(text)
    a, b = make_inputs(problem, "cuda", 7)
    decision = autoswizzle.explain(a, b)
    check(problem, a, b, autoswizzle.matmul(a, b))
    served.append({**decision.to_dict(), "explained": str(decision), "right": True})
print(json.dumps(served))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--effort", default="standard")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/h200"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {
        "command": "python " + " ".join(sys.argv),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "AUTOSWIZZLE_CACHE_DIR": folder}
        began = time.monotonic()
        tuned = run(["tune", *PROBLEMS, "--effort", options.effort, "--json"], env)
        results["tune"] = {"seconds": time.monotonic() - began, **json.loads(tuned)}
        for item in results["tune"]["results"]:
            print(item["problem"], item["error"] or summary(item), flush=True)
        second = [sys.executable, "-c", SECOND_PROCESS, *PROBLEMS]
        results["second_process"] = json.loads(checked(second, env).replace(f"{folder}/", ""))
        for served in results["second_process"]:
            print(served["explained"], flush=True)
        for launch in ([], ["--persistent"]):
            name = "bench persistent" if launch else "bench"
            results[name] = json.loads(run(["bench", *BENCH, *launch, "--json"], env))
            (options.out / "pipeline.json").write_text(json.dumps(results, indent=1) + "\n")
    print("wrote", options.out / "pipeline.json")


def summary(item: dict[str, Any]) -> str:
    entry = item["entry"]
    return (
        f"{entry['config']} {entry['time_us']:.1f} us, {entry['ratio']:.3f} of torch, "
        f"{item['measured']} measured, {item['infeasible']} infeasible, {item['seconds']:.0f} s, "
        f"compile {item['compile_s']:.0f}, measure {item['measure_s']:.0f}, rho {item['spearman']}"
    )


def run(arguments: list[str], env: dict[str, str]) -> str:
    return checked([sys.executable, "-m", "autoswizzle", *arguments], env)


def checked(command: list[str], env: dict[str, str]) -> str:
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command[:5])} ended with {done.returncode}: {done.stdout}")
    return done.stdout


if __name__ == "__main__":
    main()
