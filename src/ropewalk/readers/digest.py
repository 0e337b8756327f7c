"""Digests of models, and the environment of a run."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterable, MutableMapping
from typing import Any, cast

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from ropewalk.version import __version__

_DIGESTS = cast(MutableMapping[torch.Tensor, tuple[int, bytes]], WeakTensorKeyDictionary())


def digest_of(config: str, weights: Iterable[tuple[str, torch.Tensor]]) -> str:
    """Return a short hash of a description and of every bit of the named weights; shared weights are hashed once."""
    digest = hashlib.sha256(config.encode())
    for name, weight in weights:
        digest.update(f"{name} {tuple(weight.shape)} {weight.dtype}".encode() + _weight_digest(weight))
    return digest.hexdigest()[:20]


def _weight_digest(weight: torch.Tensor) -> bytes:
    """Return the SHA-256 of a weight's bytes, cached until the weight is changed in place or deleted."""
    version = weight._version
    cached = _DIGESTS.get(weight)
    if cached is None or cached[0] != version:
        whole: torch.Tensor = getattr(weight, "full_tensor", lambda: weight)()  # a process has only a part of a DTensor
        flat = whole.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        cached = _DIGESTS[weight] = (version, hashlib.sha256(flat.numpy().data).digest())
    return cached[1]


def environment_of(device: str, parameters: int) -> dict[str, Any]:
    """Return versions, machine, device, threads, and the model's number of parameters."""
    return {
        "ropewalk": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "device": device,
        "threads": torch.get_num_threads(),
        "parameters": parameters,
    }
