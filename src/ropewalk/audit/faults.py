"""The catalogue of wrong ropes: each has a name, the ropes that it makes of the right ones, and a cure.

`ropewalk.check` compares a module's numbers with those of each. `verify` compares an engine's answers with our own
model's under each, and leaves out what that model cannot apply. Both give a fault the same name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from itertools import chain, product
from typing import Any

import torch

from ropewalk.errors import RopeError
from ropewalk.methods import METHODS, Reach
from ropewalk.methods.faulty_rules import ByRequest, FaultyPositions, ScaledLogits
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.model_ropes import ModelRopes, attends
from ropewalk.rope.scaling import Linear, Scaling, Stacked, YaRN, yarn_mscale
from ropewalk.rope.values import HORIZON, TRAINED_KEY

FACTORS = (2.0, 4.0, 8.0, 16.0)
THETAS = (1e4, 5e4, 1e5, 5e5, 1e6, 8e6)  # defaults of classes, which apply where an engine drops a config's
NEAR = (0.8, 1.25)  # times the expected theta or factor: the resolution of a verdict
TIMES = (0.1, 0.5, *NEAR, 2.0, 10.0)  # times the expected theta
CHUNKS = (512, 2048)  # tokens of one forward in engines, after which positions may begin at 0 again
BLOCK = "Give the program every key of the config's rope block."
FACTOR = "Multiply cos and sin by the attention factor once."
FLOAT32 = "Keep inv_freq in float32."
THETA = "Give the program `rope_theta` of the config."
WIDTH = "Rotate the number of features given by the config's partial factor."
LAYERS = "Give each type of layers the rope of its own block."
STILL = "Give the program the list of the layers that rotate."
NUMBERS = "Keep the positions of a chunk those of the whole text."
LENGTH = "Use the frequencies of each text's own length."


@dataclass(frozen=True)
class Hypothesis:
    """What a program may apply in place of the expected ropes: its name, and the ropes of each layer.

    - `cure`: one instruction. `right`: the value that the name replaces, or "". `twice`: whether it is the own scaling,
      applied twice, whose name is followed by that of an equal hypothesis.
    - `unchanged_below`: the number of tokens at the beginning of a prompt that its extension does not change.
    - `minor`: whether it changes little, such as the rounding of a table. A verdict mentions it if the answers fit it,
      and is not undecided if they exclude all other hypotheses.
    - `small`: whether its effect is small by nature: positions off by one, a ramp, a rounding. If the engine's noise is
      larger, a verdict only mentions it.
    """

    name: str
    positions: ModelRopes
    unchanged_below: int = 0
    minor: bool = False
    small: bool = False
    cure: str = BLOCK
    right: str = ""
    twice: bool = False

    @property
    def words(self) -> str:
        """Return the name, with the right value if it has one."""
        return f"{self.name} in place of {self.right}" if self.right else self.name

    def at(self, length: int) -> tuple[object, ...]:
        """Return all values that determine the output for a prompt of `length` tokens, to compare hypotheses."""
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
    def by_frequencies(self) -> bool:
        """Return whether it changes only frequencies, whose effect grows with the prompt."""
        return not any(self.positions.extensions)

    @property
    def borders(self) -> set[int]:
        """Return the lengths in tokens after which it may change."""
        lengths = {self.unchanged_below}
        for rope in self.positions.present_ropes:
            lengths |= {rope.original_length or 0, rope.switch_length or 0, rope.max_position_embeddings or 0}
        return lengths - {0}

    @property
    def key(self) -> tuple[object, ...]:
        """Return what equal hypotheses share: the values on both sides of each border, if any changes them."""
        ends = self.at(2), self.at(HORIZON)
        borders = sorted({2, HORIZON, *(border + 1 for border in self.borders)})
        return *ends, tuple(borders) if ends[0] != ends[1] else ()


@lru_cache(4096)
def _numbers(rope: RopeConfig, length: int) -> tuple[object, ...]:
    """Return a rope's pairing, frequencies and attention factor at a length, to ten digits."""
    columns = tuple(float(f"{column:.9e}") for column in rope.columns_at(length))
    return rope.interleaved, columns, float(f"{rope.attention_factor_at(length):.9e}")


