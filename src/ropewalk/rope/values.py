"""Checks of numbers of arguments, options and configs: a wrong type or value raises `RopeError`."""

# mypy: implicit-reexport

from __future__ import annotations

import functools
import inspect
import math
import numbers
import re
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import fields
from itertools import islice
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union, get_args, get_origin

from ropewalk.errors import RopeError
from ropewalk.families.values import (  # noqa: F401  # for other modules, too
    MOST_SIZE,
    MOST_TOKENS,
    TRAINED_KEY,
    as_whole,
    check_whole,
    is_number,
    number,
    whole_or_zero,
    wrong_value,
)

# Names of shapes in signatures, strings at run time: the core does not need jaxtyping, whose import hook checks tests.
if TYPE_CHECKING:
    from jaxtyping import Float as Float
    from jaxtyping import Float32 as Float32
    from jaxtyping import Float64 as Float64
    from jaxtyping import Int as Int
    from jaxtyping import Real as Real
    from jaxtyping import Shaped as Shaped
else:
    try:
        from jaxtyping import Float, Float32, Float64, Int, Real, Shaped
    except ImportError:
        Float = Float32 = Float64 = Int = Real = Shaped = Any

Block = Mapping[str, Any]
Variant = Literal["transformers", "paper"]
MOST_SEED, MOST_FACTOR = 2**63 - 1, 1e31  # thetas and factors: beyond, a formula overflows
HORIZON = 2**21  # tokens: ropes that agree up to this length are the same


def as_tuple(value: Any) -> tuple[Any, ...]:
    """Return the elements of an iterable; () for anything else, such as a number or a tensor without dimensions."""
    try:
        return tuple(value)
    except TypeError:
        return ()


# --- arguments and options

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


def checked(function: FunctionT) -> FunctionT:
    """Check the arguments of each call against the annotations; decorate classes to check those of `__init__`.

    For functions that are not called in every layer, as a check takes some microseconds. Lengths, ranges and shapes
    are left to the function, and annotations that cannot be evaluated are not checked.

    >>> @checked
    ... def half(number: int) -> int: return number // 2
    >>> half(number=2.5)
    Traceback (most recent call last):
        ...
    ropewalk.errors.RopeError: half: `number` must be of type int.
      number  2.5
    Pass a value of this type.
    """
    if isinstance(function, type):
        function.__init__ = checked(function.__init__)  # type: ignore[misc]
        return function
    signature, where = inspect.signature(function), function.__qualname__.removesuffix(".__init__")

    @functools.cache
    def kinds() -> dict[str, Any]:
        return {name: _evaluated(each.annotation, function) for name, each in signature.parameters.items()}

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        for name, value in (*zip(signature.parameters, arguments, strict=False), *options.items()):
            kind = kinds().get(name, object)
            if not is_of(value, kind):
                shown = kind.__name__ if isinstance(kind, type) else str(kind)
                of_type = re.sub(r"\b[a-z_]+\.|[<>]|class ", "", shown)
                rule = f"{where}: `{name}` must be of type {of_type}."
                raise RopeError(rule, facts={name: value}, cure="Pass a value of this type.")
        return function(*arguments, **options)

    return call  # type: ignore[return-value]


def _evaluated(annotation: Any, function: Callable[..., Any]) -> Any:
    try:
        kind = eval(annotation, function.__globals__) if isinstance(annotation, str) else annotation
        return object if kind in (Any, inspect.Parameter.empty) else kind
    except (NameError, TypeError):  # imported for type checkers only, or a shape without jaxtyping
        return object


def is_of(value: Any, kind: Any) -> bool:
    """Return whether a value is of an annotated type; of a long sequence the first hundred entries are checked.

    An int is also a float, a bool is neither, and NaN is no number.

    >>> is_of([1, 2], Sequence[int]), is_of("ab", Sequence[str]), is_of(2, float | None), is_of(True, int)
    (True, False, True, False)
    """
    origin, options = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return any(is_of(value, option) for option in options)
    if kind is None:
        return value is None
    if kind is int:
        return as_whole(value) is not None
    if kind is float:
        return not isinstance(value, bool) and isinstance(value, numbers.Real) and bool(value == value)
    if origin is tuple and Ellipsis not in options:
        return isinstance(value, tuple) and len(value) == len(options) and all(map(is_of, value, options))
    if origin in (tuple, Sequence):  # arrays are sequences here
        if isinstance(value, str | bytes | Mapping) or not hasattr(value, "__len__") or not hasattr(value, "__iter__"):
            return False
        if getattr(value, "ndim", None) == 0 or (origin is tuple and not isinstance(value, tuple)):
            return False
        return all(is_of(each, options[0]) for each in islice(value, 100))
    kind = getattr(kind, "array_type", origin or kind)  # jaxtyping's
    return isinstance(value, kind) if isinstance(kind, type) else True


def check_positive(where: str, **values: object) -> None:
    """Raise `RopeError` unless each value is a finite number above 0."""
    for name, value in values.items():
        if not is_number(value) or value <= 0:  # type: ignore[operator]
            rule = f"{where}: `{name}` must be a finite number above 0."
            raise RopeError(rule, facts={name: value}, cure="Pass such a number.")


