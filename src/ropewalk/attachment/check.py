"""What an attached model is held to: a short forward before and after must agree."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ropewalk.errors import RopeError

TOKENS = 12  # of the short forward
_TOLERANCE = {torch.float64: 1e-4, torch.float32: 1e-4}  # float64: the model's own tables are float32
_SIXTEEN_BITS = 0.05


def short_outputs(model: nn.Module, config: Any) -> Tensor:
    """What the model gives for a few tokens, float32 on the CPU: logits, or the hidden states of a model without head.

    In eval mode, without gradients and without a cache; the model's modes and torch's random state stay.
    """
    ids = _some_ids(config)[None].to(_device_of(model))
    inputs = {"input_ids": ids, "use_cache": False}
    if getattr(model.config, "is_encoder_decoder", False):
        inputs["decoder_input_ids"] = ids
    with _evaluating(model), torch.no_grad():
        out = model(**inputs)
    found = next((out[key] for key in ("logits", "last_hidden_state") if key in out), None)
    if found is None:
        raise RopeError(
            "attach: the model gives neither logits nor hidden states for token ids alone, so it cannot be checked.",
            facts={"outputs": ", ".join(out.keys())},
            cure="Attach the part that reads tokens, for example model.language_model.",
        )
    outputs: Tensor = found
    return outputs.detach().float().cpu()


def check_agreement(before: Tensor, after: Tensor, dtype: torch.dtype) -> float:
    """The largest difference; raises `RopeError` where it exceeds the tolerance.

    Tolerance: 1e-4 of the largest number for float32 and float64 weights, 5 % for 16-bit ones, whose tables are
    rounded to 16 bits.
    """
    size = float(before.abs().max())
    difference = float((after - before).abs().max())
    tolerance = _TOLERANCE.get(dtype, _SIXTEEN_BITS) * max(1.0, size)
    if not difference <= tolerance:
        raise RopeError(
            "attach: the attached model does not give what it gave before, so it was detached again.",
            facts={"largest difference": difference, "tolerance": tolerance, "largest output": size, "dtype": dtype},
            cure="Its class does something that is not known here, or its frequencies are not those of its config.",
        )
    return difference


def _some_ids(config: Any) -> Tensor:
    """A few token ids that no config key gives a meaning of its own, such as an image's place."""
    special = {value for name, value in config.to_dict().items() if "token_id" in name and isinstance(value, int)}
    vocabulary = int(getattr(config, "vocab_size", 0) or 256)
    plain = [token for token in range(min(vocabulary, 4 * TOKENS)) if token not in special] or [0]
    chosen = [plain[(7 * place + 3) % len(plain)] for place in range(TOKENS)]
    return torch.tensor(chosen, dtype=torch.int64, device="cpu")


def _device_of(model: nn.Module) -> torch.device:
    embedding = getattr(model, "get_input_embeddings", lambda: None)()
    weight = getattr(embedding, "weight", None)
    return weight.device if isinstance(weight, Tensor) else next(model.parameters()).device


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """In eval mode; every module's own mode is given back."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
