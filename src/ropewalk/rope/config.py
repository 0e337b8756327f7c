"""RopeConfig: one frozen, hashable description of what is rotated by how much, and the ropes of a whole model."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, Field, dataclass, field, fields, replace
from os import PathLike
from typing import Any

from ropewalk.errors import RopeError
from ropewalk.families import Trained
from ropewalk.rope import hugging_face
from ropewalk.rope.scaling import Ladder, Scaling
from ropewalk.rope.values import as_whole, is_number


def whole(name: str, value: object, cure: str) -> int:
    """A whole number, of whatever type."""
    found = as_whole(value)
    if found is None:
        raise RopeError(f"RopeConfig: `{name}` must be a whole number.", facts={name: value}, cure=cure)
    return found


def thetas(theta: Any) -> float | tuple[float, ...]:
    """One base, or one for each axis."""
    return tuple(map(_float, theta)) if isinstance(theta, (tuple, list)) else _float(theta)


def _float(theta: Any) -> float:
    if isinstance(theta, float):
        return float(theta)  # np.float64 is one, too
    try:
        if not isinstance(theta, str | bytes | bool):
            return float(theta)
    except (TypeError, ValueError, OverflowError):
        pass
    raise RopeError(
        "RopeConfig: `theta` must be a finite number above 1.", facts={"theta": theta}, cure="The paper's is 10000.0."
    )


def whole_axes(axes: Any) -> tuple[int, ...]:
    """The axis of each pair, as whole numbers."""
    found = [as_whole(axis) for axis in axes] if isinstance(axes, Iterable) else [None]
    if None in found:
        raise RopeError(
            "RopeConfig: `axes` must be whole numbers, one for each pair.",
            facts={"axes": axes},
            cure="axes_from_sections([...]) makes it from the number of pairs of each axis.",
        )
    return tuple(axis for axis in found if axis is not None)


def check_numbers(
    head_dim: int, rotary_dim: int, interleaved: object, theta: float | tuple[float, ...], length: int | None
) -> None:
    """Even sizes that fit into each other, thetas above 1, and a length of at least one token."""
    if head_dim < 2 or head_dim % 2:
        raise RopeError(
            "RopeConfig: `head_dim` must be even and at least 2: features turn in pairs.",
            facts={"head_dim": head_dim},
            cure="Pass the number of features of one head (hidden_size / num_attention_heads).",
        )
    if not 2 <= rotary_dim <= head_dim or rotary_dim % 2:
        raise RopeError(
            "RopeConfig: `rotary_dim` must be even, at least 2 and at most head_dim.",
            facts={"rotary_dim": rotary_dim, "head_dim": head_dim},
            cure="It counts the features that turn; leave it out to turn the whole head.",
        )
    if not isinstance(interleaved, bool):
        raise RopeError(
            "RopeConfig: `interleaved` must be True or False.",
            facts={"interleaved": interleaved},
            cure="True pairs (0,1), (2,3), ...; False pairs (i, i + rotary_dim/2).",
        )
    each = theta if isinstance(theta, tuple) else (theta,)
    if not all(math.isfinite(one) and one > 1 for one in each):
        raise RopeError(
            "RopeConfig: `theta` must be a finite number above 1.",
            facts={"theta": theta},
            cure="The paper's is 10000.0.",
        )
    if length is not None and length < 1:
        raise RopeError(
            "RopeConfig: `max_position_embeddings` must be at least 1 token.",
            facts={"max_position_embeddings": length},
            cure="Leave it out where it is not known.",
        )


def check_axes(axes: tuple[int, ...] | None, pairs: int, axes_restart: object) -> None:
    """An axis for each pair, without gaps."""
    if not isinstance(axes_restart, bool):
        raise RopeError(
            "RopeConfig: `axes_restart` must be True or False.",
            facts={"axes_restart": axes_restart},
            cure="False shares one ladder of frequencies among the axes (M-RoPE), True gives each its own.",
        )
    if axes is None:
        if axes_restart:
            raise RopeError(
                "RopeConfig: `axes_restart` says how several axes share frequencies, and there are no axes.",
                facts={"axes": None, "axes_restart": True},
                cure="Pass axes=axes_from_sections([...]), or leave axes_restart out.",
            )
    elif len(axes) != pairs or sorted(set(axes)) != list(range(max(axes, default=-1) + 1)):
        raise RopeError(
            "RopeConfig: `axes` names one axis for each pair, counted from 0 without gaps.",
            facts={"axes": axes, "pairs": pairs},
            cure="axes_from_sections([...]) makes it from the number of pairs of each axis.",
        )


def check_axis_values(
    theta: float | tuple[float, ...],
    axes: tuple[int, ...] | None,
    axes_restart: bool,
    axis_blocks: object,
    interleaved: bool,
) -> None:
    """One theta for each axis that has a ladder of its own, and blocks of features that each belong to one axis."""
    own = max(axes, default=0) + 1 if axes is not None and axes_restart else 1
    if isinstance(theta, tuple) and (not axes_restart or len(theta) != own):
        raise RopeError(
            "RopeConfig: several values of `theta` are one for each axis, where `axes_restart`.",
            facts={"theta": theta, "axes": axes, "axes_restart": axes_restart},
            cure="Pass one number, or axes=axes_from_sections([...]), axes_restart=True and a theta for each axis.",
        )
    if not isinstance(axis_blocks, bool):
        raise RopeError(
            "RopeConfig: `axis_blocks` must be True or False.",
            facts={"axis_blocks": axis_blocks},
            cure="True pairs half-split inside the features of each axis, False across all that turn.",
        )
    if axis_blocks and (interleaved or axes is None or list(axes) != sorted(axes)):
        raise RopeError(
            "RopeConfig: `axis_blocks` is for half-split pairs of several axes, the pairs of each in a row.",
            facts={"interleaved": interleaved, "axes": axes},
            cure="Neighbouring pairs (interleaved=True) lie in their axis's features anyway: leave it out there.",
        )


DEFAULT_THETA = 10_000.0
_LATER = {"later": True}  # a field that is not printed at its default, so that digests of older ropes stay


@dataclass(frozen=True, repr=False)
class RopeConfig:
    """What is rotated by how much: every published variant is one of these.

    - `head_dim`: features of one head, even.
    - `interleaved`: True pairs features (0,1), (2,3), ... as the paper, GPT-J and Meta's Llama do; False pairs
      (i, i + rotary_dim/2) as GPT-NeoX and Hugging Face's Llama do. Never guessed.
    - `theta`: the base; pair i turns by theta^(-2i/rotary_dim) radians per token. With `axes_restart` also a tuple:
      one for each axis.
    - `rotary_dim`: how many leading features turn (the others pass through); None is head_dim.
    - `scaling`: a rule of `ropewalk.scaling`, or None; `PerAxis` holds one for each axis.
    - `max_position_embeddings`: tokens, as the checkpoint's config says.
    - `axes`: for each pair, the axis that it follows; None is one axis. See `axes_from_sections`.
    - `axes_restart`: False shares one ladder of frequencies among the axes (M-RoPE); True gives each axis its own, from
      the fastest (axial 2D and 3D).
    - `axis_blocks`: half-split inside each axis's own block of features, instead of across all that turn: an axis of n
      pairs owns 2n features in a row, and pairs (i, i + n) of them.
    - `inv_freq`: the inverse frequency of each pair itself, radians per token, in place of theta and scaling; 0 stands
      still, below 0 turns the other way.
    - `trained`: what is known of the training of a published model: whether with `scaling`, and to which length. It
      turns nothing, so two configs that differ in it alone are equal.

    Raises `RopeError` where the numbers do not fit. Source: Su et al. 2021, arXiv:2104.09864, section 3.2.

    >>> RopeConfig(head_dim=128, interleaved=False, theta=500_000.0).pairs
    64
    """

    head_dim: int
    _: KW_ONLY
    interleaved: bool
    theta: float | tuple[float, ...] = DEFAULT_THETA
    rotary_dim: int | None = None
    scaling: Scaling | None = None
    max_position_embeddings: int | None = None
    axes: tuple[int, ...] | None = None
    axes_restart: bool = False
    axis_blocks: bool = field(default=False, metadata=_LATER)
    inv_freq: tuple[float, ...] | None = field(default=None, metadata=_LATER)
    trained: Trained | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        cure = "Divide with //: hidden_size // num_attention_heads."
        head_dim = whole("head_dim", self.head_dim, cure)
        rotary_dim = head_dim if self.rotary_dim is None else whole("rotary_dim", self.rotary_dim, cure)
        object.__setattr__(self, "head_dim", head_dim)
        object.__setattr__(self, "rotary_dim", rotary_dim)
        if self.max_position_embeddings is not None:
            length = whole("max_position_embeddings", self.max_position_embeddings, "Give the length in tokens.")
            object.__setattr__(self, "max_position_embeddings", length)
        object.__setattr__(self, "theta", thetas(self.theta))
        if self.axes is not None:
            object.__setattr__(self, "axes", whole_axes(self.axes))
        check_numbers(head_dim, rotary_dim, self.interleaved, self.theta, self.max_position_embeddings)
        check_axes(self.axes, self.pairs, self.axes_restart)
        check_axis_values(self.theta, self.axes, self.axes_restart, self.axis_blocks, self.interleaved)
        self._check_scaling(rotary_dim)
        if self.inv_freq is not None:
            object.__setattr__(self, "inv_freq", self._explicit(self.inv_freq))

    def __repr__(self) -> str:
        shown = [one for one in fields(self) if one.repr]
        values = {one.name: getattr(self, one.name) for one in shown if self._is_shown(one)}
        return f"RopeConfig({', '.join(f'{name}={value!r}' for name, value in values.items())})"

    def _is_shown(self, one: Field[Any]) -> bool:
        """Every field but a later one at its default."""
        return "later" not in one.metadata or getattr(self, one.name) != one.default

    def _explicit(self, inv_freq: Any) -> tuple[float, ...]:
        """The given frequencies as floats, once nothing else of the config would set them."""
        given = tuple(inv_freq) if isinstance(inv_freq, Iterable) else ()
        if len(given) != self.pairs or not all(map(is_number, given)):
            raise RopeError(
                "RopeConfig: `inv_freq` needs one finite number for each pair.",
                facts={"inv_freq": inv_freq, "pairs": self.pairs},
                cure="Give radians per token; of a tensor, inv_freq.tolist().",
            )
        if self.theta != DEFAULT_THETA or self.scaling is not None or self.axes_restart:
            raise RopeError(
                "RopeConfig: `inv_freq` takes the place of `theta`, `scaling` and `axes_restart`.",
                facts={"theta": self.theta, "scaling": self.scaling, "axes_restart": self.axes_restart},
                cure="Leave those out, or `inv_freq`.",
            )
        return tuple(map(float, given))

    def _check_scaling(self, rotary_dim: int) -> None:
        rule = self.scaling
        if rule is None:
            return
        if not isinstance(rule, Scaling):
            raise RopeError(
                "RopeConfig: `scaling` must be a rule of ropewalk.scaling, or None.",
                facts={"scaling": rule},
                cure="For a Hugging Face dict use RopeConfig.from_hf(config).",
            )
        rule.check(head_dim=self.head_dim, rotary_dim=rotary_dim, max_position_embeddings=self.max_position_embeddings)
        rule.check_axes(self.num_axes if self.axes_restart else None)

    @property
    def pairs(self) -> int:
        """How many feature pairs turn: rotary_dim / 2."""
        return (self.rotary_dim or self.head_dim) // 2

    @property
    def _thetas(self) -> tuple[float, ...]:
        return self.theta if isinstance(self.theta, tuple) else (self.theta,)

    @property
    def num_axes(self) -> int:
        """How many coordinates a position has."""
        return 1 if self.axes is None else max(self.axes) + 1

    @property
    def needs_seq_len(self) -> bool:
        """Whether the frequencies depend on the sequence length (dynamic NTK, LongRoPE)."""
        return self.scaling is not None and self.scaling.needs_seq_len

    @property
    def can_be_extended(self) -> bool:
        """Whether another scaling rule may take the place of this one.

        Not where pairs stand still, and not where the frequencies are given or differ by axis.
        """
        if self.inv_freq is not None or isinstance(self.theta, tuple):
            return False
        return self.scaling is None or self.scaling.can_be_extended

    @property
    def switch_length(self) -> int | None:
        """The length in tokens beyond which a second set of frequencies applies (LongRoPE); else None."""
        return None if self.scaling is None else self.scaling.switch_length

    @property
    def original_length(self) -> int | None:
        """The context length before any scaling, in tokens, or None where the config does not say."""
        stated = self.scaling.original_length if self.scaling is not None else None
        return stated if stated is not None else self.max_position_embeddings

    @property
    def scaling_is_trained(self) -> bool | None:
        """Whether the model was trained with its length scaling; None where that is not known, or there is none.

        True: the scaling belongs to the model. False: it is an option for inference.
        """
        if self.scaling is None or self.unscaled() == self:
            return None
        return None if self.trained is None else self.trained.with_scaling

    @property
    def trained_length(self) -> int | None:
        """Tokens that the model was trained to, or None where the config does not say.

        With a scaling that it was trained with, the length that the config states; else the one before the scaling.
        Where published training differs from the config's number, `trained` has the length.
        """
        if self.trained is not None and self.trained.length is not None:
            return self.trained.length
        return self.scaled_length if self.scaling_is_trained else self.original_length

    @property
    def scaled_length(self) -> int | None:
        """Tokens that the config promises under its scaling, or None where it does not say.

        `max_position_embeddings`, unless that is the length before the scaling: then how far the rule is meant to go.
        """
        longest, original = self.max_position_embeddings, self.original_length
        if self.scaling is not None and (longest is None or longest == original):
            return self.scaling.target_length(longest) or longest
        return longest

    @property
    def ladders(self) -> tuple[Ladder, ...]:
        """The unscaled frequency ladders: one shared by all axes, or one for each axis if `axes_restart`.

        Raises `RopeError` where the frequencies are given as `inv_freq`: those are no ladder.
        """
        dim, limit = self.pairs * 2, self.max_position_embeddings
        if self.inv_freq is not None:
            raise RopeError(
                "RopeConfig: explicit frequencies follow no theta.",
                facts={"inv_freq": self.inv_freq},
                cure="inverse_frequencies(config) gives the numbers.",
            )
        if self.axes is None or not self.axes_restart:
            return (Ladder(self._thetas[0], dim, tuple(range(self.pairs)), limit),)
        of_axis = [tuple(p for p, a in enumerate(self.axes) if a == axis) for axis in range(self.num_axes)]
        thetas = self._thetas * (self.num_axes if len(self._thetas) == 1 else 1)
        return tuple(
            Ladder(theta, 2 * len(columns), columns, limit, axis=axis)
            for axis, (theta, columns) in enumerate(zip(thetas, of_axis, strict=True))
        )

    @property
    def blocks(self) -> tuple[int, ...]:
        """The pairs of each block of features that is half-split by itself; () where all that turn are one block."""
        if not self.axis_blocks or self.axes is None:
            return ()
        return tuple(self.axes.count(axis) for axis in range(self.num_axes))

    def longest_at(self, seq_len: int) -> int | float:
        """The most tokens that the frequencies of `seq_len` are right for: infinite where length does not matter.

        Dynamic NTK: `seq_len`, or the trained length if that is more. LongRoPE: the original length on the short side,
        no bound on the long side.
        """
        return math.inf if self.scaling is None else self.scaling.longest_at(seq_len, self.max_position_embeddings)

    def unscaled(self) -> RopeConfig:
        """The rope as it was before any length scaling; a proportional rope keeps its unrotated pairs."""
        return self if self.scaling is None else replace(self, scaling=self.scaling.unscaled())

    def as_trained(self) -> RopeConfig:
        """The rope that the weights know: with its scaling where the model was trained with it, else without.

        A scaling of which that is not known is taken away; so is one that was put on top of the model's own.
        """
        own = None if self.scaling is None else self.scaling.trained_part
        if own is not None:
            return replace(self, scaling=own, trained=Trained(True, self.trained_length))
        return self if self.scaling_is_trained else self.unscaled()

    @classmethod
    def from_hf(
        cls, config: str | PathLike[str] | Mapping[str, Any] | Any, *, layer_type: str | None = None
    ) -> RopeConfig:
        """Read a Hugging Face config: the path of a config.json or its folder, a dict, or a transformers config object.

        - `config`: of a composite (multimodal) config the text part is read; for a vision tower pass its
          `vision_config`, as it was released or with the model_type that transformers 5 writes there, such as
          "qwen2_vl_vision".
        - `layer_type`: chooses among the layer types of a model that rotates them differently, for example
          "sliding_attention".

        Every `rope_type`, in the old spelling (`rope_scaling`, `rope_theta`) and the new (`rope_parameters`). Pairing
        follows `model_type` as in transformers; with `"rope_interleave": true` or `false` in the config it may be any.
        For multi-head latent attention (DeepSeek) the result describes the slice of qk_rope_head_dim features.
        Positions of a vision tower are (row, column), as `grid_positions` makes them, whichever its class takes first;
        Gemma 4's turns each half of a head as a head of its own, and the result describes one half.
        Raises `RopeError` for anything unknown, missing or impossible, and for a layer without rotation. What acts
        in attention and not in the rotation (DeepSeek's softmax mscale, Ministral's llama_4_scaling_beta), and that
        CLVP turns values too, is not described.
        Source: transformers 5.23, `modeling_rope_utils` and each model's own class.

        >>> rope = RopeConfig.from_hf({"model_type": "gptj", "n_embd": 4096, "n_head": 16, "rotary_dim": 64})
        >>> rope.head_dim, rope.rotary_dim, rope.interleaved
        (256, 64, True)
        """
        return cls(**hugging_face.read(config, layer_type=layer_type))

    def to_hf(self) -> dict[str, Any]:
        """The `rope_parameters` block (transformers 5 spelling) of a Hugging Face config that says the same.

        The block holds theta, the scaling rule, `partial_rotary_factor` where only a part turns, and `mrope_section`
        with `mrope_interleaved` where several axes share a ladder. Pairing, head_dim and max_position_embeddings have
        other places in a config.json, so the way back is `from_hf({**base_config, "rope_parameters": block})`; for a
        model with several thetas the block goes under its layer type. NTK, ABF, Resonance, the paper's YaRN and its
        dynamic NTK have no name in transformers: they become the block that computes the same frequencies there.
        Raises `RopeError` for what no block can say, such as `inv_freq`, or a theta or scaling for each axis.

        >>> RopeConfig(head_dim=128, interleaved=False, theta=1e6, rotary_dim=64).to_hf()
        {'rope_type': 'default', 'rope_theta': 1000000.0, 'partial_rotary_factor': 0.5}
        """
        if self.inv_freq is not None or isinstance(self.theta, tuple):
            raise RopeError(
                "to_hf: transformers has no block for explicit frequencies, nor for a theta of each axis.",
                facts={"inv_freq": self.inv_freq, "theta": self.theta},
                cure="Save the model in ropewalk's own form, whose config holds every field.",
            )
        return hugging_face.write(
            scaling=self.scaling,
            ladder=self.ladders[0],
            head_dim=self.head_dim,
            rotary_dim=2 * self.pairs,
            axes=self.axes,
            axes_restart=self.axes_restart,
        )


def ropes_of_layer_types(
    config: str | PathLike[str] | Mapping[str, Any] | Any,
) -> dict[str | None, RopeConfig | None]:
    """The rope of each layer type of a Hugging Face config, None for one without rotation (NoPE).

    `config` is what `RopeConfig.from_hf` takes. Where all layers rotate alike the only key is None. Raises `RopeError`
    as `from_hf` does, but for a missing `layer_type`, and for a model without any rotation.

    >>> gemma = {"model_type": "gemma3_text", "hidden_size": 2560, "num_attention_heads": 8}
    >>> {label: rope.theta for label, rope in ropes_of_layer_types(gemma).items()}
    {'sliding_attention': 10000.0, 'full_attention': 1000000.0}
    >>> ropes_of_layer_types({"model_type": "cohere2", "hidden_size": 512, "num_attention_heads": 4})["full_attention"]
    """
    read = hugging_face.read_layer_types(config)
    ropes = {label: None if fields is None else RopeConfig(**fields) for label, fields in read.items()}
    if len(set(ropes.values())) == 1 and None not in ropes.values():
        return {None: next(iter(ropes.values()))}
    return ropes


def ropes_by_block(
    config: str | PathLike[str] | Mapping[str, Any] | Any,
) -> tuple[dict[str | None, RopeConfig | None], bool]:
    """As `ropes_of_layer_types`, and whether the config has a block for each layer type; equal ones stay apart then.

    >>> ropes_by_block({"model_type": "olmo3", "hidden_size": 512, "num_attention_heads": 4})[1]
    True
    """
    read, nested = hugging_face.read_layer_types(config), hugging_face.is_nested(config)
    ropes = {label: None if fields is None else RopeConfig(**fields) for label, fields in read.items()}
    return (ropes, True) if nested and None not in ropes else (ropes_of_layer_types(config), False)
