"""The hypotheses about an engine, each as positions of our own decoder; the expected one is first."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Any

import torch

from ropewalk.atomic_io import parse_object
from ropewalk.errors import RopeError
from ropewalk.methods import METHODS, Reach, main_rope, method_named
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.extensions import Positions
from ropewalk.rope.frequencies import attention_factor_of, columns_of
from ropewalk.rope.scaling import Scaling, Stacked, yarn_mscale
from ropewalk.rope.values import TRAINED_KEY
from ropewalk.verification.faulty_positions import FaultyPositions, ScaledLogits
from ropewalk.verification.questions import HORIZON, first_difference

LONGEST_DEFAULT = 1024  # tokens: the length that a verdict covers by default
FACTORS = (2.0, 4.0, 8.0, 16.0)
THETAS = (1e4, 1e5, 5e5, 1e6)
NEAR = (0.8, 1.25)  # times the expected theta or factor: the resolution of a verdict
TIMES = (0.1, 0.5, *NEAR, 2.0, 10.0)  # times the expected theta
CHUNKS = (512, 2048)  # tokens of one forward in engines, after which positions may begin at 0 again


@dataclass(frozen=True)
class Hypothesis:
    """One hypothesis about an engine: its name, and each layer's positions.

    - `unchanged_below`: the number of tokens at the beginning of a prompt that its extension does not change.
    - `minor`: whether it changes little, such as the rounding of a table. A verdict mentions it if the answers fit it,
      and is not undecided if they exclude all other hypotheses.
    - `small`: whether its effect is small by nature: positions off by one, a ramp, a rounding. If the engine's noise is
      larger, a verdict only mentions it.
    """

    name: str
    positions: Positions
    unchanged_below: int = 0
    minor: bool = False
    small: bool = False

    def at(self, length: int) -> tuple[object, ...]:
        """Return all values that determine the output for a prompt of `length` tokens, to compare hypotheses."""
        if length not in self._at:
            self._at[length] = tuple(
                (None if rope is None else _numbers(rope, length), extension if length > self.unchanged_below else None)
                for rope, extension in zip(self.positions.ropes, self.positions.extensions, strict=True)
            )
        return self._at[length]

    @property
    def by_frequencies(self) -> bool:
        """Return whether it changes only frequencies, whose effect grows with the prompt."""
        return not any(self.positions.extensions)

    @cached_property
    def _at(self) -> dict[int, tuple[object, ...]]:
        return {}

    @property
    def borders(self) -> set[int]:
        """Return the lengths in tokens after which it may change."""
        lengths = {self.unchanged_below}
        for rope in self.positions.present_ropes:
            lengths |= {rope.original_length or 0, rope.switch_length or 0, rope.max_position_embeddings or 0}
        return lengths - {0}


@lru_cache(4096)
def _numbers(rope: RopeConfig, length: int) -> tuple[object, ...]:
    """Return a rope's pairing, frequencies and attention factor at a length, to ten digits."""
    return (
        rope.interleaved,
        tuple(float(f"{column:.9e}") for column in columns_of(rope, length)),
        float(f"{attention_factor_of(rope, length):.9e}"),
    )


def hypotheses(expected: Positions, *, trained: int) -> list[Hypothesis]:
    """Return the different hypotheses to compare answers with, the expected one first.

    The set depends on `expected`: its factor, halved and doubled, its lengths, its layers.

    **Arguments:**
    - `expected`: the positions the engine should apply.
    - `trained`: the trained length in tokens.
    """
    extended = any(extension is not None for extension in expected.extensions)  # it may act from the first token on
    first = Hypothesis("as expected", expected, 0 if extended else trained)
    different = {_key(first): first}
    for hypothesis in _all(expected, trained):
        same = different.setdefault(_key(hypothesis), hypothesis)
        if same is hypothesis or same is first:
            continue
        name = f"{same.name}, which is {hypothesis.name}" if same.name == "scaling twice" else same.name  # 2 x 2 is 4
        different[_key(same)] = dataclasses.replace(same, name=name, small=same.small or hypothesis.small)
    return list(different.values())


