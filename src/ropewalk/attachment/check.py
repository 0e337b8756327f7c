"""What an attached model is held to: a short forward before and after must agree."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ropewalk.errors import RopeError

TOKENS = 12  # of the short forward
_TOLERANCE = {torch.float64: 1e-4, torch.float32: 1e-4}  # float64: the model's own tables are float32
_SIXTEEN_BITS = 0.05


class ShortForward(NamedTuple):
    """What a model gives for a few tokens: float32 on the CPU, and the coarsest dtype that the numbers went through."""

    outputs: Tensor
    dtype: torch.dtype


def short_forward(model: nn.Module, config: Any, rotary: Sequence[nn.Module]) -> ShortForward:
    """What the model gives for a few tokens: logits, or the hidden states of a model without head.

    In eval mode, without gradients and without a cache; the model's modes and torch's random state stay. The dtype is
    that of the hidden states which its rotary modules are given: FSDP's mixed precision computes in another one than
    the parameters'.
    """
    ids = _some_ids(config)[None].to(_device_of(model))
    inputs = {"input_ids": ids, "use_cache": False}
    if getattr(model.config, "is_encoder_decoder", False):
        inputs["decoder_input_ids"] = ids
    with _evaluating(model), torch.no_grad(), _dtypes_seen(rotary) as dtypes:
        out = model(**inputs)
    _reshard(model)
    found = next((out[key] for key in ("logits", "last_hidden_state") if key in out), None)
    if found is None:
        raise RopeError(
            "attach: the model gives neither logits nor hidden states for token ids alone, so it cannot be checked.",
            facts={"outputs": ", ".join(out.keys())},
            cure="Attach the part that reads tokens, for example model.language_model.",
        )
    outputs: Tensor = found
    coarsest = max([outputs.dtype, *dtypes], key=lambda dtype: torch.finfo(dtype).eps)
    return ShortForward(outputs.detach().float().cpu(), coarsest)


def _reshard(model: nn.Module) -> None:
    """Shard again what FSDP2 has gathered for a forward without a backward.

    Some of its groups stay gathered for the backward, and an optimizer made then holds weights that nobody trains.
    """
    fsdp = sys.modules.get("torch.distributed.fsdp")  # not imported: then nothing is sharded
    if fsdp is not None:
        for module in model.modules():
            if isinstance(module, fsdp.FSDPModule):
                module.reshard()


def has_weights(model: nn.Module) -> bool:
    """Whether a forward gives numbers: not so on the meta device."""
    return not any(weight.is_meta for weight in model.parameters())


def check_agreement(before: ShortForward, after: ShortForward) -> float:
    """The largest difference; raises `RopeError` where it exceeds the tolerance.

    Tolerance: 1e-4 of the largest number for a model that computes in float32 or float64, 5 % for 16 bits, to which
    its tables are rounded.
    """
    dtype = before.dtype
    size = float(before.outputs.abs().max())
    difference = float((after.outputs - before.outputs).abs().max())
    tolerance = _TOLERANCE.get(dtype, _SIXTEEN_BITS) * max(1.0, size)
    if not difference <= tolerance:
        raise RopeError(
            "attach: the attached model does not give what it gave before, so it was detached again.",
            facts={"largest difference": difference, "tolerance": tolerance, "largest output": size, "dtype": dtype},
            cure="Its class does something that is not known here, or its frequencies are not those of its config "
            "(after to_empty() they are what lay in memory: attach while the model is on the meta device).",
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
def _dtypes_seen(rotary: Sequence[nn.Module]) -> Iterator[list[torch.dtype]]:
    """The dtypes of the hidden states that rotary modules are given meanwhile."""
    seen: list[torch.dtype] = []

    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = (*args[:1], kwargs.get("x"), kwargs.get("hidden_states"))  # the last: of layers that look tables up
        seen.extend(x.dtype for x in given if isinstance(x, Tensor) and x.dtype.is_floating_point)

    hooks = [module.register_forward_pre_hook(note, with_kwargs=True) for module in rotary]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


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
