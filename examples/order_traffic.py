"""How much DRAM traffic each tile order is predicted to cause; needs no GPU."""

import sys

from autoswizzle.config import GROUPED_SWIZZLES, SWIZZLES, GemmConfig
from autoswizzle.hardware import find_gpu
from autoswizzle.problem import GemmProblem
from autoswizzle.simulator.ranking import predict


def main(text: str = "8192x32768x8192:bf16:nt", gpu_name: str = "H200") -> None:
    """Print each order's predicted hit rate and DRAM reads."""
    problem, gpu = GemmProblem.parse(text), find_gpu(gpu_name)
    print(f"{problem} on {gpu.name}, tiles 128x128x64, persistent")
    for swizzle in SWIZZLES:
        for group in (1, 4, 8, 16) if swizzle in GROUPED_SWIZZLES else (8,):
            config = GemmConfig(
                block_k=64, swizzle=swizzle, group_size=group, persistent=True, num_warps=8
            )
            found = predict(problem, config, gpu)
            name = swizzle + (f" {group}" if swizzle in GROUPED_SWIZZLES else "")
            hit = 100 * found.l2_hit_rate
            print(
                f"{name:14} L2 hit {hit:6.2f} %   DRAM read {found.dram_read_bytes / 1e9:7.2f} GB"
            )


if __name__ == "__main__":
    main(*sys.argv[1:])
