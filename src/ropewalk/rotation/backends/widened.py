"""Processors that multiply bfloat16 and float16 fast, and those on which float32 is faster."""

from __future__ import annotations

import os

import torch

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
    return next(
        (
            name
            for key, name in _INSTRUCTIONS.get(dtype, {}).items()
            if can.get(key) and (limited is None or key in limited)
        ),
        None,
    )


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
