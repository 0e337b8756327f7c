"""A reader of a live transformers Llama, in one file: what the protocol asks of a second adapter, at its smallest."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ropewalk.errors import RopeError
from ropewalk.models.positions import Positions
from ropewalk.models.tokens import Tokenizer
from ropewalk.readers.reader import CHUNK, Advance, IsDone, Losses, QuestionIds
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.frequencies import attention_factor_of
from ropewalk.rotation.embedding import RotaryEmbedding


class TransformersPrefix:
    """A prefix without a cache: every question reads it again."""

    def __init__(self, reader: TransformersReader, input_ids: Sequence[int], seq_len: int) -> None:
        self.reader, self.ids, self.seq_len = reader, list(input_ids), seq_len

    @property
    def tokens(self) -> int:
        return len(self.ids)

    def log_probs(self, continuations: Sequence[Sequence[int]]) -> list[float]:
        found = []
        for continuation in continuations:
            likely = self.reader.log_probs([*self.ids, *continuation], self.seq_len)[len(self.ids) - 1 : -1]
            found.append(float(likely.gather(-1, torch.tensor(continuation)[:, None]).double().sum()))
        return found

    def ask(self, questions: Sequence[QuestionIds]) -> list[list[float]]:
        found = []
        for question, continuations in questions:
            longer = TransformersPrefix(self.reader, [*self.ids, *question], self.seq_len)
            found.append(longer.log_probs(continuations))
        return found

    def top(self, count: int) -> list[tuple[int, float]]:
        best = self.reader.log_probs(self.ids, self.seq_len)[-1].topk(count)
        return list(zip(best.indices.tolist(), best.values.tolist(), strict=True))

    def fork(self) -> TransformersPrefix:
        return TransformersPrefix(self.reader, self.ids, self.seq_len)

    def read(self, input_ids: Sequence[int], *, advance: Advance | None = None) -> None:
        self.ids += input_ids
        if advance is not None:
            advance(len(input_ids))


class TransformersReader:
    """A `LlamaForCausalLM`, whose own tables are replaced by ours while it reads."""

    def __init__(self, model: Any, tokenizer: Tokenizer | None = None, positions: Positions | None = None) -> None:
        self.model, self.tokenizer = model, tokenizer
        layers = model.config.num_hidden_layers
        rope = RopeConfig.from_hf(model.config)
        self.positions = positions or Positions((rope,) * layers, (None,) * layers, (None,) * layers)

    name = "llama"

    @property
    def trained_length(self) -> int | None:
        return self.positions.present_ropes[0].trained_length

    @property
    def device(self) -> torch.device:
        return torch.device(self.model.device)

    @property
    def dtype(self) -> torch.dtype:
        return self.model.dtype  # type: ignore[no-any-return]

    @property
    def parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.model.parameters())

    def digest(self) -> str:
        digest = hashlib.sha256(repr(self.positions).encode() + self.model.config.to_json_string().encode())
        for name, weight in self.model.named_parameters():
            digest.update(name.encode() + weight.detach().numpy().tobytes())
        return digest.hexdigest()

    def under(self, positions: Positions) -> TransformersReader:
        if any(positions.extensions) or len(set(positions.ropes)) > 1 or None in positions.ropes:
            raise RopeError("transformers: this reader knows one rope for all layers.", facts={"positions": positions})
        return TransformersReader(self.model, self.tokenizer, positions)

    def cache_bytes(self, tokens: int) -> int:
        return 0

    @contextmanager
    def _tables(self, seq_len: int) -> Iterator[None]:
        """Our cos and sin in place of the model's own."""
        rope = self.positions.ropes[0]
        assert rope is not None
        rotary = RotaryEmbedding(rope)

        def forward(x: Tensor, position_ids: Tensor, **_: Any) -> tuple[Tensor, Tensor]:
            cos, sin = rotary.cos_sin(position_ids, seq_len if rope.needs_seq_len else None)
            scale = attention_factor_of(rope, seq_len)
            return torch.cat([cos, cos], -1) * scale, torch.cat([sin, sin], -1) * scale

        module = self.model.model.rotary_emb
        module.forward = forward
        try:
            yield
        finally:
            del module.forward

    @torch.no_grad()
    def log_probs(self, ids: Sequence[int], seq_len: int) -> Tensor:
        """`[tokens, vocab]`: after each token, of the next."""
        with self._tables(seq_len):
            return self.model(torch.tensor([list(ids)])).logits[0].float().log_softmax(-1)  # type: ignore[no-any-return]

    def window_losses(
        self,
        input_ids: Tensor,
        *,
        first: int = 1,
        seq_len: int | None = None,
        chunk: int = CHUNK,
        advance: Advance | None = None,
    ) -> Losses:
        likely = self.log_probs(input_ids.tolist(), seq_len or len(input_ids))
        if advance is not None:
            advance(len(input_ids))
        losses = -likely[:-1].gather(-1, input_ids[1:, None])[:, 0]
        return np.asarray(losses[first - 1 :].double())

    def prefix(
        self, input_ids: Sequence[int], *, seq_len: int, chunk: int = CHUNK, advance: Advance | None = None
    ) -> TransformersPrefix:
        prefix = TransformersPrefix(self, (), seq_len)
        prefix.read(input_ids, advance=advance)
        return prefix

    def continuation_log_probs(
        self,
        pairs: Sequence[tuple[Sequence[int], Sequence[int]]],
        *,
        batch: int = 8,
        chunk: int = CHUNK,
        done: Callable[[int, tuple[float, bool]], None] | None = None,
    ) -> list[tuple[float, bool]]:
        found = []
        for index, (context, continuation) in enumerate(pairs):
            ids, target = [*context, *continuation], torch.tensor(continuation)[:, None]
            likely = self.log_probs(ids, len(ids))[len(context) - 1 : -1]
            total = float(likely.gather(-1, target).double().sum())
            found.append((total, bool((likely.argmax(-1) == target[:, 0]).all())))
            if done is not None:
                done(index, found[-1])
        return found

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        max_new_tokens: int,
        seq_len: int | None = None,
        is_done: IsDone | None = None,
        **options: Any,
    ) -> list[list[int]]:
        rows: list[list[int]] = [[] for _ in prompts]
        for row, (prompt, new) in enumerate(zip(prompts, rows, strict=True)):
            while len(new) < max_new_tokens and not (new and is_done is not None and is_done(row, new)):
                length = seq_len or len(prompt) + max_new_tokens
                new.append(int(self.log_probs([*prompt, *new], length)[-1].argmax()))
        return rows
