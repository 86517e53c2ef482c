"""patch: model code written for torch multiplies through autoswizzle.

patch replaces the functions of torch themselves, while at least one patch is in place, by ones
that ask whether to route and else call what they replaced. A TorchFunctionMode would see the same
calls without replacing anything, but it costs every torch call about 1 us, products or not, and
misses the products inside functions written in Python (multi_head_attention_forward). Replacing
costs other calls nothing. Only where Dynamo traces a patched module, a mode is entered, for there
it costs nothing at run time and catches `a @ b`, which Dynamo does not look up on the tensor.
"""

import inspect
import threading
from dataclasses import dataclass, field
from types import CodeType, TracebackType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from autoswizzle import routes
from autoswizzle.errors import ArgumentError
from autoswizzle.routes import Args, Kwargs, Original, Route


def patch(module: torch.nn.Module | None = None) -> "Patch":
    """Route torch.matmul, @, mm, bmm, addmm and F.linear to autoswizzle until undone.

    module: only inside the forwards of this module and its submodules, in whichever thread they
    run; None: everywhere in the process. Returns a handle: `with patch(): ...`, or `undo()`.
    Patches nest, may be undone in any order, and leave torch and the module as they were. Weights,
    state dict and hooks are not touched. Calls in a form with no tuned kernel run the function they
    name: bmm, addmm with alpha, beta or a matrix to add, subclasses as DTensor. Of what
    torch.compile traces outside a patched module, `a @ b` and methods like a.mm(b) stay torch's.
    Raises ArgumentError when module is none.
    """
    if module is not None and not isinstance(module, torch.nn.Module):
        raise ArgumentError(f"module must be a torch.nn.Module or None, got {module!r:.80}")
    return Patch(module)


class Patch:
    """A patch in place, from its making until undo or the end of its with block."""

    def __init__(self, module: torch.nn.Module | None) -> None:
        self._scope = _Scope()
        self._everywhere = module is None
        self._modules = [] if module is None else [*filter(_is_python, module.modules())]
        with _torch.lock:
            self._scope.active = True
            _torch.hold(everywhere=self._everywhere)
            for part in self._modules:
                vars(part)["forward"] = _Forward(part, self._scope, vars(part).get("forward"))

    def undo(self) -> None:
        """Take the patch back; a second time does nothing."""
        with _torch.lock:
            if not self._scope.active:
                return
            self._scope.active = False
            for part in self._modules:
                _remove(part, self._scope)
            _torch.release(everywhere=self._everywhere)

    def __enter__(self) -> "Patch":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.undo()


@dataclass(frozen=True, slots=True)
class _Target:
    """A function of torch that is replaced: where it is looked up, its route, and itself."""

    owner: Any
    name: str
    route: Route
    itself: Any = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "itself", getattr(self.owner, self.name))


_TARGETS = (
    _Target(torch, "matmul", routes.matmul),
    _Target(torch, "mm", routes.mm),
    _Target(torch, "bmm", routes.bmm),
    _Target(torch, "addmm", routes.addmm),
    _Target(torch.Tensor, "matmul", routes.matmul),
    _Target(torch.Tensor, "__matmul__", routes.matmul),
    _Target(torch.Tensor, "mm", routes.mm),
    _Target(torch.Tensor, "bmm", routes.bmm),
    _Target(torch.Tensor, "addmm", routes.addmm),
    _Target(torch.nn.functional, "linear", routes.linear),
)


