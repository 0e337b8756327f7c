"""Tokenizers of GGUF files: built from metadata, and written as metadata."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from ropewalk.checkpoints.tokenizer import TextTokenizer
from ropewalk.errors import RopeError
from ropewalk.models.prompts import Tokenizer
from ropewalk.optional import need

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3, _QWEN2 = _WORDS % r"\p{N}{1,3}", _WORDS % r"\p{N}"
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

# The expressions by which each `tokenizer.ggml.pre` splits text before the merges, applied one after the other.
CUTS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone"), (r"\p{N}", _GPT2)),
    **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling"), (_GPT2,)),
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral", "smaug-bpe", "dbrx"), (_LLAMA3,)),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "stablelm2", "hunyuan"), (_QWEN2,)),
    "tekken": (_TEKKEN,),
    "default": (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"),
}
# With these, a word that is itself a token is not split, and a text begins with the bos token by default.
_WHOLE_WORDS = frozenset({"llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral", "tekken"})


def tokenizer_from_metadata(metadata: Mapping[str, Any], source: str) -> TextTokenizer:
    """Return the `TextTokenizer` in a GGUF file's metadata; `source` names the file in errors."""
    kind = metadata.get("tokenizer.ggml.model")
    tokens = metadata.get("tokenizer.ggml.tokens")
    if kind not in ("gpt2", "llama") or not isinstance(tokens, list):
        raise RopeError(
            "TextTokenizer: the GGUF file has no supported tokenizer.",
            facts={"file": source, "tokenizer.ggml.model": kind, "known": ("gpt2", "llama")},
            cure="Pass your own tokenizer, or use the model's Hugging Face folder.",
        )
    for key, kind_of in (("tokens", str), ("merges", str), ("scores", float), ("token_type", int)):
        entries = metadata.get(f"tokenizer.ggml.{key}", [])
        if not isinstance(entries, list) or not all(isinstance(entry, kind_of) for entry in entries):
            raise RopeError(
                "TextTokenizer: the GGUF file's metadata is damaged.",
                facts={"file": source, f"tokenizer.ggml.{key}": f"not a list of {kind_of.__name__}"},
                cure="Fetch or convert the file again.",
            )
    types = metadata.get("tokenizer.ggml.token_type") or [_NORMAL] * len(tokens)
    if len(types) != len(tokens):
        raise RopeError(
            "TextTokenizer: the GGUF file has different numbers of tokens and token types.",
            facts={"file": source, "tokens": len(tokens), "token_type": len(types)},
            cure="Convert or download the file again.",
        )
    build = _byte_level if kind == "gpt2" else _sentencepiece
    tokenizer = build(metadata, tokens, types, source)
    _add_special(tokenizer, tokens, types)

    def ids(*keys: str) -> list[int]:
        found = [metadata.get(f"tokenizer.ggml.{key}_token_id") for key in keys]
        return [token for token in found if isinstance(token, int) and 0 <= token < len(tokens)]

    begin, end = ids("bos"), ids("eos", "eot", "eom")
    bos = metadata.get("tokenizer.ggml.add_bos_token")
    if bos is None:
        bos = kind == "llama" or metadata.get("tokenizer.ggml.pre") in _WHOLE_WORDS
    eos = bool(metadata.get("tokenizer.ggml.add_eos_token"))
    _surround(tokenizer, begin[0] if bos and begin else None, end[0] if eos and end else None)
    chat = metadata.get("tokenizer.chat_template")
    return TextTokenizer(
        tokenizer, begin[0] if begin else None, end, chat_template=chat if isinstance(chat, str) else None
    )


