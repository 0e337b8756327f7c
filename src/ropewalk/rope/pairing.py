"""The permutation between the interleaved and the half-split order of features.

Scores do not change if queries and keys are permuted alike. A checkpoint therefore changes its convention by permuting
the rows of its q and k projections (weights, biases, and the per-head norms after them).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, overload

import torch
from torch import Tensor

from ropewalk.errors import RopeError, describe
from ropewalk.rope.values import as_whole

Pairing = Literal["interleaved", "half"]

_QUERY_OR_KEY = re.compile(
    r"(^|\.)(q_proj|k_proj|q_norm|k_norm|wq|wk|attn_q|attn_k|attn_q_norm|attn_k_norm)\.(weight|bias)$"
)
_FUSED = re.compile(r"(^|\.)(qkv_proj|query_key_value|Wqkv|c_attn|attn_qkv|in_proj)[._](weight|bias)$")


@overload
def convert_pairing(
    source: Tensor, *, to: Pairing, head_dim: int | None = None, rotary_dim: int | None = None, dim: int = -1
) -> Tensor: ...
@overload
def convert_pairing(
    source: Mapping[str, Tensor], *, to: Pairing, head_dim: int, rotary_dim: int | None = None, dim: int = 0
) -> dict[str, Tensor]: ...
def convert_pairing(
    source: Tensor | Mapping[str, Tensor],
    *,
    to: Pairing,
    head_dim: int | None = None,
    rotary_dim: int | None = None,
    dim: int | None = None,
) -> Tensor | dict[str, Tensor]:
    """Convert a tensor, or the q and k projections of a state dict, from one pairing to the other.

    **Arguments:**
    - `source`: a tensor, or a state dict with Hugging Face's, Meta's or GGUF's names. In a state dict, weights, biases
      and per-head norms of q and k are permuted, for any number of heads (GQA); other tensors are passed on unchanged.
    - `to`: `"interleaved"` from half-split, or `"half"` from interleaved.
    - `head_dim`: features of one head; for a tensor it defaults to the size of `dim`.
    - `rotary_dim`: number of leading features of a head that rotate; the others keep their place.
    - `dim`: dimension of heads * head_dim features. Default: the last for a tensor (queries, keys), 0 in a state dict
      (weights, biases).

    **Returns:** a new tensor, or a new dict.
    **Raises:** `RopeError` if sizes do not fit, or if a state dict contains fused qkv projections (split them first) or
    no q and k.
    **Source:** the permutation of Hugging Face's `convert_llama_weights_to_hf`.

    >>> convert_pairing(torch.arange(6), to="half").tolist()
    [0, 2, 4, 1, 3, 5]
    >>> convert_pairing(convert_pairing(torch.arange(6), to="half"), to="interleaved").tolist()
    [0, 1, 2, 3, 4, 5]
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
    if isinstance(source, Tensor):
        return _convert(source, to, head_dim, rotary_dim, -1 if dim is None else dim, "the tensor")
    if head_dim is None:
        raise RopeError(
            "convert_pairing: a state dict needs `head_dim`.",
            cure="Pass head_dim=... (hidden_size / num_attention_heads).",
        )
    fused = [name for name in source if _FUSED.search(str(name))]
    chosen = [name for name in source if _QUERY_OR_KEY.search(str(name))]
    if fused or not chosen:
        raise RopeError(
            "convert_pairing: the state dict has no separate q and k projections.",
            facts={"fused" if fused else "keys": (fused or list(source))[:4]},
            cure="Split fused projections into q and k and convert each as a tensor with dim=0.",
        )
    return {
        name: _convert(value, to, head_dim, rotary_dim, dim or 0, name) if name in set(chosen) else value
        for name, value in source.items()
    }


def pairing_order(to: Pairing, head_dim: int, rotary_dim: int | None = None) -> Tensor:
    """Return for each feature of the converted head its index in the old head, `[head_dim]`."""
    rotary_dim = head_dim if rotary_dim is None else rotary_dim
    rotating, half = torch.arange(rotary_dim, device="cpu"), rotary_dim // 2
    order = rotating.view(half, 2).T if to == "half" else rotating.view(2, half).T
    return torch.cat([order.reshape(-1), torch.arange(rotary_dim, head_dim, device="cpu")])


def _convert(x: Tensor, to: Pairing, head_dim: int | None, rotary_dim: int | None, dim: int, name: str) -> Tensor:
    if not isinstance(x, Tensor):
        raise RopeError(
            f"convert_pairing: {name} is not a tensor.",
            facts={name: x},
            cure="Pass tensors: torch.as_tensor(...) makes one of an array.",
        )
    place = as_whole(dim)
    size = x.shape[dim] if place is not None and -x.ndim <= place < x.ndim else 0
    head_dim = size if head_dim is None else as_whole(head_dim) or 0
    rotary = head_dim if rotary_dim is None else as_whole(rotary_dim) or 0
    if head_dim < 2 or not size or size % head_dim or rotary % 2 or not 2 <= rotary <= head_dim:
        raise RopeError(
            f"convert_pairing: {name} does not contain whole heads with an even number of rotated features.",
            facts={name: describe(x), "dim": dim, "head_dim": head_dim, "rotary_dim": rotary},
            cure="Pass the head_dim (and rotary_dim) of the model, and the dim of the heads, as whole numbers.",
        )
    order = pairing_order(to, head_dim, rotary).to(x.device)
    starts = torch.arange(0, size, head_dim, device=x.device)
    return x.index_select(dim, (starts[:, None] + order).reshape(-1))
