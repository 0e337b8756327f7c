"""The compiled linear kernel for few rows on the CPU, as in decoding: C++ in csrc/linear_kernels.h."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ropewalk import compiled
from ropewalk.eager import PLAIN, reasons_for_mathematics

name = "cpu"
kernels = True

_native: Any = compiled.kernels
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MOST_ROWS = 8  # for more, torch's product reads the weights once as well, and multiplies faster
MOST_MATRICES = 4


def reasons_not_to_multiply(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None]) -> list[str]:
    """Why the compiled kernel cannot multiply `x` by these; empty if it can."""
    reasons = reasons_for_mathematics(x)
    if reasons:
        return reasons
    rows, size = x.numel() // max(1, x.shape[-1]), x.shape[-1]
    if not 0 < rows <= MOST_ROWS:
        return [f"there are {rows} rows, and it is made for 1 to {MOST_ROWS}"]
    if _native is None:
        reasons.append(compiled.why_not)
    if x.dtype not in DTYPES:
        reasons.append(f"{x.dtype} is none of float32, bfloat16 and float16")
    if torch.is_autocast_enabled("cpu"):
        reasons.append("autocast chooses the dtype of products")
    if len(weights) > MOST_MATRICES:
        reasons.append(f"there are more than {MOST_MATRICES} matrices")
    grads = torch.is_grad_enabled()
    for each in (x, *weights, *biases):
        if each is None:
            continue
        if type(each) not in PLAIN or each.dtype != x.dtype or not each.is_cpu or each.is_neg():
            reasons.append(f"{type(each).__name__} of {each.dtype} on {each.device.type}, beside {x.dtype} on the CPU")
        elif grads and each.requires_grad:
            reasons.append("a gradient is asked for")
    for weight in weights:
        if weight.ndim != 2 or weight.stride(1) != 1 or weight.shape[1] != size:
            reasons.append(f"a weight {list(weight.shape)} does not have {size} features that lie side by side")
    return reasons


def multiply(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None]) -> list[Tensor]:
    """All products in one call of the kernel, summed in float32; the same to the last bit for any number of threads."""
    outs = [x.new_empty(*x.shape[:-1], weight.shape[0]) for weight in weights]
    _native.linear(torch.get_num_threads(), x.contiguous(), tuple(zip(weights, biases, outs, strict=True)))
    return outs
