"""float64 where a device has it: MPS has not, and refuses the cast."""

from __future__ import annotations

from torch import Tensor

WITHOUT_FLOAT64 = frozenset({"mps"})


def to_float64(x: Tensor) -> Tensor:
    """`x` as float64, on its own device, or on the CPU where its device has no float64.

    >>> import torch
    >>> to_float64(torch.ones(2)).dtype
    torch.float64
    """
    return (x.cpu() if x.device.type in WITHOUT_FLOAT64 else x).double()
