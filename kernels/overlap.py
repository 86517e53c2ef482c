"""Launches that overlap (sm_90 and newer): a kernel's start beside the end of the one before it.

A launch that is told to overlap (programmatic dependent launch, CUDA guide) may start as soon as
the one before has let it: its blocks then take the SMs that have run out of work. Whatever touches
memory waits until the launch before is over.
"""

import triton
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def let_the_next_launch_begin():
    """The next launch, if it overlaps, may start where this one leaves room."""
    gdc_launch_dependents()


@triton.jit
def wait_for_the_launch_before():
    """Returns when the launch before is over and what it wrote can be read."""
    gdc_wait()
