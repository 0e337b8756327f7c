"""`Method`: the record of one way to extend a model's context."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ropewalk.errors import RopeError
from ropewalk.methods.ropes import Reach, extended
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.extensions import Extension
from ropewalk.rope.of_layers import Positions
from ropewalk.rope.scaling import Scaling


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
    - `name`: as on the command line. In a tie the earlier method of the table wins. `priority`: if time is short,
      methods with lower numbers are measured first.
    - `scaling`: for a method of frequencies, its rule, made from the rope as it was trained. The rule is applied on top
      of a scaling used in training, and replaces any other.
    - `extension`: for a method in attention, its rule there.
    - `keeps_own`: the checkpoint's scaling and extensions do not change. Every other method first removes extensions,
      and scalings that were not used in training.
    - `removes_rope`: layers with attention beyond the trained length have no rotation.
    - `crops`: the model processes fresh windows of the trained length. `forgets`: distant tokens are not visible, so a
      lower loss does not show a longer context; the method is a baseline, and never recommended.
    - `equal_below`: the number of first tokens of a row with the same results as under `plain`, which need not be
      computed again; 0 if every token may differ.
    - `on_request`: measured only by name or with "all". The default choice stays small, because simultaneous intervals
      grow with the number of methods.
    - `needs_tuning`: the method does not work without tuning.

    Description
    - `changes`, `costs`: one line each. `source`: an arXiv number, or empty.
    - `config`: its form in config.json, or None; then `not_in_config` is the reason, and `nearest` the closest method
      that config.json can express.
    - `when_shared`: a note if a method with equal frequencies was measured instead.
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

    @property
    def scales_frequencies(self) -> bool:
        """Return whether the method scales frequencies and works without tuning (a start for the search of factors)."""
        return self.scaling is not None and not self.needs_tuning

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

    def positions(self, current: Positions, reach: Reach) -> Positions:
        """Return each layer's rope and extension under this method.

        Layers without a rope keep none. Layers with a sliding window of at most the trained length keep the rope of
        training, and get no extension. No sliding layer gets an extension that remaps positions.

        **Raises:** `RopeError` if the method cannot be applied.

        >>> from ropewalk.methods import METHODS
        >>> rope = RopeConfig(64, interleaved=False)
        >>> METHODS["pi"].positions(Positions((rope,), (None,), (None,)), Reach(512, 2048)).ropes[0].scaling
        Linear(factor=4.0)
        """
        if self.keeps_own:
            return current
        extension = None
        if self.extension is not None:
            self._check_extends(reach)
            extension = self.extension(reach)

        def layer_rope(rope: RopeConfig, window: int | None) -> RopeConfig | None:
            if window is not None and window <= reach.trained:
                return rope.as_trained()
            return None if self.removes_rope else self.rope(rope, reach)

        def layer_extension(window: int | None) -> Extension | None:
            blocked = window is not None and extension is not None and (extension.remaps or window <= reach.trained)
            return None if blocked else extension

        layers = list(zip(current.ropes, current.sliding_windows, strict=True))
        return Positions(
            tuple(None if rope is None else layer_rope(rope, window) for rope, window in layers),
            tuple(None if rope is None else layer_extension(window) for rope, window in layers),
            current.sliding_windows,
        )

    def rope(self, rope: RopeConfig, reach: Reach) -> RopeConfig:
        """Return one rope under this method, starting from the rope as it was trained (`RopeConfig.as_trained`).

        **Raises:** `RopeError` if the method cannot be applied.

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
                f"methods: `{self.name}` cannot change this rope: pairs do not rotate, or frequencies are explicit.",
                facts={"rope": rope},
                cure="Measure it with --methods plain,as-is.",
            )
        self._check_extends(reach)
        return extended(base, self.scaling(base, reach), trained=reach.trained, length=reach.trained)

    def _check_extends(self, reach: Reach) -> None:
        if not reach.extends:
            raise RopeError(
                f"methods: `{self.name}` needs a target beyond the trained length.",
                facts={"target": reach.target, "trained_length": reach.trained},
                cure="Pass a longer --target, or use only --methods plain.",
            )
