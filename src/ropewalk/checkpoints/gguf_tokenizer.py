"""Tokenizers of GGUF files, built from their metadata."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ropewalk.errors import RopeError, library_errors
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
    own = {key.removeprefix("tokenizer.ggml."): value for key, value in metadata.items()}
    for key, known in (("model", ("gpt2", "llama")), ("pre", sorted(CUTS)))[: 2 if own.get("model") == "gpt2" else 1]:
        if own.get(key, "default") not in known:
            raise RopeError(
                "TextTokenizer: the GGUF file has no supported tokenizer.",
                facts={"file": source, f"tokenizer.ggml.{key}": own.get(key), "known": known},
                cure="Use the model's Hugging Face folder with its tokenizer.json, or pass your own tokenizer.",
            )
    rule = "TextTokenizer: the tokenizer in the GGUF file's metadata is damaged."
    cure = "Fetch or convert the file again."
    for key, of in (("tokens", str), ("merges", str), ("scores", float), ("token_type", int)):
        entries = own.get(key, [])
        if not isinstance(entries, list) or not all(isinstance(entry, of) for entry in entries):
            facts = {"file": source, f"tokenizer.ggml.{key}": f"not a list of {of.__name__}"}
            raise RopeError(rule, facts=facts, cure=cure)
    with library_errors(rule, facts={"file": source}, cure=cure):
        return _made(own, metadata.get("tokenizer.chat_template"))


def _made(own: Mapping[str, Any], chat: object) -> TextTokenizer:
    """Return the tokenizer of metadata without their prefix; whatever does not fit raises."""
    kit, tokens = need("tokenizers"), own["tokens"]
    types = own.get("token_type") or [_NORMAL] * len(tokens)
    bytes_of = own["model"] == "gpt2"
    tokenizer = _byte_level(own, tokens) if bytes_of else _sentencepiece(own, tokens, types)
    for special, control in ((True, _CONTROL), (False, _USER_DEFINED)):  # matched before the text is split
        chosen = [token for token, its in zip(tokens, types, strict=True) if its == control and token]
        tokenizer.add_tokens([kit.AddedToken(token, normalized=False, special=special) for token in chosen])
    ids = {key: own.get(f"{key}_token_id") for key in ("bos", "eos", "eot", "eom")}
    begin, *end = [[one] if isinstance(one, int) and 0 <= one < len(tokens) else [] for one in ids.values()]
    ends = [one for found in end for one in found]
    bos = own.get("add_bos_token")
    if bos is None:
        bos = not bytes_of or own.get("pre") in _WHOLE_WORDS
    _surround(tokenizer, begin if bos else [], ends[:1] if own.get("add_eos_token") else [])
    return TextTokenizer(
        tokenizer, begin[0] if begin else None, ends, chat_template=chat if isinstance(chat, str) else None
    )


def _byte_level(own: Mapping[str, Any], tokens: list[str]) -> Any:
    """Build GPT-2's kind: byte-level BPE with the file's merges, each of two known tokens into a third."""
    kit, pre = need("tokenizers"), own.get("pre", "default")
    merges = [merge.partition(" ")[::2] for merge in own.get("merges") or []]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = kit.Tokenizer(kit.models.BPE(vocab=vocabulary, merges=merges, ignore_merges=pre in _WHOLE_WORDS))
    if pre == "qwen2":
        tokenizer.normalizer = kit.normalizers.NFC()  # as its tokenizer.json does; llama.cpp leaves it out
    cuts = [kit.pre_tokenizers.Split(kit.Regex(cut), behavior="isolated") for cut in CUTS[pre]]
    letters = kit.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = kit.pre_tokenizers.Sequence([*cuts, letters])
    tokenizer.decoder = kit.decoders.ByteLevel()
    return tokenizer


def _sentencepiece(own: Mapping[str, Any], tokens: list[str], types: list[int]) -> Any:
    """Build SentencePiece's BPE with byte fallback.

    Its merges are implied by the scores: every split of a token into two tokens, the best score first.
    """
    kit, scores, unknown = need("tokenizers"), own["scores"], own.get("unknown_token_id", 0)
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
