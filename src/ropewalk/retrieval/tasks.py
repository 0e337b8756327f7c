"""The tasks by name."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Protocol, runtime_checkable

from ropewalk.errors import RopeError
from ropewalk.models.tokens import Tokenizer
from ropewalk.retrieval.aggregate import CommonWords, FrequentWords, VariableTracking
from ropewalk.retrieval.choices import HAYSTACKS
from ropewalk.retrieval.choices import TASKS as TASKS
from ropewalk.retrieval.example import Example
from ropewalk.retrieval.material import noise, passage, words_of
from ropewalk.retrieval.needles import Needles, PassKey


@runtime_checkable
class Task(Protocol):
    """Makes examples of one kind; `by_depth` says whether the needle's depth can be chosen."""

    @property
    def name(self) -> str:
        """As in `TASKS`."""

    @property
    def by_depth(self) -> bool:
        """Whether one needle is asked for, at a chosen depth."""

    @property
    def choices(self) -> int:
        """The answer and its distractors: chance is 1 / choices."""

    def make(self, tokenizer: Tokenizer, length: int, depth: float, rng: Random) -> Example:
        """One example of at most `length` tokens with its answer."""


def make_tasks(names: Sequence[str], text: str, *, haystack: str | None = None) -> tuple[Task, ...]:
    """The tasks of these names, their words and passages from `text`.

    **Arguments:**
    - `names`: from `TASKS`.
    - `haystack`: "noise" (five repeated sentences) or "text", for all tasks that hide something; None: noise for
      `passkey` and `vt` as in their sources, text for the needles. `cwe` and `fwe` are lists and have none.

    **Raises:** `RopeError` for unknown names or a text without words.

    >>> [task.name for task in make_tasks(["passkey", "vt"], "some words here")]
    ['passkey', 'vt']
    """
    for unknown in [name for name in names if name not in TASKS]:
        raise RopeError("retrieval: unknown task.", facts={"task": unknown}, cure=f"Choose from {', '.join(TASKS)}.")
    if haystack not in (None, *HAYSTACKS):
        raise RopeError(
            "retrieval: unknown haystack.", facts={"haystack": haystack}, cure=f"Choose from {', '.join(HAYSTACKS)}."
        )
    words, prose = words_of(text), passage(text)
    repeated = prose if haystack == "text" else noise()
    read = noise() if haystack == "noise" else prose
    every: dict[str, Task] = {
        "passkey": PassKey(repeated),
        "niah_single": Needles("niah_single", read, words),
        "niah_multikey": Needles("niah_multikey", read, words, keys=4),
        "niah_multivalue": Needles("niah_multivalue", read, words, keys=2, values=4),
        "vt": VariableTracking(repeated),
        "cwe": CommonWords(words),
        "fwe": FrequentWords(),
    }
    return tuple(every[name] for name in names)
