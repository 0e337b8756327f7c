"""Rules of rules: for each axis, on top of a scaling, rounded, with learned factors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

from torch import Tensor

from ropewalk.errors import RopeError
from ropewalk.rope.scaling.base import Ladder, Scaling
from ropewalk.rope.scaling.yarn import LongRoPE
from ropewalk.rope.values import as_tuple, is_number


def _asked(name: str, of: Callable[[Iterable[Any]], Any]) -> Any:
    """Return a property of a combination from the same property of its parts."""
    return property(lambda rule: of(getattr(part, name) for part in rule.parts))


class Combination(Scaling):
    """A rule of other rules, the values of its fields: each hook asks all, and those of lengths the last; abstract."""

    @property
    def parts(self) -> tuple[Scaling, ...]:
        """Return the rules among the fields."""
        values = (getattr(self, f.name) for f in fields(self))  # type: ignore[arg-type]
        return tuple(value for value in values if isinstance(value, Scaling))

    def changed(self, change: Callable[[Scaling], Scaling]) -> Scaling:
        """Return the combination of the changed parts."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}  # type: ignore[arg-type]
        return replace(self, **{name: change(v) for name, v in values.items() if isinstance(v, Scaling)})  # type: ignore[type-var]

    needs_seq_len = _asked("needs_seq_len", any)
    can_be_extended = _asked("can_be_extended", all)
    original_length = _asked("original_length", lambda lengths: [None, *lengths][-1])
    switch_length = _asked("switch_length", lambda lengths: [None, *lengths][-1])

    def attention_factor_at(self, ladder_max: int | None, seq_len: int | None) -> float:
        return math.prod((part.attention_factor_at(ladder_max, seq_len) for part in self.parts), start=1.0)

    def longest_at(self, seq_len: int, max_position_embeddings: int | None) -> int | float:
        return min((part.longest_at(seq_len, max_position_embeddings) for part in self.parts), default=math.inf)

    def target_length(self, max_position_embeddings: int | None) -> int | None:
        return self.parts[-1].target_length(max_position_embeddings) if self.parts else None

    @property
    def trained_part(self) -> Scaling | None:
        if all(part.trained_part is None for part in self.parts):
            return None
        return self.changed(lambda part: part.trained_part or part)

    def written_out(self, max_position_embeddings: int | None) -> Scaling:
        return self.changed(lambda part: part.written_out(max_position_embeddings))

    def check(self, *, head_dim: int, rotary_dim: int, max_position_embeddings: int | None) -> None:
        for part in self.parts:
            part.check(head_dim=head_dim, rotary_dim=rotary_dim, max_position_embeddings=max_position_embeddings)


@dataclass(frozen=True)
class Stacked(Combination):
    """The rule `by` on the frequencies of `of`, the scaling used in training.

    `by` applies to the pairs that `of` has scaled. Linear, NTK and a changed theta multiply them by the same numbers as
    the unscaled pairs. YaRN and Llama 3 count the rotations of the scaled pairs within the length they start from.
    The attention factors multiply. transformers has no block for two rules: it becomes `longrope`, with one divisor for
    each pair, if the frequencies do not follow the length.
    Source: YaRN, section 3, with the model's own frequencies in place of theta^(-2i/dim).

    >>> from ropewalk.rope.scaling import Linear
    >>> Stacked(Linear(8.0), Linear(2.0)).inv_freq(Ladder(10000.0, 4, (0, 1)), None)
    [0.0625, 0.000625]
    """

    of: Scaling
    by: Scaling
    rope_type: ClassVar[str] = "stacked"

    def __post_init__(self) -> None:
        if not (isinstance(self.of, Scaling) and isinstance(self.by, Scaling)):
            raise RopeError(
                "Stacked: `of` and `by` must be scaling rules.",
                facts={"of": self.of, "by": self.by},
                cure="For a model without its own scaling, use the rule without Stacked.",
            )
        if not self.of.can_be_extended:
            raise RopeError(
                "Stacked: a scaling with pairs that do not rotate cannot be extended.",
                facts={"of": self.of},
                cure="Use the model without an extension.",
            )

    def inv_freq(self, ladder: Ladder, seq_len: int | None) -> list[float]:
        scaled, plain = self.of.inv_freq(ladder, seq_len), replace(ladder, divisors=None).inv_freq()
        below = replace(ladder, divisors=tuple(f / g for f, g in zip(plain, scaled, strict=True)))
        return self.by.inv_freq(below, seq_len)

    @property
    def _by_is_constant(self) -> bool:
        equal_lists = isinstance(self.by, LongRoPE) and self.by.short_factor == self.by.long_factor
        return equal_lists or not self.by.needs_seq_len

    @property
    def switch_length(self) -> int | None:
        """Return the switch length of `of`, or of `by` if `of` has none; None if both follow the length."""
        if not self.of.needs_seq_len:
            return self.by.switch_length
        return self.of.switch_length if self._by_is_constant else None

    def longest_at(self, seq_len: int, max_position_embeddings: int | None) -> int | float:
        own = math.inf if self._by_is_constant else self.by.longest_at(seq_len, max_position_embeddings)
        return min(self.of.longest_at(seq_len, max_position_embeddings), own)

    @property
    def trained_part(self) -> Scaling | None:
        return self.of

    def unscaled(self) -> Scaling | None:
        return self.of.unscaled()

    def to_block(self, ladder: Ladder) -> dict[str, Any]:
        if isinstance(self.of, LeRoPE):
            raise RopeError(
                "to_hf: a class with learned factors would multiply the frequencies of this block by them again.",
                facts={"of": self.of, "by": self.by},
                cure="Apply the method to the live model: ropewalk.attach(model, method, target=...).",
            )
        return super().to_block(ladder)


