"""The tasks by name, in either form: many questions after one text, or one."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Protocol, runtime_checkable

from ropewalk.errors import RopeError
from ropewalk.models.tokens import Tokenizer
from ropewalk.retrieval.aggregate import CommonWords, FrequentWords, VariableTracking
from ropewalk.retrieval.chat import PLAIN, Frame
from ropewalk.retrieval.choices import FORMS, HAYSTACKS, TASKS
from ropewalk.retrieval.example import Example
from ropewalk.retrieval.many import ManyChains, ManyNumbers
from ropewalk.retrieval.material import noise, passage, words_of
from ropewalk.retrieval.names import NAMES
from ropewalk.retrieval.needles import MANY_PASS_KEYS, NUMBERS, PASS_KEY, Needles, OneNumber, ruler
from ropewalk.retrieval.questions import QuestionSet


@runtime_checkable
class Task(Protocol):
    """Makes texts of one kind, each with one question or with many.

    `by_depth` says whether the depth of one needle can be chosen; `many` whether a text has many questions.
    """

    @property
    def name(self) -> str:
        """As in `TASKS`."""

    @property
    def by_depth(self) -> bool:
        """Whether one needle is asked for, at a chosen depth."""

    @property
    def many(self) -> bool:
        """Whether many questions are asked after one text."""

    def make(self, tokenizer: Tokenizer, length: int, depth: float, rng: Random) -> Example | QuestionSet:
        """One text of at most `length` tokens with a question and its answer."""


def make_tasks(
    names: Sequence[str],
    text: str,
    *,
    form: str = "many",
    haystack: str | None = None,
    frame: Frame | None = None,
    shortest: int | None = None,
) -> tuple[Task, ...]:
    """The tasks of these names, their words and passages from `text`.

    **Arguments:**
    - `names`: from `TASKS`. `form`: "many" questions after one text, or "one". The lists `cwe` and `fwe` are one
      question each in both.
    - `haystack`: "noise" (five repeated sentences) or "text", for all tasks that hide something; None: noise for
      `passkey` and `vt` as in their sources, text for the others. `cwe` and `fwe` are lists and have none.
    - `frame`: of a chat, around many questions; None: plain text. `shortest`: the shortest length that will be asked
      for, in tokens: questions after longer texts have no more candidates than it has room for.

    **Raises:** `RopeError` for unknown names or a text without words.

    >>> [task.name for task in make_tasks(["passkey", "vt"], "some words here")]
    ['passkey', 'vt']
    """
    for unknown in [name for name in names if name not in TASKS]:
        raise RopeError("retrieval: unknown task.", facts={"task": unknown}, cure=f"Choose from {', '.join(TASKS)}.")
    if form not in FORMS or haystack not in (None, *HAYSTACKS):
        raise RopeError(
            "retrieval: unknown form or unknown haystack.",
            facts={"form": form, "haystack": haystack},
            cure=f"Choose a form from {', '.join(FORMS)}, a haystack from {', '.join(HAYSTACKS)}.",
        )
    words, prose = words_of(text), passage(text)
    repeated = prose if haystack == "text" else noise()
    read = noise() if haystack == "noise" else prose
    chat = frame or PLAIN
    one: tuple[Task, ...] = (
        OneNumber("numbers", read, NUMBERS, NAMES),
        OneNumber("passkey", repeated, PASS_KEY),
        Needles("niah_single", read, words),
        Needles("niah_multikey", read, words, keys=4),
        Needles("niah_multivalue", read, words, keys=2, values=4),
        VariableTracking(repeated),
        CommonWords(words),
        FrequentWords(),
    )
    many: tuple[Task, ...] = (
        ManyNumbers("numbers", read, NUMBERS, frame=chat, shortest=shortest),
        ManyNumbers("passkey", repeated, MANY_PASS_KEYS, frame=chat, shortest=shortest),
        ManyNumbers("niah_single", read, ruler(2, 1), absent=6, frame=chat, shortest=shortest),
        ManyNumbers("niah_multikey", read, ruler(2, 1), frame=chat, shortest=shortest),
        ManyNumbers("niah_multivalue", read, ruler(2, 4), values=4, frame=chat, shortest=shortest),
        ManyChains(repeated, frame=chat, shortest=shortest),
    )
    every = {task.name: task for task in (*one, *(many if form == "many" else ()))}
    return tuple(every[name] for name in names)
