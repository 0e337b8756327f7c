"""Tokenizers: trained, of bytes, from folders, and from GGUF metadata."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.checkpoints.gguf import tokenizer_from_metadata
from ropewalk.errors import RopeError
from ropewalk.tokenizer import TextTokenizer
from tests.models.material import PROSE

ODD = "héllo — 你好 🦜🎉 naïve ﬁ\u00a0x\u200d \r\n\t  ½ ² Ⅷ ١٢٣ we'll IT'S 1234567 \n\n\n   end  "
TEXTS = (PROSE, ODD, "", " ", "def f(x):\n    return x**2  # 3.14159\n")


@pytest.fixture(scope="module")
def trained() -> TextTokenizer:
    """A tokenizer trained on a little prose."""
    return TextTokenizer.train([PROSE * 3, ODD], vocab_size=360)


@given(st.text().filter(lambda text: "<|endoftext|>" not in text))  # that is one token, see below
@settings(max_examples=100, deadline=None)
def test_bytes_are_utf8(text: str) -> None:
    """The byte tokenizer's ids are the bytes of UTF-8, and decoding brings the text back."""
    tokenizer = TextTokenizer.bytes()
    assert tokenizer.encode(text) == list(text.encode("utf-8", errors="surrogatepass"))
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert (tokenizer.vocab_size, tokenizer.bos_id, tokenizer.eos_ids) == (257, 256, (256,))
    assert tokenizer.decode([104, 256]) == "h<|endoftext|>"


def test_training_keeps_every_text(trained: TextTokenizer) -> None:
    """Any text survives, also one with characters never trained on; numbers are cut into digits.

    The vocabulary has the size asked for, and the same texts give the same tokenizer.
    """
    for text in (*TEXTS, "Ωμέγα 한국어"):
        assert trained.decode(trained.encode(text)) == text
    assert trained.vocab_size == 360
    assert (trained.bos_id, trained.eos_ids) == (0, (0,))
    assert len(trained.encode(PROSE)) < len(PROSE) / 2
    assert [trained.decode([token]) for token in trained.encode("1851")] == ["1", "8", "5", "1"]
    again = TextTokenizer.train([PROSE * 3, ODD], vocab_size=360)
    assert again.tokenizer.to_str() == trained.tokenizer.to_str()
    with pytest.raises(RopeError, match="must be at least 257"):
        TextTokenizer.train(["x"], vocab_size=256)
    with pytest.raises(RopeError, match="`eos_ids` is not in the vocabulary"):
        TextTokenizer(trained.tokenizer, eos_ids=[360])


def test_folder_round_trip(trained: TextTokenizer, tmp_path: Path) -> None:
    """What `save` writes, `from_folder` reads: ids, special tokens and template."""
    several = TextTokenizer(trained.tokenizer, bos_id=0, eos_ids=[5, 0, 5], chat_template="{{ messages }}")
    several.save(tmp_path)
    read = TextTokenizer.from_folder(tmp_path)
    assert [read.encode(text) for text in TEXTS] == [trained.encode(text) for text in TEXTS]
    assert (read.bos_id, read.eos_ids, read.chat_template) == (0, (5, 0), "{{ messages }}")


@pytest.mark.parametrize("make", ["trained", "bytes"])
def test_transformers_reads_the_folder(make: str, trained: TextTokenizer, tmp_path: Path) -> None:
    """AutoTokenizer loads what `save` wrote, to the same ids, text and special tokens."""
    from transformers import AutoTokenizer

    ours = trained if make == "trained" else TextTokenizer.bytes()
    ours.save(tmp_path)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    for text in TEXTS:
        assert theirs(text, add_special_tokens=False)["input_ids"] == ours.encode(text)
        assert theirs.decode(ours.encode(text)) == text
    assert (theirs.bos_token_id, theirs.eos_token_id) == (ours.bos_id, ours.eos_ids[0])


