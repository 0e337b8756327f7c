"""A tensor that says it lies on MPS, computes on the CPU, and refuses float64 as MPS does."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only


class PretendMPS(Tensor):
    """`held` is the tensor on the CPU that does the work."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> PretendMPS:
        """The same shape and dtype, on another device."""
        assert held.dtype != torch.float64, "MPS has no float64"
        pretending = Tensor._make_wrapper_subclass(
            cls, held.shape, strides=held.stride(), dtype=held.dtype, device=torch.device("mps", 0)
        )
        pretending.held = held
        return pretending

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Compute on the CPU; results stay here unless they were asked for on the CPU."""
        kwargs = dict(kwargs or {})
        leaves = kwargs.get("device") is not None and torch.device(kwargs["device"]).type == "cpu"
        if not leaves and kwargs.get("dtype") == torch.float64:
            raise TypeError(
                "Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64."
            )
        if "device" in kwargs:
            kwargs["device"] = torch.device("cpu")
        out = func(*tree_map_only(cls, lambda x: x.held, args), **tree_map_only(cls, lambda x: x.held, kwargs))
        return out if leaves else tree_map_only(Tensor, cls, out)
