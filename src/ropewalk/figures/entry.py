"""One figure of the catalog: its description, the functions that compute and draw it, and its settings."""

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
class Meaning:
    """A setting's description, and the bounds of its number or numbers."""

    text: str
    least: float | None = None
    most: float | None = None


HeadDim = Annotated[int, Meaning("features of one head, even", 2, 1024)]
Theta = Annotated[float, Meaning("the base of the frequencies", 1.001, 1e15)]
Seed = Annotated[int, Meaning("of the random numbers", 0, 2**31 - 1)]
Model = Annotated[str, Meaning('a Hugging Face folder, a .gguf file, or "tiny"')]


@dataclass(frozen=True)
class Parameter:
    """One setting of a figure: its name, type, default, and meaning with bounds."""

    name: str
    kind: Any
    default: Value
    meaning: Meaning

    def __str__(self) -> str:
        """Return the line of `--list`: `head_dim=64 (whole number, 2 to 1024): features of one head, even`."""
        default = ",".join(map(str, self.default)) if isinstance(self.default, tuple) else f"{self.default}"
        default = default.lower() if isinstance(self.default, bool) else default
        low, high = self.meaning.least, self.meaning.most
        bounds = "" if low is None or high is None else f", {low:.10g} to {high:.10g}"
        return f"{self.name}={default} ({_KINDS[self.kind]}{bounds}): {self.meaning.text}"

    def read(self, text: str, figure: str) -> Value:
        """Parse `text`; raise `RopeError` for another type or a value out of bounds."""
        return self.check(_parse(text.strip(), self.kind), figure, text)

    def check(self, value: object, figure: str, written: object) -> Value:
        """Return `value` as this setting's type; raise `RopeError`, which shows `written`, if it does not fit."""
        typed = _as_kind(value, self.kind)
        numbers = typed if isinstance(typed, tuple) else (typed,)
        low, high = self.meaning.least, self.meaning.most
        inside = all(
            isinstance(number, str | bool | None)
            or (math.isfinite(number) and (low is None or number >= low) and (high is None or number <= high))
            for number in numbers
        )
        if typed is None or not inside:
            raise RopeError(
                f"figure {figure}: `{self.name}` cannot have this value.",
                facts={self.name: written},
                cure=f"Give {self}.",
            )
        return cast(Value, typed)


@dataclass(frozen=True)
class Entry:
    """A figure of the catalog: `picture(**numbers(**settings))`."""

    name: str
    line: str
    numbers: Callable[..., dict[str, Any]]
    picture: Callable[..., Figure]
    ready: Callable[[], bool] = lambda: True
    """Return whether its default data are available; `--list` and `--all` leave the figure out if not."""

    @cached_property
    def parameters(self) -> dict[str, Parameter]:
        """Return the settings by name, from the signature of `numbers`."""
        hints = typing.get_type_hints(self.numbers, include_extras=True)
        parameters = {}
        for name, given in inspect.signature(self.numbers).parameters.items():
            kind, meaning = typing.get_args(hints[name])
            parameters[name] = Parameter(name, kind, given.default, meaning)
        return parameters

    def read(self, settings: Sequence[str]) -> dict[str, Value]:
        """Parse settings written as `key=value`; raise `RopeError` for one that is wrong or repeated."""
        values: dict[str, Value] = {}
        for setting in settings:
            key, equals, text = setting.partition("=")
            if not equals or key in values:
                raise self._refusal("write a setting as key=value, each key once.", setting)
            values[key] = self._parameter(key).read(text, self.name)
        return values

    def figure(self, **settings: Value) -> Figure:
        """Compute and draw the figure; raise `RopeError` for an unknown setting or a bad value."""
        checked = {key: self._parameter(key).check(value, self.name, value) for key, value in settings.items()}
        return self.picture(**self.numbers(**checked))

    def _parameter(self, key: str) -> Parameter:
        if key not in self.parameters:
            raise self._refusal("there is no setting of this name.", key)
        return self.parameters[key]

    def _refusal(self, rule: str, setting: str) -> RopeError:
        keys = ", ".join(self.parameters) or "none"
        return RopeError(f"figure {self.name}: {rule}", facts={"setting": setting}, cure=f"Known keys: {keys}.")


def _parse(text: str, kind: Any) -> object:
    """Return text as a value of `kind`; None if it is none."""
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
    """Return a Python value as `kind`, else None: whole numbers may be numbers, and lists tuples."""
    if kind in (tuple[int, ...], tuple[str, ...]):
        member = int if kind == tuple[int, ...] else str
        if not isinstance(value, list | tuple) or not all(type(one) is member for one in value):
            return None
        return tuple(value)
    if kind is float and type(value) is int:
        return float(value)
    return value if type(value) is kind else None


def known(entries: Mapping[str, Entry], name: str) -> Entry:
    """Return the entry of this name; raise `RopeError`, which lists the names, if there is none."""
    if name not in entries:
        raise RopeError(
            "figure: there is no figure of this name.",
            facts={"name": name, "known": ", ".join(entries)},
            cure="Choose one of these; `ropewalk figure --list` describes each.",
        )
    return entries[name]
