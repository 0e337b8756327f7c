"""What numbers and times depend on besides the model."""

from __future__ import annotations

import platform
from typing import Any

import torch

from ropewalk.version import __version__


def environment_of(device: str, parameters: int) -> dict[str, Any]:
    """Versions, machine, threads, and the model's size."""
    return {
        "ropewalk": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "device": device,
        "threads": torch.get_num_threads(),
        "parameters": parameters,
    }
