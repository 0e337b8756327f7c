"""Tokens in a transformers model's cache, of which continuations are asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ropewalk.models.precision import to_float64
from ropewalk.readers.live.cache import copied, taken_back
from ropewalk.readers.live.model import LiveModel
from ropewalk.readers.reader import Advance, QuestionIds
from ropewalk.readers.requests import check_questions, check_read
from ropewalk.readers.top import likeliest


class LivePrefix:
    """Tokens that have gone through a live model once; see `ropewalk.readers.reader.Prefix`.

    - `cache`: of one row, empty. `chunk`: tokens of one forward. Logits exist for the last token alone.
    """

    def __init__(self, live: LiveModel, cache: Any, *, chunk: int) -> None:
        self.live, self.cache, self.chunk = live, cache, chunk
        self._tokens = 0
        self._next = torch.empty(0)  # log-probabilities of the next token

    @property
    def tokens(self) -> int:
        """How many tokens it holds."""
        return self._tokens

    @property
    def next_log_probs(self) -> Tensor:
        """The log-probability of every token after the last one, float32 `[vocab]`."""
        return self._next

    @torch.inference_mode()
    def read(self, input_ids: Sequence[int], *, advance: Advance | None = None) -> None:
        """Put more tokens at the end, at least one."""
        check_read(input_ids, self._tokens)
        last = torch.empty(0)
        for start in range(0, len(input_ids), self.chunk):
            part = list(input_ids[start : start + self.chunk])
            last = self._hidden(part, self._tokens)[-1:]
            self._tokens += len(part)
            if advance is not None:
                advance(len(part))
        self._next = self.live.logits(last)[0].log_softmax(-1)

    def log_probs(self, continuations: Sequence[Sequence[int]]) -> list[float]:
        """The log-probability in nats of each continuation, the sum over its tokens; the prefix stays as it was."""
        return self.ask([((), continuations)])[0]

    @torch.inference_mode()
    def ask(self, questions: Sequence[QuestionIds]) -> list[list[float]]:
        """For each question, read after the prefix, the log-probability of each of its continuations.

        Questions are read one after the other and taken back: the prefix is neither copied nor changed.
        """
        check_questions(questions)
        return [self._answers(list(question), continuations) for question, continuations in questions]

    def _answers(self, question: list[int], continuations: Sequence[Sequence[int]]) -> list[float]:
        """The log-probabilities of the continuations of one question."""
        with taken_back(self.cache):
            first = self._next
            if question:
                first = self.live.logits(self._hidden(question, self._tokens)[-1:])[0].log_softmax(-1)
            start = self._tokens + len(question)
            found = to_float64(first[torch.tensor([one[0] for one in continuations], device=first.device)]).tolist()
            for index, continuation in enumerate(continuations):
                if len(continuation) > 1:
                    found[index] += self._following(list(continuation), start)
        return [float(one) for one in found]

    def _following(self, tokens: list[int], start: int) -> float:
        """The log-probability of the tokens after the first, each given those before it."""
        with taken_back(self.cache):
            logits = self.live.logits(self._hidden(tokens[:-1], start))
        targets = torch.tensor(tokens[1:], device=logits.device)
        likely = logits.log_softmax(-1).gather(-1, targets[:, None])[:, 0]
        return float(to_float64(likely).sum())

    def _hidden(self, tokens: list[int], start: int) -> Tensor:
        """Hidden states `[tokens, hidden]` of tokens that are appended."""
        return self.live.hidden(torch.tensor([tokens], device=self.live.device), self.cache, start)[0]

    def top(self, count: int) -> list[tuple[int, float]]:
        """The `count` likeliest next tokens and their log-probabilities in nats, the likeliest first."""
        return likeliest(self._next, count)

    @torch.inference_mode()
    def fork(self) -> LivePrefix:
        """A copy that can be read on independently."""
        other = LivePrefix(self.live, copied(self.cache), chunk=self.chunk)
        other._tokens, other._next = self._tokens, self._next
        return other
