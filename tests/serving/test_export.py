"""Folders that transformers loads: the same logits below and beyond the trained length; and what is refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch
import transformers

from ropewalk import RopeConfig, load
from ropewalk.errors import RopeError
from ropewalk.layers.config import DecoderConfig
from ropewalk.layers.decoder import Decoder
from ropewalk.methods import METHODS, Reach
from ropewalk.rope.scaling import DynamicNTK, LongRoPE, YaRN
from ropewalk.serving import applying, writable
from ropewalk.serving.applying import apply, check_out
from ropewalk.serving.settings import ApplySettings
from tests.serving.material import (
    EXPORTABLE,
    HOW,
    INEXPRESSIBLE,
    LENGTHS,
    TARGET,
    TRAINED,
    checkpoint,
    export,
    extended,
    furthest,
    token_ids,
    under,
)


def test_every_method_is_exported_or_refused_by_name() -> None:
    """No method of the doctor is forgotten."""
    assert {name for name, method in METHODS.items() if method.in_attention} <= set(INEXPRESSIBLE) <= set(METHODS)
    assert {"pi", "ntk", "dynamic", "yarn", "llama3", "abf", "resonance", "as-is"} <= set(EXPORTABLE)


@pytest.mark.parametrize("method", EXPORTABLE)
def test_transformers_computes_the_same(method: str, tmp_path: Path) -> None:
    """A random Llama: logits within 1e-3, shorter than the trained length, at it and up to the target."""
    source = checkpoint(tmp_path / "source")
    model = extended(source, method)
    found = export(model, tmp_path / "out", method=method, source=source, **HOW)
    assert furthest(found.folder, model) < 1e-3
    again = load(found.folder)  # and ropewalk reads back what it wrote
    with torch.no_grad():
        for tokens in LENGTHS:
            ids = token_ids(tokens)
            torch.testing.assert_close(again(ids, seq_len=tokens), model(ids, seq_len=tokens), rtol=0, atol=1e-5)


OWN = {  # scalings that a model may have been trained with, to 16 tokens
    "llama3": {"factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 4},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 4},
    "linear": {"factor": 4.0},
    "longrope": {
        "short_factor": [1.0, 1.1, 1.3, 1.6],
        "long_factor": [1.5, 2.0, 3.0, 4.0],
        "original_max_position_embeddings": 8,
    },
}


@pytest.mark.parametrize("rule", OWN)
@pytest.mark.parametrize("method", ["plain", "pi", "yarn", "ntk"])
def test_transformers_computes_the_same_on_a_scaling_that_belongs_to_the_model(
    rule: str, method: str, tmp_path: Path
) -> None:
    """A method on top of it becomes one divisor for each pair; plain keeps the block as it was."""
    own = {"rope_type": rule, "rope_theta": 1e4, "finetuned": True, **OWN[rule]}
    source = checkpoint(tmp_path / "source", rope_parameters=own)
    rope = load(source).config.ropes[0]
    assert (rope.scaling_is_trained, rope.trained_length) == (True, TRAINED)
    model = extended(source, method)
    found = export(model, tmp_path / "out", method=method, source=source, **HOW)
    assert found.config["rope_parameters"]["rope_type"] == (rule if method == "plain" else "longrope")
    assert found.config["max_position_embeddings"] == (TRAINED if method == "plain" else TARGET)
    assert furthest(found.folder, model) < 1e-3
    bare = under(load(source, dtype=torch.float32).with_positions(rope=rope.unscaled()), method)
    assert furthest(found.folder, bare) > 0.02  # not the method on the plain ladder


def test_two_rules_that_follow_the_length_are_refused(tmp_path: Path) -> None:
    """No block holds dynamic NTK on top of the model's own scaling."""
    own = {"rope_type": "yarn", "rope_theta": 1e4, "finetuned": True, **OWN["yarn"]}
    source = checkpoint(tmp_path / "source", rope_parameters=own)
    model = extended(source, "dynamic")
    with pytest.raises(RopeError, match="gives different ropes"):
        export(model, tmp_path / "out", method="dynamic", source=source, **HOW)


@pytest.mark.parametrize(("length", "rule"), [(TRAINED, "longrope"), (4, "yarn")])
def test_a_stated_length_says_whether_the_scaling_belongs_to_the_model(length: int, rule: str, tmp_path: Path) -> None:
    """Without one it is not guessed."""
    source = checkpoint(tmp_path / "source", rope_parameters={"rope_type": "yarn", "rope_theta": 1e4, **OWN["yarn"]})
    with pytest.raises(RopeError, match="not known whether this model was trained with the scaling"):
        apply(source, tmp_path / "out", ApplySettings(method="yarn", target=TARGET))
    done = apply(source, tmp_path / "out", ApplySettings(method="yarn", target=TARGET, trained_length=length))
    assert done.config["rope_parameters"]["rope_type"] == rule


def test_a_wrong_block_would_be_seen(tmp_path: Path) -> None:
    """The comparison above can fail: with the plain rope in the config the logits are far apart."""
    source = checkpoint(tmp_path / "source")
    model = extended(source, "yarn")
    export(extended(source, "plain"), tmp_path / "out", method="plain", source=source, **HOW)
    assert furthest(tmp_path / "out", model) > 0.05


