"""The dtypes of a device: float64 if it has that (MPS does not), and half types if their products are fast."""

from __future__ import annotations

import warnings
from importlib.util import find_spec

import torch
from torch import Tensor, nn

from ropewalk.imports import need
from ropewalk.rotation.backends.widened import fast_bfloat16, half_instructions, slow_dtype

AUTO = "auto"
MEMORY = 1.5  # available bytes over those of the float32 weights that replace slow ones
WITHOUT_FLOAT64 = frozenset({"mps"})


def to_float64(x: Tensor) -> Tensor:
    """Return `x` as float64, on its device, or on the CPU if the device has no float64.

    >>> import torch
    >>> to_float64(torch.ones(2)).dtype
    torch.float64
    """
    return (x.cpu() if x.device.type in WITHOUT_FLOAT64 else x).double()


def slow_dtype_of(model: nn.Module) -> torch.dtype | None:
    """Return the dtype of a model's weights that their device multiplies slowly, or None."""
    kinds = {(weight.dtype, str(weight.device)) for weight in model.parameters() if weight.is_floating_point()}
    return next((dtype for dtype, device in sorted(kinds, key=str) if slow_dtype(dtype, device)), None)


def warn_if_slow(model: nn.Module, call: str) -> None:
    """Warn if a call gets a model in a dtype that its CPU multiplies slowly, and keeps that dtype."""
    slow = slow_dtype_of(model)
    if slow is not None:
        warnings.warn(
            f"{call}: {is_slow(slow)}, and the model's dtype does not change. float32 is several times faster: load "
            "the model with dtype=torch.float32.",
            stacklevel=3,
        )


def is_slow(dtype: torch.dtype) -> str:
    """Return the statement that this CPU multiplies a dtype slowly."""
    return f"{name_of(dtype)} products are slow on this CPU"


def name_of(dtype: torch.dtype) -> str:
    """Return a dtype's name."""
    return str(dtype).removeprefix("torch.")


def memory_for(numbers: int) -> str | None:
    """Return None if memory suffices for `numbers` in float32, else both sizes; None without psutil."""
    if find_spec("psutil") is None:
        return None
    needed, free = MEMORY * 4 * numbers, int(need("psutil").virtual_memory().available)
    return None if free > needed else f"needs {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free"


def dtype_named(name: str) -> torch.dtype:
    """Return the dtype with this name."""
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype), name
    return dtype


def chosen_dtype(name: str, device: str) -> tuple[torch.dtype, str | None]:
    """Return the dtype for `name` on a device, and the reason for "auto": bfloat16 if fast, else float32.

    >>> chosen_dtype("float32", "cpu")
    (torch.float32, None)
    """
    if name != AUTO:
        return dtype_named(name), None
    instructions = half_instructions(torch.bfloat16, device)
    if instructions is None:
        return torch.float32, f"no fast instructions for bfloat16 on {device}"
    if not fast_bfloat16(device):
        return torch.float32, f"{device} multiplies bfloat16 more slowly, also with {instructions}"
    return torch.bfloat16, f"{device} multiplies it with {instructions}"
