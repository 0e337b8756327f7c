"""Lengths in tokens as they are typed: 8192, 8_192, 8k, 1M."""

from __future__ import annotations

import re

from ropewalk.errors import RopeError

_UNITS = {"": 1, "k": 1024, "m": 1024**2}
_LENGTH = re.compile(r"([+-]?\d+(?:_\d+)*(?:\.\d+)?)([km]?)", re.IGNORECASE)


def read_tokens(text: str, option: str = "length") -> int:
    """The number of tokens that `text` names: k is 1,024, M is 1,048,576. `option` is named in the error.

    Raises `RopeError` for anything else, and for parts of a token.

    >>> [read_tokens(text) for text in ("8192", "8_192", "8k", "1.5k", "128K", "1M")]
    [8192, 8192, 8192, 1536, 131072, 1048576]
    """
    match = _LENGTH.fullmatch(text.strip())
    if match is not None:
        whole, _, decimals = match[1].replace("_", "").partition(".")
        tokens, part = divmod(int(whole + decimals) * _UNITS[match[2].lower()], int("1" + "0" * len(decimals)))
        if not part:
            return tokens
    raise RopeError(
        f"ropewalk: {option} must be a whole number of tokens.",
        facts={"given": text},
        cure="Write 8192, 8_192, 8k (k is 1,024) or 1M (1,048,576).",
    )
