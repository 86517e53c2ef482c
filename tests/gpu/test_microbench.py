"""Every probe of a real GPU gives a possible figure."""

import pytest

from autoswizzle.hardware import detect

pytestmark = pytest.mark.gpu


def test_a_calibration_is_possible():
    from autoswizzle.microbench import CudaProbes, calibrate

    gpu = detect(0)
    found = calibrate(gpu, CudaProbes(gpu), repeats=2)
    assert 0 < found.l2_effective_bytes.value <= 2 * gpu.l2_bytes
    assert found.tflops.value < gpu.rates.bf16
    assert found.dram_gbs.value < found.l2_gbs.value
