"""The check of `attach`: a short forward before and after must agree."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ropewalk.errors import RopeError
from ropewalk.models.norm import evaluating
from ropewalk.rope.values import MOST_SIZE, as_whole

TOKENS = 12  # of the short forward
_TOLERANCE = 1e-4  # of the largest output; also in float64, since the model's own tables are float32
# Multiples of the rounding noise: over the small models of 29 families and SmolLM2-135M in 16 bits a right attachment
# differs by at most 1.3 of it, and one with the wrong pairing or positions off by one by at least 5.4. With int8
# activations (torchao 0.18 and bitsandbytes 0.50, 29 families) it is at most 1.0, and under the wrong pairing 4.0.
_NOISES = 3.0


class ShortForward(NamedTuple):
    """The outputs of a model for a few tokens, float32 on the CPU, and the coarsest dtype of the computation."""

    outputs: Tensor
    dtype: torch.dtype


def short_forward(model: nn.Module, config: Any, rotary: Iterable[nn.Module]) -> ShortForward:
    """Run the model on a few tokens and return its logits, or the hidden states of a model without a head.

    The forward runs in eval mode, without gradients and without a cache; the model's modes and torch's random state do
    not change. The dtype is that of the hidden states passed to the rotary modules; with FSDP's mixed precision it
    differs from the parameters' dtype.
    """
    weight = getattr(getattr(model, "get_input_embeddings", lambda: None)(), "weight", None)
    weight = weight if isinstance(weight, Tensor) else next(model.parameters())
    ids = ordinary_ids(config)[None].to(weight.device)
    inputs = {"input_ids": ids, "use_cache": False}
    if getattr(model.config, "is_encoder_decoder", False):
        inputs["decoder_input_ids"] = ids
    with evaluating(model), torch.no_grad(), _dtypes_seen(rotary) as dtypes:
        out = model(**inputs)
    _reshard(model)
    outputs: Tensor | None = next((out[key] for key in ("logits", "last_hidden_state") if key in out), None)
    if outputs is None:
        raise RopeError(
            "attach: the model returns neither logits nor hidden states for token ids, so it cannot be checked.",
            facts={"outputs": ", ".join(out.keys())},
            cure="Attach the part for token ids, for example model.language_model.",
        )
    coarsest = max([outputs.dtype, *dtypes], key=lambda dtype: torch.finfo(dtype).eps)
    return ShortForward(outputs.detach().float().cpu(), coarsest)


def _reshard(model: nn.Module) -> None:
    """Reshard the weights that FSDP2 gathered for a forward without a backward.

    Some groups stay gathered for the backward. An optimizer created then would contain weights that are never trained.
    """
    fsdp = sys.modules.get("torch.distributed.fsdp")  # not imported: then nothing is sharded
    if fsdp is not None:
        for module in model.modules():
            if isinstance(module, fsdp.FSDPModule):
                module.reshard()


def has_weights(model: nn.Module) -> bool:
    """Return whether the model can run a forward: no weight is on the meta device."""
    return not any(weight.is_meta for weight in model.parameters())


def typical_difference(one: ShortForward, other: ShortForward) -> float:
    """Return the median over the tokens of the largest difference at a token; robust to one outlier."""
    return float((one.outputs - other.outputs).abs().amax(-1).median())


def check_agreement(before: ShortForward, after: ShortForward, noise: Callable[[], float]) -> float:
    """Return the largest difference; raise `RopeError` if the short forwards do not agree.

    `noise`: measures the typical difference caused by rounding in this model; 0 if float32 is its coarsest step.

    The largest difference must be at most 1e-4 of the largest output. In 16 bits, or if activations are quantized, it
    suffices that the typical difference is at most three times the noise, or three units in the last place.
    """
    size, difference = (float(x.abs().max()) for x in (before.outputs, after.outputs - before.outputs))
    judged, tolerance, cure = difference, _TOLERANCE * max(1.0, size), ""
    low = before.dtype.itemsize < 4
    if judged <= tolerance and not low:
        return difference
    facts: dict[str, Any] = {"largest difference": difference, "largest output": size, "dtype": before.dtype}
    measured = noise()
    if measured or low:
        last_place = torch.finfo(before.dtype).eps * float(before.outputs.abs().amax(-1).median())
        judged, tolerance = typical_difference(before, after), _NOISES * max(measured, last_place)
        facts |= {"typical difference": judged, "rounding noise": measured}
        cure = "Load the model in float32 without quantization, which rounds less: from_pretrained(..., "
        cure += "dtype=torch.float32). If that fails too: "
    if not judged <= tolerance:
        raise RopeError(
            "attach: the outputs of the attached model differ from those before; it was detached again.",
            facts={**facts, "tolerance": tolerance},
            cure=f"{cure}Its class computes an unknown formula, or its frequencies are not those of its config (after "
            "to_empty() they are undefined: attach while the model is on the meta device).",
        )
    return difference


def ordinary_ids(config: Any) -> Tensor:
    """Return token ids spread over the middle of the vocabulary: special and added tokens are at its ends.

    Ids in the config, such as the placeholder of an image, are skipped.
    """
    named = [value for name, value in config.to_dict().items() if "token" in name]
    listed = [token for value in named for token in (value if isinstance(value, list) else [value])]
    special = {token for token in listed if isinstance(token, int)}
    stated = as_whole(getattr(config, "vocab_size", None)) or 0
    size = stated if 0 < stated <= MOST_SIZE else 256
    ordinary = [token for token in range(size // 8, size - size // 8) if token not in special] or [0]
    # 5 has no common factor with 12: all twelfths, in mixed order
    chosen = [ordinary[len(ordinary) * (5 * place % TOKENS) // TOKENS] for place in range(TOKENS)]
    return torch.tensor(chosen, dtype=torch.int64, device="cpu")


@contextmanager
def _dtypes_seen(rotary: Iterable[nn.Module]) -> Iterator[list[torch.dtype]]:
    """Collect the dtypes of the hidden states passed to rotary modules inside the block."""
    seen: list[torch.dtype] = []

    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        states = (*args, *kwargs.values())
        seen.extend(x.dtype for x in states if isinstance(x, Tensor) and x.dtype.is_floating_point)

    hooks = [module.register_forward_pre_hook(note, with_kwargs=True) for module in rotary]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()
