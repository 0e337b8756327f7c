"""GGUF files: weights copied bit for bit or newly quantised, keys that say the method, a tokenizer, and refusals."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import tokenizers
import torch

from ropewalk.checkpoints import gguf_writer
from ropewalk.checkpoints.gguf_keys import WITH_DIVISORS
from ropewalk.checkpoints.gguf_tokenizer import tokenizer_from_metadata, vocabulary_metadata
from ropewalk.checkpoints.load import load, load_decoder
from ropewalk.checkpoints.tokenizer import TextTokenizer
from ropewalk.errors import RopeError
from ropewalk.extend import ApplySettings, apply
from ropewalk.methods import METHODS
from ropewalk.rope.scaling import LongRoPE
from ropewalk.version import __version__
from tests.checkpoints.test_tokenizer import sentencepiece_metadata
from tests.extend.material import FAMILIES, LENGTHS, TARGET, checkpoint_with_merges, furthest, reader_under, token_ids
from tests.models.material import gguf_name, permuted, write_gguf

KINDS = gguf.GGMLQuantizationType
SAID = [name for name, method in METHODS.items() if method.config is not None and name != "dynamic"]


def written(source: Path | str, out: Path, **settings: Any) -> Path:
    """The file that `extend apply` writes."""
    how = {"method": "yarn", "target": TARGET, **settings}
    return apply(source, out / "longer.gguf", ApplySettings(**how)).folder


def fields(path: Path) -> dict[str, Any]:
    """A file's metadata as gguf's own reader has it."""
    return {name: field.contents() for name, field in gguf.GGUFReader(path).fields.items() if name[:5] != "GGUF."}


def source_file(folder: Path, kind: KINDS = KINDS.Q4_1, finetuned: bool = False, **more: Any) -> Path:
    """A GGUF file of transformers' random Llama, with metadata of every type."""
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint_with_merges(folder / "source"))
    metadata = {
        "general.name": "näme",
        "general.tags": ["a", "b"],
        "general.numbers": [1.5, 2.5],
        "general.flag": True,
        "llama.rope.scaling.type": "linear",
        "llama.rope.scaling.factor": 1.0,
        "llama.rope.scaling.finetuned": finetuned,
    }
    return write_gguf(folder / "source.gguf", model.config, model.state_dict(), kind=kind, metadata=metadata, **more)


@pytest.mark.parametrize("kind", [KINDS.Q4_1, KINDS.Q8_0, KINDS.F16])
def test_weights_are_copied_bit_by_bit(kind: KINDS, tmp_path: Path) -> None:
    """Every tensor's bytes, its name, shape and type, and every key but those of the rope stay as they are."""
    source = source_file(tmp_path, kind)
    made = written(source, tmp_path)
    old, new = gguf.GGUFReader(source), gguf.GGUFReader(made)
    assert [(t.name, t.tensor_type, t.shape.tolist()) for t in new.tensors] == [
        (t.name, t.tensor_type, t.shape.tolist()) for t in old.tensors
    ]
    for before, after in zip(old.tensors, new.tensors, strict=True):
        assert before.data.tobytes() == after.data.tobytes()
    kept, changed = fields(source), fields(made)
    ours = {"llama.context_length": 64, "llama.rope.freq_base": 10000.0, "llama.rope.scaling.type": "yarn",
            "llama.rope.scaling.factor": 4.0, "llama.rope.scaling.original_context_length": 16,
            "llama.rope.scaling.finetuned": False, "ropewalk.version": __version__}  # fmt: skip
    assert {key: changed[key] for key in ours} == ours
    assert {key: value for key, value in changed.items() if key not in ours} == {
        key: value for key, value in kept.items() if key not in ours
    }
    types = {name: field.types for name, field in new.fields.items()}
    assert all(types[name] == field.types for name, field in old.fields.items())


def test_strings_that_are_no_utf8_and_another_alignment_are_kept(tmp_path: Path) -> None:
    """Bytes are not decoded on the way."""
    path = tmp_path / "odd.gguf"
    base = source_file(tmp_path)
    old = gguf.GGUFReader(base)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_custom_alignment(128)
    for key, value in fields(base).items():
        if key.startswith("llama."):
            kinds = {str: writer.add_string, float: writer.add_float32, int: writer.add_uint32, bool: writer.add_bool}
            kinds[type(value)](key, value)
    writer.add_array("general.odd", [b"\xff\xfe", b"ok"])
    for tensor in old.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    new = gguf.GGUFReader(written(path, tmp_path))
    odd = new.fields["general.odd"]
    assert [bytes(odd.parts[index]) for index in odd.data] == [b"\xff\xfe", b"ok"]
    assert new.alignment == 128
    assert all(a.data.tobytes() == b.data.tobytes() for a, b in zip(old.tensors, new.tensors, strict=True))


