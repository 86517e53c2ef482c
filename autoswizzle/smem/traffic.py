"""Bytes a tiled tensor-core GEMM moves through DRAM, L2, shared memory and registers."""

from dataclasses import asdict, dataclass

from autoswizzle.errors import ArgumentError
from autoswizzle.smem.swizzle import check_itemsize, integer


@dataclass(frozen=True, slots=True)
class GemmTraffic:
    """Bytes of one GEMM, each level as the level below it asks for them.

    dram_read, dram_write; l2_read (A and B tiles on their way to shared memory), l2_write (C);
    shared_write (A and B copies, and C if staged), shared_read (fragments, and C if staged);
    register_read, register_write: what the tensor-core instructions read and write.
    c_shared_write, c_shared_read: the part of the shared traffic that is C's.
    """

    dram_read: int
    dram_write: int
    l2_read: int
    l2_write: int
    shared_write: int
    shared_read: int
    c_shared_write: int
    c_shared_read: int
    register_read: int
    register_write: int

    @property
    def c_share_of_stores(self) -> float:
        """C's part of all bytes stored to shared memory."""
        return self.c_shared_write / self.shared_write

    def to_dict(self) -> dict[str, int]:
        """JSON-ready mapping of every field."""
        return asdict(self)


def warp_grid(block_m: int, block_n: int, num_warps: int) -> tuple[int, int]:
    """(warps_m, warps_n): the split of a block_m x block_n tile that reads shared memory least.

    Each warp's part is a whole number of 16 x 16 pieces; of equals, fewer warps down the tile.
    num_warps is a power of two. Raises ArgumentError where there is no such split.
    """
    for name, value in (("block_m", block_m), ("block_n", block_n), ("num_warps", num_warps)):
        integer(name, value, least=1)
    splits = [
        (warps_n * block_m + warps_m * block_n, warps_m, warps_n)
        for warps_m in (1 << bit for bit in range(num_warps.bit_length()))
        if (warps_n := num_warps // warps_m) * warps_m == num_warps
        and block_m % (16 * warps_m) == block_n % (16 * warps_n) == 0
    ]
    if not splits:
        raise ArgumentError(
            f"num_warps must split {block_m} x {block_n} into 16 x 16 pieces, got {num_warps}"
        )
    return min(splits)[1:]


def gemm_traffic(
    m: int,
    n: int,
    k: int,
    *,
    block_m: int,
    block_n: int,
    block_k: int,
    warps_m: int,
    warps_n: int,
    itemsize: int = 2,
    out_itemsize: int = 2,
    c_itemsize: int = 4,
    instruction: tuple[int, int, int] = (16, 8, 16),
    l2_hit_rate: float | None = None,
) -> GemmTraffic:
    """Traffic of C[m, n] = A[m, k] @ B[k, n] in tiles of block_m x block_n, k steps of block_k.

    warps_m, warps_n: warps down and across a tile; each reads its own rows of A and columns of B
    from shared memory, so A is read warps_n times and B warps_m times. itemsize, out_itemsize:
    bytes of an input and output element. c_itemsize: bytes of C as staged in shared memory, 0 when
    it is stored from registers. instruction: m, n, k of one mma, fp32 accumulators. l2_hit_rate:
    of A and B reads; None for the least DRAM traffic, each operand once. Ragged tiles read global
    memory for their true extent only, but occupy whole tiles in shared memory.
    Raises ArgumentError naming the field.
    """
    extents = {"m": m, "n": n, "k": k, "block_m": block_m, "block_n": block_n, "block_k": block_k}
    counts = {"warps_m": warps_m, "warps_n": warps_n}
    for name, value in {**extents, **counts}.items():
        integer(name, value, least=1)
    check_itemsize(itemsize)
    integer("out_itemsize", out_itemsize, least=1)
    integer("c_itemsize", c_itemsize, least=0)
    if l2_hit_rate is not None and not (
        isinstance(l2_hit_rate, (int, float)) and 0 <= l2_hit_rate <= 1
    ):
        raise ArgumentError(f"l2_hit_rate must be in 0..1, got {l2_hit_rate!r}")
    if (
        not isinstance(instruction, tuple)
        or len(instruction) != 3
        or not all(type(extent) is int and extent >= 1 for extent in instruction)
    ):
        raise ArgumentError(
            f"instruction must be three integers of at least 1, got {instruction!r}"
        )
    mma_m, mma_n, mma_k = instruction
    _check_multiple("block_m", block_m, warps_m * mma_m)
    _check_multiple("block_n", block_n, warps_n * mma_n)
    _check_multiple("block_k", block_k, mma_k)

    tiles_m, tiles_n, steps = -(-m // block_m), -(-n // block_n), -(-k // block_k)
    tiles, depth = tiles_m * tiles_n, steps * block_k
    l2_read = (tiles_n * m + tiles_m * n) * k * itemsize
    out = m * n * out_itemsize
    a_copies, b_copies = (tiles * depth * block * itemsize for block in (block_m, block_n))
    c_staged = tiles * block_m * block_n * c_itemsize
    operand_reads = a_copies * warps_n + b_copies * warps_m
    mmas = tiles * (block_m // mma_m) * (block_n // mma_n) * (depth // mma_k)
    accumulators = 4 * mmas * mma_m * mma_n
    least_read = (m + n) * k * itemsize
    return GemmTraffic(
        dram_read=least_read if l2_hit_rate is None else round((1 - l2_hit_rate) * l2_read),
        dram_write=out,
        l2_read=l2_read,
        l2_write=out,
        shared_write=a_copies + b_copies + c_staged,
        shared_read=operand_reads + c_staged,
        c_shared_write=c_staged,
        c_shared_read=c_staged,
        register_read=mmas * (mma_m + mma_n) * mma_k * itemsize + accumulators,
        register_write=accumulators,
    )


def _check_multiple(name: str, value: int, unit: int) -> None:
    if value % unit:
        raise ArgumentError(f"{name} must be a multiple of {unit}, got {value}")