@dataclass(frozen=True)
class Numbered:
    """A fault with a number: `verify` compares it at likely numbers, `check` solves for any.

    `name` has a place for the number, and `right` is the right one. `change` returns a rope with the number.
    """

    name: str
    change: Callable[[RopeConfig, float], RopeConfig]
    right: str = ""
    cure: str = BLOCK

    def at(self, expected: ModelRopes, number: float) -> Hypothesis:
        """Return the fault with a number."""
        positions = expected.mapped(lambda rope: self.change(rope, number))
        return Hypothesis(self.name.format(number), positions, cure=self.cure, right=self.right)


def numbered(rope: RopeConfig) -> Iterator[Numbered]:
    """Yield the faults with a number that change the frequencies of a rope."""
    if rope.inv_freq is None:
        yield from (_wrong_theta({rope.theta}, unscaled) for unscaled in (False, True))
    factor = getattr(rope.scaling, "factor", None)
    if rope.scaling is not None and isinstance(factor, int | float):
        yield _wrong_factor(rope.scaling.rope_type, factor)
    yield Numbered("pi {:g} (linear)", lambda rope, number: replace(rope.unscaled(), scaling=Linear(number)))
    yield Numbered("every frequency divided by {:g}", lambda rope, number: _times_all(rope, 1 / number))
    yield Numbered("every frequency multiplied by {:g}", _times_all)


def _wrong_theta(own: Collection[float], unscaled: bool) -> Numbered:
    def change(rope: RopeConfig, theta: float) -> RopeConfig:
        rope = rope.unscaled() if unscaled else rope
        return rope if rope.inv_freq is not None else replace(rope, theta=theta)

    right = " and ".join(f"{theta:.0f}" for theta in sorted(own))
    return Numbered(f"{'no scaling, ' if unscaled else ''}theta {{:.0f}}", change, right, THETA)


def _wrong_factor(rule: str, factor: float) -> Numbered:
    return Numbered(f"{rule} with factor {{:g}}", lambda rope, n: _with_rule(rope, _with(factor=n)), f"{factor:g}")


def _times_all(rope: RopeConfig, number: float) -> RopeConfig:
    """Return a rope with all frequencies multiplied, without an attention factor."""
    return given(rope, [number * column for column in rope.columns_at(1)])


def hypotheses(expected: ModelRopes, *, trained: int) -> list[Hypothesis]:
    """Return the different hypotheses to compare an engine's answers with, the expected one first.

    `expected`: the positions the engine should apply. `trained`: the trained length in tokens.
    """
    bare = replace(expected, extensions=(None,) * expected.num_layers)
    unchanged = trained if expected == bare else 0  # an extension may act from the first token on
    first = Hypothesis("as expected", expected, unchanged)
    different = {first.key: first}
    for one in chain(
        faults_of_scaling(bare),
        methods(bare, trained),
        other_faults(bare),
        [Hypothesis("no rotation", replace(bare, ropes=(None,) * bare.num_layers))],
        _positions(expected, trained),
        [rounded(expected, torch.bfloat16, unchanged)],
    ):
        same = different.setdefault(one.key, one)
        if same is not one and same is not first:
            name = f"{same.name}, which is {one.name}" if same.twice else same.name  # 2 x 2 is 4
            different[one.key] = replace(same, name=name, small=same.small or one.small, twice=False)
    return list(different.values())


