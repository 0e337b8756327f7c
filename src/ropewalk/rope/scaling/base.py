"""The base of every scaling rule: the ladder that it starts from, and the abstract rule."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, ClassVar, get_type_hints

from ropewalk.errors import RopeError
from ropewalk.rope.values import TRAINED_KEY, Block, read_value


@dataclass(frozen=True)
class Ladder:
    """The frequencies theta^(-2i/dim) of one axis, the input of a scaling rule.

    - `columns`: index of each frequency among all pairs of the head.
    - `max_position_embeddings`: the config's, tokens.
    - `divisors`: one for each pair; the scaling that the model was trained with divides the frequencies by them.
    """

    theta: float
    dim: int
    columns: tuple[int, ...]
    max_position_embeddings: int | None = None
    divisors: tuple[float, ...] | None = None

    def inv_freq(self, theta: float | None = None) -> list[float]:
        """Return inverse frequencies in radians per token, one per pair, highest first."""
        base = self.theta if theta is None else theta
        plain = [base ** (-2 * i / self.dim) for i in range(len(self.columns))]
        return plain if self.divisors is None else [f / by for f, by in zip(plain, self.divisors, strict=True)]

    def index_at(self, frequency: float) -> float:
        """Return the fractional index of the pair of this frequency, extrapolated beyond the first and last pair.

        For divided frequencies this is the first index at which they fall to it, interpolated in the logarithm.
        """
        if self.divisors is None:
            return -self.dim * math.log(frequency) / (2 * math.log(self.theta))
        logs, wanted = [math.log(f) for f in self.inv_freq()], math.log(frequency)
        slope = 2 * math.log(self.theta) / self.dim
        if wanted >= logs[0]:
            return (logs[0] - wanted) / slope
        for i in range(1, len(logs)):
            if logs[i] <= wanted:
                return i - (wanted - logs[i]) / (logs[i - 1] - logs[i])
        return len(logs) - 1 + (logs[-1] - wanted) / slope

    def ntk_theta(self, ratio: float, rule: str) -> float:
        """Return theta * ratio^(dim/(dim-2)), the base at which the slowest pair is slowed by exactly `ratio`."""
        if self.dim == 2:
            raise RopeError(
                f"{rule}: NTK needs at least two pairs (dim / (dim - 2) divides by 0).",
                facts={"rotary_dim": self.dim},
                cure="Use Linear for one pair.",
            )
        return self.theta * float(ratio ** (self.dim / (self.dim - 2)))


RULES: dict[str, type[Scaling]] = {}
"""Every scaling rule by its class name."""
_hints = cache(get_type_hints)


class Scaling(ABC):
    """A rule that maps a ladder of inverse frequencies to scaled ones; abstract.

    A rule is a frozen dataclass with a `rope_type` and an `inv_freq`; the rest has defaults.

    - `rope_type`: short name. `hf_names`: names in Hugging Face configs, () if it has none.
    - `required_keys`, `optional_keys`: fields of a Hugging Face block, with the same spelling.
    - `needs_seq_len`: the frequencies depend on the sequence length.
    - `can_be_extended`: False if some pairs do not rotate: no other rule can replace this one.
    """

    rope_type: ClassVar[str]
    hf_names: ClassVar[tuple[str, ...]] = ()
    required_keys: ClassVar[tuple[str, ...]] = ()
    optional_keys: ClassVar[tuple[str, ...]] = ()
    needs_seq_len: ClassVar[bool] = False
    can_be_extended: ClassVar[bool] = True

    def __init_subclass__(cls, **options: Any) -> None:
        """Add the rule to `RULES`; a class without a `rope_type` is abstract and is not added."""
        super().__init_subclass__(**options)
        if not hasattr(cls, "rope_type"):
            return
        for other in RULES.values():
            same_class = (other.__module__, other.__qualname__) == (cls.__module__, cls.__qualname__)
            names = {other.rope_type, *other.hf_names} & {cls.rope_type, *cls.hf_names}
            if not same_class and (names or other.__name__ == cls.__name__):
                facts = {"rule": cls.__qualname__, "other": f"{other.__module__}.{other.__qualname__}", "names": names}
                cure = "Give the new rule a class name, a `rope_type` and `hf_names` of its own."
                raise RopeError("scaling: two rules have the same name.", facts=facts, cure=cure)
        RULES[cls.__name__] = cls

    @abstractmethod
    def inv_freq(self, ladder: Ladder, seq_len: int | None) -> list[float]:
        """Return the scaled inverse frequencies, radians per token, one per pair of the ladder."""

    def attention_factor_at(self, ladder_max: int | None, seq_len: int | None) -> float:
        """Return the factor of queries and of keys; `ladder_max` is the config's max_position_embeddings."""
        return 1.0

    @property
    def original_length(self) -> int | None:
        """Return the length before scaling, in tokens, or None if the rule does not state it."""
        length: int | None = getattr(self, TRAINED_KEY, None)
        return length

    @property
    def switch_length(self) -> int | None:
        """Return the length in tokens beyond which a second set of frequencies applies; None if there is one set."""
        return None

    def longest_at(self, seq_len: int, max_position_embeddings: int | None) -> int | float:
        """Return the largest length with the frequencies of `seq_len`, in tokens; infinite without `needs_seq_len`."""
        if not self.needs_seq_len:
            return math.inf
        if self.switch_length is None:
            return seq_len
        return self.switch_length if seq_len <= self.switch_length else math.inf

    def target_length(self, max_position_embeddings: int | None) -> int | None:
        """Return the length that the rule extends to, in tokens, or None if it does not state one."""
        trained, factor = getattr(self, TRAINED_KEY, None), getattr(self, "factor", None)
        return None if trained is None else int((factor or 1) * trained)

    @property
    def trained_part(self) -> Scaling | None:
        """Return the rule of the model's training, if this one is applied on top of it; else None."""
        return None

    def unscaled(self) -> Scaling | None:
        """Return the rule without any length scaling; None is plain RoPE."""
        return None

    def written_out(self, max_position_embeddings: int | None) -> Scaling:
        """Return the rule with its defaults from max_position_embeddings filled in."""
        return self

    def check(self, *, head_dim: int, rotary_dim: int, max_position_embeddings: int | None) -> None:
        """Raise `RopeError` if the rule does not fit a RopeConfig of these numbers."""
        return

    @classmethod
    def from_block(cls, block: Block, max_position_embeddings: int | None) -> Scaling:
        """Return the rule of a Hugging Face block with checked keys; an optional key of null keeps its default.

        `max_position_embeddings` is the config's. Raises `RopeError` for a value that the rule does not accept.
        """
        hints, values = _hints(cls), {}
        for key in (*cls.required_keys, *cls.optional_keys):
            if key in cls.required_keys or block.get(key) is not None:
                values[key] = read_value(block, key, hints[key])
        return cls(**values)

    def to_block(self, ladder: Ladder) -> dict[str, Any]:
        """Return the Hugging Face block of the rule over `ladder`; `from_block` is its inverse.

        A rule without a name in transformers becomes a `longrope` block of equal lists. Raises `RopeError` if the
        frequencies follow the length, if some pairs do not rotate, or if there is no trained length to state.
        """
        if not self.hf_names:
            return self.longrope_block(ladder)
        block: dict[str, Any] = {"rope_type": self.hf_names[0], "rope_theta": ladder.theta}
        defaults = {f.name: f.default for f in fields(self)}  # type: ignore[arg-type]
        for key in (*self.required_keys, *self.optional_keys):
            value = getattr(self, key)
            if key in self.required_keys or value != defaults[key]:
                block[key] = list(value) if isinstance(value, tuple) else value
        return block

    def longrope_block(self, ladder: Ladder) -> dict[str, Any]:
        """Return a `longrope` block of this rule's divisors, up to its switch length and beyond it, or both equal."""
        name, longest = type(self).__name__, ladder.max_position_embeddings
        trained = self.original_length or longest
        if trained is None or trained < 2:
            raise RopeError(
                f"to_hf: {name} becomes `longrope`, which states the trained length, but this config has none.",
                facts={"scaling": self, "max_position_embeddings": longest},
                cure="Pass max_position_embeddings to RopeConfig.",
            )
        switch = self.switch_length if self.needs_seq_len else trained
        lengths = () if switch is None else (switch, switch + 1)
        sides = [self.inv_freq(ladder, length) for length in lengths]
        factors = {self.attention_factor_at(longest, length) for length in lengths}
        if not all(map(all, sides)) or len(factors) != 1:
            raise RopeError(
                f"to_hf: transformers has no rule for the frequencies of {name}.",
                facts={"scaling": self},
                cure="Only frequencies above 0 that change with the length once, or never, can become `longrope`.",
            )
        short, long = ([f / g for f, g in zip(ladder.inv_freq(), side, strict=True)] for side in sides)
        return {
            "rope_type": "longrope",
            "rope_theta": ladder.theta,
            "short_factor": short,
            "long_factor": long,
            "attention_factor": factors.pop(),
            TRAINED_KEY: switch,
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the class name and the fields, as in ropewalk's own config.json; see `rule_from_dict`."""

        def written(value: Any) -> Any:
            if isinstance(value, Scaling):
                return value.to_dict()
            return tuple(map(written, value)) if isinstance(value, tuple) else value

        return {"rule": type(self).__name__} | {f.name: written(getattr(self, f.name)) for f in fields(self)}  # type: ignore[arg-type]


def rule_from_dict(content: Mapping[str, Any]) -> Scaling:
    """Return the rule of `Scaling.to_dict`; an unknown rule or field raises KeyError or TypeError."""

    def read(value: Any) -> Any:
        if isinstance(value, Mapping):
            return rule_from_dict(value)
        return tuple(map(read, value)) if isinstance(value, list | tuple) else value

    return RULES[content["rule"]](**{key: read(value) for key, value in content.items() if key != "rule"})
