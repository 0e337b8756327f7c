"""The record of a model family: facts about its classes that no config.json states, as plain data."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Mrope = Literal["contiguous", "interleaved", "ernie", "alternating"]
Block = Mapping[str, Any]
Fields = dict[str, Any]


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
class Module:
    """What the modules of a class contain, and what its attention and `generate` do, apart from the rope.

    Weights:
    - `looked_up`: path, inside its module, of a tensor `[positions, rotary_dim]` with the sines and then the cosines of
      every position, in classes without a rotary module.
    - `learned`: the name of the rotary module's tensor of alphas, if each frequency has a learned factor exp(alpha).
    - `gated`: in `q_proj` the rows of each head's queries are followed by those of its output gate.
    - `values_from_keys`: key of a flag, and its default: in some layers the keys' projection computes values, too.
    - `converts`: False if the pairing of its weights cannot be converted: values, all heads or blocks of one rotate.

    Attention:
    - `sliding_window`: default of the window, tokens. `window_key`: its key. `windowed`: if it is set, every layer has
      the window; else only layers of windowed types.
    - `softmax_mscale`: the class also multiplies its softmax scale by the square of 0.1 mscale_all_dim ln(factor) + 1.
    - `query_scale`: keys, with defaults, of a slope a and a length n if queries are multiplied by
      1 + a ln(1 + floor(position / n)): in layers that do not rotate if the family has `nope`, else in all.
    - `block_keys`: further keys that its rope block may contain; they act in attention, not on the rotation.
    - `indexer`: the rotation in the indexer of its sparse attention; None: no indexer, or one that is not described.

    Programs:
    - `deepseek`: vLLM and SGLang run the family with their DeepSeek classes, whatever its own class is.
    - `resets_cache`: its `generate` recomputes the cache where LongRoPE changes its list of factors.
    """

    looked_up: str | None = None
    learned: str | None = None
    gated: bool = False
    values_from_keys: tuple[str, bool] | None = None
    converts: bool = True
    sliding_window: int | None = None
    window_key: str = "sliding_window"
    windowed: bool = False
    softmax_mscale: bool = False
    query_scale: tuple[tuple[str, float], tuple[str, float]] | None = None
    block_keys: tuple[str, ...] = ()
    indexer: Indexer | None = None
    deepseek: bool = False
    resets_cache: bool = False


@dataclass(frozen=True)
class Family:
    """The treatment of rotary settings by a model class.

    Pairing and sizes:
    - `interleaved`: as in `RopeConfig`. `reads_flag`: `rope_interleave` chooses.
    - `head_dim`: default; None is hidden_size / num_attention_heads. `head_dim_of`: for a layer type, the key of its
      own head_dim and that key's default.
    - `defaults`: default of other keys: sizes from which head_dim is derived, lengths in tokens, `mrope_section`, and
      `rotary_dim` if the class reads no other key of it. An `original_max_position_embeddings` outside the rope block
      takes precedence over the one inside.
    - `mla`: multi-head latent attention: we describe the slice of `qk_rope_head_dim` features that rotates. `slice_of`:
      the slice is a fraction of the sum of these keys.

    Rotated fraction:
    - `partial`: the default of the rotated fraction; None: the class rotates the whole head and ignores fractions.
      `fraction_keys`: keys of the fraction that the class reads, or `rotary_dim`.

    Frequencies:
    - `theta`, `block`: defaults of released configs, which leave out values equal to the class's.
    - `top_thetas`: keys outside the block that theta depends on.
    - `fixed`: the class reads no block, only `top_thetas`; a config that states a different rule or theta raises.
    - `meanings`: for a `rope_type` with a different meaning here, the `rope_type` of the actual rule and the key of the
      block that decides (None: always). Phi-3's first configs wrote "yarn" for LongRoPE; HunYuan's `dynamic` with
      `alpha` is NTK-aware scaling.

    Layer types:
    - `blocks`: default block of each layer type, for families with several; None is a layer without rotation.
      `block_of`: for a layer type the name of its block, if different. `theta_keys`: older top-level key of each theta.
    - `scaled`: layer types that a flat `rope_scaling` applies to.
    - `layer_types`: all layer types of a family with one block. `nope`: those that do not rotate. `without_window`: if
      `sliding_window` is null, "rotate": they do; "still": no layer does. `flags`: key of a list with 1 for each layer
      that rotates and 0 for others; it takes precedence. Without the list every n-th layer, by
      `no_rope_layer_interval` or 4, does not rotate.
    - `lists`: keys of lists with a number for each layer, and the key of the block that it is: theta (0: no rotation),
      or the rotated fraction.
    - `switch`: key that enables rotation for the whole model, the value that enables it, the key's default.

    Axes:
    - `mrope`: order of the axes (time, height, width) over the pairs. "alternating": pairs alternate between row and
      column, without sections.
    - `axial`: for a vision tower, the axis of each share of the pairs, in their order (0, 1: row, column; for video
      0, 1, 2: frame, row, column), each with its own ladder.

    Other:
    - `holds`: conditions on the config's keys; all must be true.
    - `module`: what its modules do apart from the rope.
    - `adjust`, `finish`: what only one family reads or computes differently; see families/adjustments.py.
    """

    interleaved: bool
    reads_flag: bool = False
    head_dim: int | None = None
    head_dim_of: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    mla: bool = False
    slice_of: tuple[str, ...] = ()
    partial: float | None = None
    fraction_keys: tuple[str, ...] = ("partial_rotary_factor", "rotary_pct")
    theta: float = 10_000.0
    block: Block = field(default_factory=dict)
    top_thetas: tuple[str, ...] = ("rope_theta",)
    fixed: bool = False
    meanings: Mapping[str, tuple[str, str | None]] = field(default_factory=dict)
    blocks: Mapping[str, Block | None] = field(default_factory=dict)
    block_of: Mapping[str, str] = field(default_factory=dict)
    theta_keys: Mapping[str, str] = field(default_factory=dict)
    scaled: tuple[str, ...] = ()
    layer_types: tuple[str, ...] = ()
    nope: tuple[str, ...] = ()
    without_window: Literal["rotate", "still"] | None = None
    flags: str | None = None
    lists: Mapping[str, str] = field(default_factory=dict)
    switch: tuple[str, Any, Any] | None = None
    mrope: Mrope | None = None
    axial: tuple[int, ...] = ()
    holds: Mapping[str, Condition] = field(default_factory=dict)
    module: Module = field(default_factory=Module)
    adjust: Callable[[Fields, str], Fields] | None = None
    finish: Callable[[Fields], Fields] | None = None


_OF_MODULE = {each.name for each in dataclasses.fields(Module)}


def variant(family: Family, **changes: Any) -> Family:
    """Return a family with some fields changed, of itself or of its module."""
    module = dataclasses.replace(family.module, **{name: changes.pop(name) for name in _OF_MODULE & set(changes)})
    return dataclasses.replace(family, module=module, **changes)


HALF = Family(interleaved=False)
INTERLEAVED = Family(interleaved=True)
ALTERNATING = {"layer_types": ("sliding_attention", "full_attention"), "nope": ("full_attention",)}


class FamilyTable(dict[str, Family]):
    """Families by `model_type`."""

    def add(self, names: str, family: Family, **changes: Any) -> None:
        """Add a row for each of `names` (separated by blanks): `family` with some fields changed."""
        for name in names.split():
            assert name not in self, f"{name} is described twice"
            self[name] = variant(family, **changes)


def two_thetas(sliding: float, full: float, **full_block: Any) -> Mapping[str, Block]:
    """Return the default blocks of a family with different thetas in sliding and full layers."""
    return {"sliding_attention": {"rope_theta": sliding}, "full_attention": {"rope_theta": full, **full_block}}


def partial_types(**types: tuple[float, float]) -> Mapping[str, Block]:
    """Return the default blocks of a family from the theta and the rotated fraction of each layer type."""
    return {label: {"rope_theta": theta, "partial_rotary_factor": share} for label, (theta, share) in types.items()}


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
_OFF: tuple[Any, ...] = (None, False, 0, "", [], {}, "rope", "rotary", "rotary_embedding", "absolute")


def unread_keys(fields: Mapping[str, Any], family: Family | None) -> dict[str, Any]:
    """Return the unused top-level keys that look like position settings, without those that are off.

    >>> from ropewalk.families import FAMILIES
    >>> unread_keys({"rope_theta": 1e4, "use_fope": True, "rope_delta": 0}, FAMILIES["llama"])
    {'use_fope': True}
    """
    read = _READ
    if family is not None:
        read = read.union(family.top_thetas, family.theta_keys.values(), family.holds, family.module.block_keys)
        read = read.union(family.lists, (family.switch or ())[:1], dict(family.head_dim_of.values()))
        read = read.union((family.flags, "no_rope_layer_interval") if family.flags else ())
    unread = {}
    for key, value in fields.items():
        if (key in MEANINGS or _LOOKS.search(key)) and not (key in read or value in _OFF):
            layers = list(range(len(value))) if isinstance(value, list) else None
            if value != layers or len(value) != fields.get("num_hidden_layers"):  # a list of all layers is off, too
                unread[key] = value
    return unread


def described(keys: Mapping[str, Any]) -> str:
    """Return the keys in words, with the meaning of known ones.

    >>> described({"rope_delta": 4})
    '`rope_delta` (4)'
    """
    return ", ".join(f"`{key}` ({MEANINGS.get(key, value)})" for key, value in keys.items())
