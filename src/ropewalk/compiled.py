"""What kernels need of tensors, to be plain and to have memory of their own, and the compiled extension."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.autograd import forward_ad

Function = TypeVar("Function", bound=Callable[..., object])
is_compiling = torch.compiler.is_compiling  # bound here, because each look-up of an attribute costs time in every call
_dispatch_modes = torch._C._len_torch_dispatch_stack
_transforms = torch._C._functorch.peek_interpreter_stack
_jit_trace = torch._C._get_tracing_state
_has_storage = torch._C._has_storage
PLAIN = frozenset((Tensor, torch.nn.Parameter))


def reasons_for_mathematics(x: Tensor) -> list[str]:
    """Return the reasons why `x` needs plain expressions, visible to compilers and transforms; [] if it is plain."""
    if is_compiling():
        return ["a compiler is tracing: it fuses the plain expression with its neighbours"]
    reasons = []
    if type(x) not in PLAIN:
        reasons.append(f"{type(x).__name__} is a tensor subclass")
    if _dispatch_modes():
        reasons.append("a dispatch mode is active")
    if _transforms() is not None:
        reasons.append("a function transform (torch.func) is active")
    if forward_ad._current_level >= 0:
        reasons.append("forward-mode differentiation is active")
    if _jit_trace() is not None:
        reasons.append("torch.jit is tracing")
    if not reasons and x.is_neg():
        reasons.append("it is a lazily negated view, such as freqs_cis.conj().imag")
    if not reasons and not _has_storage(x):
        reasons.append("it has no memory of its own, like gradients under is_grads_batched=True")
    return reasons


def differentiates_forward() -> bool:
    """Return whether forward-mode differentiation is active, outside of compilers."""
    return not is_compiling() and forward_ad._current_level >= 0


def constant_to_compilers(function: Function) -> Function:
    """Mark a function for compilers: they call it while tracing and put the result into the graph.

    Equivalent to `torch.compiler.assume_constant_result`, without the import of dynamo, which takes longer than
    `import torch`. Returns the same function.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def overlaps_itself(x: Tensor) -> bool:
    """Return whether two elements of `x` share an address, as in `expand`, and in `unfold` with a small step."""
    if x.is_contiguous() or not x.numel() or reasons_for_mathematics(x):  # for tracers, strides are symbols
        return False
    steps = sorted((stride, size) for stride, size in zip(x.stride(), x.shape, strict=True) if size > 1)
    extent, nested = 0, True
    for stride, size in steps:
        nested = nested and stride > extent
        extent += stride * (size - 1)
    if nested or extent + 1 < x.numel() or steps[0][0] == 0:
        return not nested
    offsets = np.zeros(1, dtype=np.int64)  # a rare case: count addresses
    for stride, size in steps:
        offsets = np.add.outer(offsets, stride * np.arange(size)).reshape(-1)
    return bool(np.unique(offsets).size < x.numel())


def share_memory(x: Tensor, other: Tensor) -> bool:
    """Return whether two tensors have an element in common; interleaved heads of one buffer have none."""
    (start, end), (first, last) = _extent(x), _extent(other)
    return start < last and first < end and np.shares_memory(_as_array(x), _as_array(other))


def _extent(x: Tensor) -> tuple[int, int]:
    """Return the address of a tensor's first byte and the address after its last one."""
    start = x.data_ptr()
    if x.is_contiguous():
        return start, start + x.nbytes
    extent = sum(stride * (size - 1) for stride, size in zip(x.stride(), x.shape, strict=True))
    return start, start + (extent + 1) * x.element_size() if x.numel() else start


def _as_array(x: Tensor) -> npt.NDArray[np.void]:
    """Return an array of the same addresses, on any device, whose numbers must not be read."""
    size = x.element_size()
    strides = tuple([size * stride for stride in x.stride()])
    place = {"version": 3, "data": (x.data_ptr(), False), "shape": x.shape, "strides": strides, "typestr": f"|V{size}"}
    return np.asarray(SimpleNamespace(__array_interface__=place))


_HUGE = 4 << 20  # bytes; larger new tensors use huge pages


def _load() -> tuple[ModuleType | None, str]:
    """Return `ropewalk._kernels`, or None and the reason; it is missing if the build had no C++ compiler."""
    try:
        module = importlib.import_module("ropewalk._kernels")
        module.use_exchange(Tensor.__dlpack_c_exchange_api__)
    except (ImportError, AttributeError) as error:
        return None, f"the compiled extension is missing ({error})"
    return module, ""


kernels, why_not = _load()


def fresh(*outs: Tensor) -> tuple[Tensor, ...]:
    """Move the memory of large ones of new CPU tensors to huge pages; return the tensors."""
    for out in outs:
        if out.nbytes >= _HUGE and kernels is not None:
            kernels.use_huge_pages(out)
    return outs
