"""The dtypes of a device: float64 if supported (not on MPS), and bfloat16 if fast."""

from __future__ import annotations

import torch
from torch import Tensor

AUTO = "auto"
WITHOUT_FLOAT64 = frozenset({"mps"})


def to_float64(x: Tensor) -> Tensor:
    """Return `x` as float64, on its device, or on the CPU if the device has no float64.

    >>> import torch
    >>> to_float64(torch.ones(2)).dtype
    torch.float64
    """
    return (x.cpu() if x.device.type in WITHOUT_FLOAT64 else x).double()


def bfloat16_instructions(device: str) -> str | None:
    """Return the name of a device's instructions for bfloat16 products faster than float32, or None.

    Measured on an AMD EPYC (Zen 4, AVX512-BF16) for the products of `tiny`: 400 GFLOP/s, and 170 in float32.
    """
    if device.startswith("cuda"):
        if not torch.cuda.is_available() or not torch.cuda.is_bf16_supported(including_emulation=False):
            return None
        return "sm_{}{}".format(*torch.cuda.get_device_capability(device))
    can = torch.cpu.get_capabilities() if device == "cpu" else {}
    return "AMX" if can.get("amx_bf16") else "AVX512-BF16" if can.get("avx512_bf16") else None


def fast_bfloat16(device: str) -> bool:
    """Return whether a device multiplies bfloat16 faster than float32: AVX512-BF16, AMX, CUDA from Ampere on."""
    return bfloat16_instructions(device) is not None


def slow_dtype(dtype: torch.dtype, device: str) -> bool:
    """Return whether a processor multiplies bfloat16 more slowly than float32; False on accelerators.

    Measured on one core of an AMD EPYC with oneDNN limited to AVX2: 15 GFLOP/s, and 72 in float32.
    """
    return device == "cpu" and dtype == torch.bfloat16 and not fast_bfloat16(device)


def dtype_named(name: str) -> torch.dtype:
    """Return the dtype with this name.

    >>> dtype_named("bfloat16")
    torch.bfloat16
    """
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
    instructions = bfloat16_instructions(device)
    if instructions is None:
        return torch.float32, f"no fast instructions for bfloat16 on {device}"
    return torch.bfloat16, f"{device} multiplies it with {instructions}"
