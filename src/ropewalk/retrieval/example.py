"""One example: the tokens that a model reads, the answer, what it is held against, and where the needles stand."""

from __future__ import annotations

import dataclasses
from bisect import bisect_right
from collections.abc import Callable, Sequence

from ropewalk.errors import RopeError
from ropewalk.models.tokens import Tokenizer

Ids = tuple[int, ...]


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
    longer = _continued(tokenizer, draft.prompt, prompt, [*_choices(draft), _full(draft)])
    cut = shared_prefix([prompt, *longer])
    ends = [end for _, end in tokenizer.tokenizer.encode(draft.prompt, add_special_tokens=False).offsets]
    before = len(prompt) - len(ends)

    def token_at(character: int) -> int:
        return before + bisect_right(ends, character)

    starts = tuple(token_at(character) for character in draft.needles)
    depth = None
    if draft.filler is not None and draft.needles:
        first, last = (token_at(character) for character in draft.filler)
        asked = token_at(draft.needles[0] + draft.needle_length) - starts[0]
        depth = (starts[0] - first) / max(1, last - first - asked)
    return Example(
        input_ids=tuple(prompt[:cut]),
        answer_ids=tuple(longer[0][cut:]),
        distractor_ids=tuple(tuple(row[cut:]) for row in longer[1:-1]),
        answers=draft.answers,
        distractors=draft.distractors,
        positions=starts,
        depth=depth,
        new_tokens=len(longer[-1]) - cut,
    )


def fit(
    tokenizer: Tokenizer,
    length: int,
    render: Callable[[int], Draft],
    *,
    task: str,
    least: int = 0,
    most: int | None = None,
) -> Draft:
    """The draft with the most filler whose tokens, with the whole answer, are at most `length`.

    `render(count)` writes the draft with `count` units of filler, each of at least one token. Raises `RopeError` where
    not even `least` units fit, or where `most` units, all that there are, would leave room for more.
    """

    def size(count: int) -> int:
        draft = render(count)
        prompt = tokenizer.encode_prompt(draft.prompt)
        return max(map(len, _continued(tokenizer, draft.prompt, prompt, [*_choices(draft), _full(draft)])))

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
    return render(low)


def _choices(draft: Draft) -> list[str]:
    return [draft.answers[0], *draft.distractors]


def _full(draft: Draft) -> str:
    return ", ".join(draft.answers)


def _continued(tokenizer: Tokenizer, prompt: str, ids: list[int], texts: Sequence[str]) -> list[list[int]]:
    """The ids of the prompt, a space and each text: only the prompt's last line is tokenised again where that says it
    all, which is where that line alone has the tokens that it has in the prompt."""
    last = prompt[prompt.rfind("\n") + 1 :]
    of_last = tokenizer.encode(last)
    if of_last and ids[-len(of_last) :] == of_last:
        kept = ids[: -len(of_last)]
        return [kept + tokenizer.encode(f"{last} {text}") for text in texts]
    return [tokenizer.encode_prompt(f"{prompt} {text}") for text in texts]
