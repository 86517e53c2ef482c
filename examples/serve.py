"""A server loop: products prepared, captured in CUDA graphs, one for each batch size, replayed."""

from collections.abc import Callable

import torch
from torch import nn

import autoswizzle


def captured(model: nn.Module, x: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """Model on inputs shaped like x, as one CUDA graph; as it is on a CPU."""
    if not x.is_cuda:
        return model
    with autoswizzle.record_shapes() as counts:  # a warm-up too, as captures need
        model(x)
    autoswizzle.prepare(counts)  # a capture runs only kernels that are loaded
    graph, inside = torch.cuda.CUDAGraph(), x.clone()
    with torch.cuda.graph(graph):
        out = model(inside)

    def replay(given: torch.Tensor) -> torch.Tensor:
        inside.copy_(given)
        graph.replay()
        return out.clone()

    return replay


@torch.no_grad()
def main() -> None:
    """Answer requests of changing batch sizes, and compare with plain torch."""
    on_gpu = torch.cuda.is_available()
    device, width = ("cuda", 4096) if on_gpu else ("cpu", 32)
    if not on_gpu:
        print("no CUDA device: serving small on the CPU, without graphs")
    torch.manual_seed(0)
    layers = [nn.Linear(width, width, bias=False), nn.SiLU(), nn.Linear(width, width, bias=False)]
    model = nn.Sequential(*layers).to(device, torch.bfloat16)
    sizes = (1, 16, 64)
    inputs = {m: torch.randn(m, width, device=device, dtype=torch.bfloat16) for m in sizes}
    with autoswizzle.patch(model):
        served = {m: captured(model, x) for m, x in inputs.items()}
        answers = {m: served[m](x) for m, x in inputs.items()}
    for m, x in inputs.items():
        largest = (answers[m] - model(x)).abs().max().item()
        print(f"batch {m}: largest difference from torch {largest:g}")


if __name__ == "__main__":
    main()
