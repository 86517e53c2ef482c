"""Handing partial sums over: a program leaves some in memory, another takes them.

The memory comes as it is: what stands where a flag will be is not the launch's ticket, a number of
62 random bits, and whoever takes the sums clears the flag, so that a replay of the launch in a CUDA
graph, ticket and all, finds it cleared. No launch has to zero memory first.
"""

import triton
import triton.language as tl


@triton.jit
def hand_over(flag, ticket):
    """What this program's threads wrote before the barrier before this is there to be read."""
    tl.atomic_xchg(flag, ticket, sem="release")


@triton.jit
def take_over(flag, ticket):
    """Returns when the sums that flag stands for can be read; nobody else may take them."""
    there = tl.atomic_add(flag, 0, sem="acquire")
    while there != ticket:
        there = tl.atomic_add(flag, 0, sem="acquire")
    tl.atomic_xchg(flag, 0, sem="relaxed")