@pytest.mark.parametrize(("files", "begin", "end"), [
    ({"generation_config.json": {"eos_token_id": [0, 7]}, "config.json": {"eos_token_id": 5}}, None, (0, 7)),
    ({"config.json": {"eos_token_id": 5, "bos_token_id": 6}}, 6, (5,)),
    ({"generation_config.json": {"eos_token_id": [10**30, -1]}, "config.json": {"eos_token_id": 5}}, None, (5,)),
    ({"tokenizer_config.json": {"eos_token": {"content": "<|endoftext|>"}, "bos_token": "a"}}, "a", (0,)),
    ({"tokenizer_config.json": {"eos_token": "no such token"}}, None, ()),
])  # fmt: skip
def test_where_special_tokens_are_named(
    files: dict[str, Any], begin: Any, end: tuple[int, ...], trained: TextTokenizer, tmp_path: Path
) -> None:
    """Generation config goes before config, that before the tokenizer's own; tokens may be written as dicts."""
    (tmp_path / "tokenizer.json").write_text(trained.tokenizer.to_str(), encoding="utf-8")
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content), encoding="utf-8")
    read = TextTokenizer.from_folder(tmp_path)
    expected = trained.tokenizer.token_to_id(begin) if isinstance(begin, str) else begin
    assert (read.bos_id, read.eos_ids) == (expected, end)


@pytest.mark.parametrize(("name", "content", "message"), [
    (None, b"", r"(?s)no such file.*tokenizer\.json"),
    ("tokenizer.json", b'{"model": ', r"tokenizer\.json cannot be read"),
    ("chat_template.jinja", b"{{ \xff }}", r"(?s)cannot be read.*chat_template\.jinja.*utf-8"),
])  # fmt: skip
def test_missing_and_damaged_files_are_named(
    name: str | None, content: bytes, message: str, tmp_path: Path, trained: TextTokenizer
) -> None:
    """No tokenizer.json, one that is no tokenizer, and a chat template that is not UTF-8."""
    if name is not None:
        trained.save(tmp_path)
        (tmp_path / name).write_bytes(content)
    with pytest.raises(RopeError, match=message):
        TextTokenizer.from_folder(tmp_path)


