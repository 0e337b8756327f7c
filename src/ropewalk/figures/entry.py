"""One figure by name: its line, the function that computes its numbers, the function that draws them, its settings."""

from __future__ import annotations

import inspect
import math
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, cast

from ropewalk.errors import RopeError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


Value = int | float | bool | str | tuple[int, ...] | tuple[str, ...]
_KINDS: dict[Any, str] = {
    int: "whole number", float: "number", bool: "true or false", str: "text",
    tuple[int, ...]: "whole numbers, by commas", tuple[str, ...]: "names, by commas",
}  # fmt: skip


@dataclass(frozen=True)
class Says:
    """What a setting means, and the bounds of its number or of each of its numbers."""

    meaning: str
    least: float | None = None
    most: float | None = None


HeadDim = Annotated[int, Says("features of one head, even", 2, 1024)]
Theta = Annotated[float, Says("the base of the frequencies", 1.001, 1e15)]
Seed = Annotated[int, Says("of what is drawn at random", 0, 2**31 - 1)]
Model = Annotated[str, Says('a Hugging Face folder, a .gguf file, or "tiny"')]


@dataclass(frozen=True)
class Parameter:
    """One setting of a figure: its name, type, default, meaning and bounds."""

    name: str
    kind: Any
    default: Value
    says: Says

    def __str__(self) -> str:
        """As `--list` shows it: `head_dim=64 (whole number, 2 to 1024): features of one head, even`."""
        default = ",".join(map(str, self.default)) if isinstance(self.default, tuple) else f"{self.default}"
        default = default.lower() if isinstance(self.default, bool) else default
        low, high = self.says.least, self.says.most
        bounds = "" if low is None or high is None else f", {low:.10g} to {high:.10g}"
        return f"{self.name}={default} ({_KINDS[self.kind]}{bounds}): {self.says.meaning}"

    def read(self, text: str, figure: str) -> Value:
        """The value that `text` spells, within the bounds, or a RopeError."""
        return self.check(_parse(text.strip(), self.kind), figure, text)

    def check(self, value: object, figure: str, written: object) -> Value:
        """`value` as this setting's type, within the bounds, or a RopeError that shows what was `written`."""
        found = _as_kind(value, self.kind)
        numbers = found if isinstance(found, tuple) else (found,)
        low, high = self.says.least, self.says.most
        inside = all(
            isinstance(number, str | bool | None)
            or (math.isfinite(number) and (low is None or number >= low) and (high is None or number <= high))
            for number in numbers
        )
        if found is None or not inside:
            raise RopeError(
                f"figure {figure}: `{self.name}` has a value that it cannot take.",
                facts={self.name: written},
                cure=f"It reads {self}.",
            )
        return cast(Value, found)


@dataclass(frozen=True)
class Entry:
    """A figure of the gallery: `picture(**numbers(**settings))`; `order` is its place in the lesson."""

    order: int
    name: str
    line: str
    numbers: Callable[..., dict[str, Any]]
    picture: Callable[..., Figure]
    ready: Callable[[], bool] = lambda: True
    """Whether what it draws by default is at hand; where not, it is neither listed nor drawn among all."""

    @cached_property
    def parameters(self) -> dict[str, Parameter]:
        """The settings by name, read from the signature of `numbers`."""
        hints = typing.get_type_hints(self.numbers, include_extras=True)
        found = {}
        for name, given in inspect.signature(self.numbers).parameters.items():
            kind, says = typing.get_args(hints[name])
            found[name] = Parameter(name, kind, given.default, says)
        return found

    def read(self, settings: Sequence[str]) -> dict[str, Value]:
        """Settings written as `key=value`, parsed; a key may come once. Raises `RopeError`."""
        found: dict[str, Value] = {}
        for setting in settings:
            key, equals, text = setting.partition("=")
            if not equals or key in found:
                raise RopeError(
                    f"figure {self.name}: a setting is written key=value, each key once.",
                    facts={"setting": setting},
                    cure=f"Known keys: {self._known()}.",
                )
            found[key] = self._parameter(key).read(text, self.name)
        return found

    def figure(self, **settings: Value) -> Figure:
        """The figure under these settings; raises `RopeError` for an unknown one or a bad value."""
        checked = {key: self._parameter(key).check(value, self.name, value) for key, value in settings.items()}
        return self.picture(**self.numbers(**checked))

    def _parameter(self, key: str) -> Parameter:
        if key not in self.parameters:
            raise RopeError(
                f"figure {self.name}: there is no setting of this name.",
                facts={"setting": key},
                cure=f"Known keys: {self._known()}.",
            )
        return self.parameters[key]

    def _known(self) -> str:
        return ", ".join(self.parameters) or "none"


def _parse(text: str, kind: Any) -> object:
    """Text as a value of `kind`; None where it is none."""
    if kind in (tuple[int, ...], tuple[str, ...]):
        parts = [part.strip() for part in text.split(",") if part.strip()]
        return tuple(_parse(part, int if kind == tuple[int, ...] else str) for part in parts)
    if kind is bool:
        return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}.get(text.lower())
    if kind in (int, float):
        try:
            return kind(text)
        except (ValueError, OverflowError):
            return None
    return text


def _as_kind(value: Any, kind: Any) -> Any:
    """A Python value as `kind`, or None: whole numbers serve as numbers, lists as tuples, nothing else is converted."""
    if kind in (tuple[int, ...], tuple[str, ...]):
        member = int if kind == tuple[int, ...] else str
        if not isinstance(value, list | tuple) or not all(type(one) is member for one in value):
            return None
        return tuple(value)
    if kind is float and type(value) is int:
        return float(value)
    return value if type(value) is kind else None


def known(entries: Mapping[str, Entry], name: str) -> Entry:
    """The entry of this name, or a RopeError with the names that there are."""
    if name not in entries:
        raise RopeError(
            "figure: there is no figure of this name.",
            facts={"name": name, "known": ", ".join(entries)},
            cure="Choose one of these; `ropewalk figure --list` says what each shows.",
        )
    return entries[name]