def names_of(where: str, given: object) -> list[str]:
    """Return the names in a text, or in a sequence of texts, which may be separated by commas; none in None.

    Raises `RopeError` for a different type, an empty value, and one that is given twice.

    >>> names_of("doctor: `methods`", ["yarn, dca", "crop"])
    ['yarn', 'dca', 'crop']
    """
    texts = [given] if isinstance(given, str) else () if given is None else given
    rule = "must be names, separated by commas"
    if isinstance(texts, Sequence | Set) and all(isinstance(one, str) for one in texts):
        names = [name.strip() for text in texts for name in text.split(",")]
        if all(names) and len(set(names)) == len(names):
            return names
        rule = "contains a value twice" if all(names) else "contains an empty value"
    cure = "Pass each value once, with one comma between two."
    raise RopeError(f"{where} {rule}.", facts={"given": given}, cure=cure)


# --- values of a Hugging Face config


def read_value(block: Block, key: str, kind: Any) -> Any:
    """Return the value of `key` as a field of type `kind`: float, int, bool, or a tuple of floats, each or `| None`."""
    kinds, value = {kind, *get_args(kind)}, block.get(key)
    if bool in kinds:
        if not isinstance(value, bool):
            raise wrong_value(key, value, "true or false")
        return value
    if tuple[float, ...] in kinds:
        if not isinstance(value, (list, tuple)) or not all(map(is_number, value)):
            raise wrong_value(key, value, "a list of numbers, one for each pair")
        return tuple(map(float, value))
    stated = number(value, key)
    if int in kinds and stated != int(stated):
        raise wrong_value(key, value, "a whole number")
    return int(stated) if int in kinds else stated


def check_trained_ratio(block: Block, rope_type: str, max_position_embeddings: int | None) -> float:
    """Return max_position_embeddings / original_max_position_embeddings, transformers' default for `factor`."""
    if max_position_embeddings is None:
        raise RopeError(
            f"from_hf: rope type {rope_type!r} without `factor` needs `max_position_embeddings` to compute it.",
            facts={TRAINED_KEY: block.get(TRAINED_KEY)},
            cure="Add `factor` to the rope block, or `max_position_embeddings` to the config.",
        )
    trained = read_value(block, TRAINED_KEY, int)
    check_field(f"from_hf: rope type {rope_type!r}", TRAINED_KEY, trained)
    ratio: float = max_position_embeddings / trained
    return ratio


# --- fields of scaling rules

_SCALE, _OWN = "a number above 0, at most {:,}", "Omit it for the rule's own factor; it multiplies queries and keys."
_FIELDS: dict[str, tuple[str, float, bool, float | None, str]] = {
    "factor": (
        "a number from 1 to {:g}", 1.0, True, None,
        "Pass target length / trained length; 1 leaves the frequencies unchanged.",
    ),
    TRAINED_KEY: (
        f"a whole number of tokens from 1 to {MOST_TOKENS:,}", 1.0, True, MOST_TOKENS,
        "Pass the length the model was trained at before extension.",
    ),
    "theta": ("a finite number above 1", 1.0, False, math.inf, "Pass the new base, such as 500000.0 for Llama 2 Long."),
    "partial_rotary_factor": ("between 0 and 1", 0.0, True, 1.0, "Pass the fraction of rotated pairs."),
    "attention_factor": (_SCALE, 0.0, False, None, _OWN),
    "short_mscale": (_SCALE, 0.0, False, None, _OWN),
    "long_mscale": (_SCALE, 0.0, False, None, _OWN),
    "mscale": (_SCALE, 0.0, True, None, _OWN),  # 0: absent
    "mscale_all_dim": (_SCALE, 0.0, True, None, _OWN),
}  # fmt: skip
"""Fields of every rule: what it must be, the least number and whether it is allowed, the largest, and the cure."""


def check_field(where: str, key: str, value: Any, most: int | float = MOST_TOKENS) -> None:
    """Raise `RopeError` for a value that fields of this name do not allow; `most`: the largest factor."""
    must_be, least, allowed, largest, cure = _FIELDS[key]
    within = is_number(value) and least <= value <= (most if largest is None else largest)
    if not within or (value == least and not allowed) or (key == TRAINED_KEY and int(value) != value):
        raise RopeError(f"{where}: `{key}` must be {must_be.format(most)}.", facts={key: value}, cure=cure)


def check_fields(rule: Any, most: int | float = MOST_TOKENS) -> None:
    """Check all fields of a scaling rule with a known name; None stands for a default of None."""
    for each in fields(rule):
        value = getattr(rule, each.name)
        if each.name in _FIELDS and not (value is None and each.default is None):
            check_field(type(rule).__name__, each.name, value, most)


def check_bounds(name: str, published: str, **bounds: float) -> None:
    """Check the two bounds of a ramp, the upper one first; both are rotations within the trained length."""
    (high_key, high), (low_key, low) = bounds.items()
    if not (is_number(high) and is_number(low) and MOST_TOKENS >= high >= low > 0):
        raise RopeError(
            f"{name}: `{high_key}` must not be below `{low_key}`, and both must be above 0, at most {MOST_TOKENS:,}.",
            facts=bounds,
            cure=f"They count rotations within the trained length; the published values are {published}.",
        )


def check_variant(name: str, variant: str) -> None:
    if variant not in ("transformers", "paper"):
        cure = 'Choose "transformers" or "paper".'
        raise RopeError(f"{name}: unknown variant.", facts={"variant": variant}, cure=cure)


def ramp(rotations: float, low: float, high: float) -> float:
    """Return 0 below `low`, 1 above `high`, linear between them; a step if they are equal (Llama 4, Kimi-K2)."""
    if low == high:
        return float(rotations >= high)
    return min(1.0, max(0.0, (rotations - low) / (high - low)))
