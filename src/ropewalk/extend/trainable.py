"""Which of a checkpoint's weights are trained: all, some by name, or low-rank adapters beside them."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint

from ropewalk.attention.norm import RMSNorm
from ropewalk.errors import RopeError
from ropewalk.models.decoder import Decoder
from ropewalk.models.extras import need

PARTS = ("all", "attention", "norms", "embeddings", "lora")
ADAPTED = ("q_proj", "k_proj", "v_proj", "o_proj")


def parts_of(train: str) -> tuple[str, ...]:
    """The parts that `train` names, joined by "+"; raises `RopeError` for one that is unknown or says nothing more.

    >>> parts_of("lora+norms+embeddings")
    ('lora', 'norms', 'embeddings')
    """
    parts = tuple(dict.fromkeys(train.split("+")))
    unknown = [part for part in parts if part not in PARTS]
    if unknown or ("all" in parts and len(parts) > 1):
        raise RopeError(
            "extend: --train names parts of the model, joined by +.",
            facts={"train": train, "known": PARTS},
            cure='For example "all", "norms+embeddings", or "lora+norms+embeddings".',
        )
    return parts


def trainable_copy(model: Decoder, train: str, *, rank: int) -> Decoder:
    """A copy of a model whose chosen parts are trained: those are float32 copies, the rest is shared and frozen.

    **Arguments:**
    - `model`: left as it is.
    - `train`: "all"; or, joined by "+", "attention" (projections, and norms within), "norms", "embeddings" (and the
      head), "lora": adapters of `rank` on q, k, v and o, weighted by 2, by `peft`.

    Adapters begin at zero, so that the copy computes what the model does. Their other matrix is drawn by torch's
    generator. Sources: Hu et al. 2021, arXiv:2106.09685; Chen et al. 2023, arXiv:2309.12307 (LongLoRA: norms and
    embeddings as well).
    **Raises:** `RopeError` for unknown parts, a rank below 1, and where `peft` is missing.
    """
    parts = parts_of(train)
    if rank < 1:
        raise RopeError("extend: the adapters' rank must be at least 1.", facts={"rank": rank}, cure="Pass --rank 16.")
    chosen = _names(model, parts)
    fresh: dict[int, Any] = {id(model.tokenizer): model.tokenizer}
    for name, weight in model.named_parameters():
        kept = weight.detach().float()
        trained = name in chosen
        fresh[id(weight)] = nn.Parameter(kept.clone() if trained else kept, requires_grad=trained)
    twin = copy.deepcopy(model, fresh)
    if "lora" in parts:
        kit = need("peft", extra="tune")
        settings = kit.LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=list(ADAPTED), bias="none")
        kit.inject_adapter_in_model(settings, twin)
        for name, weight in twin.named_parameters():  # peft froze all but its own
            weight.requires_grad_(".lora_" in name or name in chosen)
    return twin


def trained_count(model: Decoder, train: str, *, rank: int) -> int:
    """How many numbers `trainable_copy` lets be trained."""
    parts = parts_of(train)
    chosen = _names(model, parts)
    count = sum(weight.numel() for name, weight in model.named_parameters() if name in chosen)
    if "lora" in parts:
        adapted = [m for name, m in model.named_modules() if name.endswith(ADAPTED) and isinstance(m, nn.Linear)]
        count += sum(rank * (linear.in_features + linear.out_features) for linear in adapted)
    return count


def merge_adapters(model: Decoder) -> Decoder:
    """Add each adapter's product to the weight beside it, and take the adapter away; returns the same model."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if hasattr(child, "lora_A") and hasattr(child, "get_base_layer"):
                child.merge(safe_merge=True)  # type: ignore[operator]
                setattr(module, name, child.get_base_layer())  # type: ignore[operator]
    return model


@contextmanager
def recomputed(model: Decoder, on: bool = True) -> Iterator[None]:
    """Within, a layer keeps its input alone and computes the rest anew in the backward pass.

    Memory for activations falls from all of a layer's to one `[batch, seq, hidden]` per layer; time grows by about a
    forward pass. Gradients are the same. Source: Chen et al. 2016, arXiv:1604.06174.
    """
    layers = list(model.layers) if on else []
    for layer in layers:
        setattr(layer, "forward", partial(checkpoint, layer.forward, use_reentrant=False))  # noqa: B010
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


def _names(model: Decoder, parts: tuple[str, ...]) -> set[str]:
    """The names of the model's own parameters that are trained."""
    names = {name for name, _ in model.named_parameters()}
    if "all" in parts:
        return names
    chosen: set[str] = set()
    if "attention" in parts:
        chosen |= {name for name in names if ".self_attn." in name}
    if "embeddings" in parts:
        chosen |= {name for name in names if name.startswith(("embed_tokens.", "lm_head."))}
    if "norms" in parts:
        norms = {name for name, module in model.named_modules() if isinstance(module, RMSNorm | nn.LayerNorm)}
        chosen |= {name for name in names if name.rpartition(".")[0] in norms}
    return chosen
