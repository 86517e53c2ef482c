"""Runs the Python body of a Gluon kernel on numpy, one program at a time.

Neither triton 3.6 nor 3.9 interprets Gluon. This shows indices, masks and the order of copies,
nothing of layouts, threads and barriers.
"""

import types

import numpy as np


class Pointer:
    """Addresses into a flat array; out-of-range reads or writes raise IndexError."""

    def __init__(self, array, offsets=0):
        self.array, self.offsets = array, np.asarray(offsets)
        self.dtype = types.SimpleNamespace(element_ty=array.dtype)

    def __add__(self, offsets):
        return Pointer(self.array, self.offsets + offsets)

    def read(self, mask):
        there = np.broadcast_to(mask, self.offsets.shape)
        safe = np.where(there, self.offsets, 0)
        assert (safe >= 0).all()
        return np.where(there, self.array[safe], 0).view(Value)


class Value(np.ndarray):
    """A register tensor. Assigning to one never changes another."""

    type = types.SimpleNamespace(layout=None)

    __iadd__ = np.ndarray.__add__
    __isub__ = np.ndarray.__sub__
    __imul__ = np.ndarray.__mul__

    def to(self, dtype):
        return self.astype(dtype)


class Gluon:
    """The names of gluon.language that kernels use, for program `index`."""

    int64, float32 = np.int64, np.float32
    static_range = range
    NVMMADistributedLayout = DotOperandLayout = SliceLayout = staticmethod(lambda *_, **__: None)
    cdiv = staticmethod(lambda a, b: -(-a // b))
    arange = staticmethod(lambda start, stop, layout: np.arange(start, stop).view(Value))
    zeros = staticmethod(lambda shape, dtype, layout: np.zeros(shape, dtype).view(Value))
    convert_layout = staticmethod(lambda value, layout: value)
    sum = staticmethod(lambda value, axis: value.sum(axis))

    def __init__(self, index):
        self.index = index

    def program_id(self, axis):
        return np.int64(self.index).reshape(()).view(Value)

    def load(self, pointer, mask=True, other=0.0, cache_modifier=""):
        return pointer.read(mask)

    def store(self, pointer, value, mask):
        where = np.broadcast_to(mask, pointer.offsets.shape)
        pointer.array[pointer.offsets[where]] = value[where]


def run(call, module, parts, gluon=Gluon, names=lambda gl: {}):
    """Every program of a launch; its tensors are float32 ones standing in for 16 bits.

    parts: functions of module that the kernel calls. gluon: what stands for gl in a program; names:
    what else does, given that. Returns each program's gl.
    """
    tensors = {name: item for name, item in call.args.items() if hasattr(item, "as_strided")}
    scalars = {
        name: np.array(item).view(Value) for name, item in call.args.items() if name not in tensors
    }
    pointers = {name: Pointer(memory(tensor)) for name, tensor in tensors.items()}
    values = {**scalars, **call.constants, **pointers}
    ran = [gluon(index) for index in range(call.tiles)]
    for gl in ran:
        known = {**vars(module), "gl": gl, "mma_v2": lambda a, b, total: total + a @ b, **names(gl)}
        for name in parts:
            known[name] = types.FunctionType(vars(module)[name].fn.__code__, known)
        kernel = types.FunctionType(call.kernel.fn.__code__, known)
        kernel(**{name: values[name] for name in call.kernel.arg_names})
    return ran


def memory(tensor):
    """All of a float32 tensor's memory, flat."""
    return tensor.as_strided((tensor.untyped_storage().nbytes() // 4,), (1,), 0).numpy()
