"""Tokenizers of GGUF files, built from their metadata."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ropewalk.errors import RopeError
from ropewalk.imports import need
from ropewalk.tokenizer import TextTokenizer

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
_NORMAL, _CONTROL, _USER_DEFINED = 1, 3, 4  # of `tokenizer.ggml.token_type`
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
