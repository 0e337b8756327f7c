"""The permutation between the interleaved and the half-split order of features.

Scores do not change if queries and keys are permuted alike. A checkpoint therefore changes its convention by permuting
the rows of its q and k projections (weights, biases, and the per-head norms after them).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, Literal, overload

import torch
from torch import Tensor

from ropewalk.errors import RopeError, describe
from ropewalk.families import family_named
from ropewalk.rope.hugging_face import text_part
from ropewalk.rope.model_ropes import ModelRopes
from ropewalk.rope.values import as_whole, whole_or_zero

Pairing = Literal["interleaved", "half"]

_QUERIES = ("q_proj", "wq")
_NORMS = ("q_norm", "k_norm", "q_layernorm", "k_layernorm", "query_layernorm", "key_layernorm")
_CONVERTED = {*_QUERIES, "k_proj", "wk", *_NORMS}
_KEPT = {"v_proj", "wv", "v_norm", "o_proj", "out_proj", "dense", "wo", "Wo", "attn_sub_norm", "gate_proj", "g_proj"}
_KEPT |= {"gate_bias", "sinks", "lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2", "A", "dt_proj", "rotary_emb"}
_FUSED = {"qkv_proj", "query_key_value", "Wqkv", "c_attn", "qkv", "W_pack", "in_proj_weight"}
_PROJECTION = re.compile(rf"(?:(.*?)\.)?({'|'.join(sorted(_CONVERTED | _FUSED))})(?:\.|$)")  # its module, and its name
_LAYER = re.compile(r"(?:^|\.)(\d+)(?:\.|$)")
_TENSOR = re.compile(r"(linear\.|norms\.\d+\.)?(weight|bias)")  # of a layer inside the projection, of a norm by head


@overload
def convert_pairing(
    source: Tensor, *, to: Pairing, head_dim: int | None = None, rotary_dim: int | None = None, dim: int = -1
) -> Tensor: ...
@overload
def convert_pairing(source: Mapping[str, Tensor], *, to: Pairing, config: Any) -> dict[str, Tensor]: ...
def convert_pairing(
    source: Tensor | Mapping[str, Tensor],
    *,
    to: Pairing,
    head_dim: int | None = None,
    rotary_dim: int | None = None,
    dim: int = -1,
    config: Any = None,
) -> Tensor | dict[str, Tensor]:
    """Convert a tensor, or the q and k projections of a state dict, from one pairing to the other.

    **Arguments:**
    - `source`: a tensor, or the state dict of a language model or of a part of it, with transformers' or Meta's names.
      In a state dict, weights, biases and per-head norms of q and k are permuted, for any number of heads (GQA); output
      gates in the q projection and other tensors are passed on unchanged.
    - `to`: `"interleaved"` from half-split, or `"half"` from interleaved.
    - `head_dim`, `rotary_dim`, `dim`: for a tensor, the features of one head, the number of leading features of a head
      that rotate, and the dimension of heads * head_dim features. They default to the size of `dim`.
    - `config`: for a state dict, the model's config, as for `RopeConfig.from_hf`: sizes, and the family's weights.

    **Returns:** a new tensor, or a new dict.
    **Raises:** `RopeError` if sizes do not fit; for a state dict also if the family is unknown or rotates anything
    but whole heads of q and k (MLA), if q and k are fused with v (convert their rows as tensors), if it contains
    several stacks of layers, and for unknown tensors in an attention layer.
    **Source:** the permutation of Hugging Face's `convert_llama_weights_to_hf`.

    >>> convert_pairing(torch.arange(6), to="half").tolist()
    [0, 2, 4, 1, 3, 5]
    >>> convert_pairing(convert_pairing(torch.arange(6), to="half"), to="interleaved").tolist()
    [0, 1, 2, 3, 4, 5]
    >>> layer = {"q_proj.weight": torch.arange(8), "k_proj.weight": torch.arange(4)}
    >>> convert_pairing(layer, to="half", config={"model_type": "llama", "head_dim": 4})["q_proj.weight"].tolist()
    [0, 2, 1, 3, 4, 6, 5, 7]
    """
    if to not in ("interleaved", "half"):
        raise RopeError(
            "convert_pairing: unknown pairing.", facts={"to": to}, cure='Pass to="interleaved" or to="half".'
        )
    if not isinstance(source, Tensor | Mapping):
        raise RopeError(
            "convert_pairing: the source must be a tensor or a state dict.",
            facts={"source": source},
            cure="Pass torch.as_tensor(source) for an array or a list.",
        )
    sized = (head_dim, rotary_dim, dim) != (None, None, -1)
    if isinstance(source, Tensor) != (config is None) or (config is not None and sized):
        raise RopeError(
            "convert_pairing: a tensor takes `head_dim`, `rotary_dim` and `dim`, a state dict only `config`.",
            facts={"source": type(source).__name__, "head_dim": head_dim, "rotary_dim": rotary_dim, "dim": dim},
            cure="Pass config=model.config with a state dict, and none with a tensor.",
        )
    if isinstance(source, Tensor):
        return _convert(source, to, head_dim, rotary_dim, dim, "the tensor")
    return _convert_weights(source, to, config)


def _convert_weights(source: Mapping[str, Tensor], to: Pairing, config: Any) -> dict[str, Tensor]:
    """Convert the q and k projections and norms of a state dict; raise `RopeError` for what is unknown."""
    fields = text_part(config)
    family = family_named(fields.get("model_type"))
    key = None if family is None else family.module.values_from_keys
    shared = key is not None and bool(fields.get(*key))
    if family is None or family.mla or not family.module.converts or shared:
        facts = {} if family is None else {"latent attention (MLA)": family.mla, "values are keys": shared}
        raise RopeError(
            "convert_pairing: the family of a state dict must be known, and rotate only whole heads of q and k.",
            facts={"model_type": fields.get("model_type"), **facts},
            cure="Convert the rows that rotate as tensors, with dim=0, by the model's own code.",
        )
    found = {name: _PROJECTION.match(str(name)) for name in source}
    places = {name: (match[1] or "", match[2]) for name, match in found.items() if match is not None}
    modules, fused = ({module for module, part in places.values() if part in of} for of in (_CONVERTED, _FUSED))
    if not modules or modules & fused:
        raise RopeError(
            "convert_pairing: the state dict has no separate q and k projections.",
            facts={"fused" if fused else "keys": list(places if fused else source)[:4]},
            cure="Split fused projections into q and k and convert each as a tensor with dim=0.",
        )
    stacks = {_LAYER.split(module)[0] for module in modules | fused}
    if len(stacks) > 1:
        raise RopeError(
            "convert_pairing: the state dict has several stacks of layers, and the config describes one.",
            facts={"stacks": sorted(stacks)},
            cure="Convert only the language model: model.language_model.state_dict(), or the tensors of one stack.",
        )
    unknown = [name for name in source if _is_unknown(str(name), modules)]
    if unknown:
        raise RopeError(
            "convert_pairing: attention layers contain tensors that may share features with q and k.",
            facts={"tensors": unknown[:4]},
            cure="Merge adapters and dequantize weights first. Convert other weights as tensors, with dim=0.",
        )
    ropes = ModelRopes.from_hf(config).rotating.values()
    sizes = {(rope.head_dim, 2 * rope.pairs) for rope in ropes}
    if len(sizes) > 1:
        raise RopeError(
            "convert_pairing: the layer types of this family rotate heads of different sizes.",
            facts={"model_type": fields.get("model_type"), "head_dim and rotary_dim": sorted(sizes)},
            cure="Convert the weights of each layer as tensors, with dim=0 and the sizes of its type.",
        )
    (head_dim, rotary_dim), new = sizes.pop(), dict(source)
    for name, (_, part) in places.items():
        if part in _CONVERTED:
            width = 2 * head_dim if family.module.gated and part in _QUERIES else head_dim
            new[name] = _convert(source[name], to, width, rotary_dim, -1 if part in _NORMS else 0, name)
    return new


def _is_unknown(name: str, modules: Collection[str]) -> bool:
    """Return whether a tensor of an attention layer is neither of q and k nor known to share no feature with them."""
    module = next((one for one in modules if not one or name.startswith(f"{one}.")), None)
    part, _, rest = name.removeprefix(f"{module}.").partition(".")
    return module is not None and part not in _KEPT and (part not in _CONVERTED or _TENSOR.fullmatch(rest) is None)


def _convert(x: Tensor, to: Pairing, head_dim: int | None, rotary_dim: int | None, dim: int, name: str) -> Tensor:
    if not isinstance(x, Tensor):
        raise RopeError(
            f"convert_pairing: {name} is not a tensor.",
            facts={name: x},
            cure="Pass tensors: torch.as_tensor(...) makes one of an array.",
        )
    place = as_whole(dim)
    size = x.shape[dim] if place is not None and -x.ndim <= place < x.ndim else 0
    head_dim = size if head_dim is None else whole_or_zero(head_dim)
    rotary = head_dim if rotary_dim is None else whole_or_zero(rotary_dim)
    if not 2 <= rotary <= head_dim or rotary % 2 or not size or size % head_dim:
        raise RopeError(
            f"convert_pairing: {name} does not contain whole heads with an even number of rotated features.",
            facts={name: describe(x), "dim": dim, "head_dim": head_dim, "rotary_dim": rotary},
            cure="Pass the head_dim (and rotary_dim) of the model, and the dim of the heads, as whole numbers.",
        )
    old = torch.arange(head_dim, device=x.device)
    pairs = old[:rotary].view(-1, 2) if to == "half" else old[:rotary].view(2, -1)
    order = torch.cat([pairs.T.reshape(-1), old[rotary:]])  # of each feature its index in the old head
    starts = torch.arange(0, size, head_dim, device=x.device)
    return x.index_select(dim, (starts[:, None] + order).reshape(-1))