def _key(hypothesis: Hypothesis) -> tuple[object, ...]:
    """Return a key that equal hypotheses share."""
    lengths = sorted({2, HORIZON, *(border + 1 for border in hypothesis.borders)})
    # the values on both sides of a border distinguish a rule that changes only there from a constant one
    return (
        hypothesis.at(2),
        hypothesis.at(HORIZON),
        tuple(lengths) if hypothesis.at(2) != hypothesis.at(HORIZON) else (),
    )


def _all(expected: Positions, trained: int) -> Iterator[Hypothesis]:
    """Yield every hypothesis except the expected one; some may be the same."""
    bare = dataclasses.replace(expected, extensions=(None,) * expected.num_layers)
    unscaled = _mapped(bare, RopeConfig.unscaled)
    yield Hypothesis("no scaling", unscaled)
    yield from _faults_of_scaling(bare)
    yield from _methods(bare, trained)
    yield from _widths(bare)
    yield from _layers(bare)
    for positions, without in ((bare, ""), (unscaled, "no scaling, ")):
        yield from _thetas(positions, without)
        swapped = _mapped(positions, lambda rope: dataclasses.replace(rope, interleaved=not rope.interleaved))
        yield Hypothesis(f"{without}the other pairing", swapped)
    yield Hypothesis("no rotation", dataclasses.replace(bare, ropes=(None,) * bare.num_layers))
    yield from _positions(expected, trained)
    unchanged = 0 if expected != bare else trained
    yield Hypothesis("inv_freq in bfloat16", _mapped(expected, _rounded), unchanged, minor=True, small=True)


def _mapped(positions: Positions, change: Callable[[RopeConfig], RopeConfig]) -> Positions:
    """Return the positions with each layer's rope changed."""
    return dataclasses.replace(
        positions, ropes=tuple(None if rope is None else change(rope) for rope in positions.ropes)
    )


def _faults_of_scaling(expected: Positions) -> Iterator[Hypothesis]:
    """Yield faults of a scaling: applied twice, on some layers, by another formula, from another length."""
    scaled = [rope for rope in expected.present_ropes if rope.scaling is not None and rope.unscaled() != rope]
    if not scaled:
        return
    rope, scaling = scaled[0], scaled[0].scaling
    rule = scaling.rope_type if scaling else ""
    for rules, small in ((_rules(rope), False), (_ramps(rule), True)):
        for name, change in rules:
            positions = _mapped(expected, partial(_with_rule, change=change))
            if positions != expected:
                yield Hypothesis(name, positions, small=small)
    for name, power in (("without mscale in the softmax", -1), ("with mscale twice in the softmax", 1)):
        extensions = tuple(_softmax_mscale(rope, power) for rope in expected.ropes)
        if any(extensions):
            yield Hypothesis(f"{rule} {name}", dataclasses.replace(expected, extensions=extensions))
    yield from _some_layers(expected)
    # dynamic NTK: its frequencies change with every further token
    if scaling is not None and scaling.needs_seq_len and scaling.switch_length is None and rope.original_length:
        for times in (1.5, *FACTORS):
            length = int(times * rope.original_length)
            yield Hypothesis(f"dynamic scaling fixed at {length} tokens", _mapped(expected, _fixed_at(length)))


Change = Callable[[RopeConfig, Any], Scaling]
"""From a rope and its rule to a faulty rule; raises if this rule has no such field, or no such number is valid."""


