"""The package's exception, the format of its message, and commands to paste into a shell."""

from __future__ import annotations

import copyreg
import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class RopeError(ValueError):
    """A broken rule, the facts that conflict, and the cure. A command that raises it ends with `exit_status`.

    - `rule`: "where: reason." `where`: the function or class that raises it. `reason`: the rest, without the full stop.

    >>> import torch
    >>> raise RopeError("rotate: `x` must be floating point.", facts={"x": torch.zeros(2, 3).long()},
    ...                 cure="Convert it first: x.float().")
    Traceback (most recent call last):
        ...
    ropewalk.errors.RopeError: rotate: `x` must be floating point.
      x  int64[2, 3]
    Convert it first: x.float().
    """

    exit_status = 2

    def __init__(self, rule: str, *, facts: Mapping[str, Any] | None = None, cure: str) -> None:
        self.rule, self.facts, self.cure = rule, dict(facts or {}), cure
        self.where, _, reason = rule.partition(": ")
        self.reason = reason.removesuffix(".")
        width = max((len(name) for name in self.facts), default=0)
        lines = [f"  {name:<{width}}  {describe(value)}" for name, value in self.facts.items()]
        super().__init__("\n".join([rule, *lines, cure]))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the message without the facts, which may be large tensors."""
        return copyreg.__newobj__, (type(self), str(self)), {**self.__dict__, "facts": {}}  # type: ignore[attr-defined]


class NoRotation(RopeError):
    """A model whose layers rotate nothing, where a rope is asked for."""


@contextmanager
def library_errors(rule: str, *, facts: Mapping[str, Any], cure: str) -> Iterator[None]:
    """Turn any exception of a library inside the block into a `RopeError`, whose facts end with the library's words.

    >>> with library_errors("load: the file cannot be read.", facts={"file": "a.json"}, cure="Fetch it again."):
    ...     int("x")
    Traceback (most recent call last):
        ...
    ropewalk.errors.RopeError: load: the file cannot be read.
      file   'a.json'
      error  "ValueError: invalid literal for int() with base 10: 'x'"
    Fetch it again.
    """
    try:
        yield
    except RopeError:
        raise
    except Exception as error:
        words = f"{type(error).__name__}: {error}".strip()[:400]
        raise RopeError(rule, facts={**facts, "error": words}, cure=cure) from error


def check_kind(where: str, kind: type, cure: str, **values: object) -> None:
    """Raise `RopeError` unless each value is of a type.

    >>> check_kind("save", int, "Pass 1.", model=1.5)
    Traceback (most recent call last):
        ...
    ropewalk.errors.RopeError: save: `model` must be of type int.
      model  1.5
    Pass 1.
    """
    for name, value in values.items():
        if not isinstance(value, kind):
            raise RopeError(f"{where}: `{name}` must be of type {kind.__name__}.", facts={name: value}, cure=cure)


def describe(value: object) -> str:
    """Describe a value for a message: tensors by dtype, shape and device; long values are truncated.

    >>> import torch
    >>> describe(torch.zeros(2, 5, dtype=torch.bfloat16))
    'bfloat16[2, 5]'
    >>> describe("auto")
    "'auto'"
    """
    torch = sys.modules.get("torch")  # if it is not imported, no value is a tensor; importing it takes seconds
    if torch is not None and isinstance(value, torch.Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        where = "" if value.device.type == "cpu" else f" {value.device}"
        kind = "" if value.layout is torch.strided else f" {str(value.layout).removeprefix('torch.')}"
        if value.is_nested:  # its shape may have no numbers
            return f"{dtype} nested{where}"
        return f"{dtype}{list(value.shape)}{kind}{where}"
    if torch is not None and isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:190]}... ({len(text)} characters)"


def shell_command(*words: str | Path) -> str:
    r"""Return a command line for bash, zsh and others with `$'...'`: each word is one argument, and nothing else runs.

    A `Path` is never read as an option. Line breaks and other characters that are not printable become escapes.

    >>> print(shell_command("vllm", "serve", Path("-my model")), shell_command("ls", "two\nlines"))
    vllm serve './-my model' ls $'two\nlines'
    """
    return " ".join(
        _quoted(f"./{word}" if isinstance(word, Path) and str(word)[0] == "-" else str(word)) for word in words
    )


def _quoted(word: str) -> str:
    if word.isprintable():
        return shlex.quote(word)
    named = {"\n": r"\n", "\\": r"\\", "'": r"\'"}
    escaped = (one if one.isprintable() else "".join(rf"\x{byte:02x}" for byte in os.fsencode(one)) for one in word)
    return "$'" + "".join(named.get(one, shown) for one, shown in zip(word, escaped, strict=True)) + "'"
