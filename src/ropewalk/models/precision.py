"""What a device computes in: float64 where it has that (MPS refuses the cast), bfloat16 where it is fast."""

from __future__ import annotations

import torch
from torch import Tensor

AUTO = "auto"
WITHOUT_FLOAT64 = frozenset({"mps"})


def to_float64(x: Tensor) -> Tensor:
    """`x` as float64, on its own device, or on the CPU where its device has no float64.

    >>> import torch
    >>> to_float64(torch.ones(2)).dtype
    torch.float64
    """
    return (x.cpu() if x.device.type in WITHOUT_FLOAT64 else x).double()


def bfloat16_instructions(device: str) -> str | None:
    """What multiplies bfloat16 faster than float32 on a device, by its name; None where nothing does.

    Measured on an AMD EPYC (Zen 4, AVX512-BF16): 400 against 170 GFLOP/s for the products of `tiny`.
    """
    if device.startswith("cuda"):
        if not torch.cuda.is_available() or not torch.cuda.is_bf16_supported(including_emulation=False):
            return None
        return "sm_{}{}".format(*torch.cuda.get_device_capability(device))
    can = torch.cpu.get_capabilities() if device == "cpu" else {}
    return "AMX" if can.get("amx_bf16") else "AVX512-BF16" if can.get("avx512_bf16") else None


def fast_bfloat16(device: str) -> bool:
    """Whether bfloat16 products are faster than float32 there: CPUs with AVX512-BF16 or AMX, CUDA from Ampere."""
    return bfloat16_instructions(device) is not None


def dtype_named(name: str) -> torch.dtype:
    """The dtype of a name as settings and the command line have it.

    >>> dtype_named("bfloat16")
    torch.bfloat16
    """
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype), name
    return dtype


def chosen_dtype(name: str, device: str) -> tuple[torch.dtype, str | None]:
    """The dtype that `name` stands for on a device, and why where it is "auto": bfloat16 if that is fast, else float32.

    >>> chosen_dtype("float32", "cpu")
    (torch.float32, None)
    """
    if name != AUTO:
        return dtype_named(name), None
    instructions = bfloat16_instructions(device)
    if instructions is None:
        return torch.float32, f"no fast instructions for bfloat16 on {device}"
    return torch.bfloat16, f"{device} multiplies it with {instructions}"