def _rules(rope: RopeConfig) -> Iterator[tuple[str, Change]]:
    """Yield the name of each faulty rule, for a rope with a scaling, and the change that makes it."""
    rule, factor = rope.scaling.rope_type if rope.scaling else "", getattr(rope.scaling, "factor", None)
    yield "scaling twice", lambda rope, rule: Stacked(rule.written_out(rope.max_position_embeddings), rule)
    for name, power in (("without its attention factor", 0), ("with its attention factor twice", 2)):
        yield f"{rule} {name}", partial(_attention, power=power)
    for length, times in () if hasattr(rope.scaling, "long_factor") else _lengths(rope):
        yield f"{rule} with {TRAINED_KEY} {length}", partial(_times, field=TRAINED_KEY, times=times)
    for times in NEAR:
        if isinstance(factor, int | float) and factor * times > 1.0:
            yield f"{rule} with factor {factor * times:g}", partial(_times, field="factor", times=times)
    yield f"{rule} by the paper's formula", partial(_replaced, variant="paper")
    yield "the short factors at every length", lambda rope, rule: _replaced(rope, rule, long_factor=rule.short_factor)
    yield "the long factors at every length", lambda rope, rule: _replaced(rope, rule, short_factor=rule.long_factor)


def _ramps(rule: str) -> Iterator[tuple[str, Change]]:
    """Yield the name of each rule with a different ramp between its frequencies, and the change that makes it."""
    yield f"{rule} with default betas", partial(_replaced, beta_fast=32.0, beta_slow=1.0)  # llama.cpp's, for most files
    for field in ("beta_fast", "beta_slow", "low_freq_factor", "high_freq_factor"):
        for times in (0.5, 2.0):
            yield f"{rule} with {field} times {times:g}", partial(_times, field=field, times=times)
    yield f"{rule} without rounded bounds", partial(_replaced, truncate=False)


def _with_rule(rope: RopeConfig, change: Change) -> RopeConfig:
    """Return the rope with a faulty rule; the rope itself if its rule cannot have this fault."""
    try:
        return rope if rope.scaling is None else dataclasses.replace(rope, scaling=change(rope, rope.scaling))
    except (RopeError, TypeError, AttributeError):
        return rope


def _replaced(rope: RopeConfig, rule: Any, **fields: object) -> Scaling:
    changed: Scaling = dataclasses.replace(rule, **fields)
    return changed


def _times(rope: RopeConfig, rule: Any, field: str, times: float) -> Scaling:
    """Return the rule with a field multiplied; a length is rounded to tokens."""
    value = getattr(rule, field) * times
    return _replaced(rope, rule, **{field: max(1, round(value)) if field == TRAINED_KEY else value})


def _attention(rope: RopeConfig, rule: Any, power: int) -> Scaling:
    return _replaced(rope, rule, attention_factor=attention_factor_of(rope, HORIZON) ** power)


def _softmax_mscale(rope: RopeConfig | None, power: int) -> ScaledLogits | None:
    """Return a power of the factor by which DeepSeek multiplies the softmax scale under YaRN."""
    rule = None if rope is None else rope.scaling
    mscale, factor = getattr(rule, "mscale_all_dim", None), getattr(rule, "factor", None)
    return ScaledLogits(yarn_mscale(factor, mscale) ** (2 * power)) if mscale and factor and factor > 1.0 else None


def _lengths(rope: RopeConfig) -> Iterator[tuple[int, float]]:
    """Yield wrong original lengths (multiplied and divided by the factor), each with its ratio to the right one."""
    before, after = rope.original_length, rope.scaled_length
    if before and after and after != before:
        ratios = dict.fromkeys((after / before, before / after, 2.0, 0.5))
        yield from ((max(1, round(before * times)), times) for times in ratios)


def _fixed_at(length: int) -> Callable[[RopeConfig], RopeConfig]:
    return lambda rope: _given(rope, columns_of(rope, length))


def _given(rope: RopeConfig, columns: Sequence[float]) -> RopeConfig:
    """Return a rope with these frequencies and without an attention factor."""
    return RopeConfig(
        rope.head_dim,
        interleaved=rope.interleaved,
        rotary_dim=rope.rotary_dim,
        max_position_embeddings=rope.max_position_embeddings,
        axes=rope.axes,
        inv_freq=tuple(columns),
    )