@dataclass(frozen=True)
class LeRoPE(Combination):
    """The frequencies of `of` (None: the unscaled ones), each times exp(alpha) with its pair's learned `alpha`.

    `alpha` is in the checkpoint, not in its config, so `to_hf` writes the block of `of`. A method on top of it starts
    from the learned frequencies and has no block.
    Source: LeRoPE (arXiv:2607.10134; from the code only): transformers 5.23,
    `MistralLarge4TextRotaryEmbedding.forward`.

    >>> LeRoPE((0.0, math.log(2.0))).inv_freq(Ladder(10000.0, 4, (0, 1)), None)
    [1.0, 0.02]
    """

    alpha: tuple[float, ...]
    of: Scaling | None = None
    rope_type: ClassVar[str] = "lerope"

    def __post_init__(self) -> None:
        given: Any = self.alpha
        if isinstance(given, Tensor):
            given = None if given.is_meta else given.tolist()
        numbers = as_tuple(given)
        if not numbers or not all(map(is_number, numbers)):
            raise RopeError(
                "LeRoPE: `alpha` needs one finite number for each pair.",
                facts={"alpha": self.alpha},
                cure="Read the logarithms of the factors (0 leaves a frequency unchanged) where the weights are "
                "loaded, not on the meta device.",
            )
        if self.of is not None and not (isinstance(self.of, Scaling) and self.of.can_be_extended):
            raise RopeError(
                "LeRoPE: `of` must be a scaling rule without unrotated pairs, or None.",
                facts={"of": self.of},
                cure="Omit it for a model without scaling.",
            )
        object.__setattr__(self, "alpha", tuple(map(float, numbers)))

    def inv_freq(self, ladder: Ladder, seq_len: int | None) -> list[float]:
        values = ladder.inv_freq() if self.of is None else self.of.inv_freq(ladder, seq_len)
        return [f * math.exp(self.alpha[column]) for f, column in zip(values, ladder.columns, strict=True)]

    def unscaled(self) -> Scaling | None:
        return replace(self, of=None if self.of is None else self.of.unscaled())

    def check(self, *, head_dim: int, rotary_dim: int, max_position_embeddings: int | None) -> None:
        if len(self.alpha) != rotary_dim // 2:
            raise RopeError(
                "RopeConfig: LeRoPE needs one `alpha` for each pair.",
                facts={"alphas": len(self.alpha), "pairs": rotary_dim // 2},
                cure="Read alpha from the checkpoint of this config.",
            )
        super().check(head_dim=head_dim, rotary_dim=rotary_dim, max_position_embeddings=max_position_embeddings)

    def to_block(self, ladder: Ladder) -> dict[str, Any]:
        return {"rope_type": "default", "rope_theta": ladder.theta} if self.of is None else self.of.to_block(ladder)


@dataclass(frozen=True)
class Resonance(Combination):
    """Round wavelengths to the nearest whole number of tokens, on top of the rule `of` (None: plain RoPE).

    With YaRN as `of` this is the paper's Resonance YaRN; the attention factor is that of `of`. A rounded pair repeats
    exactly, so a model trained on one full rotation meets no new angle there. Every pair is rounded, halves to the even
    number, as in the authors' code; their theorem covers only the pairs that rotate fully within the trained length.
    In a Hugging Face config it becomes `longrope` with two equal lists.
    Source: Wang et al. 2024, arXiv:2403.00071; github.com/sheryc/resonance_rope, `resonance_register`.

    >>> [round(2 * math.pi / f, 9) for f in Resonance().inv_freq(Ladder(10000.0, 4, (0, 1)), None)]
    [6.0, 628.0]
    """

    of: Scaling | None = None
    rope_type: ClassVar[str] = "resonance"

    def __post_init__(self) -> None:
        of = self.of
        fits = isinstance(of, Scaling) and of.can_be_extended and not (of.needs_seq_len or isinstance(of, Combination))
        if of is not None and not fits:
            raise RopeError(
                "Resonance: `of` must be None or a rule with the same frequencies at every length.",
                facts={"of": of},
                cure="Choose for example YaRN, or omit it for plain RoPE.",
            )

    def inv_freq(self, ladder: Ladder, seq_len: int | None) -> list[float]:
        below = ladder.inv_freq() if self.of is None else self.of.inv_freq(ladder, seq_len)
        return [2 * math.pi / round(2 * math.pi / f) for f in below]
