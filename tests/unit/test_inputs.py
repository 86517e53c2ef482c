import pytest
import torch

from autoswizzle.errors import WrongResultError
from autoswizzle.problem import GemmProblem
from autoswizzle.search.inputs import (
    Reference,
    check,
    float32_precision,
    make_inputs,
    make_output,
)

DTYPES = ("fp16", "bf16", "fp32", "fp8e4m3", "fp8e5m2")


@pytest.mark.parametrize("dtype", DTYPES)
def test_inputs_resemble_real_ones_and_depend_on_the_seed_alone(dtype):
    problem = GemmProblem(257, 130, 190, dtype, "nt")
    torch.manual_seed(5)
    before = torch.get_rng_state()
    a, b = make_inputs(problem, "cpu", seed=3)
    torch.manual_seed(6)
    again = make_inputs(problem, "cpu", seed=3)
    other = make_inputs(problem, "cpu", seed=4)
    torch.manual_seed(5)
    assert torch.equal(torch.get_rng_state(), before)
    for operand, same, different in zip((a, b), again, other, strict=True):
        values = operand.float()
        assert torch.equal(values, same.float())
        assert not torch.equal(values, different.float())
        assert 0.9 < values.std() < 1.1
        assert abs(values.mean()) < 0.1
        assert (values.std(dim=0) > 0.1).all()
        assert (values.std(dim=1) > 0.1).all()
    assert not torch.equal(a[:130, :130].float(), b[:130, :130].float())


def test_the_global_generator_is_not_used():
    before = torch.get_rng_state()
    make_inputs(GemmProblem(16, 16, 16), "cpu", seed=1)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_mantissas_are_not_truncated(dtype):
    a, _ = make_inputs(GemmProblem(256, 16, 256, dtype), "cpu", seed=0)
    mantissas = a.contiguous().to(torch.bfloat16).view(torch.int16) & 0x7F
    assert len(mantissas.unique()) > 60


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("batch", [1, 3])
def test_operands_have_the_problems_shape_and_layout(layout, batch):
    problem = GemmProblem(24, 40, 56, "bf16", layout, batch)
    a, b = make_inputs(problem, "cpu")
    lead = (batch,) if batch > 1 else ()
    assert a.shape == (*lead, 24, 56)
    assert b.shape == (*lead, 56, 40)
    assert make_output(problem, "cpu").shape == (*lead, 24, 40)
    for operand, letter in zip((a, b), layout, strict=True):
        assert operand.stride()[-1 if letter == "n" else -2] == 1
        assert (operand if letter == "n" else operand.mT).is_contiguous()


@pytest.mark.parametrize(
    ("text", "aligned"),
    [
        ("64x64x64:bf16:nt", True),
        ("64x64x64:bf16:nt:unaligned", False),
        ("33x35x37:bf16:nn", False),
        ("33x35x37:bf16:tn:aligned", True),
        ("33x35x37:fp32:tt:aligned", True),
        ("33x35x37:fp8e4m3:nt:aligned", True),
    ],
)
def test_operands_have_the_problems_alignment(text, aligned):
    problem = GemmProblem.parse(text)
    assert problem.aligned is aligned
    tensors = (*make_inputs(problem, "cpu"), make_output(problem, "cpu"))
    rounds = [
        tensor.data_ptr() % 16 == 0
        and all(stride == 1 or stride * tensor.itemsize % 16 == 0 for stride in tensor.stride())
        for tensor in tensors
    ]
    assert all(rounds) if aligned else not any(rounds)


@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp32"])
@pytest.mark.parametrize("batch", [1, 2])
def test_torchs_product_passes_and_a_wrong_element_does_not(dtype, batch):
    problem = GemmProblem(65, 47, 300, dtype, "nt", batch)
    a, b = make_inputs(problem, "cpu")
    out = make_output(problem, "cpu")
    assert out.isnan().all()
    with pytest.raises(WrongResultError, match=f"{out.numel()} of {out.numel()} .* got nan"):
        check(problem, a, b, out)
    torch.matmul(a, b, out=out)
    reference = Reference(problem, a, b)
    reference.check(out)
    last = (*(extent - 1 for extent in out.shape),)
    for wrong in (float("nan"), float("inf"), 0.0, out[last].item() * 1.02 + 0.5):
        broken = out.clone()
        broken[last] = wrong
        with pytest.raises(WrongResultError, match=f"^1 of {out.numel()} elements") as caught:
            reference.check(broken)
        assert str(last) in str(caught.value)


def test_the_bound_is_the_stated_one():
    problem = GemmProblem(48, 40, 64, "bf16")
    a, b = make_inputs(problem, "cpu", seed=9)
    exact, magnitude = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    bound = 2**-8 * exact.abs() + 4 * 64 * 2**-24 * magnitude
    reference = Reference(problem, a, b)
    reference.check(exact + 0.999 * bound)
    reference.check(exact - 0.999 * bound)
    for sign in (1, -1):
        with pytest.raises(WrongResultError, match=r"^1920 of 1920"):
            reference.check(exact + sign * 1.001 * bound)


def test_tf32_and_fp8_allow_the_rounding_of_their_units():
    for text, extra in (("48x40x64:fp32:nn:tf32", 2**-9), ("48x40x64:fp8e4m3:nt", 2**-9)):
        problem = GemmProblem.parse(text)
        a, b = make_inputs(problem, "cpu", seed=9)
        exact = a.double() @ b.double()
        magnitude = a.double().abs() @ b.double().abs()
        Reference(problem, a, b).check(exact + 0.99 * extra * magnitude)
        with pytest.raises(WrongResultError):
            Reference(problem, a, b).check(exact + 4 * extra * magnitude)


def test_blocks_cover_extents_that_no_block_divides(monkeypatch):
    monkeypatch.setattr("autoswizzle.search.inputs._BLOCK", 32)
    problem = GemmProblem(70, 33, 20, "fp32")
    a, b = make_inputs(problem, "cpu")
    out = a @ b
    check(problem, a, b, out)
    for at in ((0, 0), (69, 32), (31, 31), (32, 32), (64, 0)):
        broken = out.clone()
        broken[at] += 1
        with pytest.raises(WrongResultError, match=r"^1 of 2310"):
            check(problem, a, b, broken)


def test_torchs_precision_setting_is_restored():
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    with float32_precision(GemmProblem(8, 8, 8, "fp32", precision="tf32")):
        assert matmul.fp32_precision == "tf32"
    assert matmul.fp32_precision == before
    with pytest.raises(KeyError), float32_precision(GemmProblem(8, 8, 8, "fp32")):
        raise KeyError(matmul.fp32_precision)
    assert matmul.fp32_precision == before
