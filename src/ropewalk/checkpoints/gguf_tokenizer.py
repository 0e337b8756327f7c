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


_AGAIN = "Fetch or convert the file again."


def tokenizer_from_metadata(metadata: Mapping[str, Any], source: str) -> TextTokenizer:
    """Return the `TextTokenizer` in a GGUF file's metadata; `source` names the file in errors."""
    kit = need("tokenizers")
    own = {key.removeprefix("tokenizer.ggml."): value for key, value in metadata.items()}
    kind, tokens = own.get("model"), own.get("tokens")
    if kind not in ("gpt2", "llama") or not isinstance(tokens, list):
        cure = "Pass your own tokenizer, or use the model's Hugging Face folder."
        facts = {"tokenizer.ggml.model": kind, "known": ("gpt2", "llama")}
        raise _error("the GGUF file has no supported tokenizer.", source, facts, cure)
    for key, of in (("tokens", str), ("merges", str), ("scores", float), ("token_type", int)):
        entries = own.get(key, [])
        if not isinstance(entries, list) or not all(isinstance(entry, of) for entry in entries):
            facts = {f"tokenizer.ggml.{key}": f"not a list of {of.__name__}"}
            raise _error("the GGUF file's metadata is damaged.", source, facts)
    types = own.get("token_type") or [_NORMAL] * len(tokens)
    if len(types) != len(tokens):
        facts = {"tokens": len(tokens), "token_type": len(types)}
        raise _error("the GGUF file has different numbers of tokens and token types.", source, facts)
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = _byte_level(own, vocabulary, source) if kind == "gpt2" else _sentencepiece(own, tokens, types, source)
    for special, control in ((True, _CONTROL), (False, _USER_DEFINED)):  # matched before the text is split
        chosen = [token for token, its in zip(tokens, types, strict=True) if its == control and token]
        tokenizer.add_tokens([kit.AddedToken(token, normalized=False, special=special) for token in chosen])
    ids = {key: own.get(f"{key}_token_id") for key in ("bos", "eos", "eot", "eom")}
    begin, *end = [[one] if isinstance(one, int) and 0 <= one < len(tokens) else [] for one in ids.values()]
    ends = [one for found in end for one in found]
    bos = own.get("add_bos_token")
    if bos is None:
        bos = kind == "llama" or own.get("pre") in _WHOLE_WORDS
    _surround(tokenizer, begin if bos else [], ends[:1] if own.get("add_eos_token") else [])
    chat = metadata.get("tokenizer.chat_template")
    return TextTokenizer(
        tokenizer, begin[0] if begin else None, ends, chat_template=chat if isinstance(chat, str) else None
    )


def _error(rule: str, source: str, facts: Mapping[str, Any], cure: str = _AGAIN) -> RopeError:
    return RopeError(f"TextTokenizer: {rule}", facts={"file": source, **facts}, cure=cure)


def _byte_level(own: Mapping[str, Any], vocabulary: dict[str, int], source: str) -> Any:
    """Build GPT-2's kind: byte-level BPE with the file's merges, each of two known tokens into a third."""
    kit, pre = need("tokenizers"), own.get("pre", "default")
    if pre not in CUTS:
        cure = "Use the model's Hugging Face folder with its tokenizer.json."
        facts = {"tokenizer.ggml.pre": pre, "known": sorted(CUTS)}
        raise _error("the GGUF file's pre-tokenizer is unknown.", source, facts, cure)
    merges = [merge.partition(" ")[::2] for merge in own.get("merges") or []]
    for left, right in merges:
        if not {left, right, left + right} <= vocabulary.keys():
            facts = {"merge": f"{left} {right}"}
            raise _error("a merge of the GGUF file contains tokens outside its vocabulary.", source, facts)
    tokenizer = kit.Tokenizer(kit.models.BPE(vocab=vocabulary, merges=merges, ignore_merges=pre in _WHOLE_WORDS))
    if pre == "qwen2":
        tokenizer.normalizer = kit.normalizers.NFC()  # as its tokenizer.json does; llama.cpp leaves it out
    cuts = [kit.pre_tokenizers.Split(kit.Regex(cut), behavior="isolated") for cut in CUTS[pre]]
    letters = kit.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = kit.pre_tokenizers.Sequence([*cuts, letters])
    tokenizer.decoder = kit.decoders.ByteLevel()
    return tokenizer


def _sentencepiece(own: Mapping[str, Any], tokens: list[str], types: list[int], source: str) -> Any:
    """Build SentencePiece's BPE with byte fallback.

    Its merges are implied by the scores: every split of a token into two tokens, the best score first.
    """
    kit, scores, unknown = need("tokenizers"), own.get("scores", []), own.get("unknown_token_id", 0)
    if len(scores) != len(tokens):
        facts = {"tokens": len(tokens), "scores": len(scores)}
        raise _error("a SentencePiece vocabulary needs one score for each token.", source, facts)
    usable = {token for token, kind in zip(tokens, types, strict=True) if kind in (_NORMAL, _USER_DEFINED)}
    best = sorted(zip(scores, tokens, strict=True), key=lambda scored: -scored[0])
    pairs = ((token[:cut], token[cut:]) for _, token in best if token in usable for cut in range(1, len(token)))
    model = kit.models.BPE(
        vocab={token: number for number, token in enumerate(tokens)},
        merges=[(left, right) for left, right in pairs if left in usable and right in usable],
        unk_token=tokens[unknown] if isinstance(unknown, int) and 0 <= unknown < len(tokens) else None,
        fuse_unk=True,
        byte_fallback=True,
    )
    tokenizer = kit.Tokenizer(model)
    prefix = bool(own.get("add_space_prefix", True))
    spaces = kit.normalizers.Replace(" ", "▁")
    tokenizer.normalizer = kit.normalizers.Sequence([kit.normalizers.Prepend("▁"), spaces]) if prefix else spaces
    steps = [kit.decoders.Replace("▁", " "), kit.decoders.ByteFallback(), kit.decoders.Fuse()]
    tokenizer.decoder = kit.decoders.Sequence([*steps, *([kit.decoders.Strip(" ", 1, 0)] if prefix else [])])
    return tokenizer


def _surround(tokenizer: Any, begin: list[int], end: list[int]) -> None:
    """Make `encode(..., add_special=True)` add these tokens around a text."""
    before, after = ([tokenizer.id_to_token(number) for number in numbers] for numbers in (begin, end))
    if not (before or after):
        return
    second = [f"{piece}:1" for piece in (*before, "$B", *after)]
    tokenizer.post_processor = need("tokenizers").processors.TemplateProcessing(
        single=[*before, "$A", *after],
        pair=[*before, "$A", *after, *second],
        special_tokens=[*{*zip(before + after, begin + end, strict=True)}],
    )
