"""Windows of text to tune on, and the data collator that skips positions or separates documents."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from ropewalk.errors import RopeError
from ropewalk.training.data import RepeatSampler, TokenStream, Windows, WindowSampler, word_tokens

IGNORED = -100  # the label of a token that is not predicted, in transformers


class TuningWindows(Dataset[dict[str, Tensor]]):
    """Windows of texts in random order, for a trainer that uses them in sequence.

    Window `number` depends only on the texts, the seed and the number, so a resumed run, or one with a different number
    of processes, has the same windows.

    **Arguments:**
    - `texts`: one document each. `encode`: text to token ids. `end`: the id that ends a document, or None.
    - `count`: number of windows. `length`: tokens of a window.
    - `long_length`, `long_share`: tokens of the longer windows, and their share.
    - `repeat_share`: the share of windows with repeated blocks of words and of text.

    **Returns of an item:** `input_ids` and `document_ids`, int64 `[length]`.
    **Raises:** `RopeError` if the texts are shorter than one window.

    >>> windows = TuningWindows(["a rose is a rose"], lambda text: list(text.encode()), None, count=9, length=8)
    >>> len(windows), windows[3]["input_ids"].shape
    (9, torch.Size([8]))
    """

    def __init__(
        self,
        texts: Sequence[str],
        encode: Callable[[str], list[int]],
        end: int | None,
        *,
        count: int,
        length: int,
        long_length: int | None = None,
        long_share: float = 0.0,
        repeat_share: float = 0.0,
        seed: int = 0,
    ) -> None:
        stream = TokenStream.pack(texts, encode, end)
        words = word_tokens(texts, encode) if repeat_share else []
        self.count, self.seed, self.tokens = count, seed, len(stream)
        self.length, self.long_length, self.long_share = length, long_length, long_share

        def windows(tokens: int) -> Windows:
            if len(stream) <= tokens:
                raise RopeError(
                    "extend: the text is shorter than one window.",
                    facts={"tokens": len(stream), "window + 1": tokens + 1},
                    cure="Pass more text, or a smaller window.",
                )
            plain = WindowSampler(stream, seq_len=tokens, seed=seed)
            return RepeatSampler(plain, words, share=repeat_share, seed=seed) if repeat_share else plain

        self._windows = windows(length)
        self._long = windows(long_length) if long_length is not None and long_share else self._windows

    def __len__(self) -> int:
        return self.count

    @property
    def predicted(self) -> int:
        """Return the tokens of all windows."""
        long = sum(map(self._is_long, range(self.count))) if self.long_share else 0
        return (self.count - long) * self.length + long * (self.long_length or 0)

    def _is_long(self, number: int) -> bool:
        draw = np.random.Generator(np.random.PCG64([self.seed, number, 4])).random()
        return self.long_length is not None and bool(draw < self.long_share)

    def __getitem__(self, number: int) -> dict[str, Tensor]:
        """Return window `number`."""
        batch = (self._long if self._is_long(number) else self._windows).batch(number, 1)
        ids, documents = batch.inputs[0], batch.document_ids
        return {"input_ids": ids, "document_ids": torch.zeros_like(ids) if documents is None else documents[0]}


@dataclass(frozen=True, kw_only=True)
class SkipCollator:
    """Collate windows for a causal language model of transformers; skip positions or separate documents.

    - If every row of a batch is one document, positions skip: each row is cut at a random token, and the positions of
      its second part begin up to `target` - length later (PoSE). All distances below `target` occur, at the cost of the
      short window. With `target` None, positions do not skip.
    - If a row has several documents, positions restart at each document, there is no `attention_mask`, and the first
      token of a document is not predicted. transformers' masks then separate the documents.

    Cut and skip depend only on `seed` and the row's tokens, so a resumed run repeats them.

    **Arguments of a call:** rows as mappings with `input_ids` (a list or int64 `[seq]`), and optionally `labels` and
    `document_ids`. Shorter rows are padded on the right with `pad_token_id`.

    **Returns:** int64 `[rows, seq]`: `input_ids`, `labels` and `position_ids`. If positions skip, also
    `attention_mask`, because without a mask transformers treats a skip as a new document. If documents are separated,
    `use_cache` is False instead, because with a cache transformers does not separate them.

    **Raises:** `RopeError` for a row longer than `target`.
    **Source:** Zhu et al. 2023, arXiv:2309.10400, section 3.2, with two chunks and the text in one piece.

    >>> batch = SkipCollator(target=64, seed=1)([{"input_ids": [5, 6, 7, 8]}])
    >>> batch["position_ids"].tolist()
    [[0, 1, 2, 59]]
    """

    target: int | None
    seed: int = 0
    pad_token_id: int = 0

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the batch."""
        ids = [torch.as_tensor(row["input_ids"]) for row in rows]
        longest = max(map(len, ids))
        if self.target is not None and longest > self.target:
            raise RopeError(
                "extend: a window is longer than the target of skipped positions.",
                facts={"tokens": longest, "target": self.target},
                cure="Cut shorter windows, or raise the target.",
            )
        documents = [_documents(row, tokens) for row, tokens in zip(rows, ids, strict=True)]
        labels = [torch.as_tensor(row.get("labels", tokens)).clone() for row, tokens in zip(rows, ids, strict=True)]
        batch: dict[str, Any] = {"input_ids": _padded(ids, longest, self.pad_token_id)}
        if any(bool((own != own[0]).any()) for own in documents):
            for own, wanted in zip(documents, labels, strict=True):
                wanted[1:][own[1:] != own[:-1]] = IGNORED
            starts = torch.stack([_restarts(own, longest) for own in documents])
            return batch | {"labels": _padded(labels, longest, IGNORED), "position_ids": starts, "use_cache": False}
        mask = _padded([torch.ones_like(tokens) for tokens in ids], longest, 0)
        positions = torch.stack([self._positions(tokens, longest) for tokens in ids])
        return batch | {
            "labels": _padded(labels, longest, IGNORED),
            "position_ids": positions,
            "attention_mask": mask,
        }

    def _positions(self, tokens: Tensor, longest: int) -> Tensor:
        """Return the positions of a row, int64 `[longest]`."""
        places = torch.arange(longest)
        if self.target is None or len(tokens) < 2:
            return places
        digest = hashlib.blake2b(tokens.numpy().astype("<i8").tobytes(), digest_size=8).digest()
        random = np.random.Generator(np.random.PCG64([self.seed, int.from_bytes(digest, "little")]))
        cut, skip = int(random.integers(1, len(tokens))), int(random.integers(self.target - longest + 1))
        return places + skip * (places >= cut)


def _documents(row: Mapping[str, Any], tokens: Tensor) -> Tensor:
    """Return the number of each token's document, int64 `[seq]`."""
    given = row.get("document_ids")
    return torch.zeros_like(tokens) if given is None else torch.as_tensor(given)


def _restarts(documents: Tensor, longest: int) -> Tensor:
    """Return positions that restart at each document and at the padding, int64 `[longest]`."""
    places = torch.arange(longest)
    begins = torch.ones(longest, dtype=torch.bool)
    begins[1 : len(documents)] = documents[1:] != documents[:-1]
    begins[len(documents) + 1 :] = False
    return places - torch.where(begins, places, 0).cummax(0).values


def _padded(rows: Sequence[Tensor], longest: int, value: int) -> Tensor:
    """Return the rows with `value` on their right, int64 `[rows, longest]`."""
    return torch.stack([torch.nn.functional.pad(row, (0, longest - len(row)), value=value) for row in rows])
