"""Random work and capacities, on which the closed form is checked against the replay."""

from random import Random

from autoswizzle.config import SWIZZLES
from autoswizzle.simulator.work import Item, Launch, Operands, Wave


def random_launch(draw: Random) -> Launch:
    """A small launch of any order, with ragged edges, batch and split K."""
    block_m, block_n, block_k = (draw.choice((1, 2, 3, 4, 8)) for _ in range(3))
    return Launch(
        draw.randint(1, 40), draw.randint(1, 40), draw.randint(1, 40), block_m, block_n, block_k,
        itemsize=draw.choice((1, 2, 4)), swizzle=draw.choice(SWIZZLES),
        group_size=draw.randint(1, 6), concurrency=draw.randint(1, 30),
        batch=draw.choice((1, 1, 1, 2, 3)), split_k=draw.choice((1, 1, 2, 3, 5)),
    )  # fmt: skip


def random_waves(draw: Random) -> tuple[list[Wave], Operands]:
    """Programs of one to three items with any rows, columns and k ranges: stream-K and worse."""
    rows, columns = (tuple(draw.randint(1, 6) for _ in range(draw.randint(1, 5))) for _ in range(2))
    operands = Operands(rows, columns, draw.randint(1, 30), draw.randint(1, 4), draw.choice((1, 2)))
    edges = [*range(0, operands.steps, draw.randint(1, 4)), operands.steps]
    longest = draw.choice((1, 3))

    def item() -> Item:
        first, stop = sorted(draw.sample(edges, 2))
        return Item(draw.randrange(len(rows)), draw.randrange(len(columns)), first, stop)

    waves = [
        [[item() for _ in range(draw.randint(1, longest))] for _ in range(draw.randint(1, 6))]
        for _ in range(draw.randint(1, 5))
    ]
    return list(waves), operands


def random_capacity(draw: Random, operands: Operands) -> int:
    """Bytes, from nothing fits to everything fits."""
    tiles = sum(operands.row_extents) + sum(operands.column_extents)
    everything = operands.itemsize * operands.k * tiles
    return max(1, draw.randint(1, everything * 6 // 5) // draw.choice((1, 1, 1, 3, 10, 50)))
