"""What the workers of test_measure.py run on the GPU; importable in their processes."""

import torch

from autoswizzle.config import GemmConfig
from autoswizzle.problem import GemmProblem

POISON = GemmConfig(block_k=64)  # reads far outside its operands
HANGS = GemmConfig(block_k=128)
HUNGRY = GemmConfig(block_n=64)  # wants more memory than there is


def run(
    config: GemmConfig, problem: GemmProblem, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor
) -> None:
    """Multiply, or misbehave as config says."""
    if config == POISON:
        torch.zeros(4, device=a.device)[torch.full((4,), 10**6, device=a.device)].sum().item()
    if config == HANGS:
        torch.cuda._sleep(10**12)
    if config == HUNGRY:
        torch.empty(2**45, dtype=torch.uint8, device=a.device)
    torch.matmul(a, b, out=out)
