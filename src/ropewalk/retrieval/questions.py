"""A text that is read once, and the questions that are asked after it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

from ropewalk.errors import RopeError
from ropewalk.models.tokens import Tokenizer
from ropewalk.retrieval.example import Example, Ids, continued, fill, places, shared_prefix

GROUP = 12
"""Questions whose answers are each other's candidates: chance is 1 in 12."""
MOST = 96
"""Questions after one text."""
FEWEST = 4
"""Questions below which a text is too short to ask several."""
_SHARE = 6  # a sixth of the text is needles where that many questions can be asked, less in longer ones


class Wanted(NamedTuple):
    """One answer that is looked for: candidate `answer` against the candidates `others`.

    `depth` is the part of the text before its needle, and `distance` the tokens from where its needle begins to the end
    of the question; None where there is no one needle.
    """

    answer: int
    others: tuple[int, ...]
    depth: float | None
    distance: int | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Question:
    """What is read after the text (it may be nothing), and the candidates that may follow.

    `candidates` are the numbers of those whose log-probability is taken: candidates of one number are one candidate, in
    whatever question. `continuations` are their token ids after this question.
    """

    input_ids: Ids
    candidates: tuple[int, ...]
    continuations: tuple[Ids, ...]
    wanted: tuple[Wanted, ...]

    @property
    def answers(self) -> tuple[Ids, ...]:
        """The token ids of each answer that is looked for."""
        by_candidate = dict(zip(self.candidates, self.continuations, strict=True))
        return tuple(by_candidate[one.answer] for one in self.wanted)


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuestionSet:
    """A text as token ids, read once, and what is asked after it."""

    input_ids: Ids
    questions: tuple[Question, ...]

    @property
    def tokens(self) -> int:
        """Tokens of the text with the longest question and its longest candidate: what frequencies are fixed for."""
        return len(self.input_ids) + max(
            len(one.input_ids) + max(map(len, one.continuations)) for one in self.questions
        )

    def cropped(self, tokens: int) -> QuestionSet:
        """The text's end alone, so that it has at most `tokens` with what is put after it; the rest is forgotten."""
        kept = max(1, tokens - (self.tokens - len(self.input_ids)))
        return dataclasses.replace(self, input_ids=self.input_ids[-kept:])

    def beyond(self, tokens: int) -> QuestionSet:
        """The same text, asked only for answers whose needle lies more than so many tokens back, and for those that
        have no one needle."""
        kept = []
        for question in self.questions:
            wanted = tuple(one for one in question.wanted if one.distance is None or one.distance > tokens)
            if wanted:
                kept.append(dataclasses.replace(question, wanted=wanted))
        return dataclasses.replace(self, questions=tuple(kept))

    @classmethod
    def of(cls, example: Example) -> QuestionSet:
        """One example as a text with one question, which is a part of the text."""
        choices = example.choices
        others = tuple(range(1, len(choices)))
        distance = len(example.input_ids) - min(example.positions[:1]) if example.positions else None
        wanted = Wanted(0, others, example.depth, distance)
        question = Question(
            input_ids=(), candidates=tuple(range(len(choices))), continuations=choices, wanted=(wanted,)
        )
        return cls(input_ids=example.input_ids, questions=(question,))


class Hidden(NamedTuple):
    """An answer in a draft: its candidate's number, those that it is held against, and the needle's first character.

    `deep` says whether the needle's depth is where the answer lies; else there are several needles, or none.
    """

    answer: int
    others: tuple[int, ...]
    needle: int
    deep: bool = True


class QuestionText(NamedTuple):
    """A question in a draft: its text, the numbers of its candidates, and the answers that it may have."""

    text: str
    candidates: tuple[int, ...]
    hidden: tuple[Hidden, ...]


class QuestionDraft(NamedTuple):
    """A set of questions as text: `body` are the first and last character of the filler with its needles."""

    text: str
    body: tuple[int, int]
    candidates: tuple[str, ...]
    questions: tuple[QuestionText, ...]


def ask_after(tokenizer: Tokenizer, draft: QuestionDraft) -> QuestionSet:
    """The draft as token ids: what all questions begin with belongs to the text, and what all candidates of a question
    begin with belongs to the question."""
    ids = tokenizer.encode_prompt(draft.text)
    kept, tails = continued(tokenizer, draft.text, ids, _tails(draft))
    same = shared_prefix(tails)
    token_at, rows = places(tokenizer, draft.text, len(ids)), iter(tails)
    first, last = (token_at(character) for character in draft.body)
    questions = []
    for question in draft.questions:
        of_question = [next(rows)[same:] for _ in question.candidates]
        begin = shared_prefix(of_question)
        end = kept + same + begin
        wanted = []
        for hidden in question.hidden:
            place = token_at(hidden.needle)
            depth = (place - first) / max(1, last - first) if hidden.deep else None
            wanted.append(Wanted(hidden.answer, hidden.others, depth, end - place))
        questions.append(
            Question(
                input_ids=tuple(of_question[0][:begin]),
                candidates=question.candidates,
                continuations=tuple(tuple(row[begin:]) for row in of_question),
                wanted=tuple(wanted),
            )
        )
    return QuestionSet(input_ids=(*ids[:kept], *tails[0][:same]), questions=tuple(questions))


def _tails(draft: QuestionDraft) -> list[str]:
    return [
        f"{question.text} {draft.candidates[number]}" for question in draft.questions for number in question.candidates
    ]


def fill_text(tokenizer: Tokenizer, length: int, render: Callable[[int], QuestionDraft], *, task: str) -> QuestionSet:
    """The set with the most filler whose text has at most `length` tokens with any question and candidate."""
    bare = render(0)
    kept, tails = continued(tokenizer, bare.text, tokenizer.encode_prompt(bare.text), _tails(bare))
    after = max(map(len, tails)) + kept - len(tokenizer.encode_prompt(bare.text))

    def size(count: int) -> int:
        return len(tokenizer.encode_prompt(render(count).text)) + after

    count = fill(length, size, task=task)
    while (found := ask_after(tokenizer, render(count))).tokens > length and count:
        count -= 1  # where the end of the filler and the questions are tokenised together
    return found


def how_many(length: int, tokens: int, *, group: int = GROUP, most: int = MOST, task: str) -> int:
    """How many questions a text of `length` tokens holds, where each needs so many tokens of needles: whole groups, or
    fewer than one group; at most `most`.

    Raises `RopeError` where there is room for too few.

    >>> how_many(16_384, 13, task="numbers"), how_many(2048, 13, task="numbers"), how_many(512, 13, task="numbers")
    (96, 24, 6)
    """
    room, fewest = min(length // (_SHARE * tokens), most), min(FEWEST, group)
    if room >= group:
        return room - room % group
    if fewest * tokens > length // 2:
        raise RopeError(
            f"retrieval: `{task}` does not fit into this length.",
            facts={"length": length, "tokens needed": 2 * fewest * tokens},
            cure="Ask for longer inputs, or leave this task out.",
        )
    return max(room, fewest)


def groups_of(count: int, size: int) -> list[list[int]]:
    """The numbers 0 .. count - 1 in groups of about `size`, each spread over all of them.

    >>> groups_of(6, 3)
    [[0, 2, 4], [1, 3, 5]]
    """
    groups = max(1, count // size)
    return [list(range(first, count, groups)) for first in range(groups)]
