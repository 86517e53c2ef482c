"""Shared memory: swizzles, tile layouts, bank conflicts and the traffic of a tiled GEMM.

Nothing here needs a GPU. bank_conflicts(tile_layout("128", cols=64), "ldmatrix.x4") asks what one
instruction costs; gemm_traffic(...) what a whole GEMM moves through each level of memory.
"""

from autoswizzle.smem.conflicts import (
    BANK_BYTES,
    BANKS,
    INSTRUCTIONS,
    Conflicts,
    accumulator_lanes,
    bank_conflicts,
    bank_words,
    ldmatrix_lanes,
    row_lanes,
)
from autoswizzle.smem.layout import KINDS, Layout, PanelLayout, TileLayout, picture, tile_layout
from autoswizzle.smem.swizzle import (
    NO_SWIZZLE,
    SWIZZLE_32B,
    SWIZZLE_64B,
    SWIZZLE_128B,
    Swizzle,
)
from autoswizzle.smem.traffic import GemmTraffic, gemm_traffic, warp_grid

__all__ = [
    "BANKS",
    "BANK_BYTES",
    "INSTRUCTIONS",
    "KINDS",
    "NO_SWIZZLE",
    "SWIZZLE_32B",
    "SWIZZLE_64B",
    "SWIZZLE_128B",
    "Conflicts",
    "GemmTraffic",
    "Layout",
    "PanelLayout",
    "Swizzle",
    "TileLayout",
    "accumulator_lanes",
    "bank_conflicts",
    "bank_words",
    "gemm_traffic",
    "ldmatrix_lanes",
    "picture",
    "row_lanes",
    "tile_layout",
    "warp_grid",
]
