"""RopeConfig, the frozen, hashable description of a rotation."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, MISSING, dataclass, field, fields, replace
from functools import lru_cache
from hashlib import blake2b
from os import PathLike
from typing import Any

import torch
from torch import Tensor

from ropewalk.compiled import is_compiling
from ropewalk.errors import RopeError, check_kind
from ropewalk.families import Trained
from ropewalk.rope import hugging_face
from ropewalk.rope.axes import sections_of
from ropewalk.rope.scaling import RULES, Ladder, Scaling
from ropewalk.rope.values import MOST_FACTOR, MOST_SIZE, as_tuple, as_whole, check_whole, is_number

DEFAULT_THETA = 10_000.0
_LATER = {"later": True}  # marks fields that are not printed at their default, so that digests of older ropes stay
_AXES_CURE = "axes_from_sections([...]) builds it from the number of pairs of each axis."


def _whole(name: str, value: object, cure: str) -> int:
    number = as_whole(value)
    if number is None:
        raise RopeError(f"RopeConfig: `{name}` must be a whole number.", facts={name: value}, cure=cure)
    return number


def _base(theta: Any) -> float:
    """Return a base as a float; np.float64 becomes a Python float."""
    try:
        base = math.nan if isinstance(theta, str | bytes | bool) else float(theta)
    except (TypeError, ValueError, OverflowError):
        base = math.nan
    if not 1 < base <= MOST_FACTOR:
        rule = f"RopeConfig: `theta` must be a number above 1, at most {MOST_FACTOR:g}."
        raise RopeError(rule, facts={"theta": theta}, cure="The paper's is 10000.0.")
    return base


def _check_fields(rope: RopeConfig, head_dim: int, rotary_dim: int) -> None:
    """Check that sizes are even and fit, and that pairing and the axis of each pair and block are stated."""
    interleaved: object = rope.interleaved
    if not 2 <= head_dim <= MOST_SIZE or head_dim % 2:
        raise RopeError(
            f"RopeConfig: `head_dim` must be even and from 2 to {MOST_SIZE:,}: features rotate in pairs.",
            facts={"head_dim": head_dim},
            cure="Pass the number of features of one head (hidden_size / num_attention_heads).",
        )
    if not 2 <= rotary_dim <= head_dim or rotary_dim % 2:
        raise RopeError(
            "RopeConfig: `rotary_dim` must be even, at least 2 and at most head_dim.",
            facts={"rotary_dim": rotary_dim, "head_dim": head_dim},
            cure="Pass the number of rotated features, or omit it to rotate the whole head.",
        )
    if not isinstance(interleaved, bool):
        raise RopeError(
            "RopeConfig: `interleaved` must be True or False: models pair features in two ways.",
            facts={"interleaved": interleaved},
            cure="False pairs (i, i + rotary_dim/2): GPT-NeoX, Hugging Face's Llama. True pairs (0,1), (2,3), ...: "
            "Meta's Llama, GPT-J, the paper.",
        )

    axes = rope.axes
    restart: Any = rope.axes_restart
    by_block: Any = rope.axis_blocks
    cure = "False: all axes share one ladder of frequencies (M-RoPE). True: each has its own."
    if not isinstance(restart, bool):
        check_kind("RopeConfig", bool, cure, axes_restart=restart)
    if axes is None and restart:
        raise RopeError(
            "RopeConfig: `axes_restart` needs several axes.",
            facts={"axes": None, "axes_restart": True},
            cure="Pass axes=axes_from_sections([...]), or leave axes_restart out.",
        )
    if axes is not None and (len(axes) != rope.pairs or {*axes} != {*range(max(axes) + 1)}):
        raise RopeError(
            "RopeConfig: `axes` needs one axis for each pair, numbered from 0 without gaps.",
            facts={"axes": axes, "pairs": rope.pairs},
            cure=_AXES_CURE,
        )
    cure = "True pairs half-split inside the features of each axis, False across all rotated features."
    if not isinstance(by_block, bool):
        check_kind("RopeConfig", bool, cure, axis_blocks=by_block)
    in_a_row = axes is not None and len(list(itertools.groupby(axes))) == len(set(axes))
    if by_block and (rope.interleaved or not in_a_row):
        raise RopeError(
            "RopeConfig: `axis_blocks` needs half-split pairs of several axes, with the pairs of each axis in a row.",
            facts={"interleaved": rope.interleaved, "axes": axes},
            cure="Omit it: interleaved pairs lie inside their axis's features anyway.",
        )


def _named_rule(rule: object) -> str:
    """Return the cure for a rule's name or class in the place of a rule; "" for anything else."""
    name = rule.__name__ if isinstance(rule, type) else rule
    for known, kind in RULES.items():
        if isinstance(name, str) and name.lower() in (known.lower(), kind.rope_type, *kind.hf_names):
            required = [f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING]  # type: ignore[arg-type]
            return f"Pass rw.scaling.{known}({', '.join([*required, '...'])})."
    return ""


