"""The tokenizer of a live model as ours: the fast backend, and which ids begin and end a text."""

from __future__ import annotations

from typing import Any

from ropewalk.checkpoints.tokenizer import TextTokenizer, has_token
from ropewalk.errors import RopeError
from ropewalk.models.tokens import Tokenizer
from ropewalk.optional import need


def text_tokenizer(tokenizer: Any, model: Any) -> Tokenizer | None:
    """A tokenizer of transformers (with a fast backend), of `tokenizers`, or of ours; None stays None.

    Raises `RopeError` for one without a fast backend: its tokenizer.json is what can be read here.
    """
    if tokenizer is None or isinstance(tokenizer, Tokenizer):
        return tokenizer
    kit = need("tokenizers").Tokenizer
    backend = tokenizer if isinstance(tokenizer, kit) else getattr(tokenizer, "backend_tokenizer", None)
    if not isinstance(backend, kit):
        raise RopeError(
            "transformers: this tokenizer has no fast form, and only that is used here.",
            facts={"tokenizer": type(tokenizer).__name__},
            cure="Load it by AutoTokenizer from a folder with a tokenizer.json.",
        )
    own = kit.from_str(backend.to_str())
    own.no_truncation()
    own.no_padding()
    ends = [_first(model, "eos_token_id"), getattr(tokenizer, "eos_token_id", None)]
    begins = [getattr(tokenizer, "bos_token_id", None), _first(model, "bos_token_id")]
    known = [[one for one in _listed(found) if has_token(one, own)] for found in (*ends, *begins)]
    template = getattr(tokenizer, "chat_template", None)
    return TextTokenizer(
        own,
        next((found[0] for found in known[2:] if found), None),
        next((found for found in known[:2] if found), []),
        chat_template=template if isinstance(template, str) else None,
    )


def _first(model: Any, key: str) -> Any:
    """A model's own id, or ids: its generation config's, or else its config's."""
    holders = (getattr(model, "generation_config", None), model.config.get_text_config(decoder=True), model.config)
    return next((found for holder in holders if (found := getattr(holder, key, None)) is not None), None)


def _listed(value: Any) -> list[int]:
    return [int(one) for one in (value if isinstance(value, list | tuple) else [value]) if one is not None]
