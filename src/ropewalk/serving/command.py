"""The words of an engine's command that concern the rope and the length."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
from collections.abc import Mapping
from typing import Any

from ropewalk.errors import RopeError
from ropewalk.serving.engines import FLAGS, Flags

_UNITS = {"": 1, "k": 1e3, "m": 1e6, "g": 1e9, "K": 2**10, "M": 2**20, "G": 2**30}  # vLLM's


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineCommand:
    """The words of a command that concern the rope.

    - `words`: the options that are looked at and their values, in order. `rest`: the other words.
    - `model`: as given, or None. `environment`: variables that the command sets.
    """

    engine: str
    words: tuple[tuple[str, str], ...]
    rest: tuple[str, ...]
    model: str | None
    environment: Mapping[str, str]

    @property
    def flags(self) -> Flags:
        return FLAGS[self.engine]

    @property
    def unread(self) -> tuple[str, ...]:
        """Return the names of the options that are not looked at."""
        return tuple(dict.fromkeys(word.partition("=")[0] for word in self.rest if _is_option(word)))

    def value(self, *names: str) -> str | None:
        """Return the last value of an option."""
        return next((value for name, value in reversed(self.words) if name in names), None)

    def number(self, *names: str) -> float | None:
        """Return the last value of an option as a number; raise `RopeError` for anything else."""
        value = self.value(*names)
        match = re.fullmatch(r"(-?\d+(?:\.\d*)?(?:e\d+)?)([kKmMgG]?)", (value or "0").strip())
        if match is None:
            raise RopeError("inspect: an option needs a number.", facts={names[0]: value}, cure="Correct the command.")
        return None if value is None else float(match[1]) * _UNITS[match[2]]

    def json(self) -> list[dict[str, Any]]:
        """Return the objects that the command puts over the config; raise `RopeError` for anything else."""
        texts = [value for name, value in self.words if name == self.flags.over]
        try:
            found = [dict(json.loads(text)) for text in texts]
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
    settings = (word.partition("=") for word in words[:at])
    words, flags, known, rest = words[at + 1 :], FLAGS[engine], list[tuple[str, str]](), list[str]()
    words = words[1:] if words[:1] and words[0] in ("serve", "server", "generate", "chat") else words
    first = words.pop(0) if words and not _is_option(words[0]) else None
    while words:
        word = words.pop(0)
        name, sign, value = word.partition("=")
        name, _, path = name.partition(".") if flags.over and name.startswith(f"{flags.over}.") else (name, "", "")
        name = name.replace("_", "-") if name.startswith("--") else name
        value = value if sign or not words or (name not in flags.valued and _is_option(words[0])) else words.pop(0)
        for key in reversed(path.split(".") if path else ()):  # vLLM's --hf-overrides.rope_parameters.factor 4
            value = json.dumps({key: json.loads(value) if re.fullmatch(r"[\d.{\"].*", value) else value})
        if name in flags.valued:
            known.append((name, value))
        else:
            rest += [word] if sign or not value else [word, value]
    model = next((value for name, value in reversed(known) if name in flags.model), first)
    environment = {name: value for name, sign, value in settings if sign and name.isidentifier()}
    return EngineCommand(engine=engine, words=tuple(known), rest=tuple(rest), model=model, environment=environment)
