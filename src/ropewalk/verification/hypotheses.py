"""What an engine may be doing instead of what it should: each fault as positions that our own decoder can take."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial

from ropewalk.attention.extensions import Extension
from ropewalk.errors import RopeError
from ropewalk.methods import METHODS, Reach
from ropewalk.models.positions import Positions
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.frequencies import attention_factor_of, columns_of, first_columns_of
from ropewalk.rope.rules.block import TRAINED_KEY
from ropewalk.rope.scaling import Scaling, Stacked
from ropewalk.verification.faults import ClampedPositions, RestartedPositions

FACTORS = (2.0, 4.0, 8.0)
THETAS = (1e4, 1e5, 5e5, 1e6)
NEAR = (0.8, 1.25)  # times the expected theta or factor: so close the answers must come to it
CHUNKS = (512, 2048)  # tokens of one forward in engines: where positions of a chunk are taken for those of the row
_HORIZON = 2**21  # tokens: two hypotheses that are the same as far as this are one


@dataclass(frozen=True)
class Hypothesis:
    """One thing that an engine may apply: its name, and each layer's positions under it.

    `unchanged_below`: so many tokens at the beginning of a row its extension leaves as they are.
    """

    name: str
    positions: Positions
    unchanged_below: int = 0

    def at(self, length: int) -> tuple[object, ...]:
        """All that decides what the model computes for a prompt of so many tokens: equal where that is the same."""
        if length not in self._at:
            self._at[length] = tuple(
                (None if rope is None else _numbers(rope, length), extension if length > self.unchanged_below else None)
                for rope, extension in zip(self.positions.ropes, self.positions.extensions, strict=True)
            )
        return self._at[length]

    @cached_property
    def _at(self) -> dict[int, tuple[object, ...]]:
        return {}

    @property
    def borders(self) -> set[int]:
        """Lengths in tokens after which it may change."""
        lengths = {self.unchanged_below}
        for rope in self.positions.present_ropes:
            lengths |= {rope.original_length or 0, rope.switch_length or 0, rope.max_position_embeddings or 0}
        return lengths - {0}


@lru_cache(4096)
def _numbers(rope: RopeConfig, length: int) -> tuple[object, ...]:
    """A rope's pairing, frequencies and attention factor at a length, to ten digits."""
    first = first_columns_of(rope)
    return (
        rope.interleaved,
        tuple(float(f"{column:.9e}") for column in columns_of(rope, length)),
        float(f"{attention_factor_of(rope, length):.9e}"),
        first,
    )


def first_difference(one: Hypothesis, other: Hypothesis) -> int | None:
    """The shortest prompt in tokens, up to a border of either, for which the two are not the same; None: there is none.

    >>> from ropewalk.rope.scaling import DynamicNTK
    >>> rope = RopeConfig(8, interleaved=False, max_position_embeddings=64)
    >>> ropes = rope, dataclasses.replace(rope, scaling=DynamicNTK(2.0))
    >>> first_difference(*(Hypothesis("", Positions((rope,), (None,), (None,))) for rope in ropes))
    65
    """
    lengths = {2, _HORIZON, *(border + 1 for border in one.borders | other.borders)}
    return next((length for length in sorted(lengths) if one.at(length) != other.at(length)), None)


def hypotheses(expected: Positions, *, trained: int) -> list[Hypothesis]:
    """Everything that is held against the answers, what is expected first; no two are the same.

    - `expected`: what the engine should apply. `trained`: tokens that the model was trained to.

    The set grows from `expected`: its own factor, halved and doubled, its lengths, its layers.
    """
    first = Hypothesis("as expected", expected, _unchanged_below(expected, trained))
    found = {_key(first): first}
    for hypothesis in _all(expected, trained):
        same = found.setdefault(_key(hypothesis), hypothesis)
        if (
            same is not hypothesis and same.name == "scaling twice"
        ):  # by two factors of 2 it is what one of 4 gives: either may be meant
            found[_key(same)] = dataclasses.replace(same, name=f"{same.name}, which is {hypothesis.name}")
    return list(found.values())


def _key(hypothesis: Hypothesis) -> tuple[object, ...]:
    lengths = sorted({2, _HORIZON, *(border + 1 for border in hypothesis.borders)})
    # a rule that changes only at a border is told from a constant one by its values on both sides of it
    return (
        hypothesis.at(2),
        hypothesis.at(_HORIZON),
        tuple(lengths) if hypothesis.at(2) != hypothesis.at(_HORIZON) else (),
    )


def _unchanged_below(positions: Positions, trained: int) -> int:
    """0 where an extension may act from the first token on."""
    return trained if all(extension is None for extension in positions.extensions) else 0


