"""An MLP trained compiled, written with autoswizzle.linear, beside the same in plain torch."""

import torch
from torch import nn
from torch.nn import functional

import autoswizzle


class Mlp(nn.Module):
    """Three layers; with autoswizzle or with torch."""

    def __init__(self, width: int, hidden: int, *, ours: bool) -> None:
        super().__init__()
        self.ours = ours
        sizes = [(width, hidden), (hidden, hidden), (hidden, width)]
        self.layers = nn.ModuleList(nn.Linear(*size) for size in sizes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, width) to (batch, width)."""
        *inner, last = self.layers
        for layer in inner:
            if self.ours:
                x = autoswizzle.linear(x, layer.weight, layer.bias, activation="gelu_tanh")
            else:
                x = functional.gelu(layer(x), approximate="tanh")
        return autoswizzle.linear(x, last.weight, last.bias) if self.ours else last(x)


def main() -> None:
    """Train both on the same data and compare their losses."""
    on_gpu = torch.cuda.is_available()
    device, width, hidden, batch = ("cuda", 2048, 8192, 4096) if on_gpu else ("cpu", 16, 32, 8)
    # the CPU's Inductor needs a C++ compiler, which a machine may lack
    backend = "inductor" if on_gpu else "aot_eager"
    dtype = torch.bfloat16 if on_gpu else torch.float32
    if not on_gpu:
        print("no CUDA device: training small on the CPU, where torch does every product")
    torch.manual_seed(0)
    x = torch.randn(batch, width, device=device, dtype=dtype)
    target = x.roll(1, 1)
    losses = []
    for ours in (False, True):
        torch.manual_seed(1)
        model = Mlp(width, hidden, ours=ours).to(device, dtype)
        step = torch.compile(model, backend=backend, fullgraph=True)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        losses.append([])
        for _ in range(10):
            loss = functional.mse_loss(step(x), target)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses[-1].append(loss.item())
    for number, (theirs, mine) in enumerate(zip(*losses, strict=True)):
        print(f"step {number}: loss {theirs:.5f} with torch, {mine:.5f} with autoswizzle")


if __name__ == "__main__":
    main()