def _rounded(rope: RopeConfig) -> RopeConfig:
    """Return the rope with inverse frequencies in bfloat16, as after a cast of the whole model."""
    if rope.needs_seq_len or attention_factor_of(rope, 2) != 1.0:
        return rope
    return _given(rope, torch.tensor(columns_of(rope, 2)).bfloat16().double().tolist())


def _some_layers(expected: Positions) -> Iterator[Hypothesis]:
    """Yield scaling on full layers only, on sliding layers only, and on all, if a model has both."""
    sliding = [window is not None for window in expected.sliding_windows]
    rules = {rope.scaling for rope in expected.present_ropes if rope.scaling is not None and rope.unscaled() != rope}
    if len(set(sliding)) < 2 or len(rules) != 1:
        return
    (rule,) = rules
    for name, on in (
        ("scaling on full layers only", [not slides for slides in sliding]),
        ("scaling on sliding layers only", sliding),
        ("scaling on all layers", [True] * len(sliding)),
    ):
        ropes = tuple(
            None if rope is None else dataclasses.replace(rope, scaling=rule) if scaled else rope.unscaled()
            for rope, scaled in zip(expected.ropes, on, strict=True)
        )
        yield Hypothesis(name, dataclasses.replace(expected, ropes=ropes))


def _widths(expected: Positions) -> Iterator[Hypothesis]:
    """Yield faults of the rotary width, if only a part of each head rotates."""
    partly = [rope for rope in expected.present_ropes if rope.rotary_dim != rope.head_dim and rope.axes is None]
    if not partly:
        return

    def whole(rope: RopeConfig) -> RopeConfig:
        if rope.rotary_dim == rope.head_dim or rope.axes is not None or rope.inv_freq is not None:
            return rope
        return dataclasses.replace(rope, rotary_dim=None)

    def exponents(rope: RopeConfig) -> RopeConfig:
        wide = whole(rope)
        if wide == rope or wide.needs_seq_len or attention_factor_of(wide, 2) != 1.0:
            return rope
        return _given(rope, columns_of(wide, 2)[: rope.pairs])

    for name, change in (("partial factor ignored", whole), ("theta's exponents over the whole head", exponents)):
        try:
            yield Hypothesis(name, _mapped(expected, change))
        except RopeError:
            continue


def _layers(expected: Positions) -> Iterator[Hypothesis]:
    """Yield the ropes of full and sliding layers exchanged, or one of them on all layers, if they differ."""
    kinds: dict[bool, set[RopeConfig | None]] = {True: set(), False: set()}
    for rope, window in zip(expected.ropes, expected.sliding_windows, strict=True):
        kinds[window is not None].add(rope)
    if len(kinds[True]) != 1 or len(kinds[False]) != 1 or kinds[True] == kinds[False]:
        return
    (sliding,), (full,) = kinds[True], kinds[False]
    for name, on in (
        ("the full layers' rope on all layers", {True: full, False: full}),
        ("the sliding layers' rope on all layers", {True: sliding, False: sliding}),
        ("the ropes of full and sliding layers exchanged", {True: full, False: sliding}),
    ):
        ropes = tuple(on[window is not None] for window in expected.sliding_windows)
        yield Hypothesis(name, dataclasses.replace(expected, ropes=ropes))