def test_a_method_that_changes_nothing_keeps_the_keys(tmp_path: Path) -> None:
    """`as-is` of a file with its own scaling and divisors: the same content."""
    divisors = {"rope_freqs.weight": torch.tensor([1.0, 1.0, 3.0, 4.0])}
    source = source_file(tmp_path, finetuned=True, extra=divisors)
    made = written(source, tmp_path, method="as-is")
    assert fields(made) == fields(source) | {"ropewalk.version": __version__}
    again = apply(made, tmp_path / "again.gguf", ApplySettings(method="as-is")).folder
    assert fields(again) == fields(made)
    tensors = {tensor.name: tensor.data.tobytes() for tensor in gguf.GGUFReader(made).tensors}
    assert tensors == {tensor.name: tensor.data.tobytes() for tensor in gguf.GGUFReader(source).tensors}


@pytest.mark.parametrize("quantization", ["f32", "f16", "q8_0"])
def test_weights_of_a_folder(quantization: str, tmp_path: Path) -> None:
    """q and k as llama.cpp's converter orders them; matrices as gguf's own quantiser makes them, vectors in float32."""
    import transformers

    folder = checkpoint_with_merges(tmp_path / "source", bias=True, attention_bias=True, tie_word_embeddings=False)
    state = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).state_dict()
    made = gguf.GGUFReader(written(folder, tmp_path, quantization=quantization))
    kind = KINDS[quantization.upper()]
    expected = {}
    for name, tensor in state.items():
        if name.rsplit(".", 2)[-2] in ("q_proj", "k_proj"):
            tensor = permuted(tensor, 4 if "q_proj" in name else 2)
        expected[gguf_name(name)] = (tensor.numpy(), kind if tensor.ndim > 1 else KINDS.F32)
    assert {tensor.name: tensor.tensor_type for tensor in made.tensors} == {n: k for n, (_, k) in expected.items()}
    for tensor in made.tensors:
        values, its = expected[tensor.name]
        assert np.ascontiguousarray(gguf.quants.quantize(values, its)).tobytes() == tensor.data.tobytes()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_file_computes_what_the_folder_does(family: str, tmp_path: Path) -> None:
    """Every family that is built here, under YaRN: the same logits as transformers has from the exported folder."""
    changes = {"no_rope_layers": None, "num_hidden_layers": 4} if family == "smollm3" else {}
    source = checkpoint_with_merges(tmp_path / "source", family, **changes)
    made = load(written(source, tmp_path, quantization="f32"), dtype=torch.float32)
    folder = apply(source, tmp_path / "folder", ApplySettings(method="yarn", target=TARGET)).folder
    assert furthest(folder, made) < 1e-3
    assert furthest(source, made) > 0.02  # and not what the source computes


@pytest.mark.parametrize("method", SAID)
def test_every_method_that_a_file_can_say(method: str, tmp_path: Path) -> None:
    """Read back, the file gives the logits of the method, shorter than the trained length and up to the target."""
    source = checkpoint_with_merges(tmp_path / "source")
    read = load(written(source, tmp_path, method=method, quantization="f32"))
    model = reader_under(source, method).module
    with torch.no_grad():
        for tokens in LENGTHS:
            ids = token_ids(tokens)
            torch.testing.assert_close(read(ids, seq_len=tokens), model(ids, seq_len=tokens), rtol=0, atol=2e-4)