def test_searched_factors_are_written_to_the_last_bit(tmp_path: Path) -> None:
    """Equal lists, the attention factor in both spellings, the lengths; float64 numbers come back as they were."""
    source = checkpoint(tmp_path / "source")
    factors = (1.0, 1.2345678901234567, 2.718281828459045, 3.9999999999)
    rope = dataclasses.replace(
        load(source).config.ropes[0], scaling=LongRoPE(factors, factors, TRAINED, attention_factor=1.0765)
    )
    model = load(source, dtype=torch.float32).with_positions(rope=rope)
    found = export(model, tmp_path / "out", method="searched", source=source, **HOW)
    block = json.loads((found.folder / "config.json").read_text())["rope_parameters"]
    assert block["rope_type"] == "longrope"
    assert block["short_factor"] == block["long_factor"]
    assert block["long_factor"] == pytest.approx(factors, rel=1e-15)
    assert block["attention_factor"] == block["short_mscale"] == block["long_mscale"] == 1.0765
    assert (block["factor"], block["original_max_position_embeddings"]) == (TARGET / TRAINED, TRAINED)
    assert furthest(found.folder, model) < 1e-3


def test_longrope_switches_where_transformers_switches(tmp_path: Path) -> None:
    """Two different lists: short up to the original length, long from the next token on."""
    source = checkpoint(tmp_path / "source")
    rope = dataclasses.replace(
        load(source).config.ropes[0],
        scaling=LongRoPE((1.0, 1.1, 1.2, 1.3), (2.0, 3.0, 4.0, 5.0), TRAINED, factor=4.0),
    )
    model = load(source, dtype=torch.float32).with_positions(rope=rope)
    assert furthest(export(model, tmp_path / "out", method="searched", source=source, **HOW).folder, model) < 1e-3


@pytest.mark.parametrize(
    "scaling",
    [DynamicNTK(4.0), DynamicNTK(4.0, variant="paper"), YaRN(4.0, TRAINED, variant="paper"),
     YaRN(4.0, TRAINED, truncate=False, beta_fast=8.0), YaRN(4.0, TRAINED, mscale=1.0, mscale_all_dim=0.5)],
    ids=["dynamic with a factor", "the paper's dynamic", "the paper's yarn", "untruncated yarn", "yarn with mscale"],
)  # fmt: skip
def test_variants_keep_their_frequencies(scaling: object, tmp_path: Path) -> None:
    """What transformers calls otherwise, or computes from other parameters, is the same function at all lengths."""
    source = checkpoint(tmp_path / "source")
    rope = dataclasses.replace(load(source).config.ropes[0], scaling=scaling, max_position_embeddings=TRAINED)
    model = load(source, dtype=torch.float32).with_positions(rope=rope)
    assert furthest(export(model, tmp_path / "out", method="own", source=source, **HOW).folder, model) < 1e-3


def test_the_source_config_is_kept(tmp_path: Path) -> None:
    """Only the rope's keys, the length, the dtype and auto_map change; companions are copied as they are."""
    source = checkpoint(tmp_path / "source")
    config = json.loads((source / "config.json").read_text())
    own = {"my_note": "kept", "auto_map": {"AutoModel": "x.Y"}, "torch_dtype": "float32"}
    (source / "config.json").write_text(json.dumps({**config, **own}))
    (source / "LICENSE").write_text("as you like it")
    (source / "special_tokens_map.json").write_text('{"eos_token": "<|endoftext|>"}')
    (source / "tokenizer_config.json").write_text(
        json.dumps({"model_max_length": TRAINED, "eos_token": "<|endoftext|>"})
    )
    found = apply(source, tmp_path / "out", ApplySettings(method="yarn", target=TARGET))
    written = json.loads((found.folder / "config.json").read_text())
    changed = {"rope_parameters", "rope_scaling", "rope_theta", "max_position_embeddings", "dtype",
               "original_max_position_embeddings"}  # fmt: skip
    assert {k: v for k, v in written.items() if k not in changed} == {
        k: v for k, v in {**config, "my_note": "kept"}.items() if k not in changed
    }
    assert written["max_position_embeddings"] == TARGET
    assert (found.folder / "special_tokens_map.json").read_text() == '{"eos_token": "<|endoftext|>"}'
    assert (found.folder / "LICENSE").read_text() == "as you like it"
    assert (found.folder / "generation_config.json").read_bytes() == (source / "generation_config.json").read_bytes()
    assert json.loads((found.folder / "tokenizer_config.json").read_text())["model_max_length"] == TARGET


