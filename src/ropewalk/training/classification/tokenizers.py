"""Which tokenizer a classifier reads with."""

from __future__ import annotations

from collections.abc import Sequence

from ropewalk.checkpoints.tokenizer import TextTokenizer
from ropewalk.optional import need
from ropewalk.training.classification.settings import ClassifySettings
from ropewalk.training.tokenizers import make_tokenizer


def text_tokenizer(settings: ClassifySettings, texts: Sequence[str]) -> TextTokenizer:
    """The tokenizer that the settings ask for, trained on the texts where it is "bpe".

    A trained one puts a space before the text, so that its first word is the token that it is elsewhere, and with
    `lowercase` folds case: both are in tokenizer.json.
    """
    if settings.tokenizer != "bpe":
        return make_tokenizer(settings, texts)
    normalizers = need("tokenizers").normalizers
    fold = [normalizers.Lowercase()] if settings.lowercase else []
    normalizer = normalizers.Sequence([*fold, normalizers.Prepend(" ")])
    tokenizer = make_tokenizer(settings, [normalizer.normalize_str(text) for text in texts])
    tokenizer.tokenizer.normalizer = normalizer
    return tokenizer
