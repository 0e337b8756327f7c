"""The plan of a measurement: the positions of each method, how it is set in a config, and the jobs of its windows."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from typing import Any

from ropewalk.diagnosis.windows import Design
from ropewalk.errors import RopeError
from ropewalk.ledger import Ledger, fingerprint
from ropewalk.methods import METHODS, ConfigForm, Reach, chosen_methods, main_rope, rope_parameters
from ropewalk.readers.reader import Reader
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.extensions import Positions
from ropewalk.rope.frequencies import attention_factor_of, columns_of

PLAIN, CROP = "plain", "crop"
KIND = "windows"
FORMAT = 7  # of a result and of how it is measured: a change of either takes the next number


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """The methods of a run in order, the positions of each, and the methods that share numbers.

    - `same_as`: maps a method to an earlier one with equal frequencies at this length. `own`: the model's positions.
    - `config_form`: the form of the ropes in the model's config.
    """

    design: Design
    own: Positions
    positions: Mapping[str, Positions]
    same_as: Mapping[str, str]
    config_form: ConfigForm = dataclasses.field(default_factory=ConfigForm)

    @property
    def methods(self) -> tuple[str, ...]:
        """Return the methods in order, `plain` first."""
        return tuple(self.positions)

    @property
    def distinct(self) -> tuple[str, ...]:
        """Return the methods with numbers of their own."""
        return tuple(name for name in self.positions if name not in self.same_as)

    def key(self, method: str, window: int) -> str:
        """Return a job's key in the ledger, which contains a digest of the method's positions."""
        return f"{method}/{_digest_of(self.positions[method])}/{window}"

    def due(self, ledger: Ledger, windows: range, methods: Collection[str], asked: int) -> tuple[Job, ...]:
        """Return the jobs without a result in the ledger, by window.

        - `asked`: tokens of the questions about one window.
        """
        return tuple(
            Job(name, window, key, self.work(name, window, asked))
            for window in windows
            for name in self.distinct
            if name in methods and (key := self.key(name, window)) not in ledger
        )

    def work(self, method: str, window: int, asked: int) -> Work:
        """Return the model's work for one window under a method."""
        if METHODS[method].crops:
            steps = self.design.crop_steps(window)
            return Work.of(self.design.trained_length).times(len(steps))
        whole = Work.of(self.design.target)
        return Work(whole.tokens + asked, whole.pairs + float(asked) * self.design.target)


@cache
def _digest_of(positions: Positions) -> str:
    return fingerprint(positions)


@dataclasses.dataclass(frozen=True)
class Work:
    """The work of processing texts: tokens, and pairs of a query and a key."""

    tokens: int
    pairs: float

    @classmethod
    def of(cls, tokens: int) -> Work:
        """Return the work of one text of `tokens` tokens.

        >>> Work.of(3)
        Work(tokens=3, pairs=6.0)
        """
        return cls(tokens, tokens * (tokens + 1) / 2)

    def times(self, count: int) -> Work:
        """Return this work, `count` times."""
        return Work(count * self.tokens, count * self.pairs)


@dataclasses.dataclass(frozen=True)
class Job:
    """One window under one method. `key`: in the ledger."""

    method: str
    window: int
    key: str
    work: Work


def make_plan(reader: Reader, design: Design, methods: Sequence[str] | None) -> Plan:
    """Plan the measurement: always plain, crop if the target exceeds the trained length, each distinct form once.

    Raises `RopeError` if a method is unknown or does not apply.
    """
    reach, own = Reach(design.trained_length, design.target), reader.positions
    names = None if not methods else [*methods]
    if names is not None and design.extends and CROP not in names:
        names.append(CROP)
    chosen = chosen_methods(names, own, reach)
    if CROP in chosen and not design.extends:
        raise RopeError(
            "doctor: crop differs from plain only if the target exceeds the trained length.",
            facts={"target": reach.target, "trained_length": reach.trained},
            cure="Pass a longer --target, or leave out crop.",
        )
    positions = {name: METHODS[name].positions(own, reach) for name in chosen}
    same_as: dict[str, str] = {}
    seen: dict[object, str] = {}
    for name in chosen:
        if name != CROP:
            first = seen.setdefault((_angles(positions[name], reach.target), positions[name].extensions), name)
            if first != name:
                same_as[name] = first
    return Plan(design=design, own=own, positions=positions, same_as=same_as, config_form=reader.config_form)


def _angles(positions: Positions, seq_len: int) -> object:
    """Return each layer's frequencies and attention factor at this length, which define a method's computation."""
    distinct = {
        rope: (columns_of(rope, seq_len), attention_factor_of(rope, seq_len)) for rope in positions.present_ropes
    }
    return tuple(None if rope is None else distinct[rope] for rope in positions.ropes)


def config_of(method: str, plan: Plan) -> dict[str, Any] | None:
    """Return the keys of config.json that make a checkpoint use a method; None if no config expresses it.

    `max_position_embeddings` is the target, with these exceptions: the trained length if the rule starts from it
    (dynamic), and for plain; the config's own length if the method keeps the scaling.
    """
    rope, record, block = main_rope(plan.positions[method].ropes), METHODS[method], block_under(method, plan)
    if rope is None or block is None:
        return None
    length = plan.design.target
    unchanged = record.scaling is None and (record.keeps_own or rope.scaling is not None)
    if unchanged and rope.max_position_embeddings is not None:
        length = rope.max_position_embeddings
    elif record.scaling is None or (rope.scaling is not None and rope.scaling.starts_at_max_length):
        length = plan.design.trained_length
    return plan.config_form.whole({"rope_parameters": block, "max_position_embeddings": length})


def block_under(method: str, plan: Plan) -> dict[str, Any] | None:
    """Return the `rope_parameters` of a planned method, with a block for each layer type if the config has them.

    None for methods in attention and crop, without a rope (drope), and if layers that share a block differ.
    """
    positions = plan.positions[method]
    if any(positions.extensions) or METHODS[method].crops:
        return None
    return rope_parameters(plan.config_form, plan.own.ropes, positions.ropes, _block_of)


def _block_of(rope: RopeConfig) -> dict[str, Any] | None:
    """Return the block of a rope; None if there is none, as for a rule on top of a scaling used in training."""
    try:
        return rope.to_hf()
    except RopeError:
        return None