def test_tiny_its_weights_and_its_tokenizer(tmp_path: Path) -> None:
    """The built-in model: bfloat16 to the bit, and the same token ids by transformers' tokenizer."""
    model = under(load("tiny"), "yarn", Reach(256, 1024))
    found = export(model, tmp_path / "out", method="yarn", reach=Reach(256, 1024), source="tiny")
    stored = load(found.folder).state_dict()
    assert all(torch.equal(weight, stored[name]) for name, weight in load("tiny").state_dict().items())
    words = "The old man said nothing."
    theirs = transformers.AutoTokenizer.from_pretrained(found.folder)
    assert theirs(words, add_special_tokens=False)["input_ids"] == load("tiny").tokenizer.encode(words)
    exact = under(load("tiny", dtype=torch.float32), "yarn", Reach(256, 1024))
    assert furthest(found.folder, exact, (50, 256, 257, 600)) < 1e-3


def test_shards_and_dtype(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several files and an index, in bfloat16: both sides read them as one file's weights."""
    source = checkpoint(tmp_path / "source")
    model = extended(source, "pi")
    monkeypatch.setattr(writable, "SHARD_BYTES", 9000)
    found = export(model, tmp_path / "out", method="pi", source=source, dtype=torch.bfloat16, **HOW)
    assert len(list(found.folder.glob("model-*-of-*.safetensors"))) > 2
    assert not (found.folder / "model.safetensors").exists()
    index = json.loads((found.folder / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 2 * model.num_parameters()
    rounded = load(found.folder, dtype=torch.float32)
    assert furthest(found.folder, rounded) < 1e-3
    expected = model.lm_head.weight.bfloat16().float()
    assert torch.equal(rounded.lm_head.weight, expected)


def test_a_length_is_stated_for_what_is_scaled_alone(tmp_path: Path) -> None:
    """An unscaled rope keeps the trained length, whatever the method is called; so does its tokenizer."""
    source = checkpoint(tmp_path / "source")
    model = extended(source, "plain")
    found = export(model, tmp_path / "plain", method="plain", source=source, **HOW)
    assert found.config["max_position_embeddings"] == TRAINED
    length = json.loads((tmp_path / "plain" / "tokenizer_config.json").read_text()).get("model_max_length")
    assert length is None or length <= TRAINED


@pytest.mark.parametrize("method", sorted(INEXPRESSIBLE))
def test_what_no_config_can_say_is_refused(method: str, tmp_path: Path) -> None:
    """The reason, the nearest that can be exported, and the way out."""
    with pytest.raises(RopeError, match=f"`{method}` cannot be exported: .*") as caught:
        apply("tiny", tmp_path / "out", ApplySettings(method=method))
    assert caught.value.facts["nearest that can be"] in EXPORTABLE


def test_an_extension_in_attention_is_refused(tmp_path: Path) -> None:
    """Under any name."""
    source = checkpoint(tmp_path / "source")
    with pytest.raises(RopeError, match="describes a change of attention"):
        export(extended(source, "rerope"), tmp_path / "out", method="mine", source=source, **HOW)
    assert not (tmp_path / "out").exists()


def test_a_model_of_no_family_is_refused(tmp_path: Path) -> None:
    """Normed heads: no config of Llama says it."""
    rope = RopeConfig(8, interleaved=False, max_position_embeddings=TRAINED)
    config = DecoderConfig(vocab_size=300, hidden_size=32, intermediate_size=48, num_hidden_layers=1,
                           num_attention_heads=4, rope=rope, qk_norm=True)  # fmt: skip
    model = under(Decoder(config), "pi")
    with pytest.raises(RopeError, match="only decoders in Llama's layout"):
        export(model, tmp_path / "out", method="pi", **HOW)


def test_folders_that_hold_something_are_left_alone(tmp_path: Path) -> None:
    """Refused when not empty, when foreign, when it is the source; with overwrite an earlier export is replaced."""
    source = checkpoint(tmp_path / "source")
    model = extended(source, "pi")
    export(model, tmp_path / "out", method="pi", source=source, **HOW)
    with pytest.raises(RopeError, match="not empty"):
        export(model, tmp_path / "out", method="pi", source=source, **HOW)
    found = export(extended(source, "yarn"), tmp_path / "out", method="yarn", source=source, overwrite=True, **HOW)
    assert json.loads((found.folder / "config.json").read_text())["rope_parameters"]["rope_type"] == "yarn"
    card = (tmp_path / "out" / "README.md").read_text()
    (tmp_path / "out" / "README.md").unlink()
    with pytest.raises(RopeError, match="files that are not from an export"):
        check_out(tmp_path / "out", overwrite=True)  # as a checkpoint of others
    (tmp_path / "out" / "README.md").write_text(card)
    (tmp_path / "out" / "thesis.tex").touch()
    with pytest.raises(RopeError, match="files that are not from an export"):
        check_out(tmp_path / "out", overwrite=True)
    with pytest.raises(RopeError, match="of the model itself"):
        check_out(source, source=source, overwrite=True)
    with pytest.raises(RopeError, match="must be a folder, but it is a file"):
        check_out(source / "config.json", overwrite=True)


def test_a_failure_on_the_way_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while files are written: neither the folder nor its temporary one stays."""
    source = checkpoint(tmp_path / "source")

    def stop(*_: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(applying, "card", stop)
    with pytest.raises(KeyboardInterrupt):
        export(extended(source, "pi"), tmp_path / "out", method="pi", source=source, **HOW)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]
