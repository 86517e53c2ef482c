"""record_shapes: which GEMM problems a model poses, and how often."""

import json
import os
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from autoswizzle import graph
from autoswizzle.cache.files import as_path, check_writable, write_atomic
from autoswizzle.operands import DTYPES, PLAIN, problem_of
from autoswizzle.problem import ALIGNMENT, GemmProblem
from autoswizzle.records import check_replaceable

_aten = torch.ops.aten
# Where the two matrices lie among the arguments of each operator that multiplies
_FACTORS = {
    _aten.mm: 0,
    _aten.bmm: 0,
    _aten.addmm: 1,
    _aten.addmm_: 1,
    _aten._addmm_activation: 1,
    _aten.baddbmm: 1,
    _aten.baddbmm_: 1,
    graph.library.mm: 0,
}


@contextmanager
def record_shapes(path: str | os.PathLike[str] | None = None) -> Iterator[Counter[GemmProblem]]:
    """Count every GEMM of this thread's torch calls, those of their backward passes included.

    Yields the counts, by problem (layout, precision and alignment as the operands have them), of
    products on any device in float16, bfloat16 or float32; tensor subclasses and the insides of
    higher-order operators (torch.cond, flex_attention) are left out. path: a JSON Lines file they
    are written to at the end, most frequent first, also when the block raised; `autoswizzle tune
    --from-record` reads it. What torch.compile compiled runs eagerly meanwhile.
    Raises ArgumentError for what names no file or a file that is no record, which stays as it is,
    CacheError when path's folder can't be written.
    """
    file = None if path is None else as_path(path).absolute()  # the block may change the folder
    if file is not None:
        check_replaceable(file, "path")
        check_writable(file.parent)
    counts: Counter[GemmProblem] = Counter()
    try:
        # Under a dispatch mode Dynamo compiles nothing, and raises where fullgraph=True
        with torch.compiler.set_stance("force_eager"), _Recorder(counts):
            yield counts
    finally:
        if file is not None:
            _write(file, counts)


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees the operators that matmul, @, linear, einsum and the rest come down to."""

    supports_higher_order_operators = True  # it lets them pass: torch.cond, flex_attention

    def __init__(self, counts: Counter[GemmProblem]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._counts = counts
        self._lock = threading.Lock()  # a backward runs on autograd's threads

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401  # an operator's overload
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        packet: Any = getattr(func, "overloadpacket", None)  # a higher-order operator has none
        first = _FACTORS.get(packet)
        if first is not None:
            problem = _problem(*args[first : first + 2])
            if problem is not None:
                with self._lock:
                    self._counts[problem] += 1
        return func(*args, **(kwargs or {}))


def _problem(a: torch.Tensor, b: torch.Tensor) -> GemmProblem | None:
    if type(a) not in PLAIN or type(b) not in PLAIN:
        return None
    if a.dtype not in DTYPES or a.dtype is not b.dtype or a.numel() == 0 or b.numel() == 0:
        return None
    if a.layout is not torch.strided or b.layout is not torch.strided or a.is_nested or b.is_nested:
        return None
    if a.dim() == 2:
        return problem_of(a, b)
    one = problem_of(a[0], b[0])
    if a.shape[0] == 1:
        return one
    steps = a.stride(0) * a.itemsize, b.stride(0) * b.itemsize
    apart = all(step % ALIGNMENT == 0 for step in steps)
    return replace(one, batch=a.shape[0], aligned=one.aligned and apart)


def _write(path: Path, counts: Counter[GemmProblem]) -> None:
    lines = [
        json.dumps({"problem": str(problem), "count": count})
        for problem, count in counts.most_common()
    ]
    write_atomic(path, "".join(line + "\n" for line in lines))  # ranks may share a path
