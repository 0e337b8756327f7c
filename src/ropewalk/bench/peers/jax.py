"""jax.jit of the rotation, in the form that XLA compiles best, into a donated output."""

from __future__ import annotations

import os
from typing import Any

import torch

from ropewalk.bench.timing import Call
from ropewalk.bench.work import Contender, Skip, Tensors, Work, package

NAME = "jax.jit"
EPS = 4.0


def build(work: Work) -> Contender:
    """Arithmetic in float32; each call is given the output of the last one to overwrite."""
    jax = _start(work.threads)
    interleaved = work.case.interleaved

    def turn(x: Any, cos: Any, sin: Any) -> Any:
        # stacking compiles to one loop; slicing and concatenating halves is several times slower
        axis = -1 if interleaved else -2
        pairs = x.astype("float32").reshape(*x.shape[:-1], *((-1, 2) if interleaved else (2, -1)))
        a, b = (jax.numpy.take(pairs, n, axis=axis) for n in (0, 1))
        c, s = cos[None, :, None], sin[None, :, None]
        return jax.numpy.stack([a * c - b * s, b * c + a * s], axis=axis).reshape(x.shape).astype(x.dtype)

    def turn_all(inputs: Any, cos: Any, sin: Any, outs: Any) -> Any:
        return [turn(x, cos, sin) for x in inputs]

    run = jax.jit(turn_all, donate_argnums=3, keep_unused=True)
    cos, sin = jax.dlpack.from_dlpack(work.cos), jax.dlpack.from_dlpack(work.sin)

    def make(i: int) -> Call:
        inputs = [jax.dlpack.from_dlpack(x) for x in work.inputs[i]]
        held = [[jax.numpy.zeros_like(x) for x in inputs]]

        def call() -> Any:
            held[0] = jax.block_until_ready(run(inputs, cos, sin, held[0]))
            return held[0]

        return call

    def read(returned: Any) -> Tensors:
        return tuple(torch.utils.dlpack.from_dlpack(x).clone() for x in returned)

    return Contender(NAME, work.each(make), read, eps=EPS)


_started: dict[str, int] = {}


def _start(threads: int) -> Any:
    """jax on the CPU with so many threads: its pool is made once, as the variable NPROC says."""
    if "threads" not in _started:
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
        before = os.environ.get("NPROC")
        os.environ["NPROC"] = str(threads)
        try:
            jax = package("jax")
            jax.devices()
        finally:
            if before is None:
                del os.environ["NPROC"]
            else:
                os.environ["NPROC"] = before
        _started["threads"] = threads
    if _started["threads"] != threads:
        raise Skip(f"it was started with {_started['threads']} threads")
    return package("jax")