def _methods(expected: Positions, trained: int) -> Iterator[Hypothesis]:
    """Yield every method at every factor, from the trained lengths."""
    own = [rope.scaled_length / rope.original_length for rope in expected.present_ropes
           if rope.scaling is not None and rope.scaled_length and rope.original_length]  # fmt: skip
    factors = sorted({factor for factor in (*FACTORS, *(f * x for f in own for x in (0.5, 1.0, 2.0))) if factor > 1.0})
    lengths = sorted({trained, *(rope.original_length or trained for rope in expected.present_ropes)})
    for method in METHODS.values():
        if not method.extends or method.on_request:  # no engine applies them
            continue
        for length in lengths:
            for factor in factors:
                reach = Reach(length, math.ceil(length * factor))
                try:
                    positions = method.positions(expected, reach)
                except RopeError:
                    continue  # the method does not support this rope
                where = "" if len(lengths) == 1 else f" from {length}"
                yield Hypothesis(
                    f"{method.name} {factor:g}{where}{_known_as(method.name, positions)}",
                    positions,
                    method.equal_below(reach),
                )


def _known_as(method: str, positions: Positions) -> str:
    """Return the name in configs and engines if it differs: the theta that the method sets, or its rope_type."""
    rules = {rope.scaling for rope in positions.present_ropes if rope.scaling is not None}
    if len(rules) != 1:
        return ""
    (rule,) = rules
    theta = getattr(rule, "theta", None)
    if theta is not None:
        return f" (theta {theta:.0f})"
    return f" ({rule.rope_type})" if method == "pi" else ""


def _thetas(expected: Positions, prefix: str) -> Iterator[Hypothesis]:
    """Yield other values of theta: the usual ones, and some near each rope's own, a tenth and ten times of it."""
    own = {rope.theta for rope in expected.present_ropes if isinstance(rope.theta, float) and rope.inv_freq is None}
    thetas = {*THETAS, *(theta * x for theta in own for x in TIMES)} - own

    def change(rope: RopeConfig, theta: float) -> RopeConfig:
        given = rope.inv_freq is not None or isinstance(rope.theta, tuple)
        return rope if given else dataclasses.replace(rope, theta=theta)

    for theta in sorted(theta for theta in thetas if theta > 1.0) if own else ():
        yield Hypothesis(f"{prefix}theta {theta:.0f}", _mapped(expected, partial(change, theta=theta)))


def _positions(expected: Positions, trained: int) -> Iterator[Hypothesis]:
    """Yield positions that stop, restart or are off by one after a length, and rounded ones."""
    known = {rope.original_length for rope in expected.present_ropes} | {trained}
    known |= {rope.scaled_length for rope in expected.present_ropes}
    for length in sorted({*CHUNKS, *(length for length in known if length)}):
        yield from _faulty(
            expected,
            (f"held at {length}", FaultyPositions("held", length)),
            (f"begun again after {length}", FaultyPositions("restarted", length)),
            (f"one too far after {length}", FaultyPositions("shifted", length, 1)),
            (f"one too few after {length}", FaultyPositions("shifted", length, -1)),
        )
    yield from _faulty(expected, ("in bfloat16", FaultyPositions("rounded", 256)))


def in_decoding(expected: Positions, prompt: int) -> list[Hypothesis]:
    """Return hypotheses about the positions of tokens that follow a prompt of `prompt` tokens, processed one by one."""
    return _faulty(
        expected,
        ("one too far in decoding", FaultyPositions("shifted", prompt, 1)),
        ("one too few in decoding", FaultyPositions("shifted", prompt, -1)),
        ("begun again in decoding", FaultyPositions("shifted", prompt, -prompt)),
        ("held in decoding", FaultyPositions("held", prompt)),
        ("held after the first generated token", FaultyPositions("held", prompt + 1)),
    )


def _faulty(expected: Positions, *faults: tuple[str, FaultyPositions]) -> list[Hypothesis]:
    """Return a hypothesis for each fault; none for models with sliding layers or extensions, or without a rope."""
    if any((*expected.sliding_windows, *expected.extensions)) or not expected.present_ropes:
        return []
    return [
        Hypothesis(
            f"positions {name}", expected.with_extension(rule), rule.start,
            small=rule.fault == "rounded" or abs(rule.by) == 1,
        )
        for name, rule in faults
    ]  # fmt: skip


