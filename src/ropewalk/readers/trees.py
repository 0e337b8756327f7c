"""Questions and their continuations as trees of tokens, many of which go through a model in one forward."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from ropewalk.layers.precision import to_float64
from ropewalk.readers.reader import QuestionIds, check_questions

Process = Callable[[list[int], list[int], Tensor, Tensor], Tensor]
"""From tokens, their parents, nodes and targets to the log-probability of each target after its node, float32."""


def answers(questions: Sequence[QuestionIds], most: int, after_prefix: Tensor, process: Process) -> list[list[float]]:
    """Return the log-probability in nats of each continuation of each question, as `Prefix.ask` does.

    **Arguments:**
    - `most`: tokens of one forward. A question with more has a forward of its own.
    - `after_prefix`: log-probabilities of the token after the prefix, float32 `[vocab]`.
    - `process`: runs the tokens of one forward through the model; see `Branches` for the parents.
    """
    check_questions(questions)
    trees = [Tree(question, continuations) for question, continuations in questions]
    found: list[list[float]] = []
    for first, last in runs_of([len(tree.tokens) for tree in trees], most):
        found += _answers_of(trees[first:last], after_prefix, process)
    return found


def _answers_of(trees: Sequence[Tree], after_prefix: Tensor, process: Process) -> list[list[float]]:
    """Return the same from one forward over all tokens of these trees."""
    tokens = [token for tree in trees for token in tree.tokens]
    starts = [0, *itertools.accumulate(len(tree.tokens) for tree in trees)]
    wanted = [
        (start + node if node >= 0 else -1, token)
        for start, tree in zip(starts, trees, strict=False)
        for line in tree.lines
        for node, token in line
    ]
    likely = torch.zeros(len(wanted), dtype=torch.float32, device=after_prefix.device)
    nodes, targets = torch.tensor(wanted, dtype=torch.int64, device=after_prefix.device).reshape(-1, 2).unbind(1)
    at_end = nodes < 0
    likely[at_end] = after_prefix[targets[at_end]]
    if tokens:
        parents = [
            parent if parent < 0 else start + parent
            for start, tree in zip(starts, trees, strict=False)
            for parent in tree.parents
        ]
        likely[~at_end] = process(tokens, parents, nodes[~at_end], targets[~at_end])
    values = iter(to_float64(likely).tolist())
    return [[sum(next(values) for _ in line) for line in tree.lines] for tree in trees]


class Tree:
    """A question and its continuations as a tree of tokens.

    - `parents`: as in `Branches`, numbered within this tree.
    - `lines`: for each continuation, its tokens with their preceding nodes (-1: the prefix).
    """

    def __init__(self, question: Sequence[int], continuations: Sequence[Sequence[int]]) -> None:
        self.tokens, self.parents = list(question), [*range(-1, len(question) - 1)]
        self.lines: list[list[tuple[int, int]]] = []
        after: dict[tuple[int, int], int] = {}
        for continuation in continuations:
            node = len(question) - 1
            line: list[tuple[int, int]] = []
            for token in continuation:
                if line:
                    parent, before = line[-1]
                    node = after.setdefault((parent, before), len(self.tokens))  # shared by equal beginnings
                    if node == len(self.tokens):
                        self.tokens.append(before)
                        self.parents.append(parent)
                line.append((node, token))
            self.lines.append(line)


def runs_of(sizes: Sequence[int], most: int) -> Iterator[tuple[int, int]]:
    """Yield runs (first, last) of a list with a total size of at most `most`; a larger item is a run of its own.

    >>> list(runs_of([3, 4, 2, 9, 1], 7))
    [(0, 2), (2, 3), (3, 4), (4, 5)]
    """
    first, total = 0, 0
    for index, size in enumerate(sizes):
        if index > first and total + size > most:
            yield first, index
            first, total = index, 0
        total += size
    if sizes:
        yield first, len(sizes)
