"""A tokenizer as GGUF metadata: tokens, merges, special ids, and the name by which llama.cpp knows how text is cut.

The name is not guessed: under it the metadata is read back, and must give the tokenizer's own ids for texts that tell
the known ones apart.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from ropewalk.checkpoints.gguf_tokenizer import CUTS, tokenizer_from_metadata
from ropewalk.checkpoints.tokenizer import TextTokenizer
from ropewalk.errors import RopeError
from ropewalk.models.tokens import Tokenizer

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 1, 2, 3, 4, 5, 6
_IS_BYTE = re.compile(r"<0x[0-9A-F]{2}>").fullmatch
_NAMES = ("smollm", "llama-bpe", "qwen2", "gpt-2", "tekken", "default")  # one for each way to cut, the likelier first
_LLAMA_CPP = "Convert it by llama.cpp's convert_hf_to_gguf.py, then pass that .gguf file: its tokenizer is kept."
_ODD = (
    "It's 12345.678 o'clock, WE'LL see they'd've: a_b  c\t\td\n\n\n e\r\n  f   \n g!? (x==y) && 0x1F->z... "
    "\u201cno\u201d \u2013 it\u2019s été À-Ünï naïve CamelCaseWord iPhone15 ÅNGSTRÖM don'T 3.14159 ١٢٣ ½ ⅷ "
    "你好\uff0c世界 こんにちは 안녕 Привет мир שלום नमस्ते \U0001f642\U0001f469\u200d\U0001f469\u200d\U0001f467"
    " \u00a0\u2003 $100.00 #tag @x /path/to/file.py https://example.org/?q=1&r=2 e\u0301 \ufb01 ~`^|\\ <b>"
)
_PROSE = (
    "Call me Ishmael. Some years ago\u2014never mind how long precisely\u2014having little or no money in my purse, "
    "and nothing particular to interest me on shore, I thought I would sail about a little and see the watery part of "
    "the world.\n\ndef area(width: float, height: float = 2.5) -> float:\n    return width * height  # square metres\n"
)
Value = str | bool | int | list[str] | list[int] | list[float]


def vocabulary_metadata(tokenizer: Tokenizer, size: int) -> dict[str, Value]:
    """The keys `tokenizer.ggml.*` of a tokenizer, for a model whose embedding has `size` rows.

    Byte-level BPE, and SentencePiece's BPE with byte fallback, whose scores follow from the merges' order. Raises
    `RopeError` for other kinds, and for one that cuts text in no way known here.
    """
    if not isinstance(tokenizer, TextTokenizer):
        raise _error("is of no kind that is known here", {"tokenizer": type(tokenizer).__name__})
    content: dict[str, Any] = json.loads(tokenizer.tokenizer.to_str())
    model = content["model"]
    steps = _steps(content.get("pre_tokenizer"))
    if model["type"] != "BPE" or not (model.get("byte_fallback") or "ByteLevel" in steps):
        raise _error("is neither byte-level BPE nor SentencePiece's", {"model": model["type"], "steps": steps})
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    if not merges:
        raise _error("has no merges, and llama.cpp loads no BPE without", {"tokens": tokenizer.vocab_size})
    if any(merge.count(" ") != 1 for merge in merges):
        raise _error("has a merge with a blank in it", {"merges": [m for m in merges if m.count(" ") != 1][:3]})
    tokens, types = _tokens(tokenizer, content["added_tokens"], size)
    metadata: dict[str, Value] = {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.add_bos_token": bool(tokenizer.prefix_ids),
    }
    if tokenizer.bos_id is not None:
        metadata["tokenizer.ggml.bos_token_id"] = tokenizer.bos_id
    for key, number in zip(("eos", "eot", "eom"), tokenizer.eos_ids, strict=False):
        metadata[f"tokenizer.ggml.{key}_token_id"] = number
    if tokenizer.chat_template is not None:
        metadata["tokenizer.chat_template"] = tokenizer.chat_template
    if not model.get("byte_fallback"):
        metadata |= {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.token_type": types,
            "tokenizer.ggml.merges": merges,
        }
        return _reading(tokenizer, metadata, [{"tokenizer.ggml.pre": name} for name in _NAMES])
    unknown = model.get("unk_token")
    types = [_UNKNOWN if token == unknown else _BYTE if _IS_BYTE(token) else kind
             for token, kind in zip(tokens, types, strict=True)]  # fmt: skip
    metadata |= {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.scores": _scores(tokens, types, merges),
    }
    if unknown in tokens:
        metadata["tokenizer.ggml.unknown_token_id"] = tokens.index(unknown)
    return _reading(tokenizer, metadata, [{"tokenizer.ggml.add_space_prefix": prefix} for prefix in (True, False)])


def _scores(tokens: list[str], types: list[int], merges: list[str]) -> list[float]:
    """What SentencePiece would merge by: the higher, the earlier a token's first merge stands."""
    ranks: dict[str, float] = {}
    for rank, merge in enumerate(merges):
        ranks.setdefault(merge.replace(" ", "", 1), -1.0 - rank)
    usable = {token for token, kind in zip(tokens, types, strict=True) if kind in (_NORMAL, _USER_DEFINED)}
    more = [
        token
        for token in usable - ranks.keys()
        if any(token[:cut] in usable and token[cut:] in usable for cut in range(1, len(token)))
    ]
    if more:
        raise _error("has tokens that its merges never make, and llama.cpp would", {"tokens": sorted(more)[:8]})
    return [ranks.get(token, 0.0) for token in tokens]


def _tokens(tokenizer: TextTokenizer, added: list[Mapping[str, Any]], size: int) -> tuple[list[str], list[int]]:
    """Every id's token and its type; ids that the embedding alone has are unused ones."""
    names = {number: token for token, number in tokenizer.tokenizer.get_vocab(with_added_tokens=True).items()}
    if max(names, default=-1) >= size:
        raise _error("has ids that the embedding has no rows for", {"vocab_size": size, "largest id": max(names)})
    kinds = {entry["id"]: _CONTROL if entry["special"] else _USER_DEFINED for entry in added}
    tokens = [names.get(number, f"[PAD{number}]") for number in range(size)]
    types = [kinds.get(number, _NORMAL) if number in names else _UNUSED for number in range(size)]
    return tokens, types


def _reading(tokenizer: TextTokenizer, metadata: dict[str, Value], choices: list[dict[str, Value]]) -> dict[str, Value]:
    """The metadata with the first of these keys under which it gives this tokenizer's ids."""
    texts = (_ODD, _PROSE)
    wanted = [tokenizer.encode(text, add_special=True) for text in texts]
    for choice in choices:
        read = tokenizer_from_metadata({**metadata, **choice}, "the file to be written")
        if [read.encode(text, add_special=True) for text in texts] == wanted:
            return {**metadata, **choice}
    raise _error("cuts text in a way that is not known here", {"known": sorted(CUTS)})


def _steps(pre: Mapping[str, Any] | None) -> list[str]:
    """The kinds of a pre-tokenizer's steps."""
    if pre is None:
        return []
    return [step["type"] for step in (pre["pretokenizers"] if pre["type"] == "Sequence" else [pre])]


def _error(reason: str, facts: dict[str, Any]) -> RopeError:
    return RopeError(f"extend: the tokenizer {reason}, so no GGUF file can hold it.", facts=facts, cure=_LLAMA_CPP)