@dataclass(frozen=True, repr=False)
class RopeConfig:
    """The frequencies and the pairing of a rotation, for every published variant.

    **Arguments:**
    - `head_dim`: features of one head, even.
    - `interleaved`: True pairs features (0,1), (2,3), ... as in the paper, GPT-J and Meta's Llama. False pairs
      (i, i + rotary_dim/2) as in GPT-NeoX and Hugging Face's Llama. Never guessed.
    - `theta`: the base; pair i rotates by theta^(-2i/rotary_dim) radians per token.
    - `rotary_dim`: number of leading features that rotate (the others pass through); None is head_dim.
    - `scaling`: a rule of `ropewalk.scaling`, or None.
    - `max_position_embeddings`: tokens, from the checkpoint's config.
    - `axes`: axis of each pair; None is one axis. See `axes_from_sections`.
    - `axes_restart`: False: all axes share one ladder of frequencies (M-RoPE). True: each axis has its own, which
      starts at the fastest frequency (axial 2D and 3D).
    - `axis_blocks`: pair half-split inside the features of each axis, not across all rotated features.
    - `inv_freq`: inverse frequency of each pair, radians per token, in place of theta and scaling. A pair of frequency
      0 does not rotate; a negative one rotates backwards.
    - `trained`: how a published model was trained; equality ignores it.

    **Raises:** `RopeError` if the numbers contradict each other.
    **Source:** Su et al. 2021, arXiv:2104.09864, section 3.2.

    >>> RopeConfig(head_dim=128, interleaved=False, theta=500_000.0).pairs
    64
    """

    head_dim: int
    _: KW_ONLY
    interleaved: bool = None  # type: ignore[assignment]  # required: the error says how to choose
    theta: float = DEFAULT_THETA
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
        head_dim = _whole("head_dim", self.head_dim, cure)
        rotary_dim = head_dim if self.rotary_dim is None else _whole("rotary_dim", self.rotary_dim, cure)
        check_whole("RopeConfig", max_position_embeddings=self.max_position_embeddings)
        length, axes, theta = as_whole(self.max_position_embeddings), self.axes, _base(self.theta)
        if axes is not None:
            axes = tuple(-1 if axis is None else axis for axis in map(as_whole, as_tuple(axes)))
            if not axes or -1 in axes:
                rule = "RopeConfig: `axes` must be whole numbers, one for each pair."
                raise RopeError(rule, facts={"axes": self.axes}, cure=_AXES_CURE)
        numbers: dict[str, Any] = {"head_dim": head_dim, "rotary_dim": rotary_dim, "max_position_embeddings": length}
        for name, value in {**numbers, "theta": theta, "axes": axes}.items():
            object.__setattr__(self, name, value)
        _check_fields(self, head_dim, rotary_dim)
        if self.scaling is not None:
            if not isinstance(self.scaling, Scaling):
                raise RopeError(
                    "RopeConfig: `scaling` must be a rule of ropewalk.scaling, or None.",
                    facts={"scaling": self.scaling},
                    cure=_named_rule(self.scaling) or "For a Hugging Face dict use RopeConfig.from_hf(config).",
                )
            self.scaling.check(**numbers)
        if self.inv_freq is not None:
            object.__setattr__(self, "inv_freq", self._explicit(self.inv_freq))

    def __repr__(self) -> str:
        values = [(f, getattr(self, f.name)) for f in fields(self) if f.repr]
        shown = [f"{f.name}={value!r}" for f, value in values if "later" not in f.metadata or value != f.default]
        return f"RopeConfig({', '.join(shown)})"

    def _explicit(self, inv_freq: Any) -> tuple[float, ...]:
        """Return the given frequencies as floats; check that no other field sets them."""
        given = as_tuple(inv_freq)
        if len(given) != self.pairs or not all(map(is_number, given)):
            raise RopeError(
                "RopeConfig: `inv_freq` needs one finite number for each pair.",
                facts={"inv_freq": inv_freq, "pairs": self.pairs},
                cure="Pass radians per token; convert a tensor with inv_freq.tolist().",
            )
        if self.theta != DEFAULT_THETA or self.scaling is not None or self.axes_restart:
            raise RopeError(
                "RopeConfig: `inv_freq` and `theta`, `scaling` or `axes_restart` are mutually exclusive.",
                facts={"theta": self.theta, "scaling": self.scaling, "axes_restart": self.axes_restart},
                cure="Omit those, or `inv_freq`.",
            )
        return tuple(map(float, given))

    @property
    def pairs(self) -> int:
        """Return the number of rotated feature pairs: rotary_dim / 2."""
        return (self.rotary_dim or self.head_dim) // 2

    @property
    def num_axes(self) -> int:
        """Return the number of coordinates of a position."""
        return 1 if self.axes is None else max(self.axes) + 1

    @property
    def needs_seq_len(self) -> bool:
        """Return whether the frequencies depend on the sequence length (dynamic NTK, LongRoPE)."""
        return self.scaling is not None and self.scaling.needs_seq_len

    @property
    def can_be_extended(self) -> bool:
        """Return whether a different scaling rule may replace this one: all pairs rotate, by a theta."""
        return self.inv_freq is None and (self.scaling is None or self.scaling.can_be_extended)

    @property
    def switch_length(self) -> int | None:
        """Return the length in tokens beyond which a second set of frequencies applies (LongRoPE), or None."""
        return None if self.scaling is None else self.scaling.switch_length

    @property
    def original_length(self) -> int | None:
        """Return the context length before any scaling, in tokens, or None if the config does not state it."""
        stated = self.scaling.original_length if self.scaling is not None else None
        return stated if stated is not None else self.max_position_embeddings

    @property
    def scaling_is_trained(self) -> bool | None:
        """Return whether the model was trained with its length scaling; None if unknown, or without scaling."""
        if self.scaling is None or self.unscaled() == self:
            return None
        return None if self.trained is None else self.trained.with_scaling

    @property
    def trained_length(self) -> int | None:
        """Return the length that the model was trained at, in tokens, or None if the config does not state it.

        `trained.length` if published training differs from the config's number; else the config's length if the model
        was trained with its scaling; else the length before the scaling.
        """
        if self.trained is not None and self.trained.length is not None:
            return self.trained.length
        return self.scaled_length if self.scaling_is_trained else self.original_length

    @property
    def scaled_length(self) -> int | None:
        """Return `max_position_embeddings`, or the length that the rule extends to if that is the length before it."""
        longest, original = self.max_position_embeddings, self.original_length
        if self.scaling is not None and (longest is None or longest == original):
            return self.scaling.target_length(longest) or longest
        return longest

    @property
    def ladders(self) -> tuple[Ladder, ...]:
        """Return the unscaled frequency ladders: one shared by all axes, or one for each axis with `axes_restart`."""
        dim, limit = self.pairs * 2, self.max_position_embeddings
        if self.inv_freq is not None:
            raise RopeError(
                "RopeConfig: explicit frequencies have no ladder.",
                facts={"inv_freq": self.inv_freq},
                cure="Call inverse_frequencies(config) for the numbers.",
            )
        if self.axes is None or not self.axes_restart:
            return (Ladder(self.theta, dim, tuple(range(self.pairs)), limit),)
        of_axis = [tuple(p for p, a in enumerate(self.axes) if a == axis) for axis in range(self.num_axes)]
        return tuple(Ladder(self.theta, 2 * len(columns), columns, limit) for columns in of_axis)

    def columns_at(self, seq_len: int | None = None) -> tuple[float, ...]:
        """Return the inverse frequency of each pair, radians per token.

        Raises `RopeError` if the frequencies depend on the length, and `seq_len` is missing or no number of tokens.
        """
        length = None if self.scaling is None or not self.scaling.needs_seq_len else self._length(seq_len)
        return self._columns(length) if is_compiling() else _columns_memo(self, length)

    def _length(self, seq_len: Any) -> Any:
        length = seq_len if isinstance(seq_len, torch.SymInt) else as_whole(seq_len)
        if length is None or length < 1:
            raise RopeError(
                f"RopeConfig: the frequencies of {type(self.scaling).__name__} depend on the sequence length, and "
                "`seq_len` must be a whole number of tokens, at least 1.",
                facts={"seq_len": seq_len, "max_position_embeddings": self.max_position_embeddings},
                cure="Pass seq_len=...: the total length that the window or the cache will reach.",
            )
        return length

    def _columns(self, seq_len: int | None) -> tuple[float, ...]:
        if self.inv_freq is not None:
            return self.inv_freq
        columns = [0.0] * self.pairs
        for ladder in self.ladders:
            values = ladder.inv_freq() if self.scaling is None else self.scaling.inv_freq(ladder, seq_len)
            for column, value in zip(ladder.columns, values, strict=True):
                columns[column] = value
        return tuple(columns)

    def attention_factor_at(self, seq_len: int | None = None) -> float:
        """Return the factor of queries and of keys; 1.0 without YaRN or LongRoPE."""
        return 1.0 if self.scaling is None else self.scaling.attention_factor_at(self.max_position_embeddings, seq_len)

    @property
    def blocks(self) -> tuple[int, ...]:
        """Return the pairs of each block that is half-split separately; () if all rotated features are one block."""
        if not self.axis_blocks or self.axes is None:
            return ()
        return tuple(self.axes.count(axis) for axis in dict.fromkeys(self.axes))

    def longest_at(self, seq_len: int) -> int | float:
        """Return the longest length, in tokens, for the frequencies of `seq_len`; infinite without `needs_seq_len`.

        Dynamic NTK: the larger of `seq_len` and the trained length. LongRoPE: the original length on the short side,
        unbounded on the long side.
        """
        return math.inf if self.scaling is None else self.scaling.longest_at(seq_len, self.max_position_embeddings)

    @property
    def half_split(self) -> RopeConfig:
        """Return the rope of a head whose features are re-ordered to half-split; a partial one stays as it is."""
        whole = self.interleaved and self.rotary_dim == self.head_dim
        return replace(self, interleaved=False) if whole else self

    def unscaled(self) -> RopeConfig:
        """Return the rope before any length scaling; a proportional rope keeps its unrotated pairs."""
        return self if self.scaling is None else replace(self, scaling=self.scaling.unscaled())

    def as_trained(self) -> RopeConfig:
        """Return the rope of the training: with its scaling if the model was trained with it, else without.

        Scalings of unknown training status are removed, as are scalings on top of the model's own.
        """
        own = None if self.scaling is None else self.scaling.trained_part
        if own is not None:
            return replace(self, scaling=own, trained=Trained(True, self.trained_length))
        return self if self.scaling_is_trained else self.unscaled()

    def fingerprint(self, layers: Iterable[int] = (), *, seq_len: int | None = None) -> str:
        """Return a digest of everything that a cached key depends on: the same digest, the same rotated keys.

        It contains the frequencies in float64 (12 digits), the axis and the pairing of each pair, the width, and the
        attention factor, which keys carry; no lengths or names.

        **Arguments:**
        - `layers`: numbers of the layers that keep keys under this rope; omit them to compare the rotation only.
        - `seq_len`: tokens; required if the frequencies depend on it (dynamic NTK, LongRoPE).

        **Returns:** 16 hexadecimal digits.
        **Raises:** `RopeError` if `seq_len` is missing, and for layers that are not whole numbers.

        >>> rope = RopeConfig(64, interleaved=False, max_position_embeddings=512)
        >>> rope.fingerprint() == replace(rope, max_position_embeddings=None).fingerprint()
        True
        >>> rope.fingerprint() == replace(rope, theta=20_000.0).fingerprint()
        False
        """
        numbers = as_tuple(layers)
        if None in map(as_whole, numbers) or not isinstance(layers, Iterable):
            raise RopeError("fingerprint: `layers` must be whole numbers.", facts={"layers": layers}, cure="Pass 0, 1.")
        length = as_whole(seq_len)
        digits = [f"{value:.12e}" for value in (*self.columns_at(length), self.attention_factor_at(length))]
        parts = (self.head_dim, self.pairs, self.interleaved, self.blocks, self.axes, digits)
        return blake2b(repr((*parts, sorted(map(int, numbers)))).encode(), digest_size=8).hexdigest()

    @classmethod
    def from_hf(
        cls,
        config: str | PathLike[str] | Mapping[str, Any] | Any,
        *,
        layer_type: str | None = None,
        alpha: Tensor | Iterable[float] | None = None,
    ) -> RopeConfig:
        """Return the rope of a Hugging Face config.

        **Arguments:**
        - `config`: path of a config.json or its folder, a dict, or a transformers config object. If it is composite
          (multimodal), its text part is used. For a vision tower pass its `vision_config`, as released or with the
          model_type of transformers 5, such as "qwen2_vl_vision".
        - `layer_type`: chooses a layer type if the model rotates them differently, for example "sliding_attention".
        - `alpha`: `[pairs]`, the learned logarithms of factors of the frequencies (LeRoPE: Mistral Large 4), from
          `ropewalk.checkpoints.load.read_alpha(folder)` or a live model's `rotary_emb.alpha`.

        Every `rope_type` is supported, in the old spelling (`rope_scaling`, `rope_theta`) and the new
        (`rope_parameters`). Pairing follows `model_type` as in transformers; for an unknown `model_type` the config
        needs `"rope_interleave": true` or `false`.

        **Returns:** the `RopeConfig`. For multi-head latent attention (DeepSeek) it describes the slice of
        qk_rope_head_dim features. Positions of a vision tower are (row, column), as from `grid_positions`, even if its
        class takes the column first. It does not contain factors that act only in attention (DeepSeek's softmax mscale,
        Ministral's llama_4_scaling_beta), nor CLVP's rotation of values.
        **Raises:** `RopeError` for anything unknown, missing or impossible, and for a layer without rotation.
        **Source:** transformers 5.23, `modeling_rope_utils` and each model's own class.

        >>> rope = RopeConfig.from_hf({"model_type": "gptj", "n_embd": 4096, "n_head": 16, "rotary_dim": 64})
        >>> rope.head_dim, rope.rotary_dim, rope.interleaved
        (256, 64, True)
        """
        return cls(**hugging_face.read(config, layer_type=layer_type, alpha=alpha))

    @classmethod
    def from_block(
        cls,
        block: Mapping[str, Any],
        *,
        head_dim: int,
        interleaved: bool,
        max_position_embeddings: int | None = None,
    ) -> RopeConfig:
        """Return the rope of a bare `rope_parameters` block, without the config around it; all of the head rotates.

        `block` is flat, in the old or the new spelling; without a `rope_theta` theta is 10,000. **Raises:** `RopeError`
        as `from_hf` does for Llama, whose class takes every rule.

        >>> RopeConfig.from_block({"type": "linear", "factor": 4.0}, head_dim=64, interleaved=False).scaling
        Linear(factor=4.0)
        """
        read = hugging_face.read_block(block, head_dim, max_position_embeddings)
        return cls(**{**read, "interleaved": interleaved})

    @classmethod
    def from_diffusers(cls, model: str | PathLike[str] | Mapping[str, Any] | Any) -> RopeConfig:
        """Return the rope of an image or video transformer of diffusers.

        **Arguments:**
        - `model`: the transformer of a pipeline, its config as a dict with `_class_name`, or the path of its
          config.json, its folder or the pipeline's folder. diffusers need not be installed. Supported are FLUX 1 to 3,
          Chroma, HunyuanVideo, HunyuanImage, Qwen-Image, Wan, SkyReels-V2, CogVideoX and LTX-Video.

        **Returns:** the `RopeConfig`: interleaved pairs, a separate ladder for each axis. Positions are those of
        `rw.positions.latent_positions`. LTX-Video rotates all heads together, so head_dim is their whole width.
        **Numerics:** tables are exact to 1.2e-7; those of diffusers have float32 angles except for FLUX and Wan.
        **Raises:** `RopeError` for an unknown class, and for rope keys that the class ignores.
        **Source:** diffusers 0.42.1, each model's own class.

        >>> rope = RopeConfig.from_diffusers({"_class_name": "WanTransformer3DModel", "attention_head_dim": 128})
        >>> rope.interleaved, [rope.axes.count(axis) for axis in range(3)]
        (True, [22, 21, 21])
        """
        from ropewalk.rope import diffusers

        return cls(**diffusers.read(model))

    def to_hf(self) -> dict[str, Any]:
        """Return the equivalent `rope_parameters` block of a Hugging Face config, in transformers 5 spelling.

        **Returns:** a dict with theta, the scaling rule, `partial_rotary_factor` if only a part rotates, and
        `mrope_section` with `mrope_interleaved` if several axes share a ladder. The inverse is
        `from_hf({**base_config, "rope_parameters": block})`; in a model with several thetas the block belongs under its
        layer type. NTK, ABF, Resonance, the paper's YaRN and its dynamic NTK have no name in transformers: they become
        a block with the same frequencies.
        **Raises:** `RopeError` if no block can express the config: `inv_freq`, or a scaling for each axis.

        >>> RopeConfig(head_dim=128, interleaved=False, theta=1e6, rotary_dim=64).to_hf()
        {'rope_type': 'default', 'rope_theta': 1000000.0, 'partial_rotary_factor': 0.5}
        """
        if self.inv_freq is not None:
            raise RopeError(
                "to_hf: transformers has no block for explicit frequencies.",
                facts={"inv_freq": self.inv_freq},
                cure="Save the model in ropewalk's own form, whose config contains every field.",
            )
        rotary_dim, ladder = 2 * self.pairs, self.ladders[0]  # if axes have separate ladders, only its theta is used
        if self.axes_restart and self.axes is not None:
            half = self.pairs // 2
            if self.axes != (0,) * half + (1,) * half or self.scaling is not None:
                raise RopeError(
                    "to_hf: transformers' `axial` block only expresses height and width in equal halves, unscaled.",
                    facts={"axes": self.axes, "scaling": self.scaling},
                    cure="This config has no block in transformers.",
                )
            return {"rope_type": "axial", "rope_theta": ladder.theta}
        plain = {"rope_type": "default", "rope_theta": ladder.theta}
        block = plain if self.scaling is None else self.scaling.to_block(ladder)
        if rotary_dim != self.head_dim:
            share = rotary_dim / self.head_dim
            while int(self.head_dim * share) < rotary_dim:  # as transformers rounds
                share = math.nextafter(share, math.inf)
            block["partial_rotary_factor"] = share
        return block if self.axes is None else block | sections_of(self.axes)


