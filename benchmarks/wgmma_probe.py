"""Times wgmma configurations against torch.matmul: which tiles, warp splits and orders pay.

    python benchmarks/wgmma_probe.py [--shapes 8192x8192x8192,...] [--layouts nt,nn,tn] [--out DIR]

One process per shape (a hang or a crash costs that shape alone), started ahead so that imports and
compiling overlap the previous shape's measurements. Per layout: every tile is checked against
torch.matmul on a NaN-filled output and screened; the best tiles are screened over orders; the best
configurations and torch are timed in turn (A B C ... C B A). Timing is sustained: CUDA graphs of
launches over buffers rotated through 3x the L2, normal data. Prints a line per problem, writes
wgmma_probe.json.
"""

import argparse
import json
import os
import queue
import statistics
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from autoswizzle.config import GemmConfig
from autoswizzle.errors import CandidateError
from autoswizzle.hardware import detect, find_gpu
from autoswizzle.problem import TORCH_NAMES, GemmProblem
from autoswizzle.space import why_illegal

SHAPES = (
    "8192x8192x8192", "4096x4096x4096", "8192x8192x1024", "16384x16384x4096", "8192x32768x8192",
    "32768x8192x2048", "2048x2048x2048", "3072x3072x3072", "5632x5632x5632", "8192x10240x8192",
    "2048x28672x4096", "1024x6144x4096", "1024x4096x14336", "1024x1024x16384", "1024x10240x8192",
)  # fmt: skip
# (warp_specialize, num_warps, block_m, block_n, num_stages, epilogue_subtile) at 128 bytes of k
TILES = (
    ("cooperative", 4, 128, 256, 4, 4),
    ("cooperative", 8, 128, 256, 4, 4),
    ("cooperative", 4, 256, 128, 4, 4),
    ("cooperative", 8, 256, 128, 4, 4),
    ("cooperative", 4, 256, 192, 3, 6),
    ("cooperative", 4, 128, 192, 4, 3),
    ("cooperative", 4, 128, 128, 6, 2),
    ("pingpong", 4, 128, 128, 5, 2),
    ("pingpong", 4, 64, 256, 4, 4),
    ("pingpong", 4, 128, 192, 4, 3),
    ("none", 8, 128, 256, 4, 4),
    ("none", 8, 256, 128, 4, 4),
    ("none", 4, 128, 128, 3, 4),  # two blocks an SM
)
SPLIT_TILES = ((128, 256), (256, 128), (128, 128))  # of cooperative consumers of 4 warps
SPLIT_ITEMS = 660  # five waves of the H200
FIRST_ORDER = ("grouped", 8)
ORDERS = (
    *(("grouped", size) for size in (2, 4, 6, 12, 16, 24, 32)),
    ("grouped_n", 4), ("grouped_n", 8), ("grouped_n", 16), ("serpentine", 8), ("hilbert", 8),
)  # fmt: skip
L2_TURNS = 3  # buffers are rotated through this many times the L2
SCREEN_S, FINAL_S, WARM_S = 0.03, 0.05, 0.4  # of measuring a candidate, a finalist; of warming up
FINALISTS, ROUNDS, TILES_KEPT = 3, 3, 2
SHAPE_LIMIT_S = 90


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--layouts", default="nt,nn,tn")
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--out", default=os.environ.get("OUT", "benchmarks/results"))
    parser.add_argument("--worker", metavar="SHAPE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    problems = {
        shape: [f"{shape}:{options.dtype}:{layout}" for layout in options.layouts.split(",")]
        for shape in options.shapes.split(",")
    }
    if options.worker:
        work(problems[options.worker])
        return 0
    folder = Path(options.out)
    folder.mkdir(parents=True, exist_ok=True)
    start = time.time()
    results: list[dict[str, Any]] = []
    waiting = [Worker(shape, sys.argv[1:]) for shape in list(problems)[:2]]
    for index, shape in enumerate(problems):
        worker = waiting.pop(0)
        worker.go()
        for result in worker.results(SHAPE_LIMIT_S):
            results.append(result)
            print(line(result), flush=True)
        (folder / "wgmma_probe.json").write_text(json.dumps(results, indent=1))
        if index + 2 < len(problems):
            waiting.append(Worker(list(problems)[index + 2], sys.argv[1:]))
        print(f"# {shape} done at {time.time() - start:.0f} s", flush=True)
    return 0


