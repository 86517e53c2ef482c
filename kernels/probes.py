"""Kernels that measure a GPU rather than multiply: nothing, a stream through the L2, a chase."""

import triton
import triton.language as tl


@triton.jit
def nothing():
    """An empty kernel."""


@triton.jit
def stream(
    buffer, sink, chunks, reads, APART: tl.constexpr, SHARE: tl.constexpr, BLOCK: tl.constexpr
):
    """Every program reads `reads` chunks of BLOCK int32 one after another, around and around.

    SHARE neighbouring programs read the same chunks, as the programs of a GEMM share operand tiles;
    the next SHARE are APART chunks further on. buffer: chunks x BLOCK; sink: programs x BLOCK.
    """
    program = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.int32)
    first = program // SHARE * APART
    for read in range(reads):
        chunk = (first + read) % chunks
        total += tl.load(buffer + chunk * BLOCK + lane, cache_modifier=".cg")
    tl.store(sink + program * BLOCK + lane, total)


@triton.jit
def chase(buffer, sink, chunks, passes, BLOCK: tl.constexpr):
    """Every program reads all of buffer, int32 zeros in chunks of BLOCK, `passes` times.

    An address depends on what was read before, so that a warp has one line in flight and its time
    is the sum of latencies. sink: programs x BLOCK.
    """
    lane = tl.arange(0, BLOCK)
    at = tl.zeros([BLOCK], tl.int32)
    for _ in range(passes):
        for chunk in range(chunks):
            at = tl.load(buffer + chunk * BLOCK + lane + at, cache_modifier=".cg")
    tl.store(sink + tl.program_id(0) * BLOCK + lane, at)
