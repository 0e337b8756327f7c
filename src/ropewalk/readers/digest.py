"""What a measurement's numbers depend on: a digest of the model, and the environment of the run."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterable, MutableMapping
from typing import Any, cast

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from ropewalk.models.decoder import Decoder
from ropewalk.version import __version__

_DIGESTS = cast(MutableMapping[torch.Tensor, tuple[int, bytes]], WeakTensorKeyDictionary())


def model_digest(model: Decoder) -> str:
    """A short hash of a model: its config, and every bit of every weight; models that share weights read them once."""
    return digest_of(repr(model.config), model.named_parameters())


def digest_of(config: str, weights: Iterable[tuple[str, torch.Tensor]]) -> str:
    """A short hash of a description and of every bit of some weights with their names."""
    digest = hashlib.sha256(config.encode())
    for name, weight in weights:
        digest.update(f"{name} {tuple(weight.shape)} {weight.dtype}".encode() + _weight_digest(weight))
    return digest.hexdigest()[:20]


def _weight_digest(weight: torch.Tensor) -> bytes:
    """The SHA-256 of a weight's bytes, kept until the weight is changed in place or gone."""
    version = weight._version
    kept = _DIGESTS.get(weight)
    if kept is None or kept[0] != version:
        whole: torch.Tensor = getattr(weight, "full_tensor", lambda: weight)()  # of a DTensor a process has a part
        flat = whole.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        kept = _DIGESTS[weight] = (version, hashlib.sha256(flat.numpy().data).digest())
    return kept[1]


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