_columns_memo = lru_cache(maxsize=1024)(RopeConfig._columns)  # the key is the whole config, and no value a tensor


def indexer_rope(
    config: str | PathLike[str] | Mapping[str, Any] | Any, *, alpha: Tensor | Iterable[float] | None = None
) -> tuple[RopeConfig, int]:
    """Return the rope of the indexer of sparse attention, and the offset of its first rotated feature.

    The indexer of a layer chooses the keys that the layer's attention sees. It rotates `qk_rope_head_dim` of
    `index_head_dim` features by the tables of the attention, so a method changes both, but pairs them in its own way.

    **Arguments:** those of `RopeConfig.from_hf`.
    **Returns:** the `RopeConfig`, and `rotary_offset` for `rotate`: 0, or in HY-V4 that of the last features.
    **Raises:** `RopeError` for a model without an indexer, and as `from_hf` does.
    **Source:** transformers 5.23, `DeepseekV32Indexer`, `GlmMoeDsaIndexer` and those of other families.

    >>> rope, offset = indexer_rope({"model_type": "deepseek_v32", "index_head_dim": 128, "qk_rope_head_dim": 64})
    >>> rope.head_dim, rope.rotary_dim, rope.interleaved, offset
    (128, 64, False, 0)
    """
    fields, offset = hugging_face.read_indexer(config, alpha=alpha)
    return RopeConfig(**fields), offset
