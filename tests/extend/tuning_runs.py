"""The recipe of a tuning run of a tenth of a second, and a batch."""

from __future__ import annotations

from typing import Any

import torch

from ropewalk.extend.tunable import TunableDecoder
from ropewalk.extend.tuning import TuningRecipe
from ropewalk.training.data import Batch
from tests.extend.material import REACH, TARGET, token_ids


def small(path: str, source: TunableDecoder, **changes: Any) -> TuningRecipe:
    """A run of a tenth of a second."""
    settings: dict[str, Any] = {
        "text": (path,),
        "source": source.digest(),
        "method": "yarn",
        "reach": REACH,
        "steps": 8,
        "lr": 3e-3,
        "batch_size": 2,
        "tokens_per_step": 200,
        "precision": "float32",
        "device": "cpu",
    }
    return TuningRecipe(**(settings | changes))


def batch() -> Batch:
    """Two windows of random tokens."""
    ids = torch.cat([token_ids(TARGET + 1), token_ids(TARGET + 1).flip(1)])
    return Batch(ids[:, :-1], ids[:, 1:], None)
