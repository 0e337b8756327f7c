"""The record of a model family: facts about its classes that no config.json states, as plain data."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

Mrope = Literal["contiguous", "interleaved", "ernie", "alternating"]
Block = Mapping[str, Any]


@dataclass(frozen=True)
class Condition:
    """The values of a config's key for which a family's description applies, and why it does not for others.

    - `values`: allowed values, compared by type and value; None stands for an absent key.
    - `rope_types`: allowed rules of a rope block; an absent block is allowed.
    - `without`: lower-case text that the value must not contain, in either case.
    """

    why_not: str
    values: tuple[Any, ...] | None = None
    rope_types: tuple[str, ...] | None = None
    without: str | None = None

    def holds(self, value: Any) -> bool:
        """Return whether the description applies to a config with this value."""
        if self.values is not None:
            return any(type(value) is type(allowed) and value == allowed for allowed in self.values)
        if self.rope_types is not None:
            rule = value.get("rope_type", value.get("type", "default")) if isinstance(value, Mapping) else None
            return rule is None or rule in self.rope_types
        return self.without is None or self.without not in str(value).lower()


@dataclass(frozen=True)
class Indexer:
    """The rotation in the indexer of sparse attention: its own pairing, with the tables of its layer.

    - `interleaved`: its pairing. `last`: the last features of its head rotate, not the first.
    - `layer_type`: the layers that have an indexer; None: all.
    """

    interleaved: bool
    last: bool = False
    layer_type: str | None = None


@dataclass(frozen=True)
class Family:
    """The treatment of rotary settings by a model class.

    Pairing and sizes:
    - `interleaved`: pairs are (0,1), (2,3), ...; False: (i, i + rotary_dim/2). `reads_flag`: `rope_interleave` chooses.
    - `head_dim`: default; None is hidden_size / num_attention_heads. `head_dim_keys`: keys of head_dim that the class
      reads. `head_dim_of`: for a layer type, the key of its own head_dim and that key's default.
    - `head_width`: head_dim is this multiple of hidden_size / num_attention_heads (Zamba2 attends over two streams).
      `sizes`: defaults of those two.
    - `width_key`, `heads_key`, `divisor_key`: different keys of hidden_size, of the number of heads, and of a divisor
      of the width. `whole_width`: the rotation precedes the split into heads.
    - `resets_cache`: its `generate` recomputes the cache where LongRoPE changes its list of factors.
    - `max_position_embeddings`: default, tokens. `original_length`: default of an `original_max_position_embeddings`
      outside the rope block, which takes precedence over the one inside.
    - `mla`: multi-head latent attention: only a slice of `qk_rope_head_dim` features rotates, and we describe this
      slice. `slice_of`: the slice is a fraction of the sum of these keys (`sizes` has their defaults).
    - `softmax_mscale`: the class also multiplies its softmax scale by the square of 0.1 mscale_all_dim ln(factor) + 1.
      `deepseek`: vLLM and SGLang run the family with their DeepSeek classes, whatever its own class is.
    - `query_scale`: keys, with defaults, of a slope a and a length n if queries are multiplied by
      1 + a ln(1 + floor(position / n)): in layers that do not rotate if the family has `nope`, else in all.

    Rotated fraction:
    - `partial`: None: the class rotates the whole head and ignores fractions. A number: the fraction that applies if
      neither the config nor `block` states one. `scaled_partial`: that fraction for blocks with a scaling rule, if
      different. `fraction_keys`: keys of the fraction that the class reads, or `rotary_dim`.
    - `rotary_dim`: the class reads only `rotary_dim`, and this is its default (GPT-J).
    - `projected`: the class rotates max(projection_dim / (2 num_attention_heads), this number) features, of values too.
    - `gated`: in `q_proj` the rows of each head's queries are followed by those of its output gate.
    - `values_from_keys`: key of a flag, and its default: in some layers the keys' projection computes values, too.

    Frequencies:
    - `theta`, `block`: defaults of released configs, which leave out values equal to the class's.
    - `top_thetas`: keys of theta outside the block that the class reads. `theta_ratio`: key of a factor of theta.
    - `fixed`: the class reads no block, only `top_thetas`; a config that states a different rule or theta raises.
    - `meanings`: for a `rope_type` with a different meaning here, the `rope_type` of the actual rule and the key of the
      block that decides (None: always). Phi-3's first configs wrote "yarn" for LongRoPE; HunYuan's `dynamic` with
      `alpha` is NTK-aware scaling.
    - `backwards`: the class rotates by minus the angle.
    - `learned`: the name of the rotary module's tensor of alphas, if each frequency has a learned factor exp(alpha).
    - `keys`: further keys that its block may contain; they act in attention, not on the rotation.

    Layer types:
    - `blocks`: default block of each layer type, for families with several; None is a layer without rotation.
      `block_of`: for a layer type the name of its block, if different. `theta_keys`: older top-level key of each theta.
    - `filled`: a nested block takes every missing key from the block of `blocks`, not only theta.
    - `scaled`: layer types that a flat `rope_scaling` applies to. `scaled_block`: its defaults for a `rope_type`.
      `thetas_on_top`: a theta in it is ignored; without layer types, the first of `top_thetas` precedes the block's.
    - `layer_types`: all layer types of a family with one block. `nope`: those that do not rotate. `nope_needs_window`:
      they do rotate if `sliding_window` is null. `rope_needs_window`: no layer rotates if it is null. `flags`: key of a
      list with 1 for each layer that rotates and 0 for others; it takes precedence. Without the list every n-th layer,
      by `no_rope_layer_interval` or 4, does not rotate.
    - `window_key`: key of the window's tokens. `sliding_window`: its default. `windowed`: if it is set, every layer has
      the window; else only layers of windowed types.
    - `thetas`, `fractions`: keys of lists with one theta for each layer (0: no rotation), and one rotated fraction.
      `nope_from_last`: without such a list, every n-th layer counted back from the last does not rotate; `nope` are
      the types of these layers.
    - `switch`: key that enables rotation for the whole model, the value that enables it, the key's default.

    Axes:
    - `mrope`: order of the axes (time, height, width) over the pairs. "alternating": pairs alternate between row and
      column, without sections. `mrope_section`: default sections.
    - `axial`: for a vision tower, the axis of each share of the pairs, in their order (0, 1: row, column; for video
      0, 1, 2: frame, row, column), each with its own ladder. `in_turn`: pairs cycle through the axes; else each axis
      has a block of pairs. `one_ladder`: the axes share one ladder, dealt out in turn. `axis_blocks`: the features of
      each axis are half-split separately.

    Other:
    - `holds`: conditions on the config's keys; all must be true.
    - `indexer`: the rotation in the indexer of its sparse attention, with `qk_rope_head_dim` of `index_head_dim`
      features; None: no indexer, or one that is not described.
    - `looked_up`: path, inside its module, of a tensor `[positions, rotary_dim]` with the sines and then the cosines of
      every position, in classes without a rotary module.
    """

    interleaved: bool
    reads_flag: bool = False
    partial: float | None = None
    scaled_partial: float | None = None
    theta: float = 10_000.0
    head_dim: int | None = None
    max_position_embeddings: int | None = None
    original_length: int | None = None
    head_width: int = 1
    sizes: Mapping[str, int] = field(default_factory=dict)
    head_dim_keys: tuple[str, ...] = ("head_dim", "attention_head_dim", "kv_channels")
    fraction_keys: tuple[str, ...] = ("partial_rotary_factor", "rotary_pct")
    fixed: bool = False
    block: Block = field(default_factory=dict)
    mla: bool = False
    slice_of: tuple[str, ...] = ()
    blocks: Mapping[str, Block | None] = field(default_factory=dict)
    theta_keys: Mapping[str, str] = field(default_factory=dict)
    filled: bool = False
    scaled: tuple[str, ...] = ()
    scaled_block: Mapping[str, Block] = field(default_factory=dict)
    thetas_on_top: bool = False
    block_of: Mapping[str, str] = field(default_factory=dict)
    layer_types: tuple[str, ...] = ()
    nope: tuple[str, ...] = ()
    sliding_window: int | None = None
    windowed: bool = False
    window_key: str = "sliding_window"
    nope_needs_window: bool = False
    rope_needs_window: bool = False
    flags: str | None = None
    thetas: str | None = None
    fractions: str | None = None
    nope_from_last: int | None = None
    switch: tuple[str, Any, Any] | None = None
    mrope: Mrope | None = None
    mrope_section: tuple[int, ...] = ()
    backwards: bool = False
    learned: str | None = None
    head_dim_of: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    rotary_dim: int | None = None
    meanings: Mapping[str, tuple[str, str | None]] = field(default_factory=dict)
    axial: tuple[int, ...] = ()
    in_turn: bool = False
    one_ladder: bool = False
    axis_blocks: bool = False
    softmax_mscale: bool = False
    deepseek: bool = False
    resets_cache: bool = False
    query_scale: tuple[tuple[str, float], tuple[str, float]] | None = None
    width_key: str | None = None
    heads_key: str | None = None
    divisor_key: str | None = None
    whole_width: bool = False
    top_thetas: tuple[str, ...] = ("rope_theta",)
    projected: int | None = None
    gated: bool = False
    values_from_keys: tuple[str, bool] | None = None
    keys: tuple[str, ...] = ()
    theta_ratio: str | None = None
    holds: Mapping[str, Condition] = field(default_factory=dict)
    indexer: Indexer | None = None
    looked_up: str | None = None


HALF = Family(interleaved=False)
INTERLEAVED = Family(interleaved=True)
ALTERNATING = {"layer_types": ("sliding_attention", "full_attention"), "nope": ("full_attention",)}


class FamilyTable(dict[str, Family]):
    """Families by `model_type`."""

    def add(self, names: str, family: Family, **changes: Any) -> None:
        """Add a row for each of `names` (separated by blanks): `family` with some fields changed."""
        for name in names.split():
            assert name not in self, f"{name} is described twice"
            self[name] = replace(family, **changes)


def two_thetas(sliding: float, full: float, **full_block: Any) -> Mapping[str, Block]:
    """Return the default blocks of a family with different thetas in sliding and full layers."""
    return {"sliding_attention": {"rope_theta": sliding}, "full_attention": {"rope_theta": full, **full_block}}


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
    | {"rotary_pct", "rotary_dim", "rotary", "rotary_value", "qk_rope_head_dim", "qk_nope_head_dim"}
    | {"indexer_rope_interleave", "enable_temporal_pos_encoding_for_object_pointers"}
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
        read |= {"no_rope_layer_interval"} if family.flags else set()
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
