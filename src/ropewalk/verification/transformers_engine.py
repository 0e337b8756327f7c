"""A causal language model of transformers as an engine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ropewalk.checkpoints.load import fast_dtype_or_warn
from ropewalk.checkpoints.sources import find
from ropewalk.errors import RopeError
from ropewalk.imports import need
from ropewalk.verification.engine import TOP, NextTokens, TooLong


class TransformersEngine:
    """A causal language model of transformers in this process; see `ropewalk.verification.engine.Engine`.

    **Arguments:**
    - `model`: in eval mode, in its own dtype and on its own device.
    - `tokenizer`: transformers' own, or None.
    """

    name = "transformers"

    def __init__(self, model: Any, tokenizer: Any = None) -> None:
        self.model, self.tokenizer = model, tokenizer

    @classmethod
    def load(cls, source: str | Path) -> TransformersEngine:
        """Load a Hugging Face folder in the dtype of its weights, or in float32 if this CPU multiplies that slowly.

        Nothing is downloaded.

        **Raises:** `RopeError` for a file, or if transformers cannot load the folder.
        """
        path = find(source)
        transformers = need("transformers", extra="transformers")
        if not path.is_dir():
            raise RopeError(
                "verify: transformers needs a Hugging Face folder.",
                facts={"model": str(path)},
                cure="Pass the folder, or --engine llama.cpp for a .gguf file.",
            )
        from ropewalk.checkpoints.opening import load_live, quietly

        model, _ = load_live(path, fast_dtype_or_warn(path, "verify: the engine"), "cpu")
        with quietly():
            try:
                tokenizer = transformers.AutoTokenizer.from_pretrained(str(path), local_files_only=True)
            except Exception:  # each class raises its own
                tokenizer = None
        return cls(model, tokenizer)

    def token_ids(self, text: str) -> list[int] | None:
        """Return the ids from transformers' tokenizer; None if there is no tokenizer."""
        if self.tokenizer is None:
            return None
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    @torch.inference_mode()
    def ask(self, input_ids: Sequence[int]) -> NextTokens:
        """Return the likeliest next tokens, from one forward pass without a cache."""
        ids = torch.tensor([list(input_ids)], device=self.model.device)
        try:
            logits = self.model(input_ids=ids, use_cache=False, logits_to_keep=1).logits[0, -1]
        except torch.OutOfMemoryError as error:
            raise TooLong(
                "verify: the prompt does not fit the device's memory.",
                facts={"tokens": len(input_ids)},
                cure="Pass a smaller --max-tokens.",
            ) from error
        return NextTokens(_likeliest(logits), len(input_ids))

    @torch.inference_mode()
    def generate(self, input_ids: Sequence[int], tokens: int) -> list[NextTokens]:
        """Return the likeliest tokens from the model's own `generate`, with its cache."""
        ids = torch.tensor([list(input_ids)], device=self.model.device)
        out = self.model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False, num_beams=1,
            output_logits=True, return_dict_in_generate=True, pad_token_id=0,
        )  # fmt: skip
        new = out.sequences[0, ids.shape[1] :].tolist()
        return [NextTokens(_likeliest(logits[0]), token=token) for token, logits in zip(new, out.logits, strict=False)]


def _likeliest(logits: Tensor) -> dict[int, float]:
    """Return the log-probabilities of the likeliest tokens."""
    likely = logits.double().log_softmax(-1).topk(min(TOP, len(logits)))
    return dict(zip(likely.indices.tolist(), likely.values.tolist(), strict=True))
