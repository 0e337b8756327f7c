"""The dtypes of a device: float64 if it has that (MPS does not), and half types if their products are fast."""

from __future__ import annotations

import os
import warnings
from importlib.util import find_spec

import torch
from torch import Tensor, nn

from ropewalk.errors import RopeError
from ropewalk.imports import need

AUTO = "auto"
HALF = (torch.bfloat16, torch.float16)
MEMORY = 1.5  # available bytes over those of the float32 weights that replace slow ones
WITHOUT_FLOAT64 = frozenset({"mps"})
_INSTRUCTIONS = {
    torch.bfloat16: {"amx_bf16": "AMX", "avx512_bf16": "AVX512-BF16"},
    torch.float16: {"amx_fp16": "AMX-FP16", "avx512_fp16": "AVX512-FP16"},
}
"""The capabilities of `torch.cpu` for products of a half type, the best first, and their names."""

_UP_TO = {
    "AVX512_CORE_BF16": ("avx512_bf16",),
    "AVX512_CORE_FP16": ("avx512_bf16", "avx512_fp16"),
    "AVX10_1_512": ("avx512_bf16", "avx512_fp16"),
    "AVX512_CORE_AMX": ("avx512_bf16", "avx512_fp16", "amx_bf16"),
    "AVX10_1_512_AMX": ("avx512_bf16", "avx512_fp16", "amx_bf16"),
}
"""The capabilities that oneDNN uses under a value of ONEDNN_MAX_CPU_ISA."""


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


def computing_device(device: torch.device | str) -> torch.device:
    """Return a device that can be used, or for "auto" the kind over which a model is spread; raise `RopeError` if none.

    >>> computing_device("cpu")
    device(type='cpu')
    """
    if device == AUTO:
        return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    try:
        torch.zeros(1, device=device).item()  # also refuses "meta", which has no numbers
        return torch.device(device)
    except (RuntimeError, AssertionError, TypeError, ValueError) as error:
        facts = {"device": str(device), "error": str(error)}
        raise RopeError("readers: this device cannot be used.", facts=facts, cure='Try "cpu".') from error


def chosen_dtype(name: str, device: str) -> tuple[torch.dtype, str | None]:
    """Return the dtype for `name` on a device, and the reason for "auto": bfloat16 if fast, else float32.

    >>> chosen_dtype("float32", "cpu")
    (torch.float32, None)
    """
    if name != AUTO:
        dtype: torch.dtype = getattr(torch, name)
        return dtype, None
    instructions = half_instructions(torch.bfloat16, device)
    if instructions is None:
        return torch.float32, f"no fast instructions for bfloat16 on {device}"
    if not fast_bfloat16(device):
        return torch.float32, f"{device} multiplies bfloat16 more slowly, also with {instructions}"
    return torch.bfloat16, f"{device} multiplies it with {instructions}"


def half_instructions(dtype: torch.dtype, device: str) -> str | None:
    """Return the name of the instructions by which torch multiplies bfloat16 or float16 on a device, or None.

    >>> half_instructions(torch.float32, "cpu") is None
    True
    """
    if device.startswith("cuda"):
        if not torch.cuda.is_available() or not torch.cuda.is_bf16_supported(including_emulation=False):
            return None
        return "sm_{}{}".format(*torch.cuda.get_device_capability(device))
    if device != "cpu":
        return None
    can, limit = torch.cpu.get_capabilities(), os.environ.get("ONEDNN_MAX_CPU_ISA", "").upper()
    limited = _UP_TO.get(limit, () if limit.startswith(("SSE", "AVX")) and "AMX" not in limit else None)
    names = _INSTRUCTIONS.get(dtype, {})
    return next((names[key] for key in names if can.get(key) and (limited is None or key in limited)), None)


def fast_bfloat16(device: str) -> bool:
    """Return whether a device multiplies bfloat16 faster than float32: AMX, AVX512-BF16 of AMD, CUDA from Ampere on.

    With AVX512-BF16, one core of an AMD EPYC (Zen 4) reaches 400 GFLOP/s for the products of `tiny`, and 170 in
    float32. One core of an Intel Xeon without AMX reaches 79 GFLOP/s for matrices of 256 x 256, and 149 in float32.
    """
    instructions = half_instructions(torch.bfloat16, device)
    if instructions == "AVX512-BF16":
        return "AMD" in str(torch.cpu.get_capabilities().get("cpu_name", ""))
    return instructions is not None


def slow_dtype(dtype: torch.dtype, device: str) -> bool:
    """Return whether a processor multiplies a half type more slowly than float32; False on accelerators.

    Measured with oneDNN limited to AVX2, one core, in GFLOP/s: an AMD EPYC 15 in bfloat16 and 72 in float32, an Intel
    Xeon 10 in bfloat16, 7 in float16 and 159 in float32. With AVX512-FP16, float16 is as fast as float32.
    """
    if device != "cpu" or dtype not in _INSTRUCTIONS:
        return False
    return not fast_bfloat16(device) if dtype == torch.bfloat16 else half_instructions(dtype, device) is None