def test_longrope_with_two_lists(tmp_path: Path) -> None:
    """Both lists go into llama.cpp's tensors, with the length between them."""
    short, long = (1.0, 1.1, 1.3, 1.6), (1.5, 2.0, 3.0, 4.0)
    own = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": list(short), "long_factor": list(long),
           "original_max_position_embeddings": 8, "finetuned": True}  # fmt: skip
    source = checkpoint_with_merges(tmp_path / "source", rope_parameters=own)
    made = written(source, tmp_path, method="plain")
    rule = load(made).config.ropes[0].scaling
    assert isinstance(rule, LongRoPE)
    assert rule.short_factor == pytest.approx(short)
    assert rule.long_factor == pytest.approx(long)
    keys = fields(made)
    assert (keys["llama.rope.scaling.type"], keys["llama.rope.scaling.original_context_length"]) == ("longrope", 8)
    assert keys["llama.rope.scaling.finetuned"] is True
    assert "llama.rope.scaling.factor" not in keys  # llama.cpp would divide every frequency by it as well


def test_the_tokenizer_of_tiny_is_in_the_file(tmp_path: Path) -> None:
    """The same ids for prose and for odd text, the same special tokens; llama.cpp cuts it as SmolLM's."""
    made = written("tiny", tmp_path, target=1024)
    ours, theirs = load_decoder("tiny").tokenizer, load_decoder(made).tokenizer
    text = "Wörter, 1234 - don't  \n\n <|endoftext|> 你好 🙂\tx"
    assert ours is not None
    assert theirs is not None
    assert theirs.encode(text) == ours.encode(text)
    assert (theirs.bos_id, theirs.eos_ids, theirs.prefix_ids) == (ours.bos_id, ours.eos_ids, ours.prefix_ids)
    keys = fields(made)
    assert (keys["tokenizer.ggml.pre"], keys["tokenizer.ggml.add_bos_token"]) == ("smollm", False)
    assert keys["general.file_type"] == 1


def trained_tokenizer(cut: Any) -> TextTokenizer:
    """Byte-level BPE trained on prose that this step cuts before the merges."""
    kit = tokenizers
    tokenizer = kit.Tokenizer(kit.models.BPE())
    level = kit.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = kit.pre_tokenizers.Sequence([cut, level])
    tokenizer.decoder = kit.decoders.ByteLevel()
    trainer = kit.trainers.BpeTrainer(
        vocab_size=600, initial_alphabet=sorted(kit.pre_tokenizers.ByteLevel.alphabet()), show_progress=False
    )
    words = "12345 67890 1234567 don't we'll WE'LL\n\n  a  b   c\n x.y == z; naïve 2024-11-22 " * 40
    tokenizer.train_from_iterator([words], trainer)
    return TextTokenizer(tokenizer)


def test_the_way_to_cut_text_is_found_or_refused() -> None:
    """Llama 3's groups of three digits, GPT-2's; splitting at blanks alone is in no llama.cpp."""
    split, regex = tokenizers.pre_tokenizers.Split, tokenizers.Regex
    from ropewalk.checkpoints.gguf_tokenizer import CUTS

    for name in ("gpt-2", "llama-bpe"):
        found = vocabulary_metadata(trained_tokenizer(split(regex(CUTS[name][0]), behavior="isolated")), 700)
        assert found["tokenizer.ggml.pre"] == name
        assert found["tokenizer.ggml.tokens"][-1] == "[PAD699]"
        assert found["tokenizer.ggml.token_type"][-1] == 5
    with pytest.raises(RopeError, match="has an unknown pre-tokenizer"):
        vocabulary_metadata(trained_tokenizer(split(" ", behavior="isolated")), 700)
    with pytest.raises(RopeError, match="neither byte-level BPE"):
        vocabulary_metadata(TextTokenizer(tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, "a"))), 1)
    with pytest.raises(RopeError, match="ids beyond the rows of the embedding"):
        vocabulary_metadata(trained_tokenizer(split(regex(CUTS["gpt-2"][0]), behavior="isolated")), 100)
    with pytest.raises(RopeError, match="has no merges"):
        vocabulary_metadata(TextTokenizer.bytes(), 300)


