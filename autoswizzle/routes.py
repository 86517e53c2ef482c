"""From a call of one of torch's functions to ours; a form we don't have goes to that function."""

from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from autoswizzle.layers import linear_or
from autoswizzle.operands import PLAIN
from autoswizzle.ops import product_or

Original: TypeAlias = Callable[..., torch.Tensor]
Args: TypeAlias = tuple[Any, ...]
Kwargs: TypeAlias = dict[str, Any]
Route: TypeAlias = Callable[[Original, Args, Kwargs], torch.Tensor]


def matmul(theirs: Original, args: Args, kwargs: Kwargs) -> torch.Tensor:
    """A call of torch.matmul or @."""
    operands, out = _operands(("input", "other"), args, kwargs)
    if len(operands) != 2:
        return theirs(*args, **kwargs)
    return product_or(theirs, *operands, out)


def mm(theirs: Original, args: Args, kwargs: Kwargs) -> torch.Tensor:
    """A call of mm."""
    operands, out = _operands(("input", "mat2"), args, kwargs)
    if len(operands) != 2 or not _plain(operands) or not _dims(2, operands):
        return theirs(*args, **kwargs)
    return product_or(theirs, *operands, out)


def bmm(theirs: Original, args: Args, kwargs: Kwargs) -> torch.Tensor:
    """A call of bmm."""
    operands, out = _operands(("input", "mat2"), args, kwargs)
    if len(operands) != 2 or not _plain(operands) or not _dims(3, operands):
        return theirs(*args, **kwargs)
    if torch.compiler.is_dynamo_compiling():
        return theirs(*args, **kwargs)
    return product_or(theirs, *operands, out)


def addmm(theirs: Original, args: Args, kwargs: Kwargs) -> torch.Tensor:
    """A call of addmm: a linear layer if a vector is added."""
    operands, out = _operands(("input", "mat1", "mat2"), args, kwargs)
    if len(operands) != 3 or out is not None or not _plain(operands):
        return theirs(*args, **kwargs)
    bias, a, b = operands
    if bias.dim() != 1 or not _dims(2, (a, b)):
        return theirs(*args, **kwargs)
    return linear_or(lambda x, weight, bias: theirs(bias, x, weight.t()), a, b.t(), bias)


def linear(theirs: Original, args: Args, kwargs: Kwargs) -> torch.Tensor:
    """A call of F.linear."""
    operands, out = _operands(("input", "weight", "bias"), args, kwargs)
    if len(operands) not in (2, 3) or out is not None:
        return theirs(*args, **kwargs)
    return linear_or(theirs, *operands)


def _operands(names: tuple[str, ...], args: Args, kwargs: Kwargs) -> tuple[Args, Any]:
    """The operands in order, and out; no operands where a call is of another form."""
    if not kwargs:
        return args, None
    given = [name for name in names[len(args) :] if name in kwargs]
    others = [name for name in kwargs if name not in given and name != "out"]
    in_order = given == list(names[len(args) : len(args) + len(given)])
    if others or not in_order:
        return (), None
    return args + tuple([kwargs[name] for name in given]), kwargs.get("out")


def _plain(operands: Args) -> bool:
    return all(type(operand) in PLAIN for operand in operands)


def _dims(count: int, operands: Args) -> bool:
    return all(operand.dim() == count for operand in operands)
