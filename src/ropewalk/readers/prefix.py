"""Tokens in a decoder's cache, of which continuations are asked."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from ropewalk.attention.branches import Branches
from ropewalk.attention.cache import KVCache
from ropewalk.models.decoder import Decoder
from ropewalk.models.layers import only_hidden
from ropewalk.models.precision import to_float64
from ropewalk.readers.head import all_log_probs, logit_slices
from ropewalk.readers.reader import Advance, QuestionIds
from ropewalk.readers.requests import check_questions, check_read
from ropewalk.readers.top import likeliest

ASK_TOKENS = 256  # tokens of questions in one forward: enough to fill the matrices, few enough for their own mask


class DecoderPrefix:
    """Tokens that have gone through a decoder once; see `ropewalk.readers.reader.Prefix`.

    - `cache`: of one row, empty. `chunk`: tokens of one forward. Logits exist for the last token alone.
    """

    def __init__(self, model: Decoder, cache: KVCache, *, chunk: int) -> None:
        self.model, self.cache, self.chunk = model, cache, chunk
        self._tokens = 0
        self._next = torch.empty(0)  # log-probabilities of the next token

    @property
    def tokens(self) -> int:
        """How many tokens it holds."""
        return self._tokens

    @torch.inference_mode()
    def read(self, input_ids: Sequence[int], *, advance: Advance | None = None) -> None:
        """Put more tokens at the end, at least one."""
        check_read(input_ids, self._tokens)
        ids = torch.tensor(list(input_ids), device=self.cache.device)
        for start in range(0, len(ids), self.chunk):
            part, ends = ids[start : start + self.chunk], start + self.chunk >= len(ids)
            last = self.model(part[None], cache=self.cache, head_fn=_last_log_probs if ends else only_hidden)
            if advance is not None:
                advance(len(part))
        self._next = last
        self._tokens += len(ids)

    def log_probs(self, continuations: Sequence[Sequence[int]]) -> list[float]:
        """The log-probability in nats of each continuation, the sum over its tokens; the prefix stays as it was."""
        return self.ask([((), continuations)])[0]

    @torch.inference_mode()
    def ask(self, questions: Sequence[QuestionIds]) -> list[list[float]]:
        """For each question, read after the prefix, the log-probability of each of its continuations.

        The tokens of all questions go through the model as branches of one row, 256 at a time: what continuations begin
        with alike is read once, and the prefix is neither copied nor changed.
        """
        check_questions(questions)
        trees = [_Tree(question, continuations) for question, continuations in questions]
        found: list[list[float]] = []
        for first, last in _together([len(tree.tokens) for tree in trees], ASK_TOKENS):
            found += self._ask_at_once(trees[first:last])
        return found

    def _ask_at_once(self, trees: Sequence[_Tree]) -> list[list[float]]:
        tokens = [token for tree in trees for token in tree.tokens]
        starts = [0, *itertools.accumulate(len(tree.tokens) for tree in trees)]
        wanted = [
            (start + node if node >= 0 else -1, token)
            for start, tree in zip(starts, trees, strict=False)
            for line in tree.lines
            for node, token in line
        ]
        likely = torch.zeros(len(wanted), dtype=torch.float32, device=self.cache.device)
        nodes, targets = torch.tensor(wanted, dtype=torch.int64, device=self.cache.device).reshape(-1, 2).unbind(1)
        at_end = nodes < 0
        likely[at_end] = self._next[targets[at_end]]
        if tokens:
            parents = [
                parent if parent < 0 else start + parent
                for start, tree in zip(starts, trees, strict=False)
                for parent in tree.parents
            ]
            likely[~at_end] = self.model(
                torch.tensor([tokens], device=self.cache.device),
                cache=self.cache,
                branches=Branches(parents, self.cache.device),
                head_fn=partial(_log_probs_at, nodes=nodes[~at_end], targets=targets[~at_end]),
            )
        values = iter(to_float64(likely).tolist())
        return [[sum(next(values) for _ in line) for line in tree.lines] for tree in trees]

    def top(self, count: int) -> list[tuple[int, float]]:
        """The `count` likeliest next tokens and their log-probabilities in nats, the likeliest first."""
        return likeliest(self._next, count)

    @torch.inference_mode()
    def fork(self) -> DecoderPrefix:
        """A copy that can be read on independently."""
        cache = self.model.new_cache(seq_len=self.cache.seq_len, capacity=self.cache.capacity, dtype=self.cache.dtype)
        cache.replace([0], self.cache)
        other = DecoderPrefix(self.model, cache, chunk=self.chunk)
        other._tokens, other._next = self._tokens, self._next
        return other


class _Tree:
    """A question and its continuations as a tree of tokens: `parents` as in `Branches`, numbered from this tree's own.

    `lines` are, for each continuation, the node after which each of its tokens comes (-1: the prefix), and the token.
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
                    node = self._node(after, *line[-1])
                line.append((node, token))
            self.lines.append(line)

    def _node(self, after: dict[tuple[int, int], int], parent: int, token: int) -> int:
        """The node of `token` after `parent`: one for all continuations that begin so."""
        if (parent, token) not in after:
            after[parent, token] = len(self.tokens)
            self.tokens.append(token)
            self.parents.append(parent)
        return after[parent, token]


def _together(sizes: Sequence[int], most: int) -> Iterator[tuple[int, int]]:
    """Cuts a list into runs (first, last) whose sizes are together at most `most`; a larger one stands alone.

    >>> list(_together([3, 4, 2, 9, 1], 7))
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


def _log_probs_at(hidden: Tensor, weight: Tensor, *, nodes: Tensor, targets: Tensor) -> Tensor:
    """The log-probability of each target after its node, float32; the logits of few nodes exist at a time."""
    likely = torch.empty(len(nodes), dtype=torch.float32, device=hidden.device)
    asked, index = torch.unique(nodes, return_inverse=True)
    one_of_each = targets.new_empty(len(asked)).scatter_reduce_(0, index, targets, "amin", include_self=False)
    for part, logits in logit_slices(hidden[0, asked], weight, one_of_each):
        here = (index >= part.start) & (index < part.stop)
        likely[here] = logits.log_softmax(-1)[index[here] - part.start, targets[here]]
    return likely


def _last_log_probs(hidden: Tensor, weight: Tensor) -> Tensor:
    """The log-probability of every token after the last one, `[vocab]`."""
    return all_log_probs(hidden[0, -1], weight)