def line(result: dict[str, Any]) -> str:
    if "error" in result:
        return f"{result['problem']:32s} FAILED {result['error']}"
    best, torch_us = result["final"][0], result["torch_us"]
    by_kind: dict[str, tuple[float, str]] = {}
    for tile in result["tiles"]:
        config = GemmConfig.from_dict(tile["config"])
        kind = f"{config.warp_specialize[:4]}{config.num_warps}"
        if "time_us" in tile and tile["time_us"] < by_kind.get(kind, (1e30, ""))[0]:
            by_kind[kind] = (tile["time_us"], f"{config.block_m}x{config.block_n}")
    kinds = " ".join(f"{k}:{torch_us / t:.3f}({s})" for k, (t, s) in sorted(by_kind.items()))
    failed = sum("error" in tile for tile in result["tiles"] + result["orders"])
    return (
        f"{result['problem']:32s} {torch_us / best['time_us']:.3f} of torch {torch_us:8.1f} us  "
        f"{result['tflops']:4.0f} TF  {GemmConfig.from_dict(best['config'])}  | {kinds}"
        + (f"  {failed} FAILED" if failed else "")
    )


class Worker:
    """A process that measures one shape once told to go."""

    def __init__(self, shape: str, arguments: list[str]) -> None:
        self.shape = shape
        self.process = subprocess.Popen(
            [sys.executable, __file__, *arguments, "--worker", shape],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for text in self.process.stdout:
            self.lines.put(text)
        self.lines.put(None)

    def go(self) -> None:
        """Lets it use the GPU."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write("go\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # it died while starting: results() says so

    def results(self, limit_s: float) -> list[dict[str, Any]]:
        """What it prints until it ends, or is stopped limit_s from now."""
        found: list[dict[str, Any]] = []
        deadline = time.time() + limit_s
        try:
            while (text := self.lines.get(timeout=max(0.1, deadline - time.time()))) is not None:
                if text.startswith("{"):
                    found.append(json.loads(text))
            if self.process.wait() != 0:
                reason = f"exit {self.process.returncode}"
                found.append({"problem": self.shape, "error": reason})
        except queue.Empty:
            self.process.kill()
            found.append({"problem": self.shape, "error": f"no end after {limit_s} s"})
        return found


def tile_configs(problem: GemmProblem) -> list[GemmConfig]:
    swizzle, size = FIRST_ORDER
    configs = [
        GemmConfig(
            kernel="wgmma", block_m=block_m, block_n=block_n, block_k=128 // problem.itemsize,
            num_warps=warps, num_stages=stages, persistent=True, warp_specialize=specialize,
            epilogue_subtile=subtile, swizzle=swizzle, group_size=size,
        )
        for specialize, warps, block_m, block_n, stages, subtile in TILES
    ]  # fmt: skip
    for config in configs[:]:
        tile = (config.block_m, config.block_n)
        if (config.warp_specialize, config.num_warps) == ("cooperative", 4) and tile in SPLIT_TILES:
            tiles = -(-problem.m // tile[0]) * -(-problem.n // tile[1])
            configs += [replace(config, split_k=s) for s in (2, 3, 4) if tiles * s <= SPLIT_ITEMS]
    return [config for config in configs if why_illegal(config, problem, find_gpu("H200")) is None]


def order_configs(config: GemmConfig) -> list[GemmConfig]:
    orders = [replace(config, swizzle=swizzle, group_size=size) for swizzle, size in ORDERS]
    return [*orders, replace(config, scheduling="dynamic")]


def work(texts: list[str]) -> None:
    from autoswizzle.kernels import compile_for

    problems = [GemmProblem.parse(text) for text in texts]

    def compile_one(job: tuple[GemmConfig, GemmProblem]) -> None:
        try:
            compile_for(*job, find_gpu("H200"))
        except CandidateError:
            return  # measuring says so

    jobs = [(config, problem) for problem in problems for config in tile_configs(problem)]
    with ThreadPoolExecutor(max(2, (os.cpu_count() or 2) // 2)) as pool:
        list(pool.map(compile_one, jobs))
    sys.stdin.readline()
    for problem in problems:
        print(json.dumps(measure(problem)), flush=True)


def measure(problem: GemmProblem) -> dict[str, Any]:
    import torch

    bench = Bench(problem)
    torch_graph = bench.capture(None)
    bench.time(torch_graph, WARM_S)
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(bench.compile, tile_configs(problem)))
    tiles = [bench.screen(config) for config in tile_configs(problem)]
    ranked = sorted((tile for tile in tiles if "time_us" in tile), key=lambda tile: tile["time_us"])
    if not ranked:
        return {"problem": str(problem), "error": json.dumps(tiles)}
    jobs = [
        config
        for tile in ranked[:TILES_KEPT]
        for config in order_configs(GemmConfig.from_dict(tile["config"]))
    ]
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(bench.compile, jobs))
    orders = [bench.screen(config) for config in jobs]
    every = sorted(
        (found for found in tiles + orders if "time_us" in found),
        key=lambda found: found["time_us"],
    )
    graphs = {
        key: bench.capture(GemmConfig.from_dict(item["config"]))
        for key, item in enumerate(every[:FINALISTS])
    }
    times: dict[int, list[float]] = {key: [] for key in (-1, *graphs)}
    for turn in range(2 * ROUNDS):
        keys = [-1, *graphs]
        for key in keys if turn % 2 == 0 else reversed(keys):
            graph = torch_graph if key == -1 else graphs[key]
            times[key].append(bench.time(graph, FINAL_S))
    final = sorted(
        (
            {"config": every[key]["config"], "time_us": statistics.median(times[key])}
            for key in graphs
        ),
        key=lambda item: item["time_us"],
    )
    return {
        "problem": str(problem), "torch_us": statistics.median(times[-1]), "final": final,
        "tflops": problem.flops / final[0]["time_us"] / 1e6, "tiles": tiles, "orders": orders,
        "times_us": times, "gpu": torch.cuda.get_device_name(), "torch": torch.__version__,
    }  # fmt: skip


class Bench:
    """Operands of a problem, rotated through the L2, and graphs of launches over them."""

    def __init__(self, problem: GemmProblem) -> None:
        import torch

        self.problem = problem
        self.device = torch.device("cuda", 0)
        dtype = getattr(torch, TORCH_NAMES[problem.dtype])
        l2_bytes = detect(0).l2_bytes
        sets = max(2, -(-L2_TURNS * l2_bytes // problem.min_bytes))

        def operand(rows: int, cols: int, transposed: bool) -> torch.Tensor:
            shape = (cols, rows) if transposed else (rows, cols)
            stored = torch.randn(shape, device=self.device, dtype=dtype)
            return stored.t() if transposed else stored

        m, n, k = problem.m, problem.n, problem.k
        layout_a, layout_b = problem.layout[0], problem.layout[1]
        self.sets = [
            (
                operand(m, k, layout_a == "t"),
                operand(k, n, layout_b == "t"),
                torch.empty((m, n), device=self.device, dtype=dtype),
            )
            for _ in range(sets)
        ]
        a, b, out = self.sets[0]
        self.expected = torch.matmul(a, b, out=torch.empty_like(out)).clone()

    def compile(self, config: GemmConfig) -> None:
        """Compiles ahead of run, from a thread; run raises what this swallows."""
        from autoswizzle.kernels.family import family
        from autoswizzle.kernels.launch import load

        try:
            load(family("wgmma").call(config, self.problem, *self.sets[0]))
        except CandidateError:
            return

    def launch(self, config: GemmConfig | None, index: int) -> None:
        """One product on the index-th buffers, by config or by torch."""
        import torch

        from autoswizzle.kernels import run

        a, b, out = self.sets[index % len(self.sets)]
        if config is None:
            torch.matmul(a, b, out=out)
        else:
            run(config, self.problem, a, b, out)

    def screen(self, config: GemmConfig) -> dict[str, Any]:
        """Its time, or why it has none."""
        described = {"config": config.to_dict()}
        try:
            self.check(config)
            return {**described, "time_us": self.time(self.capture(config), SCREEN_S)}
        except (CandidateError, AssertionError) as error:
            return {**described, "error": f"{type(error).__name__}: {error}"}

    def check(self, config: GemmConfig) -> None:
        """Raises AssertionError unless config computes what torch does."""
        out = self.sets[0][2]
        out.fill_(float("nan"))
        self.launch(config, 0)
        error = (out.float() - self.expected.float()).abs()
        # two results of one rounding each (2^-8 of bf16), and fp32 sums in another order
        bound = 2**-7 * self.expected.float().abs() + 2**-12 * self.problem.k**0.5
        if not bool((error <= bound).all()):
            raise AssertionError(f"wrong by {float((error / bound).max()):.3g} of the bound")

    def capture(self, config: GemmConfig | None) -> tuple[Any, int]:
        """(graph, launches in it): every buffer set at least once, a few milliseconds."""
        import torch

        self.launch(config, 0)
        launches = len(self.sets) * max(1, round(2e-3 / len(self.sets) / self.guess_s()))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for index in range(launches):
                self.launch(config, index)
        return graph, launches

    def guess_s(self) -> float:
        """Seconds a launch may take, to choose how many to time."""
        return max(5e-6, self.problem.flops / 700e12)

    def time(self, captured: tuple[Any, int], seconds: float) -> float:
        """Microseconds a launch, over graph replays that last about `seconds` after one more."""
        import torch

        graph, launches = captured
        replays = max(1, round(seconds / (launches * self.guess_s())))
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        graph.replay()
        begin.record()
        for _ in range(replays):
            graph.replay()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) * 1e3 / (launches * replays)


if __name__ == "__main__":
    sys.exit(main())
