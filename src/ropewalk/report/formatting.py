"""Numbers and commands as the report writes them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

from ropewalk.statistics import signed

Pair = Sequence[float] | None


def better_or_worse(difference: float, interval: Pair = None) -> str:
    """Return a difference of losses in words: below zero is better.

    >>> better_or_worse(-0.1, (-0.2, 0.05)), better_or_worse(0.0391), better_or_worse(-0.0001)
    ('better by 0.100 [-0.050, 0.200]', 'worse by 0.039', 'equal')
    """
    if signed(difference) == "0.000":
        return "equal" if interval is None else f"equal [{signed(interval[0])}, {signed(interval[1])}]"
    sign = -1.0 if difference < 0 else 1.0
    words = f"{'better' if difference < 0 else 'worse'} by {_bare(sign * difference)}"
    if interval is None:
        return words
    low, high = sorted(sign * end for end in interval)
    return f"{words} [{_bare(low)}, {_bare(high)}]"


def bound_in_words(margin: float) -> str:
    """Return what a difference of losses has to be shown to be.

    >>> bound_in_words(0.0), bound_in_words(0.1), bound_in_words(-0.05)
    ('better', 'worse by less than 0.10', 'better by more than 0.05')
    """
    if abs(margin) < 0.005:
        return "better"
    return f"{'worse by less' if margin > 0 else 'better by more'} than {abs(margin):.2f}"


def _bare(value: float) -> str:
    return signed(value).removeprefix("+")


_DRIVE = re.compile(r"[A-Za-z]:[\\/]")


def without_folders(command: str) -> str:
    """Return a command with the last name of each absolute path only: shared files do not show folders.

    >>> without_folders("ropewalk doctor /home/me/m.gguf --text=/tmp/a.txt --json out/r.json")
    'ropewalk doctor m.gguf --text=a.txt --json out/r.json'
    """
    try:
        words = shlex.split(command)
    except ValueError:  # an unmatched quote: not a command line
        words = command.split(" ")
    short = [_last_name(word) for word in words]
    return command if short == words else shlex.join(short)


def _last_name(word: str) -> str:
    head, sign, value = word.partition("=") if word.startswith("-") else ("", "", word)
    if value.startswith(("/", "~")):
        value = PurePosixPath(value).name or value
    elif _DRIVE.match(value):
        value = PureWindowsPath(value).name or value
    return f"{head}{sign}{value}"


def shareable(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record whose commands name no folders; everything else is the same.

    >>> shareable({"environment": {"command": "ropewalk doctor /home/me/m.gguf"}})["environment"]["command"]
    'ropewalk doctor m.gguf'
    """
    found = dict(record)
    environment, verdict = found.get("environment"), found.get("verdict")
    if isinstance(environment, Mapping) and isinstance(environment.get("command"), str):
        found["environment"] = {**environment, "command": without_folders(environment["command"])}
    following = verdict.get("next") if isinstance(verdict, Mapping) else None
    if isinstance(verdict, Mapping) and isinstance(following, Mapping) and isinstance(following.get("command"), str):
        command = without_folders(following["command"])
        found["verdict"] = {**verdict, "next": {**following, "command": command}}
    return found