def sentencepiece_metadata() -> dict[str, Any]:
    """A small SentencePiece vocabulary with byte fallback, scored by rank as SentencePiece's BPE is."""
    words = ["▁", "a", "b", "c", "t", "h", "e", "s", "▁t", "he", "▁the", "th", "at", "▁a", "st", "the", "▁c", "▁cat"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words, "<think>"]
    types = [2, 3, 3, *[6] * 256, *[1] * len(words), 4]
    scores = [0.0] * 259 + [-float(rank) for rank in range(len(words))] + [0.0]
    return {
        "tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.scores": scores, "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }  # fmt: skip


def greedy_sentencepiece(text: str, tokens: list[str], scores: list[float]) -> list[int]:
    """llama2.c's encoder: characters (or bytes), then always the best-scored merge of two neighbours."""
    known = {token: number for number, token in enumerate(tokens) if number >= 259}
    ids: list[int] = []
    for character in (" " + text).replace(" ", "▁") if text else "":
        ids += [known[character]] if character in known else [3 + byte for byte in character.encode()]
    while True:
        joined = [
            (scores[known[w]], -i) for i in range(len(ids) - 1) if (w := tokens[ids[i]] + tokens[ids[i + 1]]) in known
        ]
        if not joined:
            return ids
        at = -max(joined)[1]
        ids[at : at + 2] = [known[tokens[ids[at]] + tokens[ids[at + 1]]]]


@given(st.text(alphabet="abcthes zé你\n") | st.text())
@settings(max_examples=200, deadline=None)
def test_sentencepiece_merges_best_first(text: str) -> None:
    """A SentencePiece GGUF encodes as the greedy algorithm does, unknown characters as bytes, and decodes back."""
    if "<" in text or "▁" in text:
        return  # special tokens, and the space's own letter, are other tests
    metadata = sentencepiece_metadata()
    tokenizer = tokenizer_from_metadata(metadata, "test")
    ids = tokenizer.encode(text)
    assert ids == greedy_sentencepiece(text, metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.scores"])
    assert tokenizer.decode(ids) == text


def test_sentencepiece_special_tokens() -> None:
    """The bos token is added on request, control and user-defined tokens are matched whole."""
    tokenizer = tokenizer_from_metadata(sentencepiece_metadata(), "test")
    plain = tokenizer.encode("the cat")
    assert tokenizer.encode("the cat", add_special=True) == [1, *plain]
    assert (tokenizer.bos_id, tokenizer.eos_ids) == (1, (2,))
    assert tokenizer.encode("a</s>")[-1] == 2
    assert tokenizer.decode(tokenizer.encode("a<think>")) == "a<think>"


def byte_level_metadata(trained: TextTokenizer, pre: str | None) -> dict[str, Any]:
    """The trained tokenizer as llama.cpp's converter would describe it."""
    content = json.loads(trained.tokenizer.to_str())
    vocabulary = sorted(content["model"]["vocab"], key=content["model"]["vocab"].get)
    merges = [" ".join(merge) if isinstance(merge, list) else merge for merge in content["model"]["merges"]]
    types = [3, *[1] * (len(vocabulary) - 1), 4]
    given = {"model": "gpt2", "tokens": [*vocabulary, "<think>"], "token_type": types, "merges": merges,
             "bos_token_id": 0, "eos_token_id": 0, "eot_token_id": 9, **({"pre": pre} if pre else {})}  # fmt: skip
    return {f"tokenizer.ggml.{key}": value for key, value in given.items()}


def test_byte_level_gguf_is_its_origin(trained: TextTokenizer) -> None:
    """SmolLM's cut is that of our training, so the GGUF form of a trained tokenizer encodes alike."""
    tokenizer = tokenizer_from_metadata(byte_level_metadata(trained, "smollm"), "test")
    for text in TEXTS:
        assert tokenizer.encode(text) == trained.encode(text)
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.eos_ids == (0, 9)
    assert tokenizer.encode("x<think>y<|endoftext|>")[1:] == [360, *trained.encode("y"), 0]


def test_what_llama_cpp_assumes_of_a_file(trained: TextTokenizer) -> None:
    """Llama 3's cut implies bos, unless the file says no; without a `pre`, numbers are cut in threes."""
    metadata = byte_level_metadata(trained, "llama-bpe")
    for says, begins in ({}, True), ({"tokenizer.ggml.add_bos_token": False}, False):
        ids = tokenizer_from_metadata(metadata | says, "test").encode("x", add_special=True)
        assert (ids[0] == 0) is begins
    tokenizer = tokenizer_from_metadata(byte_level_metadata(trained, None), "test").tokenizer
    cut = [piece for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str("Hi!! 12345")]
    assert cut == ["Hi", "!!", "Ġ", "123", "45"]


@pytest.mark.parametrize("pre", ["llama-bpe", "qwen2", "gpt-2", "tekken"])
def test_byte_level_gguf_against_transformers(pre: str, trained: TextTokenizer) -> None:
    """The cuts of Llama 3, Qwen2, GPT-2 and Mistral NeMo are those of transformers' own GGUF reader."""
    from transformers.integrations.gguf.gguf_tokenizer_mapping import convert_gguf_tokenizer

    metadata = byte_level_metadata(trained, pre)
    same = {key: metadata[f"tokenizer.ggml.{key}"] for key in ("tokens", "merges", "token_type")}
    theirs, _ = convert_gguf_tokenizer("llama", {"tokenizer_type": "gpt2", "pre_tokenizer_type": pre, **same})
    ours = tokenizer_from_metadata(metadata, "test")
    for text in TEXTS:
        assert ours.encode(text) == theirs.encode(text, add_special_tokens=False).ids, text


@pytest.mark.parametrize(("change", "message"), [
    ({"tokenizer.ggml.pre": "no-such-cut"}, "no supported tokenizer[\\s\\S]*no-such-cut"),
    ({"tokenizer.ggml.model": "rwkv"}, "no supported tokenizer"),
    ({"tokenizer.ggml.merges": ["zz qq"]}, "is damaged[\\s\\S]*zz"),
    ({"tokenizer.ggml.tokens": [1]}, "is damaged"),
    ({"tokenizer.ggml.tokens": "abc"}, "(?s)damaged.*tokens"),
    ({"tokenizer.ggml.token_type": [1]}, "is damaged"),
    ({"tokenizer.ggml.token_type": ["1"] * 361}, "(?s)damaged.*token_type"),
    ({"tokenizer.ggml.model": "llama", "tokenizer.ggml.scores": [1.0]}, "is damaged"),
])  # fmt: skip
def test_gguf_tokenizers_that_are_refused(change: dict[str, Any], message: str, trained: TextTokenizer) -> None:
    """Nothing is guessed: what is not understood is named."""
    with pytest.raises(RopeError, match=message):
        tokenizer_from_metadata(byte_level_metadata(trained, "smollm") | change, "test")
