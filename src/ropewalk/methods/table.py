"""`Method`, the record of one way to extend a model's context; the table of methods, and the choice for a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType

from ropewalk.errors import RopeError
from ropewalk.families import Trained
from ropewalk.methods.ropes import Reach
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.extensions import DualChunk, Extension, LaMPE, ReRoPE, SelfExtend
from ropewalk.rope.frequencies import smallest_theta
from ropewalk.rope.model_ropes import ModelRopes
from ropewalk.rope.scaling import ABF, NTK, DynamicNTK, Linear, Llama3, Resonance, Scaling, Stacked, YaRN
from ropewalk.rope.values import names_of

ALL = "all"


@dataclass(frozen=True)
class Look:
    """A method's style in every figure, distinct even without colour."""

    color: str
    line: str = "-"
    marker: str = "o"


@dataclass(frozen=True, kw_only=True)
class Method:
    """One way to extend a model's context: its rule, its cost and its description.

    Tables, reports, model cards, figures, the command line and the docs take all facts about methods from this record.

    Behaviour
    - `name`: as on the command line. In a tie the earlier method of the table wins.
    - `scaling`: for a method of frequencies, its rule, made from the rope as it was trained. The rule is applied on top
      of a scaling used in training, and replaces any other.
    - `extension`: for a method in attention, its rule there.
    - `keeps_own`: the checkpoint's scaling and extensions do not change. Every other method first removes extensions,
      and scalings that were not used in training.
    - `crops`: the model processes fresh windows of the trained length. Distant tokens are not visible, so a lower loss
      does not show a longer context; the method is a baseline, and never recommended.
    - `equal_below`: the number of first tokens of a row with the same results as under `plain`, which need not be
      computed again; 0 if every token may differ.
    - `on_request`: measured only by name or with "all", and no hypothesis of `ropewalk verify`: no engine applies it.

    Description
    - `changes`, `costs`: one line each. `source`: an arXiv number, or empty.
    - `config`: its form in config.json, or None; then `not_in_config` is the reason, and `nearest` the closest method
      that config.json can express.
    - `look`: colour, line and marker.
    """

    name: str
    changes: str
    costs: str
    look: Look
    config: str | None = None
    not_in_config: str = ""
    nearest: str = "plain"
    source: str = ""
    scaling: Callable[[RopeConfig, Reach], Scaling] | None = None
    extension: Callable[[Reach], Extension] | None = None
    equal_below: Callable[[Reach], int] = lambda reach: 0
    keeps_own: bool = False
    crops: bool = False
    on_request: bool = False

    @property
    def in_attention(self) -> bool:
        """Return whether the method acts in attention."""
        return self.extension is not None

    @property
    def extends(self) -> bool:
        """Return whether the method changes positions and needs a target beyond the trained length."""
        return self.scaling is not None or self.extension is not None

    @property
    def config_note(self) -> str:
        """Return, in a few words, whether and how config.json can express the method."""
        return f"no: {self.not_in_config}" if self.config is None else f"yes ({self.config})"

    def positions(self, current: ModelRopes, reach: Reach) -> ModelRopes:
        """Return each layer's rope and extension under this method; raise `RopeError` if it cannot be applied.

        Layers without a rope keep none. Layers with a sliding window of at most the trained length keep the rope of
        training, and get no extension. No sliding layer gets an extension that remaps positions.
        """
        if self.keeps_own:
            return current
        if self.in_attention:
            self._check_extends(reach)
        extension = None if self.extension is None else self.extension(reach)
        ropes, extensions = list[RopeConfig | None](), list[Extension | None]()
        for rope, window in zip(current.ropes, current.sliding_windows, strict=True):
            within = window is not None and window <= reach.trained
            ropes.append(rope and (rope.as_trained() if within else self.rope(rope, reach)))
            blocked = rope is None or within or (window is not None and extension is not None and extension.remaps)
            extensions.append(None if blocked else extension)
        return replace(current, ropes=tuple(ropes), extensions=tuple(extensions))

    def rope(self, rope: RopeConfig, reach: Reach) -> RopeConfig:
        """Return one rope under this method, on top of the rope as it was trained; raise `RopeError` as `positions`."""
        if self.keeps_own:
            return rope
        base = rope.as_trained()
        if self.scaling is None:
            return base
        if not rope.can_be_extended:
            raise RopeError(
                "methods: pairs do not rotate, or frequencies are explicit.",
                facts={"method": self.name, "rope": rope},
                cure="Measure it with --methods plain,as-is.",
            )
        self._check_extends(reach)
        rule, length = self.scaling(base, reach), reach.trained
        if base.scaling is None:
            return replace(base, scaling=rule, max_position_embeddings=length, trained=None)
        both = Stacked(base.scaling.written_out(base.max_position_embeddings), rule)
        return replace(base, scaling=both, max_position_embeddings=length, trained=Trained(False, length))

    def _check_extends(self, reach: Reach) -> None:
        if not reach.extends:
            raise RopeError(
                f"methods: `{self.name}` needs a target beyond the trained length.",
                facts={"target": reach.target, "trained_length": reach.trained},
                cure="Pass a longer --target, or use only --methods plain.",
            )


