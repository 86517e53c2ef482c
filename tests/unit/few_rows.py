"""What test_gemv.py and test_skinny.py alike ask of compiled kernels for few rows."""

import pytest

from autoswizzle.kernels import compile_for
from autoswizzle.kernels.offline import compiled
from autoswizzle.simulator.resources import estimate
from autoswizzle.space import why_illegal


def code(config, problem, gpu):
    """Resources and PTX of a legal configuration, which starts early where GPUs can."""
    assert why_illegal(config, problem, gpu) is None, config
    ptx = compiled(config, problem, gpu).asm["ptx"]
    assert ("griddepcontrol.wait" in ptx) == (gpu.capability >= 90), config
    return compile_for(config, problem, gpu), ptx


def shared_bytes(config, problem, gpu):
    """As estimated and as compiled; warps and registers are near."""
    found, real = estimate(config, problem, gpu), compile_for(config, problem, gpu)
    assert found.registers == pytest.approx(real.registers, rel=0.35), config
    assert found.num_warps == real.num_warps, config
    return found.shared_bytes, real.shared_bytes