def _all(expected: Positions, trained: int) -> Iterator[Hypothesis]:
    bare = dataclasses.replace(expected, extensions=(None,) * expected.num_layers)
    unscaled = _mapped(bare, RopeConfig.unscaled)
    yield Hypothesis("no scaling", unscaled)
    yield from _faults_of_scaling(bare)
    yield from _methods(bare, trained)
    for positions, without in ((bare, ""), (unscaled, "no scaling, ")):
        yield from _thetas(positions, without)
        yield Hypothesis(f"{without}the other pairing", _mapped(positions, _other_pairing))
    yield Hypothesis("no rotation", dataclasses.replace(bare, ropes=(None,) * bare.num_layers))
    yield from _positions(expected, trained)


def _other_pairing(rope: RopeConfig) -> RopeConfig:
    return dataclasses.replace(rope, interleaved=not rope.interleaved)


def _mapped(positions: Positions, change: Callable[[RopeConfig], RopeConfig]) -> Positions:
    """Each layer's rope changed."""
    return dataclasses.replace(
        positions, ropes=tuple(None if rope is None else change(rope) for rope in positions.ropes)
    )


def _faults_of_scaling(expected: Positions) -> Iterator[Hypothesis]:
    """What happens to a scaling that is there: twice, on some layers, by another formula, from another length."""
    scaled = [rope for rope in expected.present_ropes if rope.scaling is not None and rope.unscaled() != rope]
    if not scaled:
        return

    def with_rule(name: str, change: Callable[[RopeConfig, Scaling], Scaling | None]) -> Iterator[Hypothesis]:
        def changed(rope: RopeConfig) -> RopeConfig:
            rule = None if rope.scaling is None else change(rope, rope.scaling)
            return rope if rule is None else dataclasses.replace(rope, scaling=rule)

        positions = _mapped(expected, changed)
        if positions != expected:
            yield Hypothesis(name, positions)

    yield from with_rule("scaling twice", _twice)
    rule = scaled[0].scaling.rope_type if scaled[0].scaling else ""
    for name, power in (("without its attention factor", 0), ("with its attention factor twice", 2)):
        yield from with_rule(f"{rule} {name}", partial(_attention, power=power))
    for length, times in _lengths(scaled[0]):
        yield from with_rule(f"{rule} with {TRAINED_KEY} {length}", partial(_original, times=times))
    for times in NEAR:
        factor = getattr(scaled[0].scaling, "factor", None)
        if isinstance(factor, int | float) and factor * times > 1.0:
            yield from with_rule(
                f"{rule} with factor {factor * times:g}",
                partial(_with_field, field="factor", value=factor * times),
            )
    yield from with_rule(f"{rule} by the paper's formula", partial(_with_field, field="variant", value="paper"))
    yield from with_rule(f"{rule} without rounded bounds", partial(_with_field, field="truncate", value=False))
    yield from with_rule("the short factors at every length", lambda rope, rule: _one_list(rule, "short_factor"))
    yield from with_rule("the long factors at every length", lambda rope, rule: _one_list(rule, "long_factor"))
    yield from _some_layers(expected)
    for rope in scaled[:1]:
        if _follows_length(rope.scaling) and rope.original_length:
            for times in (1.5, *FACTORS):
                length = int(times * rope.original_length)
                yield Hypothesis(f"dynamic scaling fixed at {length} tokens", _mapped(expected, _fixed_at(length)))


def _twice(rope: RopeConfig, rule: Scaling) -> Scaling | None:
    try:
        return Stacked(rule.written_out(rope.max_position_embeddings), rule)
    except RopeError:
        return None


def _attention(rope: RopeConfig, rule: Scaling, power: int) -> Scaling | None:
    if not _states(rule, "attention_factor"):
        return None
    now = attention_factor_of(rope, _HORIZON)
    if now == 1.0:
        return None
    return dataclasses.replace(rule, attention_factor=now**power)  # type: ignore[type-var]


def _lengths(rope: RopeConfig) -> Iterator[tuple[int, float]]:
    """Lengths that are taken for the original one, and their ratio to it: times the factor, and divided by it."""
    before, after = rope.original_length, rope.scaled_length
    if before and after and after != before:
        yield from ((max(1, round(before * times)), times) for times in (after / before, before / after))


def _original(rope: RopeConfig, rule: Scaling, times: float) -> Scaling | None:
    if not _states(rule, TRAINED_KEY) or _states(rule, "long_factor"):
        return None
    length = max(1, round(getattr(rule, TRAINED_KEY) * times))
    return dataclasses.replace(rule, **{TRAINED_KEY: length})  # type: ignore[type-var]


def _with_field(rope: RopeConfig, rule: Scaling, field: str, value: object) -> Scaling | None:
    return dataclasses.replace(rule, **{field: value}) if _states(rule, field) else None  # type: ignore[type-var]


def _one_list(rule: Scaling, name: str) -> Scaling | None:
    if not _states(rule, "long_factor"):
        return None
    one = getattr(rule, name)
    return dataclasses.replace(rule, short_factor=one, long_factor=one)  # type: ignore[type-var]


def _states(rule: Scaling, field: str) -> bool:
    """Whether the rule has a field of this name."""
    return field in (one.name for one in dataclasses.fields(rule))  # type: ignore[arg-type]


