"""patch: model code written for torch multiplies through autoswizzle.

patch replaces the functions of torch themselves, while at least one patch is in place, by ones
that ask whether to route and else call what they replaced. A TorchFunctionMode would see the same
calls without replacing anything, but it costs every torch call about 1 us, products or not, and
misses the products inside functions written in Python (multi_head_attention_forward). Replacing
costs other calls nothing. Only where Dynamo traces a patched module, a mode is entered, for there
it costs nothing at run time and catches `a @ b`, which Dynamo does not look up on the tensor.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial, update_wrapper, wraps
from inspect import getattr_static
from types import FunctionType, MethodType, TracebackType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.jit._builtins import _find_builtin, _register_builtin
from torch.overrides import TorchFunctionMode

from autoswizzle import routes
from autoswizzle.errors import ArgumentError
from autoswizzle.routes import Args, Kwargs, Original, Route


def patch(module: torch.nn.Module | None = None) -> "Patch":
    """Route torch.matmul, @, mm, bmm, addmm and F.linear to autoswizzle until undone.

    module: only inside the forwards of this module and its submodules, in whichever thread they
    run; None: everywhere in the process. Returns a handle: `with patch(): ...`, or `undo()`.
    Patches nest, may be undone in any order, and leave torch and the module as they were. Weights,
    state dict and hooks are not touched; a copy made of a patched module is routed for as long as
    some patch is in place, and one by copy.copy calls its original. Calls in a form with no tuned
    kernel run the function they name: bmm, addmm with alpha, beta or a matrix to add, subclasses as
    DTensor. Of what torch.compile traces outside a patched module, `a @ b` and methods like a.mm(b)
    stay torch's. Raises ArgumentError when module is none.
    """
    if module is not None and not isinstance(module, torch.nn.Module):
        raise ArgumentError(f"module must be a torch.nn.Module or None, got {module!r:.80}")
    return Patch(module)


class Patch:
    """A patch in place, from its making until undo or the end of its with block."""

    def __init__(self, module: torch.nn.Module | None) -> None:
        self._active = True
        self._everywhere = module is None
        self._modules = [] if module is None else [*filter(_is_python, module.modules())]
        with _torch.lock:
            _torch.hold(everywhere=self._everywhere)
            for part in self._modules:
                _wrap(part)

    def undo(self) -> None:
        """Take the patch back; a second time does nothing."""
        with _torch.lock:
            if not self._active:
                return
            self._active = False
            for part in self._modules:
                _unwrap(part)
            self._modules.clear()  # a handle that is kept keeps no model
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
        self.everywhere = self.held = False  # Dynamo guards on these, so no counts
        self._global = self._all = 0
        self._replaced: list[tuple[_Target, Any, bool, Any]] = []  # target, theirs, own?, ours

    def hold(self, *, everywhere: bool) -> None:
        """Count one more patch."""
        if self._all == 0:
            self._replace()
        self._all += 1
        self._global += everywhere
        self.held, self.everywhere = True, self._global > 0

    def release(self, *, everywhere: bool) -> None:
        """Count one less."""
        self._all -= 1
        self._global -= everywhere
        self.held, self.everywhere = self._all > 0, self._global > 0
        if self._all == 0:
            self._restore()

    def _replace(self) -> None:
        _fill_tables_of_torch()
        for target in _TARGETS:
            theirs = getattr(target.owner, target.name)
            ours = _routed(theirs, target)
            own = target.name in vars(target.owner)  # Tensor inherits its methods
            scripted = _find_builtin(theirs)  # type: ignore[no-untyped-call]
            if scripted is not None:  # what TorchScript compiles theirs to, by identity
                _register_builtin(ours, scripted)
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


@cache  # the same ones each time, so that Dynamo knows them again
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


@dataclass(slots=True)
class _Wrapped:
    """How many patches a module is in, its own attributes, and ours in their place."""

    count: int
    own: dict[str, Any]
    ours: dict[str, Any]


_wrapped: WeakKeyDictionary[torch.nn.Module, _Wrapped] = WeakKeyDictionary()


def _wrap(module: torch.nn.Module) -> None:
    found = _wrapped.get(module)
    if found is not None:
        found.count += 1
        return
    members = vars(module)
    ours = {
        "forward": _forward_of(module),
        "_replicate_for_data_parallel": MethodType(_replica, module),
    }
    own = {name: members[name] for name in ours if name in members}
    members.update(ours)
    _wrapped[module] = _Wrapped(1, own, ours)


def _unwrap(module: torch.nn.Module) -> None:
    found, members = _wrapped[module], vars(module)
    found.count -= 1
    if found.count > 0:
        return
    del _wrapped[module]
    for name, ours in found.ours.items():
        if members.get(name) is not ours:
            continue  # someone replaced ours since
        if name in found.own:
            members[name] = found.own[name]
        else:
            del members[name]


def _forward_of(module: torch.nn.Module) -> Callable[..., Any]:
    """The module's forward, routed; trainers look at its signature.

    A deep copy's calls the copy; pickled, a method of the class is the class's own.
    """
    forward = getattr_static(module, "forward")
    if isinstance(forward, FunctionType) and "forward" not in vars(module):
        return MethodType(_class_forward(forward), module)
    bound = module.forward  # the module's own, or of a class where it is no method
    return update_wrapper(partial(_inside, bound), bound)


@cache  # one for each function, so that Dynamo knows a module that is patched again
def _class_forward(forward: FunctionType) -> Callable[..., Any]:
    """A class's forward, routed; torch.export looks at its code."""

    @wraps(forward)
    def routed(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        return _inside(type(self).forward, self, *args, **kwargs)  # another since, maybe

    return routed


@wraps(torch.nn.Module._replicate_for_data_parallel)
def _replica(self: torch.nn.Module) -> torch.nn.Module:
    """A copy for nn.DataParallel, which takes the module's attributes over as they are."""
    replicate: Any = type(self)._replicate_for_data_parallel
    replica: torch.nn.Module = replicate(self)
    forward = vars(replica).get("forward")
    if isinstance(forward, MethodType) and forward.__self__ is self:
        vars(replica)["forward"] = MethodType(forward.__func__, replica)
    return replica


def _inside(forward: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
    if torch.compiler.is_dynamo_compiling():
        if _is_traced() or not _torch.held:  # a copy outlives the patch
            return forward(*args, **kwargs)
        with _Tracing():
            return forward(*args, **kwargs)
    _here.depth += 1
    try:
        return forward(*args, **kwargs)
    finally:
        _here.depth -= 1


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
