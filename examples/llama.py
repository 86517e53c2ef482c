"""A Llama-architecture decoder (random weights): record, tune, patch, compare with plain torch.

    python examples/llama.py              # sizes of Llama-3-8B with a few layers on a GPU
    python examples/llama.py --no-tune    # with the entries there are

Prefill, decode and training steps run with plain torch and patched; tokens per second and the
losses of both are printed. Without a GPU it runs small, and torch does every product.
"""

import argparse
import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

import autoswizzle


@dataclass(frozen=True)
class Shape:
    """The sizes of a decoder."""

    width: int
    hidden: int
    heads: int
    kv_heads: int
    layers: int
    vocabulary: int

    @property
    def head(self) -> int:
        """Elements of one head."""
        return self.width // self.heads


LLAMA_3_8B = Shape(4096, 14336, 32, 8, layers=4, vocabulary=128256)  # of its 32 layers
SMALL = Shape(64, 128, 4, 2, layers=2, vocabulary=256)


class Cache:
    """Keys and values of one layer, for up to `length` tokens."""

    def __init__(self, batch: int, length: int, shape: Shape, like: torch.Tensor) -> None:
        size = (batch, shape.kv_heads, length, shape.head)
        self.keys, self.values = like.new_zeros(size), like.new_zeros(size)

    def add(
        self, position: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Put those of the tokens at position (1-D); returns all."""
        self.keys.index_copy_(2, position, key)
        self.values.index_copy_(2, position, value)
        return self.keys, self.values


class Block(nn.Module):
    """Attention with grouped heads and rotary positions, then a gated MLP."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        columns = (shape.heads + 2 * shape.kv_heads) * shape.head
        self.qkv = nn.Linear(shape.width, columns, bias=False)
        self.out = nn.Linear(shape.width, shape.width, bias=False)
        self.gate_up = nn.Linear(shape.width, 2 * shape.hidden, bias=False)
        self.down = nn.Linear(shape.hidden, shape.width, bias=False)
        self.norm_1, self.norm_2 = nn.RMSNorm(shape.width), nn.RMSNorm(shape.width)

    def forward(
        self, x: torch.Tensor, position: torch.Tensor, cache: Cache | None = None
    ) -> torch.Tensor:
        """X: (batch, tokens, width); position: that of each token, 1-D."""
        batch, tokens, _ = x.shape
        shape = self.shape
        qkv = self.qkv(self.norm_1(x)).view(batch, tokens, -1, shape.head).transpose(1, 2)
        query, key, value = qkv.split([shape.heads, shape.kv_heads, shape.kv_heads], 1)
        query, key = rotated(query, position), rotated(key, position)
        mask = None
        if cache is not None:
            key, value = cache.add(position, key, value)
            mask = torch.arange(key.shape[2], device=x.device) <= position[:, None]
        y = functional.scaled_dot_product_attention(
            query, key, value, mask, is_causal=mask is None, enable_gqa=True
        )
        x = x + self.out(y.transpose(1, 2).reshape(batch, tokens, -1))
        gate, up = self.gate_up(self.norm_2(x)).chunk(2, -1)
        return x + self.down(functional.silu(gate) * up)


def rotated(x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    """Rotary position embedding of x (batch, heads, tokens, head)."""
    half = x.shape[-1] // 2
    power = torch.arange(half, device=x.device) / half
    angle = position[:, None] * 500000.0**-power
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


class Decoder(nn.Module):
    """Tokens to logits."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embed = nn.Embedding(shape.vocabulary, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)

    def forward(
        self,
        tokens: torch.Tensor,
        position: torch.Tensor,
        caches: list[Cache] | None = None,
        last: int | None = None,
    ) -> torch.Tensor:
        """Logits of each token (batch, tokens), or of the last ones."""
        x = self.embed(tokens)
        for index, block in enumerate(self.blocks):
            x = block(x, position, None if caches is None else caches[index])
        return self.head(self.norm(x if last is None else x[:, -last:]))

    def caches(self, batch: int, length: int) -> list[Cache]:
        """Empty key-value caches."""
        return [Cache(batch, length, self.shape, self.embed.weight.data) for _ in self.blocks]


def build(shape: Shape, device: str) -> Decoder:
    """A decoder of random bf16 weights, the same ones each time."""
    torch.manual_seed(0)
    with torch.device(device):
        return Decoder(shape).to(torch.bfloat16)


def train(model: Decoder, tokens: torch.Tensor, steps: int) -> list[float]:
    """The losses of SGD steps on one batch (batch, tokens)."""
    position = torch.arange(tokens.shape[1] - 1, device=tokens.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(steps):
        logits = model(tokens[:, :-1], position)
        loss = functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def rate(work: Callable[[], object], tokens: int, repeats: int) -> float:
    """Tokens per second of work, warm."""
    on_gpu = torch.cuda.is_available()
    work()
    if on_gpu:
        torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(repeats):
        work()
    if on_gpu:
        torch.cuda.synchronize()
    return tokens * repeats / (time.perf_counter() - began)


def main() -> None:
    """Record, tune, patch, compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--no-tune", action="store_true", help="with the entries there are")
    parser.add_argument("--seconds", type=float, default=20, help="of search for each problem")
    options = parser.parse_args()
    on_gpu = torch.cuda.is_available()
    device, shape = ("cuda", LLAMA_3_8B) if on_gpu else ("cpu", SMALL)
    length, batch, steps = (2048, 16, 8) if on_gpu else (32, 4, 3)
    if not on_gpu:
        print("no CUDA device: running small on the CPU, where torch does every product")
    model = build(shape, device)
    prompt = torch.randint(shape.vocabulary, (1, length), device=device)
    examples = torch.randint(shape.vocabulary, (2, length // 2 + 1), device=device)
    token, caches = prompt[:, :1].expand(batch, 1), model.caches(batch, length)
    here, everywhere = (
        torch.tensor([length // 2], device=device),
        torch.arange(length, device=device),
    )

    @torch.no_grad()
    def prefill() -> None:
        model(prompt, everywhere, last=1)

    @torch.no_grad()
    def decode() -> None:
        model(token, here, caches)

    with autoswizzle.record_shapes() as counts:
        prefill()
        decode()
        train(deepcopy(model), examples, 1)
    print(f"{sum(counts.values())} products of {len(counts)} problems")
    if on_gpu and not options.no_tune:
        unbatched = [problem for problem in counts if problem.batch == 1]
        report = autoswizzle.tune(unbatched, effort="quick", seconds=options.seconds)
        for result in report.results:
            print(result.problem, result.error or (result.entry and result.entry.config))
    for name, work, tokens in (("prefill", prefill, length), ("decode", decode, batch)):
        plain = rate(work, tokens, steps)
        with autoswizzle.patch(model):
            patched = rate(work, tokens, steps)
        print(f"{name}: {plain:.0f} tokens/s with torch, {patched:.0f} patched")
    plain_losses = train(deepcopy(model), examples, steps)
    with autoswizzle.patch(model):
        patched_losses = train(model, examples, steps)
    for step, (plain_loss, patched_loss) in enumerate(
        zip(plain_losses, patched_losses, strict=True)
    ):
        print(f"step {step}: loss {plain_loss:.4f} with torch, {patched_loss:.4f} patched")


if __name__ == "__main__":
    main()