class _Torch:
    """What is replaced in torch, for how many patches; there is one torch in a process."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.everywhere = False
        self._global = self._all = 0
        self._replaced: list[tuple[_Target, Any, bool, Any]] = []  # target, theirs, own?, ours

    def hold(self, *, everywhere: bool) -> None:
        """Count one more patch."""
        if self._all == 0:
            self._replace()
        self._all += 1
        self._global += everywhere
        self.everywhere = self._global > 0

    def release(self, *, everywhere: bool) -> None:
        """Count one less."""
        self._all -= 1
        self._global -= everywhere
        self.everywhere = self._global > 0
        if self._all == 0:
            self._restore()

    def _replace(self) -> None:
        _fill_tables_of_torch()
        for target in _TARGETS:
            theirs = getattr(target.owner, target.name)
            ours = _routed(theirs, target)
            own = target.name in vars(target.owner)  # Tensor inherits its methods
            setattr(target.owner, target.name, ours)
            self._replaced.append((target, theirs, own, ours))

    def _restore(self) -> None:
        for target, theirs, own, ours in self._replaced:
            if vars(target.owner).get(target.name) is not ours:
                continue  # someone replaced ours since; what they kept of it routes no more
            if own:
                setattr(target.owner, target.name, theirs)
            else:
                delattr(target.owner, target.name)
        self._replaced.clear()


def _fill_tables_of_torch() -> None:
    """Have torch and Dynamo list torch's functions now, which loads Dynamo (about 1 s, once).

    They list them once, as they are at first use: they must not find ours, and must find theirs.
    """
    import torch._dynamo
    from torch._dynamo.variables.builtin import populate_builtin_to_tensor_fn_map

    torch.overrides.get_overridable_functions()
    torch.overrides.get_testing_overrides()
    torch.overrides.is_tensor_method_or_property(torch.mm)
    torch._dynamo.trace_rules.get_torch_obj_rule_map()
    torch._dynamo.trace_rules.get_tensor_method()
    populate_builtin_to_tensor_fn_map()


class _Here(threading.local):
    """How many forwards of patched modules this thread is in."""

    depth = 0


_torch = _Torch()
_here = _Here()


def _routed(theirs: Original, target: _Target) -> Original:
    route = target.route

    def routed(*args: Any, **kwargs: Any) -> torch.Tensor:  # noqa: ANN401  # torch's own
        if _active():
            return route(theirs, args, kwargs)
        return theirs(*args, **kwargs)

    routed.__name__ = target.name  # so that it can be pickled by name
    owner = target.owner
    routed.__module__ = owner.__module__ if isinstance(owner, type) else owner.__name__
    routed.__qualname__ = f"Tensor.{target.name}" if isinstance(owner, type) else target.name
    routed.__doc__ = theirs.__doc__
    return routed


def _active() -> bool:
    if torch.compiler.is_dynamo_compiling():  # in a patched module _Tracing routes
        return _torch.everywhere
    return _torch.everywhere or _here.depth > 0


# Patched modules


class _Scope:
    """Whether one patch is in place; a copy of a patched module stays in the same scope."""

    def __init__(self) -> None:
        self.active = False

    def __deepcopy__(self, memo: dict[int, Any]) -> "_Scope":
        return self

    def __reduce__(self) -> tuple[type["_Scope"], tuple[()]]:
        return _Scope, ()  # pickled and loaded, a module is not patched


class _Forward:
    """Stands for a module's forward while it is patched."""

    def __init__(self, module: torch.nn.Module, scope: _Scope, inner: Any | None) -> None:  # noqa: ANN401
        self.module, self.scope, self.inner = module, scope, inner

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  # the module's own
        if not self.scope.active:
            return self._forward(*args, **kwargs)
        if torch.compiler.is_dynamo_compiling():
            if _is_traced():
                return self._forward(*args, **kwargs)
            with _Tracing():
                return self._forward(*args, **kwargs)
        _here.depth += 1
        try:
            return self._forward(*args, **kwargs)
        finally:
            _here.depth -= 1

    def _forward(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        if self.inner is not None:
            return self.inner(*args, **kwargs)
        return type(self.module).forward(self.module, *args, **kwargs)

    @property
    def _own(self) -> Any:  # noqa: ANN401
        return self.inner or type(self.module).forward.__get__(self.module)

    @property
    def __signature__(self) -> inspect.Signature:
        """The module's own: trainers look at it."""
        return inspect.signature(self._own)

    @property
    def __code__(self) -> CodeType:
        """The module's own: torch.export looks at it."""
        code: CodeType = self._own.__code__
        return code


def _remove(module: torch.nn.Module, scope: _Scope) -> None:
    """Take one patch's forward out of those stacked on a module."""
    holder, key = vars(module), "forward"
    while isinstance(found := holder.get(key), _Forward):
        if found.scope is scope:
            if found.inner is None and holder is vars(module):
                del holder[key]
            else:
                holder[key] = found.inner
            return
        holder, key = vars(found), "inner"


class _Tracing(TorchFunctionMode):
    """Routes what Dynamo traces in a patched module."""

    def __torch_function__(
        self,
        func: Original,
        types: object,
        args: Args = (),
        kwargs: Kwargs | None = None,
    ) -> Any:  # noqa: ANN401
        route = _route_of(func)
        return func(*args, **(kwargs or {})) if route is None else route(func, args, kwargs or {})


def _route_of(func: Original) -> Route | None:
    for target in _TARGETS:
        if func is target.itself or func is getattr(target.owner, target.name):
            return target.route
    return None


def _is_traced() -> bool:
    levels = range(torch._C._len_torch_function_stack())
    return any(type(torch._C._get_function_stack_at(level)) is _Tracing for level in levels)


def _is_python(module: torch.nn.Module) -> bool:
    return not isinstance(module, torch.jit.ScriptModule)
