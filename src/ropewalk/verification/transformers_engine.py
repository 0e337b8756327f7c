"""A transformers model in this process."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ropewalk.checkpoints.sources import find
from ropewalk.errors import RopeError
from ropewalk.optional import need
from ropewalk.verification.engine import TOP, Engine, NextTokens, TooLong


def is_transformers_model(value: object) -> bool:
    """Whether this is a live model with a transformers config; does not import transformers."""
    return isinstance(value, nn.Module) and hasattr(getattr(value, "config", None), "to_dict")


class TransformersEngine(AbstractContextManager[Engine]):
    """A causal language model of transformers; see `ropewalk.verification.engine.Engine`.

    - `model`: in eval mode; its own weights, dtype and device. `tokenizer`: transformers' own, or None.
    """

    name = "transformers"

    def __init__(self, model: Any, tokenizer: Any = None) -> None:
        self.model, self.tokenizer = model, tokenizer

    @classmethod
    def load(cls, source: str | Path) -> TransformersEngine:
        """The model of a Hugging Face folder, in the dtype that it is stored in; nothing is downloaded.

        Raises `RopeError` for a file, and where transformers cannot read the folder.
        """
        path = find(source)
        transformers = need("transformers", extra="transformers")
        if not path.is_dir():
            raise RopeError(
                "verify: transformers is started from a Hugging Face folder.",
                facts={"model": str(path)},
                cure="Pass the folder, or --engine llama.cpp for a .gguf file.",
            )
        from ropewalk.readers.live.loading import quietly

        try:
            with quietly():
                load = transformers.AutoModelForCausalLM.from_pretrained
                model = load(str(path), local_files_only=True, dtype="auto")
                tokenizer = transformers.AutoTokenizer.from_pretrained(str(path), local_files_only=True)
        except (OSError, ValueError, KeyError, ImportError) as error:
            raise RopeError(
                "verify: transformers cannot load this folder.",
                facts={"model": str(path), "error": str(error)},
                cure="Pass a folder that AutoModelForCausalLM.from_pretrained reads.",
            ) from error
        return cls(model.eval(), tokenizer)

    def token_ids(self, text: str) -> list[int] | None:
        """The ids by transformers' tokenizer; None without one."""
        if self.tokenizer is None:
            return None
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    @torch.inference_mode()
    def ask(self, input_ids: Sequence[int]) -> NextTokens:
        """The likeliest next tokens, from one forward without a cache."""
        ids = torch.tensor([list(input_ids)], device=self.model.device)
        try:
            logits = self.model(input_ids=ids, use_cache=False, logits_to_keep=1).logits[0, -1]
        except torch.OutOfMemoryError as error:
            raise TooLong(
                "verify: the prompt does not fit the device's memory.",
                facts={"tokens": len(input_ids)},
                cure="Pass a smaller --max-tokens.",
            ) from error
        likely = logits.double().log_softmax(-1).topk(min(TOP, len(logits)))
        return NextTokens(dict(zip(likely.indices.tolist(), likely.values.tolist(), strict=True)), len(input_ids))

    def __enter__(self) -> TransformersEngine:
        return self

    def __exit__(self, *error: object) -> None:
        return None
