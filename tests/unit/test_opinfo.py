"""torch's own samples for matmul (OpInfo): as torch computes them, and through our path."""

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

from autoswizzle.ops import matmul

[MATMUL_INFO] = [info for info in op_db if info.name == "matmul"]


@pytest.mark.parametrize("dtype", sorted(MATMUL_INFO.dtypes, key=str), ids=str)
def test_opinfo_samples_equal_torch(dtype):
    samples = list(MATMUL_INFO.sample_inputs("cpu", dtype, requires_grad=dtype.is_floating_point))
    assert len(samples) >= 10
    for sample in samples:
        (other,) = sample.args
        ours, theirs = matmul(sample.input, other), torch.matmul(sample.input, other)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)
        assert ours.stride() == theirs.stride()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_opinfo_samples_through_our_path_equal_torch(tuned, dtype):
    reached = 0
    for sample in MATMUL_INFO.sample_inputs("cpu", dtype, requires_grad=True):
        a, b = sample.input, sample.args[0]
        x, y = (t.detach().clone().requires_grad_() for t in (a, b))
        before = len(tuned.calls)
        ours, theirs = matmul(a, b), torch.matmul(x, y)
        reached += len(tuned.calls) > before
        torch.testing.assert_close(ours, theirs)
        ours.sum().backward()
        theirs.sum().backward()
        torch.testing.assert_close((a.grad, b.grad), (x.grad, y.grad))
    assert reached >= 2
