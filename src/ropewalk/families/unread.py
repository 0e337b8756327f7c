"""Config keys about positions that `from_hf` does not use, as plain data."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ropewalk.families.family import Family

MEANINGS: dict[str, str] = {
    "use_fope": "FoPE, a Fourier series for each head in place of one frequency for each pair (arXiv:2412.17739)",
    "use_forget_gate": "a forget gate, with or without rotation (FoX, arXiv:2503.02130)",
}
"""The meaning of known keys that `from_hf` does not use. To support one, remove its row and use it."""

_LOOKS = re.compile(
    "rope|rotary|fope|nope|alibi|forget_gate|yarn|ntk|xpos|theta|position_embeddings?_type|pos_?encoding"
)
_READ = frozenset(  # for every family, or without any meaning for the rotation of text
    {"rope_theta", "rope_scaling", "rope_parameters", "rope_interleave", "rope_interleaved", "partial_rotary_factor"}
    | {"rotary_pct", "rotary_dim", "rotary", "rotary_value", "qk_rope_head_dim", "qk_nope_head_dim", "no_rope_layers"}
    | {"indexer_rope_interleave", "no_rope_layer_interval", "enable_temporal_pos_encoding_for_object_pointers"}
    | {f"memory_attention_rope_{name}" for name in ("theta", "feat_sizes", "dropout", "k_sizes")}
)
_ROTARY = ("rope", "rotary", "rotary_embedding", "absolute")


def unread_keys(fields: Mapping[str, Any], family: Family | None) -> dict[str, Any]:
    """Return the unused top-level keys that look like position settings, without those that are off.

    >>> from ropewalk.families import FAMILIES
    >>> unread_keys({"rope_theta": 1e4, "use_fope": True, "rope_delta": 0}, FAMILIES["llama"])
    {'use_fope': True}
    """
    read: set[str | None] = set(_READ)
    if family is not None:
        read |= {*family.top_thetas, *family.theta_keys.values(), *family.holds, *family.keys}
        read |= {family.thetas, family.fractions, family.flags, family.theta_ratio, *(family.switch or ())[:1]}
        read |= {key for key, _ in family.head_dim_of.values()}
    off: tuple[Any, ...] = (None, False, 0, "", [], {}, *_ROTARY)
    return {
        key: value
        for key, value in fields.items()
        if (key in MEANINGS or _LOOKS.search(key))
        and not (key in read or value in off or _is_every_layer(value, fields.get("num_hidden_layers")))
    }


def _is_every_layer(value: object, layers: object) -> bool:
    return isinstance(value, list) and len(value) == layers and value == list(range(len(value)))


def described(keys: Mapping[str, Any]) -> str:
    """Return the keys in words, with the meaning of known ones.

    >>> described({"rope_delta": 4})
    '`rope_delta` (4)'
    """
    return ", ".join(f"`{key}` ({MEANINGS.get(key, value)})" for key, value in keys.items())
