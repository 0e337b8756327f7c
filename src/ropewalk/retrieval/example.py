"""One example: the tokens that a model reads, the answer, what it is held against, and where the needles stand."""

from __future__ import annotations

import dataclasses
from bisect import bisect_right
from collections.abc import Callable, Sequence

from ropewalk.errors import RopeError
from ropewalk.models.tokens import Tokenizer

Ids = tuple[int, ...]
_LINE, _NEAR_END = 400, 40  # characters: a longest line that is tokenised again as a whole, and what is of a longer one


@dataclasses.dataclass(frozen=True, kw_only=True)
class Example:
    """A prompt that ends where the answer begins, as token ids, with the answer and distractors of its form.

    - `input_ids`: what is read. `answer_ids` and each of `distractor_ids` go on from there.
    - `answers`: every text that a full completion names; the one in `answer_ids` is among them.
    - `positions`: the token at which each needle begins, the asked one first.
    - `depth`: the part of the filler, in tokens, that lies before the asked needle; None where no one needle is asked.
    - `new_tokens`: how many tokens the full answer has; with them the example has at most the length asked for.
    """

    input_ids: Ids
    answer_ids: Ids
    distractor_ids: tuple[Ids, ...]
    answers: tuple[str, ...]
    distractors: tuple[str, ...]
    positions: tuple[int, ...]
    depth: float | None
    new_tokens: int

    @property
    def choices(self) -> tuple[Ids, ...]:
        """The answer, then the distractors."""
        return (self.answer_ids, *self.distractor_ids)

    @property
    def tokens(self) -> int:
        """Tokens of the input and the longest thing that is put after it."""
        return len(self.input_ids) + max(self.new_tokens, *(len(choice) for choice in self.choices))

    def cropped(self, tokens: int) -> Example:
        """Its end alone, so that it has at most `tokens` with what is put after it; needles before that are lost."""
        kept = max(1, tokens - (self.tokens - len(self.input_ids)))
        return dataclasses.replace(self, input_ids=self.input_ids[-kept:])

    @property
    def equal_tokens(self) -> bool:
        """Whether all choices have the same number of tokens."""
        return len({len(choice) for choice in self.choices}) == 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Draft:
    """An example as text: `needles` are the characters at which each begins; `filler` where the filler begins and ends.

    The asked answer comes first in `answers`, which a full completion names all.
    """

    prompt: str
    answers: tuple[str, ...]
    distractors: tuple[str, ...]
    needles: tuple[int, ...] = ()
    needle_length: int = 0
    filler: tuple[int, int] | None = None


def shared_prefix(rows: Sequence[Sequence[int]]) -> int:
    """How many tokens all rows begin with alike.

    >>> shared_prefix([[1, 2, 3], [1, 2, 4, 5]])
    2
    """
    columns = zip(*rows, strict=False)
    return next((index for index, column in enumerate(columns) if len(set(column)) > 1), min(map(len, rows)))


def finish(tokenizer: Tokenizer, draft: Draft) -> Example:
    """The draft as token ids: each choice is tokenised after the prompt, and the input is what they all begin with."""
    prompt = tokenizer.encode_prompt(draft.prompt)
    kept, longer = continued(tokenizer, draft.prompt, prompt, _continuations(draft))
    same = shared_prefix([prompt[kept:], *longer])
    token_at = places(tokenizer, draft.prompt, len(prompt))
    starts = tuple(token_at(character) for character in draft.needles)
    depth = None
    if draft.filler is not None and draft.needles:
        first, last = (token_at(character) for character in draft.filler)
        asked = token_at(draft.needles[0] + draft.needle_length) - starts[0]
        depth = (starts[0] - first) / max(1, last - first - asked)
    return Example(
        input_ids=tuple(prompt[: kept + same]),
        answer_ids=tuple(longer[0][same:]),
        distractor_ids=tuple(tuple(row[same:]) for row in longer[1:-1]),
        answers=draft.answers,
        distractors=draft.distractors,
        positions=starts,
        depth=depth,
        new_tokens=len(longer[-1]) - same,
    )