def other_faults(expected: ModelRopes) -> Iterator[Hypothesis]:
    """Yield faults of the width, of the layers, of theta and of the pairing; some may change nothing."""
    yield from _widths(expected)
    yield from _layers(expected)
    own = {rope.theta for rope in expected.present_ropes if rope.inv_freq is None}
    thetas = sorted({*THETAS, *(theta * x for theta in own for x in TIMES)} - own) if own else []
    for unscaled in (False, True):
        yield from (_wrong_theta(own, unscaled).at(expected, theta) for theta in thetas if theta > 1.0)
        positions = expected.mapped(RopeConfig.unscaled) if unscaled else expected
        # interleaved pairs lie inside their axis's features anyway
        swapped = positions.mapped(lambda rope: replace(rope, interleaved=not rope.interleaved, axis_blocks=False))
        name = "no scaling, the other pairing" if unscaled else "the other pairing"
        yield Hypothesis(name, swapped, cure="Convert the weights for this pairing.")


# --- scaling

Change = Callable[[RopeConfig, Any], Scaling]
"""From a rope and its rule to a faulty rule; raises if this rule has no such field, or no such number is valid."""


def faults_of_scaling(expected: ModelRopes) -> Iterator[Hypothesis]:
    """Yield faults of a scaling: not applied, twice, on some layers, by another formula, from another length."""
    bare = expected.mapped(RopeConfig.unscaled)
    yield Hypothesis("no scaling", bare)
    scaled = [rope for rope in expected.present_ropes if rope.scaling is not None and rope.unscaled() != rope]
    if not scaled:
        return
    rope, rule = scaled[0], scaled[0].scaling
    assert rule is not None
    for name, change, more in _wrong_rules(rope, rule):
        positions = expected.mapped(partial(_with_rule, change=change))
        if positions != expected:
            yield Hypothesis(name, positions, **more)
    for name, power in (("without mscale in the softmax", -1), ("with mscale twice in the softmax", 1)):
        extensions = tuple(_softmax_mscale(rope, power) for rope in expected.ropes)
        if any(extensions):
            yield Hypothesis(f"{rule.rope_type} {name}", replace(expected, extensions=extensions))
    if len({rope.scaling for rope in scaled}) == 1:
        yield from _some_layers(expected, bare, scaled)
    # dynamic NTK: its frequencies change with every further token
    if rule.needs_seq_len and rule.switch_length is None and rope.original_length:
        yield from (fixed_at(expected, int(times * rope.original_length)) for times in (1.5, *FACTORS))
    if isinstance(getattr(rule, "factor", None), float) and getattr(rule, TRAINED_KEY, None):
        by_request = expected.mapped(partial(_with_rule, change=lambda rope, rule: ByRequest(rule)))
        yield Hypothesis("a factor for each request", by_request, cure="Use one factor for all texts.")


def _wrong_rules(rope: RopeConfig, right: Scaling) -> Iterator[tuple[str, Change, dict[str, Any]]]:
    """Yield the name of each fault of a rule, the change that makes it, and more fields of its hypothesis."""
    rule, factor, ramp = right.rope_type, getattr(right, "factor", None), {"small": True}
    for name, power in (("without its attention factor", 0), ("with its attention factor twice", 2)):
        yield f"{rule} {name}", partial(_attention, power=power), {"cure": FACTOR}
    numbers = [factor * times for times in NEAR] if isinstance(factor, int | float) else []
    for number in numbers:
        if number > 1.0:
            yield f"{rule} with factor {number:g}", _with(factor=number), {"right": f"{factor:g}"}
    yield "scaling twice", _twice, {"twice": True}
    for ignored in (("attention_factor",), ("mscale", "mscale_all_dim")):
        if getattr(right, ignored[0], None) is not None:
            yield f"{rule}, {ignored[0]} ignored", _with(**dict.fromkeys(ignored)), {}
    for length, times in () if hasattr(right, "long_factor") else _lengths(rope):
        own = {"right": str(rope.original_length)}
        yield f"{rule} with {TRAINED_KEY} {length}", partial(_times, field=TRAINED_KEY, times=times), own
    yield f"{rule} by the paper's formula", _with(variant="paper"), {}
    yield "the short factors at every length", lambda rope, rule: replace(rule, long_factor=rule.short_factor), {}
    yield "the long factors at every length", lambda rope, rule: replace(rule, short_factor=rule.long_factor), {}
    yield f"{rule} with default betas", _with(beta_fast=32.0, beta_slow=1.0), ramp  # llama.cpp's, for most files
    for field in ("beta_fast", "beta_slow", "low_freq_factor", "high_freq_factor"):
        for times in (0.5, 2.0):
            yield f"{rule} with {field} times {times:g}", partial(_times, field=field, times=times), ramp
    for truncate, word in ((False, "without"), (True, "with")):
        yield f"{rule} {word} rounded bounds", _with(truncate=truncate), ramp


