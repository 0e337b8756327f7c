"""Compiled kernels for what a layer does to each row beside its products: C++ in csrc/rowwise_kernels.h.

For half types alone: in float32 torch's own operations give to the bit what other libraries compute with them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ropewalk import compiled
from ropewalk.backends.reference_rowwise import new_log_sums as new_log_sums
from ropewalk.eager import PLAIN, reasons_for_mathematics

name = "cpu"
kernels = True

_native: Any = compiled.kernels
DTYPES = (torch.bfloat16, torch.float16)


def reasons_not_to_run(x: Tensor, *others: Tensor) -> list[str]:
    """Why the compiled kernels cannot take these; empty if they can."""
    reasons = reasons_for_mathematics(x)
    if reasons:
        return reasons
    if _native is None:
        reasons.append(compiled.why_not)
    if torch.is_autocast_enabled("cpu"):
        reasons.append("autocast chooses the dtype of products")
    grads = torch.is_grad_enabled()
    for each in (x, *others):
        if type(each) not in PLAIN or not each.is_cpu or each.is_neg():
            reasons.append(f"{type(each).__name__} on {each.device.type}, which is no plain tensor on the CPU")
        elif x.dtype not in DTYPES or each.dtype not in (x.dtype, torch.float32):
            reasons.append(
                f"{each.dtype} beside {x.dtype}, where a half type is wanted, and beside it itself or float32"
            )
        elif grads and each.requires_grad:
            reasons.append("a gradient is asked for")
    return reasons


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up in float32, rounded once."""
    gate = gate.contiguous()
    out = compiled.new_like(gate)
    _native.swiglu(torch.get_num_threads(), gate, up.contiguous(), out)
    return out


def sum_norm(x: Tensor, added: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x + added, float32, and its RMSNorm, rounded once to the weight's dtype; `added` has that dtype."""
    x = x.contiguous()
    total = x if added is None else compiled.new_like(x)
    out = compiled.fresh(torch.empty_like(x, dtype=weight.dtype))
    more = (None, None) if added is None else (added.contiguous(), total)
    _native.sum_norm(torch.get_num_threads(), x, more[0], weight.contiguous(), eps, more[1], out)
    return total, out


def log_sum(logits: Tensor, targets: Tensor, first: int, state: Tensor) -> None:
    """Take the logits of tokens `first`, `first` + 1, ..., `[rows, some]`, into `state`; sums are float32."""
    _native.log_sum(torch.get_num_threads(), logits.contiguous(), targets.contiguous(), first, state)