def places(tokenizer: Tokenizer, text: str, tokens: int) -> Callable[[int], int]:
    """From a character of a text that has so many tokens to the token that holds it."""
    ends = [end for _, end in tokenizer.tokenizer.encode(text, add_special_tokens=False).offsets]
    before = tokens - len(ends)
    return lambda character: before + bisect_right(ends, character)


def fit(
    tokenizer: Tokenizer,
    length: int,
    render: Callable[[int], Draft],
    *,
    task: str,
    least: int = 0,
    most: int | None = None,
) -> Draft:
    """The draft with the most filler whose tokens, with the whole answer, are at most `length`; see `fill`."""

    def size(count: int) -> int:
        draft = render(count)
        prompt = tokenizer.encode_prompt(draft.prompt)
        kept, longer = continued(tokenizer, draft.prompt, prompt, _continuations(draft))
        return kept + max(map(len, longer))

    return render(fill(length, size, task=task, least=least, most=most))


def fill(length: int, size: Callable[[int], int], *, task: str, least: int = 0, most: int | None = None) -> int:
    """The most units of filler for which `size`, in tokens, is at most `length`; each unit has at least one token.

    Raises `RopeError` where not even `least` units fit, or where `most` units, all that there are, would leave room for
    more.
    """
    low, low_size = least, size(least)
    smallest = low_size
    if low_size > length:
        raise RopeError(
            f"retrieval: `{task}` does not fit into this length.",
            facts={"length": length, "tokens needed": low_size},
            cure="Ask for longer inputs, or leave this task out.",
        )
    high, per_unit, step = least + length + 1 - smallest, 2.0, 0
    while high - low > 1 and low_size < length:
        step += 1  # the size grows almost evenly, so a straight line finds it; halving now and then bounds the steps
        guess = low + int((length - low_size) / per_unit) if step % 4 else (low + high) // 2
        middle = min(max(guess, low + 1), high - 1)
        found = size(middle)
        per_unit = max(1.0, (found - smallest) / (middle - least))
        if found <= length:
            low, low_size = middle, found
        else:
            high = middle
    if most is not None and low >= most:
        raise RopeError(
            f"retrieval: the text has too few different words for `{task}` at this length.",
            facts={"length": length, "words of 4 to 8 letters left": most},
            cure="Give a longer text, ask for shorter inputs, or leave this task out.",
        )
    return low


def _continuations(draft: Draft) -> list[str]:
    """What is put after the prompt: the answer, the distractors, and the full answer last."""
    return [f" {text}" for text in (draft.answers[0], *draft.distractors, ", ".join(draft.answers))]


def continued(tokenizer: Tokenizer, text: str, ids: list[int], tails: Sequence[str]) -> tuple[int, list[list[int]]]:
    """How many of the text's `ids` stay whatever tail follows, and each tail's ids after those.

    Only the end of the text is tokenised again, from a line or a word on, where that end alone has the tokens that it
    has in the text, but for a mark that some tokenizers put before every text.
    """
    end = text[_cut(text) :]
    of_end = tokenizer.encode(end)
    begin = next((mark for mark in (0, 1) if of_end[mark:] and ids[mark - len(of_end) :] == of_end[mark:]), None)
    if begin is not None:
        rows = [tokenizer.encode(end + tail) for tail in tails]
        same = shared_prefix([of_end, *rows])
        if same > begin:
            return len(ids) - len(of_end) + same, [row[same:] for row in rows]
    rows = [tokenizer.encode_prompt(text + tail) for tail in tails]
    same = shared_prefix([ids, *rows])
    return same, [row[same:] for row in rows]


def _cut(text: str) -> int:
    """Where the last line begins, with the break before it; in a long line a word some way before its end."""
    line = text.rfind("\n", 0, len(text) - 1)
    if line >= len(text) - _LINE:
        return line if line >= 0 else 0
    return max(0, text.rfind(" ", 0, len(text) - _NEAR_END))