def _with_rule(rope: RopeConfig, change: Change) -> RopeConfig:
    """Return the rope with a faulty rule; the rope itself if its rule cannot have this fault."""
    try:
        return rope if rope.scaling is None else replace(rope, scaling=change(rope, rope.scaling))
    except (RopeError, TypeError, AttributeError):
        return rope


def _with(**fields: object) -> Change:
    return lambda rope, rule: replace(rule, **fields)


def _twice(rope: RopeConfig, rule: Any) -> Any:
    return Stacked(rule.written_out(rope.max_position_embeddings), rule)


def _times(rope: RopeConfig, rule: Any, field: str, times: float) -> Any:
    """Return the rule with a field multiplied; a length is rounded to tokens."""
    value = getattr(rule, field) * times
    return replace(rule, **{field: round(value) if field == TRAINED_KEY else value})


def _attention(rope: RopeConfig, rule: Any, power: int) -> Any:
    return replace(rule, attention_factor=rope.attention_factor_at(HORIZON) ** power)


def _softmax_mscale(rope: RopeConfig | None, power: int) -> ScaledLogits | None:
    """Return a power of the factor by which DeepSeek multiplies the softmax scale under YaRN."""
    rule = None if rope is None else rope.scaling
    mscale, factor = getattr(rule, "mscale_all_dim", None), getattr(rule, "factor", None)
    return ScaledLogits(yarn_mscale(factor, mscale) ** (2 * power)) if mscale and factor and factor > 1.0 else None


def _lengths(rope: RopeConfig) -> Iterator[tuple[int, float]]:
    """Yield wrong original lengths (multiplied and divided by the factor), each with its ratio to the right one."""
    before, after = rope.original_length, rope.scaled_length
    if before and after and after != before:
        factor = getattr(rope.scaling, "factor", 2.0)
        ratios = dict.fromkeys((after / before, before / after, 2.0, 0.5, factor, 1 / factor))
        yield from ((round(before * times), times) for times in ratios if before * times >= 16)


def fixed_at(expected: ModelRopes, length: int) -> Hypothesis:
    """Return the frequencies of one length at every length, for ropes whose frequencies follow it."""
    positions = expected.mapped(lambda rope: given(rope, rope.columns_at(length)))
    return Hypothesis(f"dynamic scaling fixed at {length} tokens", positions, cure=LENGTH)


def given(rope: RopeConfig, columns: Sequence[float]) -> RopeConfig:
    """Return a rope with these frequencies and without an attention factor."""
    return RopeConfig(
        rope.head_dim,
        interleaved=rope.interleaved,
        rotary_dim=rope.rotary_dim,
        max_position_embeddings=rope.max_position_embeddings,
        axes=rope.axes,
        inv_freq=tuple(columns),
    )


def rounded(expected: ModelRopes, dtype: torch.dtype, unchanged_below: int = 0) -> Hypothesis:
    """Return inverse frequencies after a cast of the whole model to `dtype`."""

    def change(rope: RopeConfig) -> RopeConfig:
        if not _is_constant(rope):
            return rope
        columns = torch.tensor(rope.columns_at(2), dtype=torch.float32, device="cpu")
        return given(rope, columns.to(dtype).double().tolist())

    name = f"inv_freq in {str(dtype).removeprefix('torch.')}"
    return Hypothesis(name, expected.mapped(change), unchanged_below, minor=True, small=True, cure=FLOAT32)


def _is_constant(rope: RopeConfig) -> bool:
    """Return whether `given` can give the frequencies of the rope."""
    return not rope.needs_seq_len and rope.attention_factor_at(2) == 1.0


