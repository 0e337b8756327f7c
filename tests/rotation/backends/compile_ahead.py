"""Compile the Triton kernels for an H100, without one: `python -m tests.rotation.backends.compile_ahead [KERNEL ...]`.

Prints JSON. For each kernel: its accesses to global memory as PTX has them, and ptxas' registers and bytes spilled.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas

from ropewalk.rotation.backends import triton as backend
from ropewalk.rotation.backends.gpu.plans import LaunchPlan
from ropewalk.rotation.backends.request import Norm, Store, Turn

TARGET = GPUTarget("cuda", 90, 32)
ACCESS = re.compile(r"\b((?:ld|st)\.global)\S*?((?:\.v\d)?\.b\d+)\s")


class Driver:
    """A GPU that compiles and does not run."""

    def get_current_target(self) -> GPUTarget:
        return TARGET

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def resources(ptx: str) -> dict[str, int]:
    """Registers of a thread, and bytes that it spills."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.ptx"
        source.write_text(ptx)
        architecture = re.search(r"\.target (sm_\w+)", ptx)[1]
        command = [
            get_ptxas(TARGET.arch).path,
            "-v",
            f"--gpu-name={architecture}",
            str(source),
            "-o",
            f"{folder}/cubin",
        ]
        done = subprocess.run(command, capture_output=True, text=True)
        said = done.stdout + done.stderr
    assert done.returncode == 0, said
    spilled = [int(number) for number in re.findall(r"(\d+) bytes spill", said)]
    return {"registers": int(re.search(r"Used (\d+) registers", said)[1]), "spilled": sum(spilled)}


def calls_of(dtype: torch.dtype, interleaved: bool) -> dict[str, Callable[[], object]]:
    """Each kernel once, with 32 heads of queries and 8 of keys, 128 features."""
    q, k = torch.zeros(1, 64, 32, 128, dtype=dtype), torch.zeros(1, 64, 8, 128, dtype=dtype)
    cos, turn = torch.zeros(64, 64), Turn(interleaved, 1.0, False, "bshd")
    half = torch.zeros(64, 32)
    norm, positions = Norm(q[0, 0, 0], k[0, 0, 0], 1e-6), torch.arange(64)
    cache = torch.zeros(1, 8, 64, 128, dtype=dtype)
    store = Store(cache, cache, k, positions[None])
    joint = Norm(torch.zeros(32 * 128, dtype=dtype), torch.zeros(8 * 128, dtype=dtype), 1e-6, True)
    return {
        "rotate": lambda: backend.rotate([q, k], cos, cos, turn),
        "rotate a window": lambda: backend.rotate([q, k], half, half, turn._replace(rotary_offset=64)),
        "rotate in blocks": lambda: backend.rotate(
            [q, k], cos, cos, turn._replace(interleaved=False, blocks=(24, 20, 20))
        ),
        "norm": lambda: backend.norm_rotate(q, k, cos, cos, turn, norm, None),
        "norm into a cache": lambda: backend.norm_rotate(q, k, cos, cos, turn, norm, store),
        "norm of all heads into a cache": lambda: backend.norm_rotate(q, k, cos, cos, turn, joint, store),
    }


def main(kernels: list[str]) -> None:
    """One record for each kernel, or each of those named: "norm", or "norm, float32, half"."""
    triton.runtime.driver.set_active(Driver())
    found: dict[str, dict[str, object]] = {}
    name = ""

    def compile_only(plan: LaunchPlan, *tensors: torch.Tensor) -> None:
        kernel = plan.kernel.warmup(
            *tensors, *plan.numbers, grid=plan.grid, num_warps=plan.num_warps, enable_fp_fusion=True
        )
        accesses = Counter("".join(parts) for parts in ACCESS.findall(kernel.asm["ptx"]))
        found[name] = {"accesses": accesses, **resources(kernel.asm["ptx"])}

    LaunchPlan.__call__ = compile_only
    for dtype, interleaved in ((torch.bfloat16, False), (torch.bfloat16, True), (torch.float32, False)):
        for kernel, call in calls_of(dtype, interleaved).items():
            name = f"{kernel}, {str(dtype)[6:]}, {'interleaved' if interleaved else 'half'}"
            if not kernels or kernel in kernels or name in kernels:
                call()
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
