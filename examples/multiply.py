"""autoswizzle.matmul in place of torch.matmul, and what it ran as."""

import torch

import autoswizzle


def main() -> None:
    """Multiply with both, compare, explain."""
    on_gpu = torch.cuda.is_available()
    size, device = (4096, "cuda") if on_gpu else (256, "cpu")
    if not on_gpu:
        print(f"no CUDA device: multiplying {size} x {size} on the CPU, which torch does")
    a = torch.randn(size, size, dtype=torch.bfloat16, device=device)
    b = torch.randn(size, size, dtype=torch.bfloat16, device=device).t()
    ours, theirs = autoswizzle.matmul(a, b), torch.matmul(a, b)
    print(f"largest difference from torch.matmul: {(ours - theirs).abs().max().item():g}")
    print(autoswizzle.explain(a, b))


if __name__ == "__main__":
    main()