# --- layers


def _mixed(of_sliding: ModelRopes, of_full: ModelRopes) -> ModelRopes:
    """Return the second, with the first's ropes in layers with a window."""
    layers = zip(of_sliding.ropes, of_full.ropes, of_full.sliding_windows, strict=True)
    return replace(of_full, ropes=tuple(full if window is None else own for own, full, window in layers))


def _some_layers(expected: ModelRopes, bare: ModelRopes, scaled: Sequence[RopeConfig]) -> Iterator[Hypothesis]:
    """Yield the only scaling on full layers, on sliding layers, and on all, if a model has both."""
    windows = expected.sliding_windows
    if None not in windows or not any(windows):
        return
    every = expected.mapped(lambda rope: replace(rope, scaling=scaled[0].scaling))
    yield Hypothesis("scaling on full layers only", _mixed(bare, every))
    yield Hypothesis("scaling on sliding layers only", _mixed(every, bare))
    yield Hypothesis("scaling on all layers", every)
    if any(rope in scaled for rope, window in zip(expected.ropes, windows, strict=True) if window):
        return
    # llama.cpp multiplies by a file's attn_factor in every layer, and by YaRN's own factor only where it scales
    applied = scaled[0].attention_factor_at(HORIZON)
    usual = yarn_mscale(getattr(scaled[0].scaling, "factor", None) or 1.0, 1.0)
    for factor in (applied, applied / usual):
        of_sliding = expected.mapped(partial(_multiplied, factor=factor))
        yield Hypothesis(f"attention factor {factor:.3g} on sliding layers, too", _mixed(of_sliding, expected))


def _multiplied(rope: RopeConfig, factor: float) -> RopeConfig:
    return replace(rope, scaling=YaRN(1.0, rope.max_position_embeddings or HORIZON, attention_factor=factor))


def _widths(expected: ModelRopes) -> Iterator[Hypothesis]:
    """Yield faults of the rotary width, if only a part of each head rotates."""
    if all(rope.rotary_dim == rope.head_dim for rope in expected.present_ropes):
        return

    def whole(rope: RopeConfig) -> RopeConfig:
        return replace(rope, rotary_dim=None) if rope.axes is None and rope.inv_freq is None else rope

    def exponents(rope: RopeConfig) -> RopeConfig:
        if rope.rotary_dim == rope.head_dim or rope.inv_freq is not None:
            return rope
        wide = replace(rope, rotary_dim=None, axes=None)
        return given(rope, wide.columns_at(2)[: rope.pairs]) if _is_constant(wide) else rope

    for name, change in (("theta's exponents over the whole head", exponents), ("partial factor ignored", whole)):
        with suppress(RopeError):
            yield Hypothesis(name, expected.mapped(change), cure=WIDTH)


def _layers(expected: ModelRopes) -> Iterator[Hypothesis]:
    """Yield ropes on the wrong layers: of another type, or where none rotates."""
    windows, ropes = expected.sliding_windows, expected.ropes
    kinds = [{rope for rope, window in zip(ropes, windows, strict=True) if (window is None) == full} for full in (0, 1)]
    if [len(kind) for kind in kinds] == [1, 1] and kinds[0] != kinds[1]:
        (sliding,), (full,) = kinds
        for name, of_sliding, of_full in (
            ("the full layers' rope on all layers", full, full),
            ("the sliding layers' rope on all layers", sliding, sliding),
            ("the ropes of full and sliding layers exchanged", full, sliding),
        ):
            wrong = tuple(of_full if window is None else of_sliding for window in windows)
            yield Hypothesis(name, replace(expected, ropes=wrong), cure=LAYERS)
    else:
        for label, other in [] if expected.numbered else expected.by_type.items():
            yield Hypothesis(f"the rope of {label} layers on all layers", expected.with_rope(other), cure=LAYERS)
    labels = expected.labels or (None,) * expected.num_layers
    still = [rope is None and attends(label) for rope, label in zip(ropes, labels, strict=True)]
    if any(still) and expected.present_ropes:
        rope = expected.present_ropes[0]
        every = tuple(rope if flag else own for own, flag in zip(ropes, still, strict=True))
        yield Hypothesis("rotation on all layers", replace(expected, ropes=every), cure=STILL)
        others = tuple(rope if flag else None for flag in still)
        yield Hypothesis("rotation on the other layers only", replace(expected, ropes=others), cure=STILL)


