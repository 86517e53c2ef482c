"""The search space: the configurations of a problem on a GPU, and why others are illegal."""

from autoswizzle.space.families import FAMILIES, GROUP_SIZES, Family
from autoswizzle.space.geometry import (
    cluster_size,
    consumers,
    grid,
    multiplied,
    pieces,
    row_strips,
    tail,
)
from autoswizzle.space.legality import MAX_GROUP_SIZE, why_illegal
from autoswizzle.space.listing import branches, candidates, default_config, orders, tiles
from autoswizzle.space.rules import MAX_REGISTERS

__all__ = [
    "FAMILIES",
    "GROUP_SIZES",
    "MAX_GROUP_SIZE",
    "MAX_REGISTERS",
    "Family",
    "branches",
    "candidates",
    "cluster_size",
    "consumers",
    "default_config",
    "grid",
    "multiplied",
    "orders",
    "pieces",
    "row_strips",
    "tail",
    "tiles",
    "why_illegal",
]