@pytest.mark.parametrize("prefix", [True, False])
def test_a_sentencepiece_vocabulary(prefix: bool) -> None:
    """Scores in the order of the merges, types of bytes and of the unknown token; the same ids come back."""
    said = {**sentencepiece_metadata(), "tokenizer.ggml.add_space_prefix": prefix}
    source = tokenizer_from_metadata(said, "test")
    found = vocabulary_metadata(source, 280)
    for key in ("model", "bos_token_id", "eos_token_id", "unknown_token_id", "add_space_prefix"):
        assert found[f"tokenizer.ggml.{key}"] == said.get(f"tokenizer.ggml.{key}"), key
    count = len(said["tokenizer.ggml.tokens"])
    assert found["tokenizer.ggml.tokens"][:count] == said["tokenizer.ggml.tokens"]
    assert found["tokenizer.ggml.token_type"][:count] == said["tokenizer.ggml.token_type"]
    again = tokenizer_from_metadata(found, "test")
    for text in ("the cat at the tea", "  theat\n the<think>the é你", "", "cathethe thathe ste"):
        assert again.encode(text, add_special=True) == source.encode(text, add_special=True)
    content = json.loads(source.tokenizer.to_str())
    content["model"]["merges"] = content["model"]["merges"][1:]
    with pytest.raises(RopeError, match="that its merges never produce"):
        vocabulary_metadata(TextTokenizer(tokenizers.Tokenizer.from_str(json.dumps(content)), 1, (2,)), 280)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "dynamic": ({"method": "dynamic"}, "llama.cpp fixes them when it starts"),
    "in attention": ({"method": "rerope"}, "cannot be exported"),
    "native": ({"native": True}, "apply only to folders"),
    "dtype": ({"dtype": "float16"}, "apply only to folders"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_no_file_can_say_is_refused(case: str, tmp_path: Path) -> None:
    """Before anything is written."""
    settings, words = REFUSED[case]
    with pytest.raises(RopeError, match=re.escape(words)):
        written("tiny", tmp_path, **{"target": 1024, **settings})
    assert not list(tmp_path.iterdir())


def test_models_that_llama_cpp_would_compute_otherwise_are_refused(tmp_path: Path) -> None:
    """Divisors for architectures that do not read them, windows, other layers without rotation."""
    qwen = checkpoint_with_merges(tmp_path / "qwen", "qwen2")
    assert "qwen2" not in WITH_DIVISORS
    with pytest.raises(RopeError, match="no divisor for each pair"):
        written(qwen, tmp_path, method="llama3")
    mistral = checkpoint_with_merges(tmp_path / "mistral", "mistral", sliding_window=8)
    with pytest.raises(RopeError, match="no sliding window"):
        written(mistral, tmp_path)
    with pytest.raises(RopeError, match="rotates different layers"):
        written(checkpoint_with_merges(tmp_path / "smollm3", "smollm3"), tmp_path)


def test_places_and_options(tmp_path: Path) -> None:
    """A file that exists, the source itself, a quantisation that would be ignored."""
    source = source_file(tmp_path)
    made = written(source, tmp_path)
    with pytest.raises(RopeError, match="already exists"):
        written(source, tmp_path)
    before = made.read_bytes()
    apply(source, made, ApplySettings(method="pi", target=TARGET), overwrite=True)
    assert made.read_bytes() != before
    with pytest.raises(RopeError, match="is the file of the model itself"):
        apply(source, source, ApplySettings(method="pi", target=TARGET), overwrite=True)
    with pytest.raises(RopeError, match="are copied and cannot be quantised again"):
        apply(source, tmp_path / "x.gguf", ApplySettings(method="pi", target=TARGET, quantization="q8_0"))
    with pytest.raises(RopeError, match="--quantization applies only"):
        apply(source, tmp_path / "x", ApplySettings(method="pi", target=TARGET, quantization="q8_0"))


def test_a_file_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure half-way leaves nothing, and an earlier file as it was."""
    source = checkpoint_with_merges(tmp_path / "source")
    made = written(source, tmp_path)
    before = made.read_bytes()

    def fails(self: Any, file: Any) -> None:
        file.write(b"half")
        raise OSError("no space left on device")

    monkeypatch.setattr(gguf_writer._Converted, "tofile", fails)
    with pytest.raises(RopeError, match="no space left"):
        apply(source, made, ApplySettings(method="pi", target=TARGET), overwrite=True)
    assert made.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["longer.gguf", "source"]


def test_a_weight_beyond_float16_is_refused(tmp_path: Path) -> None:
    """Infinity is not written in its place; float32 holds it."""
    import transformers

    folder = checkpoint_with_merges(tmp_path / "source")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight[0, 0] = 1e6
    model.save_pretrained(folder)
    with pytest.raises(RopeError, match="too large for float16"):
        written(folder, tmp_path)
    assert load(written(folder, tmp_path, quantization="f32")).layers[0].mlp.up_proj.weight.max().item() == 1e6