def _byte_level(metadata: Mapping[str, Any], tokens: list[str], types: list[int], source: str) -> Any:
    """Build GPT-2's kind: byte-level BPE with the file's merges."""
    kit = need("tokenizers")
    pre = metadata.get("tokenizer.ggml.pre", "default")
    if pre not in CUTS:
        raise RopeError(
            "TextTokenizer: the GGUF file's pre-tokenizer is unknown.",
            facts={"file": source, "tokenizer.ggml.pre": pre, "known": sorted(CUTS)},
            cure="Use the model's Hugging Face folder with its tokenizer.json.",
        )
    vocabulary = {token: number for number, token in enumerate(tokens)}
    model = kit.models.BPE(
        vocab=vocabulary, merges=_stated_merges(metadata, vocabulary, source), ignore_merges=pre in _WHOLE_WORDS
    )
    tokenizer = kit.Tokenizer(model)
    if pre == "qwen2":
        tokenizer.normalizer = kit.normalizers.NFC()  # as its tokenizer.json does; llama.cpp leaves it out
    split = kit.pre_tokenizers.Split
    tokenizer.pre_tokenizer = kit.pre_tokenizers.Sequence(
        [
            *(split(kit.Regex(cut), behavior="isolated") for cut in CUTS[pre]),
            kit.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = kit.decoders.ByteLevel()
    return tokenizer


def _stated_merges(metadata: Mapping[str, Any], vocabulary: Mapping[str, int], source: str) -> list[tuple[str, str]]:
    """Return the file's merges as pairs; raise `RopeError` unless each joins two known tokens into a third."""
    merges = []
    for merge in metadata.get("tokenizer.ggml.merges") or []:
        left, _, right = merge.partition(" ")
        if not (left in vocabulary and right in vocabulary and left + right in vocabulary):
            raise RopeError(
                "TextTokenizer: a merge of the GGUF file contains tokens outside its vocabulary.",
                facts={"file": source, "merge": merge},
                cure="Fetch or convert the file again.",
            )
        merges.append((left, right))
    return merges


def _sentencepiece(metadata: Mapping[str, Any], tokens: list[str], types: list[int], source: str) -> Any:
    """Build SentencePiece's BPE with byte fallback: with merges from the scores, best first."""
    kit = need("tokenizers")
    scores = metadata.get("tokenizer.ggml.scores", [])
    if len(scores) != len(tokens):
        raise RopeError(
            "TextTokenizer: a SentencePiece vocabulary needs one score for each token.",
            facts={"file": source, "tokens": len(tokens), "scores": len(scores)},
            cure="Convert or download the file again.",
        )
    vocabulary = {token: number for number, token in enumerate(tokens)}
    unknown = metadata.get("tokenizer.ggml.unknown_token_id", 0)
    model = kit.models.BPE(
        vocab=vocabulary,
        merges=implied_merges(tokens, types, scores),
        unk_token=tokens[unknown] if isinstance(unknown, int) and 0 <= unknown < len(tokens) else None,
        fuse_unk=True,
        byte_fallback=True,
    )
    tokenizer = kit.Tokenizer(model)
    prefix = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    spaces = kit.normalizers.Replace(" ", "▁")
    tokenizer.normalizer = kit.normalizers.Sequence([kit.normalizers.Prepend("▁"), spaces]) if prefix else spaces
    steps = [kit.decoders.Replace("▁", " "), kit.decoders.ByteFallback(), kit.decoders.Fuse()]
    tokenizer.decoder = kit.decoders.Sequence([*steps, *([kit.decoders.Strip(" ", 1, 0)] if prefix else [])])
    return tokenizer


def implied_merges(tokens: list[str], types: list[int], scores: list[float]) -> list[tuple[str, str]]:
    """Return the merges implied by a scored vocabulary: every split of a token into two tokens, best score first."""
    usable = {token for token, kind in zip(tokens, types, strict=True) if kind in (_NORMAL, _USER_DEFINED)}
    best = sorted(range(len(tokens)), key=lambda number: -scores[number])
    pairs = (
        (tokens[n][:cut], tokens[n][cut:]) for n in best if tokens[n] in usable for cut in range(1, len(tokens[n]))
    )
    return [(left, right) for left, right in pairs if left in usable and right in usable]


def _add_special(tokenizer: Any, tokens: list[str], types: list[int]) -> None:
    """Match control tokens (special) and user-defined ones (plain) before the text is split."""
    kit = need("tokenizers")
    for kind, special in ((_CONTROL, True), (_USER_DEFINED, False)):
        chosen = [token for token, its in zip(tokens, types, strict=True) if its == kind and token]
        tokenizer.add_tokens([kit.AddedToken(token, normalized=False, special=special) for token in chosen])


def _surround(tokenizer: Any, begin: int | None, end: int | None) -> None:
    """Make `encode(..., add_special=True)` add these tokens around a text."""
    names: dict[int | None, str] = {
        number: tokenizer.id_to_token(number) for number in (begin, end) if number is not None
    }
    if not names:
        return
    single = [piece for piece in (names.get(begin), "$A", names.get(end)) if piece]
    tokenizer.post_processor = need("tokenizers").processors.TemplateProcessing(
        single=single,
        pair=[*single, *(piece.replace("$A", "$B") + ":1" for piece in single)],
        special_tokens=[(name, number) for number, name in names.items()],
    )


_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 1, 2, 3, 4, 5, 6
_IS_BYTE = re.compile(r"<0x[0-9A-F]{2}>").fullmatch
_NAMES = ("smollm", "llama-bpe", "qwen2", "gpt-2", "tekken", "default")  # one for each way to split, likeliest first
_LLAMA_CPP = "Convert it with llama.cpp's convert_hf_to_gguf.py, then pass the .gguf file: its tokenizer is kept."
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
    """Return the keys `tokenizer.ggml.*` of a tokenizer, for a model with `size` rows in its embedding.

    It supports byte-level BPE, and SentencePiece's BPE with byte fallback, with scores from the order of the merges.
    Raises `RopeError` for other kinds, and for an unknown pre-tokenizer.
    """
    if not isinstance(tokenizer, TextTokenizer):
        raise _error("is of an unknown kind", {"tokenizer": type(tokenizer).__name__})
    content: dict[str, Any] = json.loads(tokenizer.tokenizer.to_str())
    model = content["model"]
    pre = content.get("pre_tokenizer") or {"type": "Sequence", "pretokenizers": []}
    steps = [step["type"] for step in (pre["pretokenizers"] if pre["type"] == "Sequence" else [pre])]
    if model["type"] != "BPE" or not (model.get("byte_fallback") or "ByteLevel" in steps):
        raise _error("is neither byte-level BPE nor SentencePiece's", {"model": model["type"], "steps": steps})
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    if not merges:
        raise _error("has no merges, which llama.cpp requires for BPE", {"tokens": tokenizer.vocab_size})
    if any(merge.count(" ") != 1 for merge in merges):
        raise _error("has a merge that contains a space", {"merges": [m for m in merges if m.count(" ") != 1][:3]})
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
    """Return SentencePiece's scores: a token with an earlier first merge has a higher score."""
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
        raise _error("has tokens that its merges never produce, but llama.cpp would", {"tokens": sorted(more)[:8]})
    return [ranks.get(token, 0.0) for token in tokens]


def _tokens(tokenizer: TextTokenizer, added: list[Mapping[str, Any]], size: int) -> tuple[list[str], list[int]]:
    """Return every id's token and its type; ids that only the embedding has are unused."""
    names = {number: token for token, number in tokenizer.tokenizer.get_vocab(with_added_tokens=True).items()}
    if max(names, default=-1) >= size:
        raise _error("has ids beyond the rows of the embedding", {"vocab_size": size, "largest id": max(names)})
    kinds = {entry["id"]: _CONTROL if entry["special"] else _USER_DEFINED for entry in added}
    tokens = [names.get(number, f"[PAD{number}]") for number in range(size)]
    types = [kinds.get(number, _NORMAL) if number in names else _UNUSED for number in range(size)]
    return tokens, types


def _reading(tokenizer: TextTokenizer, metadata: dict[str, Value], choices: list[dict[str, Value]]) -> dict[str, Value]:
    """Return the metadata with the first of these choices that reproduces this tokenizer's ids."""
    texts = (_ODD, _PROSE)
    wanted = [tokenizer.encode(text, add_special=True) for text in texts]
    for choice in choices:
        read = tokenizer_from_metadata({**metadata, **choice}, "the file to be written")
        if [read.encode(text, add_special=True) for text in texts] == wanted:
            return {**metadata, **choice}
    raise _error("has an unknown pre-tokenizer", {"known": sorted(CUTS)})


def _error(reason: str, facts: dict[str, Any]) -> RopeError:
    return RopeError(f"extend: the tokenizer {reason}, so a GGUF file cannot contain it.", facts=facts, cure=_LLAMA_CPP)