def _abf(base: RopeConfig, reach: Reach) -> ABF:
    """Return the rule with the smallest theta for the target."""
    divisors = None
    if base.scaling is not None:
        pairs = zip(replace(base, scaling=None).columns_at(), base.columns_at(reach.target), strict=True)
        divisors = tuple(f / g if g else math.inf for f, g in pairs)
    return ABF(smallest_theta(base.ladders[0].dim, reach.target, at_least=base.theta, divisors=divisors))


def _window(reach: Reach) -> int:
    """Return a quarter of the trained length: the window within which distances do not change."""
    return max(1, reach.trained // 4)


def _self_extend(reach: Reach) -> SelfExtend:
    """Return the window, and groups that keep distances within two thirds of the trained length."""
    window = _window(reach)
    group = math.ceil(3 * (reach.target - window) / max(1, 2 * reach.trained - 3 * window))
    return SelfExtend(group=group, window=window)


_frequencies = partial(Method, costs="nothing: the tables hold other angles")
_in_attention = partial(
    Method,
    costs="two passes, over near and far keys; cached keys are rotated again for each token",
    not_in_config="it clips or regroups positions inside attention, which no config.json describes",
    nearest="yarn",
)

METHOD_TABLE: tuple[Method, ...] = (
    # The model as it was trained, to which every difference is paired.
    Method(
        name="plain",
        changes="Nothing: the model as it was trained, without a scaling for inference.",
        costs="nothing",
        config="default",
        look=Look("#222222", "-", "o"),
    ),
    # The scaling for inference in a checkpoint; a scaling that it was trained with belongs to `plain`.
    Method(
        name="as-is",
        changes="Nothing: keeps the checkpoint's scaling for inference.",
        costs="nothing",
        config="unchanged",
        keeps_own=True,
        look=Look("#56b4e9", "-", "P"),
    ),
    # Position interpolation (Chen et al. 2023, arXiv:2306.15595, eq. 4).
    _frequencies(
        name="pi",
        changes="Divides every frequency by the factor.",
        config="linear",
        source="2306.15595",
        scaling=lambda rope, reach: Linear(reach.factor),
        look=Look("#e69f00", "--", "s"),
    ),
    # NTK-aware scaling (bloc97 2023; Peng et al. 2023, arXiv:2309.00071, section 3.1).
    _frequencies(
        name="ntk",
        changes="Raises theta: divides the slowest frequency by the factor, and hardly changes the fastest.",
        config="a larger rope_theta",
        scaling=lambda rope, reach: NTK(reach.factor),
        look=Look("#009e73", "-.", "^"),
    ),
    # Dynamic NTK (emozilla 2023; Peng et al. 2023, arXiv:2309.00071, section 3.3). With factor 1 it stretches a window
    # of the target length by exactly target / trained, as `ntk` does.
    Method(
        name="dynamic",
        changes="As ntk, by the current length: short texts do not change.",
        costs="cached keys are computed again when the length grows",
        config="dynamic",
        scaling=lambda rope, reach: DynamicNTK(1.0),
        look=Look("#009e73", ":", "v"),
    ),
    # YaRN (Peng et al. 2023, arXiv:2309.00071, sections 3.2 to 3.4).
    _frequencies(
        name="yarn",
        changes="Divides the frequencies of slow pairs by the factor, keeps fast ones, ramps between; sharpens logits.",
        config="yarn",
        source="2309.00071",
        scaling=lambda rope, reach: YaRN(reach.factor, reach.trained),
        look=Look("#0072b2", "-", "D"),
    ),
    # Llama 3.1's scaling (Grattafiori et al. 2024, arXiv:2407.21783).
    _frequencies(
        name="llama3",
        changes="Divides the frequencies of slow pairs by the factor and keeps fast ones, with a ramp in between.",
        config="llama3",
        source="2407.21783",
        scaling=lambda rope, reach: Llama3(reach.factor, 1.0, 4.0, reach.trained),
        look=Look("#cc79a7", "--", "X"),
    ),
    # Adjusted base frequency (Xiong et al. 2023, arXiv:2309.16039, section 4.1). Theta is the smallest one of at least
    # the checkpoint's that keeps the sum of cosines above zero up to the target. A scaling that the model was trained
    # with is included in the sum.
    _frequencies(
        name="abf",
        changes="Raises theta until the sum of cos(m theta) stays positive up to the target.",
        config="a larger rope_theta",
        source="2309.16039",
        scaling=_abf,
        look=Look("#8c6d1f", "-.", "<"),
    ),
    # Resonance YaRN (Wang et al. 2024, arXiv:2403.00071).
    _frequencies(
        name="resonance",
        changes="As yarn, with every pair's wavelength rounded to whole tokens.",
        config="its factors, as longrope",
        source="2403.00071",
        scaling=lambda rope, reach: Resonance(YaRN(reach.factor, reach.trained)),
        look=Look("#0072b2", ":", ">"),
    ),
    # ReRoPE (Su 2023): distances are clipped at a window of a quarter of the trained length.
    _in_attention(
        name="rerope",
        changes="Clips distances at a window; sharpens logits as the text grows.",
        extension=lambda reach: ReRoPE(window=_window(reach), log_n=reach.trained),
        equal_below=_window,
        look=Look("#332288", "-.", "d"),
    ),
    # Self-Extend (Jin et al. 2024, arXiv:2401.01325).
    _in_attention(
        name="self-extend",
        changes="Near tokens unchanged, farther ones by positions in groups.",
        source="2401.01325",
        extension=_self_extend,
        equal_below=_window,
        look=Look("#44aa99", "--", "v"),
    ),
    # LaMPE (arXiv:2508.02308), with the shares in its released code for 4,096 tokens.
    _in_attention(
        name="lampe",
        changes="Near tokens unchanged; farther ones are mapped onto three eighths of the trained length.",
        source="2508.02308",
        extension=lambda reach: LaMPE(
            window=max(1, reach.trained // 8), mapped=max(1, 3 * reach.trained // 8), length=reach.target
        ),
        on_request=True,
        look=Look("#117733", ":", "P"),
    ),
    # Dual chunk attention (An et al. 2024, arXiv:2402.17463), in chunks of three quarters of the trained length.
    _in_attention(
        name="dca",
        changes="Dual chunk attention: positions restart at 0 in each chunk.",
        costs="three passes over parts of the keys; cached keys are rotated again for each token",
        source="2402.17463",
        extension=lambda reach: DualChunk(chunk=max(1, 3 * reach.trained // 4), trained_length=reach.trained),
        equal_below=lambda reach: reach.trained,
        look=Look("#882255", "-", "p"),
    ),
    # The baseline that only forgets: fresh windows of the trained length.
    Method(
        name="crop",
        changes="Nothing: processes windows of the trained length and forgets older tokens.",
        costs="each window is read again from its beginning",
        not_in_config="it drops tokens at run time, and the checkpoint does not change",
        crops=True,
        equal_below=lambda reach: reach.trained,
        look=Look("#d55e00", ":", "."),
    ),
)

METHODS: Mapping[str, Method] = MappingProxyType({method.name: method for method in METHOD_TABLE})
"""Every extension method by its name, in the order of tables."""


def method_named(name: str) -> Method:
    """Return the method of this name; raise `RopeError` if there is none."""
    if not isinstance(name, str) or name not in METHODS:
        raise _unknown(name, *METHODS)
    return METHODS[name]


def _unknown(asked: object, *known: str) -> RopeError:
    cure = f"Choose from {', '.join(known)}."
    return RopeError("methods: unknown method.", facts={"method": asked}, cure=cure)


def named_methods(asked: str | Sequence[str] | None) -> list[str]:
    """Return the single names in `asked`; raise `RopeError` for an unknown name, and as `names_of`."""
    words = names_of("methods: the list", asked)
    unknown = sorted(set(words) - {ALL, *METHODS})
    if unknown:
        raise _unknown(", ".join(unknown), ALL, *METHODS)
    return words


def chosen_methods(asked: Sequence[str] | None, positions: ModelRopes, reach: Reach) -> tuple[str, ...]:
    """Return the names of a run's methods in table order, always with `plain`, the baseline of all differences.

    - `asked`: names of methods, single or separated by commas. "all" is every method, including those in
      attention. None or no names: `default_methods`.
    """
    words, named = named_methods(asked), set[str]()
    if not words or ALL in words:
        named |= {*default_methods(positions, reach)}
    if ALL in words and reach.extends:
        named |= {name for name, method in METHODS.items() if method.in_attention}
    return tuple(name for name in METHODS if name in named | {"plain", *words})


def default_methods(positions: ModelRopes, reach: Reach) -> tuple[str, ...]:
    """Return `plain`, `crop`, and every method that config.json can express.

    `as-is` is included if the checkpoint has an extension, or a scaling that was not used in training. If the target is
    within the trained length, only `plain` and `as-is` remain.
    """
    scaled = any(rope.as_trained() != rope for rope in positions.present_ropes) or any(positions.extensions)
    can_be_extended = all(rope.can_be_extended for rope in positions.present_ropes)

    def applies(method: Method) -> bool:
        if method.keeps_own:
            return scaled
        return reach.extends and (method.crops or (method.scaling is not None and can_be_extended))

    return tuple(name for name, method in METHODS.items() if name == "plain" or applies(method))