def expected_positions(own: Positions, expect: str | Positions | None, trained: int) -> Positions:
    """Return the expected positions: the checkpoint's own, or those of `expect`; see `verify`.

    **Raises:** `RopeError` for an unknown method, an invalid factor or an invalid block.

    >>> rope = RopeConfig(64, interleaved=False, max_position_embeddings=256)
    >>> expected_positions(Positions((rope,), (None,), (None,)), "yarn:4", 256).ropes[0].scaling.factor
    4.0
    """
    if expect is None or isinstance(expect, Positions):
        return own if expect is None else expect
    if isinstance(expect, str) and expect.lstrip().startswith("{"):
        return _of_block(own, expect)
    name, _, factor = str(expect).partition(":")
    method = method_named(name)
    try:
        target = math.ceil(trained * float(factor)) if factor else trained
    except (ValueError, OverflowError):
        target = 0
    if target < trained or (method.extends and target == trained):
        raise RopeError(
            "verify: --expect must be a method and a factor above 1, or a block of rope_parameters.",
            facts={"expect": expect},
            cure='Write "plain", "yarn:4", or \'{"rope_type": "yarn", "factor": 4.0, ...}\'.',
        )
    return method.positions(own, Reach(trained, target))


def _of_block(own: Positions, expect: str) -> Positions:
    """Return the positions with the theta and the scaling of a Hugging Face block."""
    rope = main_rope(own.ropes)
    cure = 'Write it as in config.json: {"rope_type": "yarn", "factor": 4.0, ...}.'
    block = parse_object(expect, "--expect", "verify", cure)
    if rope is None:
        raise RopeError("verify: this model has no rope.", facts={"expect": expect}, cure="Omit --expect.")
    read = RopeConfig.from_block(
        {"rope_theta": rope.theta, **block},
        head_dim=rope.head_dim,
        interleaved=rope.interleaved,
        max_position_embeddings=rope.max_position_embeddings,
    )
    return _mapped(own, lambda old: dataclasses.replace(old, theta=read.theta, scaling=read.scaling, trained=None))


def length_to_verify(expected: Positions, trained: int) -> int:
    """Return the length in tokens for a verdict: the trained one, at most 1,024, or more if scaling acts later.

    >>> from ropewalk.rope.scaling import DynamicNTK
    >>> rope = RopeConfig(64, interleaved=False, max_position_embeddings=256, scaling=DynamicNTK(4.0))
    >>> length_to_verify(Positions((rope,), (None,), (None,)), 256)
    384
    """
    usual = min(trained, LONGEST_DEFAULT)
    without = dataclasses.replace(_mapped(expected, RopeConfig.unscaled), extensions=(None,) * expected.num_layers)
    begins = first_difference(Hypothesis("as expected", expected), Hypothesis("plain", without))
    return usual if begins is None or begins <= usual else begins + max(64, begins // 2 - 1)


def described(positions: Positions) -> str:
    """Describe the ropes in words.

    >>> described(Positions((RopeConfig(64, interleaved=False),), (None,), (None,)))
    'plain RoPE (theta 10000)'
    """
    rope = main_rope(positions.ropes)
    if rope is None:
        return "no rotation"
    extensions = {type(extension).__name__ for extension in positions.extensions if extension is not None}
    name, numbers = "plain RoPE", []
    if rope.scaling is not None:
        name = rope.scaling.rope_type
        given = {key: getattr(rope.scaling, key, None) for key in ("factor", "original_max_position_embeddings")}
        numbers = [f"{key} {value:g}" for key, value in given.items() if isinstance(value, int | float)]
    if not isinstance(rope.theta, tuple) and rope.inv_freq is None:
        numbers.append(f"theta {rope.theta:.0f}")
    return name + (f" ({', '.join(numbers)})" if numbers else "") + "".join(f", {name}" for name in sorted(extensions))
