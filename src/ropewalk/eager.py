"""Law 7: whether a tensor is plain and eager, so that a kernel may serve it; all else gets the plain mathematics."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad

Function = TypeVar("Function", bound=Callable[..., object])
PLAIN = frozenset((Tensor, torch.nn.Parameter))


def reasons_for_mathematics(x: Tensor) -> list[str]:
    """Why `x` must go through expressions that compilers and transforms can see; empty for a plain eager tensor."""
    if torch.compiler.is_compiling():
        return ["a compiler is tracing: it fuses the plain expression with its neighbours"]
    reasons = []
    if type(x) not in PLAIN:
        reasons.append(f"{type(x).__name__} is a tensor subclass")
    if torch._C._len_torch_dispatch_stack():
        reasons.append("a dispatch mode is active")
    if torch._C._functorch.peek_interpreter_stack() is not None:
        reasons.append("a function transform (torch.func) is active")
    if forward_ad._current_level >= 0:
        reasons.append("forward-mode differentiation is active")
    if torch._C._get_tracing_state() is not None:
        reasons.append("torch.jit is tracing")
    if not reasons and x.is_neg():
        reasons.append("it is a lazily negated view, as freqs_cis.conj().imag is")
    if not reasons and not torch._C._has_storage(x):
        reasons.append("it has no memory of its own, as gradients have under is_grads_batched=True")
    return reasons


def constant_to_compilers(function: Function) -> Function:
    """`torch.compiler.assume_constant_result`, which imports dynamo: longer than all of torch, and for compilers alone.

    Returns the same function; a compiler then calls it while it traces, and puts the result into the graph.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function
