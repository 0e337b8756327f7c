"""A scaling rule for each axis of positions: videos whose time is stretched and whose frames are not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from ropewalk.errors import RopeError
from ropewalk.rope.rules.base import Ladder, Scaling


@dataclass(frozen=True)
class PerAxis(Scaling):
    """Each axis under its own rule; None leaves an axis as it is.

    Only for axes with a ladder of their own (`axes_restart=True`), and for rules that do not ask for a sequence length
    and have no attention factor: all pairs of a head share one. transformers has no block for it.
    Source: NVIDIA Cosmos and diffusers' `CosmosRotaryPosEmbed`, which scale theta by axis.

    >>> from ropewalk.rope.scaling import Linear
    >>> PerAxis((Linear(2.0), None)).inv_freq(Ladder(10000.0, 4, (0, 1), axis=0), None)
    [0.5, 0.005]
    """

    rules: tuple[Scaling | None, ...]
    rope_type: ClassVar[str] = "per_axis"
    can_be_extended: ClassVar[bool] = False
    can_be_rounded: ClassVar[bool] = False

    def __post_init__(self) -> None:
        rules: tuple[Any, ...] = tuple(self.rules) if isinstance(self.rules, Iterable) else ()
        object.__setattr__(self, "rules", rules)
        refused = [
            rule
            for rule in rules
            if rule is not None and (not isinstance(rule, Scaling) or rule.needs_seq_len or not rule.can_be_extended)
        ]
        if not rules or refused:
            raise RopeError(
                "PerAxis: `rules` holds for each axis a rule that asks for no sequence length, or None.",
                facts={"rules": self.rules, "refused": refused},
                cure="For example PerAxis((NTK(2.0), None, None)).",
            )

    def inv_freq(self, ladder: Ladder, seq_len: int | None) -> list[float]:
        rule = None if ladder.axis is None else self.rules[ladder.axis]
        return ladder.inv_freq() if rule is None else rule.inv_freq(ladder, seq_len)

    def check_axes(self, num_axes: int | None) -> None:
        if num_axes != len(self.rules):
            raise RopeError(
                "RopeConfig: PerAxis needs one rule for each axis, and axes with ladders of their own.",
                facts={"rules": self.rules, "axes with ladders of their own": num_axes or 0},
                cure="Pass axes=axes_from_sections([...]) and axes_restart=True.",
            )

    def check(self, *, head_dim: int, rotary_dim: int, max_position_embeddings: int | None) -> None:
        for rule in self.rules:
            if rule is None:
                continue
            rule.check(head_dim=head_dim, rotary_dim=rotary_dim, max_position_embeddings=max_position_embeddings)
            factor = rule.attention_factor_at(max_position_embeddings, None)
            if factor != 1.0:
                raise RopeError(
                    "PerAxis: all pairs of a head share one attention factor, so no axis may bring its own.",
                    facts={"rule": rule, "attention_factor": factor},
                    cure="Give YaRN attention_factor=1.0.",
                )

    def to_block(self, ladder: Ladder) -> dict[str, Any]:
        raise RopeError(
            "to_hf: transformers has no block for a scaling of each axis.",
            facts={"rules": self.rules},
            cure="Save the model in ropewalk's own form, whose config holds every field.",
        )