# --- methods, and positions


def methods(expected: ModelRopes, trained: int, without: str = "") -> Iterator[Hypothesis]:
    """Yield every method but one at every factor, from the trained lengths."""
    scaled = {(rope.original_length, rope.scaled_length) for rope in expected.present_ropes if rope.scaling is not None}
    own = [after / before * times for before, after in scaled if before and after for times in (0.5, 1.0, 2.0)]
    factors = sorted({factor for factor in (*FACTORS, *own) if factor > 1.0})
    origins = sorted({trained, *(rope.original_length or trained for rope in expected.present_ropes)})
    # no engine applies those on request
    extending = [m for m in METHODS.values() if m.extends and not m.on_request and m.name != without]
    for method, length, factor in product(extending, origins, factors):
        with suppress(RopeError):  # the method does not support this rope
            reach = Reach(length, math.ceil(length * factor))
            positions = method.positions(expected, reach)
            where = "" if len(origins) == 1 else f" from {length}"
            name = f"{method.name} {factor:g}{where}{_known_as(method.name, positions)}"
            yield Hypothesis(name, positions, method.equal_below(reach))


def _known_as(method: str, positions: ModelRopes) -> str:
    """Return the name in configs and engines if it differs: the theta that the method sets, or its rope_type."""
    rules = {rope.scaling for rope in positions.present_ropes if rope.scaling is not None}
    rule = rules.pop() if len(rules) == 1 else None
    theta = getattr(rule, "theta", None)
    if theta is not None:
        return f" (theta {theta:.0f})"
    return f" ({rule.rope_type})" if rule and method == "pi" else ""


def _positions(expected: ModelRopes, trained: int) -> Iterator[Hypothesis]:
    """Yield positions that stop, restart or are off by one after a length, and rounded ones."""
    known: set[int | None] = {*CHUNKS, trained}
    known |= {length for rope in expected.present_ropes for length in (rope.original_length, rope.scaled_length)}
    for length in sorted(filter(None, known)):
        yield from _faulty(
            expected,
            (f"held at {length}", FaultyPositions("held", length)),
            (f"begun again after {length}", FaultyPositions("restarted", length)),
            (f"one too far after {length}", FaultyPositions("shifted", length, 1)),
            (f"one too few after {length}", FaultyPositions("shifted", length, -1)),
        )
    yield from _faulty(expected, ("in bfloat16", FaultyPositions("rounded", 256)))


def in_decoding(expected: ModelRopes, prompt: int) -> list[Hypothesis]:
    """Return hypotheses about the positions of tokens that follow a prompt of `prompt` tokens, processed one by one."""
    return _faulty(
        expected,
        ("one too far in decoding", FaultyPositions("shifted", prompt, 1)),
        ("one too few in decoding", FaultyPositions("shifted", prompt, -1)),
        ("begun again in decoding", FaultyPositions("shifted", prompt, -prompt)),
        ("held in decoding", FaultyPositions("held", prompt)),
        ("held after the first generated token", FaultyPositions("held", prompt + 1)),
    )


def _faulty(expected: ModelRopes, *faults: tuple[str, FaultyPositions]) -> list[Hypothesis]:
    """Return a hypothesis for each fault; none for models with sliding layers or extensions, or without a rope."""
    if any((*expected.sliding_windows, *expected.extensions)) or not expected.present_ropes:
        return []
    return [
        Hypothesis(
            f"positions {name}", expected.with_extension(rule), rule.start,
            small=rule.fault == "rounded" or abs(rule.by) == 1, cure=NUMBERS,
        )
        for name, rule in faults
    ]  # fmt: skip
