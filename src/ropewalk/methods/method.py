"""`Method`: everything that is known of one way to extend a model's context."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ropewalk.attention.extensions import Extension
from ropewalk.errors import RopeError
from ropewalk.methods.ropes import Reach, extended, with_unscaled_tokens
from ropewalk.models.config import Positions
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.scaling import Scaling

NO_COST = "nothing: the tables hold other angles"
TWO_PASSES = "two passes, over near and far keys; cached keys are turned again for each token"
IN_ATTENTION = "it clips or regroups positions inside attention, which no config.json describes"
DROPS_TOKENS = "it drops tokens while it runs, and the checkpoint stays as it is"


@dataclass(frozen=True)
class Look:
    """How a method is drawn in every figure, so that it can be told apart without colour as well."""

    color: str
    line: str = "-"
    marker: str = "o"


@dataclass(frozen=True, kw_only=True)
class Method:
    """One way to extend a model's context: what it does, what it costs, and how it is described everywhere.

    Tables, reports, model cards, figures, the command line and the docs read this record and nothing else.

    What it does
    - `name`: as on the command line. The earlier method of the table wins a tie. `priority`: where
      time is short, methods of a low number are measured before others.
    - `scaling`: for a method of frequencies, its rule, made from the rope as it was trained. It acts on the frequencies
      of a scaling that the model was trained with, and replaces any other.
    - `extension`: for a method in attention, its rule there.
    - `keeps_own`: it leaves the checkpoint's scaling and extensions as they are. Every other method removes extensions
      first, and a scaling that the model was not trained with.
    - `removes_rope`: it takes the rotation out of every layer that sees beyond the trained length.
    - `crops`: the model reads fresh windows of the trained length. `forgets`: distant tokens are not seen, so that a
      lower loss is no sign of a longer context; it is a baseline, and never recommended.
    - `equal_below`: so many tokens at the beginning of a row it reads as `plain` does, whatever the text: they need not
      be read again. 0 where every token may differ.
    - `on_request`: it is measured where it is named, or all are; the doctor's own choice stays small, since intervals
      that hold for all methods at once grow with their number.
    - `needs_tuning`: without tuning it is not meant to work. `tuned_at_trained_length`: the windows it is tuned on have
      the trained length, and its extension is left out while it is tuned.

    How it is described
    - `changes`, `costs`: one line each. `source`: an arXiv number, or empty.
    - `config`: how config.json says it, or None; then `not_in_config` is the reason, and `nearest` the closest method
      that it can say.
    - `when_shared`: what to say where another method was measured in its place, because the frequencies are equal.
    - `look`: colour, line and marker.
    """

    name: str
    changes: str
    costs: str
    look: Look
    priority: int = 9
    config: str | None = None
    not_in_config: str = ""
    nearest: str = "plain"
    source: str = ""
    when_shared: str = ""
    scaling: Callable[[RopeConfig, Reach], Scaling] | None = None
    extension: Callable[[Reach], Extension] | None = None
    equal_below: Callable[[Reach], int] = lambda reach: 0
    keeps_own: bool = False
    removes_rope: bool = False
    crops: bool = False
    forgets: bool = False
    on_request: bool = False
    needs_tuning: bool = False
    tuned_at_trained_length: bool = False

    @property
    def scales_frequencies(self) -> bool:
        """Whether it is a formula for the frequencies that works without tuning: a start of the search for factors."""
        return self.scaling is not None and not self.needs_tuning

    @property
    def in_attention(self) -> bool:
        """Whether it acts in attention."""
        return self.extension is not None

    @property
    def extends(self) -> bool:
        """Whether it changes the model's positions, so that it needs a target beyond the trained length."""
        return self.scaling is not None or self.extension is not None

    @property
    def config_note(self) -> str:
        """Whether a config.json can say it, and how, in a few words."""
        return f"no: {self.not_in_config}" if self.config is None else f"yes ({self.config})"

    def positions(self, current: Positions, reach: Reach) -> Positions:
        """Each layer's rope and extension under this method.

        Layers without a rope keep none. Layers with a sliding window of at most the trained length never see further,
        so they get their rope as it was trained and no extension; nor does any sliding layer get one that remaps
        positions.

        **Raises:** `RopeError` where the method cannot be applied.

        >>> from ropewalk.methods import METHODS
        >>> rope = RopeConfig(64, interleaved=False)
        >>> METHODS["pi"].positions(Positions((rope,), (None,), (None,)), Reach(512, 2048)).ropes[0].scaling
        Linear(factor=4.0)
        """
        if self.keeps_own:
            return current
        ropes = tuple(
            self._layer_rope(rope, window, reach)
            for rope, window in zip(current.ropes, current.sliding_windows, strict=True)
        )
        return Positions(ropes, self._layer_extensions(current, reach), current.sliding_windows)

    def rope(self, rope: RopeConfig, reach: Reach) -> RopeConfig:
        """One rope under this method, which starts from the rope as it was trained (`RopeConfig.as_trained`).

        **Raises:** `RopeError` where the method cannot be applied.

        >>> from ropewalk.methods import METHODS
        >>> METHODS["yarn"].rope(RopeConfig(64, interleaved=False), Reach(512, 2048)).scaling.factor
        4.0
        """
        if self.keeps_own:
            return rope
        base = rope.as_trained()
        if self.scaling is None:
            return base
        if not rope.can_be_extended:
            raise RopeError(
                f"methods: `{self.name}` cannot change this rope: its pairs stand still, or its frequencies are given.",
                facts={"rope": rope},
                cure="Measure it with --methods plain,as-is.",
            )
        self._check_extends(reach)
        found = extended(base, self.scaling(base, reach), trained=reach.trained, length=reach.trained)
        if reach.unscaled_tokens and self.scales_frequencies:
            return with_unscaled_tokens(base, found, reach)
        return found

    def _layer_rope(self, rope: RopeConfig | None, window: int | None, reach: Reach) -> RopeConfig | None:
        if rope is None:
            return None
        if window is not None and window <= reach.trained:
            return rope.as_trained()
        return None if self.removes_rope else self.rope(rope, reach)

    def _layer_extensions(self, current: Positions, reach: Reach) -> tuple[Extension | None, ...]:
        if self.extension is None:
            return (None,) * len(current.ropes)
        self._check_extends(reach)
        extension = self.extension(reach)

        def of_layer(rope: RopeConfig | None, window: int | None) -> Extension | None:
            blocked = window is not None and (extension.remaps or window <= reach.trained)
            return None if rope is None or blocked else extension

        return tuple(
            of_layer(rope, window) for rope, window in zip(current.ropes, current.sliding_windows, strict=True)
        )

    def _check_extends(self, reach: Reach) -> None:
        if not reach.extends:
            raise RopeError(
                f"methods: `{self.name}` extends, but the target is within the trained length.",
                facts={"target": reach.target, "trained_length": reach.trained},
                cure="Ask for a longer --target, or measure --methods plain alone.",
            )
