"""What a model family is: facts about its classes, which no config.json states, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

Mrope = Literal["contiguous", "interleaved", "ernie", "alternating"]
Windows = Literal["none", "all", "by layer type"]
Block = Mapping[str, Any]


@dataclass(frozen=True)
class Condition:
    """For which values of a key a family's description is true (None where the key is absent), and why not for others.

    - `values`: these alone, by type and value. `rope_types`: an absent block, or one that names one of these rules.
    - `without`: a text that the value must not contain, in any case.
    """

    why_not: str
    values: tuple[Any, ...] | None = None
    rope_types: tuple[str, ...] | None = None
    without: str | None = None

    def holds(self, value: Any) -> bool:
        """Whether the description is true of a config with this value."""
        if self.values is not None:
            return any(type(value) is type(allowed) and value == allowed for allowed in self.values)
        if self.rope_types is not None:
            rule = value.get("rope_type", value.get("type")) if isinstance(value, Mapping) else None
            return rule is None or rule in self.rope_types
        return self.without is None or self.without not in str(value).lower()


@dataclass(frozen=True)
class DecoderShape:
    """What our decoder needs to know of a family that it can express.

    - `architecture`: the causal model's class. `defaults`: the values that stand where a config.json is silent.
    - `qkv_bias`: of q, k and v; None: as `attention_bias` says, and then of the output projection too.
    - `mlp_bias`: the class reads that key. `qk_norm`: queries and keys are normalised before they turn.
    - `windows`: which layers see no further than `sliding_window`.
    """

    architecture: str
    defaults: Mapping[str, Any]
    qkv_bias: bool | None = None
    qk_norm: bool = False
    mlp_bias: bool = False
    windows: Windows = "none"


@dataclass(frozen=True)
class Family:
    """What a model class does with its rotary settings.

    - `interleaved`: pairs are (0,1), (2,3), ...; False: (i, i + rotary_dim/2). `reads_flag`: `rope_interleave` chooses.
    - `partial`: None rotates the whole head whatever the config says; a number is the fraction where neither the
      config nor `block` states one; `scaled_partial` is that fraction where the block names a scaling rule, if it
      differs.
    - `theta`, `head_dim`, `max_position_embeddings`, `block`: used where the config is silent, as released ones are on
      what equals the class default. `head_dim` None: hidden_size / num_attention_heads.
    - `mla`: multi-head latent attention: only a slice of `qk_rope_head_dim` features turns, and it is what we describe.
    - `blocks`: for each layer type its default block, for families with several; a block of None is a layer without
      rotation. `theta_keys`: the older top-level spelling of each theta. `scaled`: where a flat `rope_scaling` belongs,
      and `scaled_block`: for a `rope_type` what it then holds where it is silent; `thetas_on_top`: a theta in it is not
      read. `block_of`: for a layer type the name of its block, where that is another word.
    - `nope`: of a family with one block for all layers the layer types that do not rotate; `layer_types`: all that it
      has. `nope_needs_window`: where `sliding_window` is null they rotate after all. `rope_needs_window`: where it is
      null no layer rotates. `flags`: a list of the config that says of each layer whether it rotates (1) or not (0),
      where it is there.
    - `window_key`: the key of the tokens that windowed layers see, and `sliding_window` its default. `windowed`: where
      it is set, every layer is one; else only those whose type says so.
    - `thetas`, `fractions`: keys that may hold a list with one theta for each layer (0: it does not rotate), and one
      turned fraction. `nope_from_last`: without such a list every so many-th layer, counted back from the last, does
      not rotate, and `nope` are its types.
    - `switch`: the key that turns rotation on or off for the whole model, the value that turns it on, the default.
    - `mrope`, `mrope_section`: how pairs follow the axes (temporal, height, width), and the default sections;
      "alternating": pairs follow row and column in turn, and there are no sections.
    - `backwards`: it turns by minus the angle.
    - `head_dim_of`: for a layer type, the key of its own head_dim and that key's default.
    - `head_width`: head_dim is this many times hidden_size / num_attention_heads (Zamba2 attends over two streams).
      `sizes`: the class's defaults of those two.
    - `head_dim_keys`, `fraction_keys`: the keys of head_dim, and of the turned fraction, that the class reads.
    - `fixed`: the class reads no block and no theta: a config that states another is refused.
    - `rotary_dim`: the class reads `rotary_dim` alone, and this is its default (GPT-J).
    - `meanings`: for a `rope_type` that means another rule here, the `rope_type` of that rule and the key of the block
      that makes it so (None: always). Phi-3's first configs wrote "yarn" for LongRoPE; HunYuan's `dynamic` with `alpha`
      is NTK-aware scaling.
    - `axial`: of a vision tower the axis that each share of the pairs follows, in their order (0, 1: row, column; for
      video 0, 1, 2: frame, row, column), each with its own ladder. `in_turn`: pairs follow them in turn, where else
      each has a block of pairs. `one_ladder`: they share one ladder, whose frequencies they take in turn. `halves`:
      each axis turns a part of the head as a head of its own, and such a part is what we describe.
    - `width_key`, `heads_key`, `divisor_key`: keys of hidden_size, of the number of heads, and of what the width is
      divided by, where they have other names; `whole_width`: what turns is the whole width, before it becomes heads.
    - `theta_key`: another name of theta. `projected`: the class turns projection_dim / (2 num_attention_heads)
      features, and at least so many.
    - `keys`: further keys that its block may hold; they act in attention, not on the rotation.
    - `theta_ratio`: a key whose number multiplies theta.
    - `holds`: for a key of the config, when all this is true.
    - `looked_up`: the class keeps no rotary module but a tensor with the sines, then the cosines, of every position,
      `[positions, rotary_dim]`; this is its path from the module that holds it.
    - `decoder`: what our decoder needs to know; None where it cannot express the family.
    """

    interleaved: bool
    reads_flag: bool = False
    partial: float | None = None
    scaled_partial: float | None = None
    theta: float = 10_000.0
    head_dim: int | None = None
    max_position_embeddings: int | None = None
    head_width: int = 1
    sizes: Mapping[str, int] = field(default_factory=dict)
    head_dim_keys: tuple[str, ...] = ("head_dim", "attention_head_dim", "kv_channels")
    fraction_keys: tuple[str, ...] = ("partial_rotary_factor", "rotary_pct")
    fixed: bool = False
    block: Block = field(default_factory=dict)
    mla: bool = False
    blocks: Mapping[str, Block | None] = field(default_factory=dict)
    theta_keys: Mapping[str, str] = field(default_factory=dict)
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
    head_dim_of: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    rotary_dim: int | None = None
    meanings: Mapping[str, tuple[str, str | None]] = field(default_factory=dict)
    axial: tuple[int, ...] = ()
    in_turn: bool = False
    one_ladder: bool = False
    halves: bool = False
    width_key: str | None = None
    heads_key: str | None = None
    divisor_key: str | None = None
    whole_width: bool = False
    theta_key: str | None = None
    projected: int | None = None
    keys: tuple[str, ...] = ()
    theta_ratio: str | None = None
    holds: Mapping[str, Condition] = field(default_factory=dict)
    looked_up: str | None = None
    decoder: DecoderShape | None = None


HALF = Family(interleaved=False)
INTERLEAVED = Family(interleaved=True)
ALTERNATING = {"layer_types": ("sliding_attention", "full_attention"), "nope": ("full_attention",)}


class FamilyTable(dict[str, Family]):
    """Families by `model_type`."""

    def add(self, names: str, family: Family, **changes: Any) -> None:
        """One row for each of `names` (separated by blanks): `family` with some fields changed."""
        for name in names.split():
            assert name not in self, f"{name} is described twice"
            self[name] = replace(family, **changes)


def two_thetas(sliding: float, full: float, **full_block: Any) -> Mapping[str, Block]:
    """Default blocks of a family whose sliding and full layers differ in theta."""
    return {"sliding_attention": {"rope_theta": sliding}, "full_attention": {"rope_theta": full, **full_block}}
