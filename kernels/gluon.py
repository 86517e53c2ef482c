"""Gluon of triton 3.6 and 3.9 under one set of names: what wgmma and mma_sync kernels call.

3.9 renamed the TMA copies (async_load, async_store), cp.async (async_load) and the block's barrier.
All else that the kernels use is the same in both.
"""

from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import tma

tma_load = getattr(tma, "async_load", tma.async_copy_global_to_shared)
tma_store = getattr(tma, "async_store", tma.async_copy_shared_to_global)
tma_store_wait = tma.store_wait
barrier = gl.barrier if hasattr(gl, "barrier") else gl.thread_barrier
cp_async = getattr(async_copy, "async_load", async_copy.async_copy_global_to_shared)