def _follows_length(rule: Scaling | None) -> bool:
    """Whether its frequencies change with every token more, as those of dynamic NTK do."""
    return rule is not None and rule.needs_seq_len and rule.switch_length is None


def _fixed_at(length: int) -> Callable[[RopeConfig], RopeConfig]:
    def change(rope: RopeConfig) -> RopeConfig:
        return RopeConfig(
            rope.head_dim,
            interleaved=rope.interleaved,
            rotary_dim=rope.rotary_dim,
            max_position_embeddings=rope.max_position_embeddings,
            axes=rope.axes,
            inv_freq=columns_of(rope, length),
        )

    return change


def _some_layers(expected: Positions) -> Iterator[Hypothesis]:
    """Scaling on full layers alone, on sliding layers alone, and on all, where a model has both."""
    sliding = [window is not None for window in expected.sliding_windows]
    rules = {rope.scaling for rope in expected.present_ropes if rope.scaling is not None and rope.unscaled() != rope}
    if len(set(sliding)) < 2 or len(rules) != 1:
        return
    (rule,) = rules
    for name, on in (
        ("scaling on full layers alone", [not slides for slides in sliding]),
        ("scaling on sliding layers alone", sliding),
        ("scaling on all layers", [True] * len(sliding)),
    ):
        ropes = tuple(
            None if rope is None else dataclasses.replace(rope, scaling=rule) if scaled else rope.unscaled()
            for rope, scaled in zip(expected.ropes, on, strict=True)
        )
        yield Hypothesis(name, dataclasses.replace(expected, ropes=ropes))


def _methods(expected: Positions, trained: int) -> Iterator[Hypothesis]:
    """Every method at every factor, from the model as it was trained."""
    own = [rope.scaled_length / rope.original_length for rope in expected.present_ropes
           if rope.scaling is not None and rope.scaled_length and rope.original_length]  # fmt: skip
    factors = sorted({factor for factor in (*FACTORS, *(f * x for f in own for x in (0.5, 1.0, 2.0))) if factor > 1.0})
    lengths = sorted({trained, *(rope.original_length or trained for rope in expected.present_ropes)})
    for method in METHODS.values():
        if not method.extends or method.needs_tuning or method.on_request:  # no engine applies them
            continue
        for length in lengths:
            for factor in factors:
                reach = Reach(length, math.ceil(length * factor))
                try:
                    positions = method.positions(expected, reach)
                except RopeError:
                    continue  # a method that this rope cannot take
                where = "" if len(lengths) == 1 else f" from {length}"
                yield Hypothesis(
                    f"{method.name} {factor:g}{where}{_known_as(method.name, positions)}",
                    positions,
                    method.equal_below(reach),
                )


def _known_as(method: str, positions: Positions) -> str:
    """What configs and engines call it, where that is something else: the theta that it sets, or its rope_type."""
    rules = {rope.scaling for rope in positions.present_ropes if rope.scaling is not None}
    if len(rules) != 1:
        return ""
    (rule,) = rules
    theta = getattr(rule, "theta", None)
    if theta is not None:
        return f" (theta {theta:.0f})"
    return f" ({rule.rope_type})" if method == "pi" else ""


def _thetas(expected: Positions, prefix: str) -> Iterator[Hypothesis]:
    """Another theta: the usual ones, and those near each rope's own, a tenth and ten times of it."""
    own = {rope.theta for rope in expected.present_ropes if isinstance(rope.theta, float) and rope.inv_freq is None}
    thetas = {*THETAS, *(theta * x for theta in own for x in (0.1, *NEAR, 10.0))} - own

    def change(rope: RopeConfig, theta: float) -> RopeConfig:
        given = rope.inv_freq is not None or isinstance(rope.theta, tuple)
        return rope if given else dataclasses.replace(rope, theta=theta)

    for theta in sorted(theta for theta in thetas if theta > 1.0) if own else ():
        yield Hypothesis(f"{prefix}theta {theta:.0f}", _mapped(expected, partial(change, theta=theta)))


def _positions(expected: Positions, trained: int) -> Iterator[Hypothesis]:
    """Positions held at a length or begun again there; only for models that every layer's extension can describe."""
    if any(window is not None for window in expected.sliding_windows) or not expected.present_ropes:
        return
    if any(extension is not None for extension in expected.extensions):
        return
    known = {rope.original_length for rope in expected.present_ropes} | {trained}
    known |= {rope.scaled_length for rope in expected.present_ropes}
    for length in sorted({*CHUNKS, *(length for length in known if length)}):
        for name, rule in (("held at", ClampedPositions(length)), ("begun again after", RestartedPositions(length))):
            extensions: tuple[Extension | None, ...] = tuple(rule if rope else None for rope in expected.ropes)
            yield Hypothesis(f"positions {name} {length}", dataclasses.replace(expected, extensions=extensions), length)
