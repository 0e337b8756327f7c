"""The words of an engine's command that concern the rope and the length."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import re
import shlex
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from ropewalk.errors import RopeError
from ropewalk.serving.engines import FLAGS, ServingEngine

_UNITS = {"k": 1e3, "m": 1e6, "g": 1e9, "K": 2**10, "M": 2**20, "G": 2**30}  # vLLM's
_SHELL = r"[|;&]+|\d?&?[<>].*"  # what ends a command, and redirections


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineCommand:
    """The words of a command that concern the rope.

    - `words`: the options that are looked at and their values, in order. `rest`: the other words.
    - `model`: as given, or None. `environment`: variables that the command sets.
    - `program`: the engine's program if it has several, else the one that `serve-config` starts.
    """

    engine: str
    program: str
    words: tuple[tuple[str, str], ...]
    rest: tuple[str, ...]
    model: str | None
    environment: Mapping[str, str]

    @property
    def flags(self) -> ServingEngine:
        return FLAGS[self.engine]

    @property
    def unread(self) -> tuple[str, ...]:
        """Return the names of the options that are not looked at."""
        return tuple(dict.fromkeys(word.partition("=")[0] for word in self.rest if _is_option(word)))

    def value(self, *names: str) -> str | None:
        """Return the last value of an option."""
        return next((value for name, value in reversed(self.words) if name in names), None)

    def number(self, *names: str) -> float | None:
        """Return the last value of an option as a finite number, a length also whole; raise `RopeError` otherwise."""
        value, vllm = self.value(*names), "--max-model-len" in names
        if value is None or (vllm and value.lower() in ("auto", "-1")):  # what fits into memory
            return None
        unit = _UNITS.get(value[-1:], 1) if vllm else 1
        try:
            number = float(value[:-1] if unit != 1 else value) * unit
        except ValueError:
            number = math.nan
        length = names == self.flags.length
        if not math.isfinite(number) or (length and (number < 0 or not number.is_integer())):
            raise RopeError("inspect: an option needs a number.", facts={names[0]: value}, cure="Correct the command.")
        return number

    def json(self) -> list[dict[str, Any]]:
        """Return the objects that the command puts over the config; raise `RopeError` for anything else."""
        texts = [value for name, value in self.words if name == self.flags.over]
        try:
            found = [{**json.loads(text)} for text in texts]
        except (ValueError, TypeError) as error:
            cure = "Quote it: '{\"rope_parameters\": {...}}'."
            raise RopeError(f"inspect: {self.flags.over} is no JSON.", facts={"JSON": texts}, cure=cure) from error
        return found


def _is_option(word: str) -> bool:
    return word.startswith("-") and not re.fullmatch(r"-[\d.]+", word)


def read_command(text: str) -> EngineCommand:
    """Return the options of a command line of vLLM, SGLang, llama.cpp or mlx-lm.

    **Raises:** `RopeError` for text that no shell accepts, and for other programs.

    >>> command = read_command("PORT=1 vllm serve folder --max-model-len=8192 --port 80")
    >>> command.engine, command.model, command.words, command.unread
    ('vllm', 'folder', (('--max-model-len', '8192'),), ('--port',))
    """
    try:
        words = shlex.split(text.replace("\\\n", " "))
    except ValueError as error:
        cure = 'Quote it as for a shell: --command "vllm serve DIR ...".'
        raise RopeError("inspect: a shell cannot read this command.", facts={"command": text}, cure=cure) from error
    starts = ((at, name) for at, word in enumerate(words) for name in FLAGS if re.fullmatch(FLAGS[name].program, word))
    at, engine = next(starts, (0, ""))
    if not engine:
        cure = f"Pass a command of {', '.join(FLAGS)}."
        raise RopeError("inspect: the command starts no engine that is known here.", facts={"command": text}, cure=cure)
    settings, starting = [word.partition("=") for word in words[:at]], words[at]
    flags, known, rest = FLAGS[engine], list[tuple[str, str]](), list[str]()
    words = [*itertools.takewhile(lambda word: not re.fullmatch(_SHELL, word), words[at + 1 :])]
    program = starting if engine in ("llama.cpp", "mlx") and ":" not in starting else flags.starts[0]
    if words[:1] and words[0] in ("serve", "server", "generate", "chat"):
        program, words = f"{program}.{words[0]}" if engine == "mlx" else program, words[1:]
    first = words.pop(0) if words and not _is_option(words[0]) else None
    while words:
        word = words.pop(0)
        name, sign, value = word.partition("=")
        name, _, path = name.partition(".") if flags.over and name.startswith(f"{flags.over}.") else (name, "", "")
        name = name.replace("_", "-") if name.startswith("--") else name
        value = value if sign or not words or (name not in flags.valued and _is_option(words[0])) else words.pop(0)
        for key in reversed(path.split(".") if path else ()):  # vLLM's --hf-overrides.rope_parameters.factor 4
            inner: Any = value
            with suppress(ValueError):  # text, if it is no JSON
                inner = json.loads(value)
            value = json.dumps({key: inner})
        if name in flags.valued:
            known.append((name, value))
        else:
            rest += [word] if sign or not value else [word, value]
    model = next((value for name, value in reversed(known) if name in flags.model), first)
    environment = {name: value for name, sign, value in settings if sign and name.isidentifier()}
    return EngineCommand(engine=engine, program=program, words=tuple(known), rest=tuple(rest), model=model,
                         environment=environment)  # fmt: skip
