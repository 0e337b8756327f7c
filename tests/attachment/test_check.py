"""The check of `attach`: rounding passes it in 16 bits, a wrong attachment does not in any dtype."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

import ropewalk as rw
from ropewalk.attachment import attachment_of, live_attention
from tests.attachment.families import small_model

README = Path(__file__).parents[2] / "README.md"
SPECIAL, SIZE = 64, 320


@pytest.fixture(scope="module")
def outliers(tmp_path_factory) -> Path:
    """A bfloat16 checkpoint with 64 special tokens, along which queries and keys are so large that rounding decides."""
    folder = tmp_path_factory.mktemp("outliers")
    model = small_model("llama", num_hidden_layers=2, vocab_size=SIZE)
    with torch.no_grad():
        model.model.embed_tokens.weight.normal_()[:, 0] = 0.0
        model.model.embed_tokens.weight[:SPECIAL, 0] = 30.0
        for layer in model.model.layers:
            layer.self_attn.q_proj.weight[:, 0] *= 30.0
            layer.self_attn.k_proj.weight[:, 0] *= 30.0
    model.to(torch.bfloat16).save_pretrained(folder)
    words = [*(f"<|special{index}|>" for index in range(SPECIAL)), *map(chr, range(SIZE - SPECIAL))]
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token=words[3]))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    names = {"pad_token": words[0], "bos_token": words[1], "eos_token": words[2], "unk_token": words[3]}
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, additional_special_tokens=words[4:SPECIAL], **names)
    fast.save_pretrained(folder)
    return folder


def test_readmes_python(outliers, tmp_path, monkeypatch, capsys):
    """They run on a bfloat16 checkpoint with special tokens; the doctor gets a short text of ours."""
    (tmp_path / "text.txt").write_text("A line of text for the doctor, and more of it. " * 60)
    doctor = rw.doctor
    options = {"text": [str(tmp_path / "text.txt")], "methods": ("plain",), "windows": 1, "trained_length": 256}
    monkeypatch.setattr(rw, "doctor", lambda model, target: doctor(model, target=512, **options), raising=False)
    code = re.search(r"## Python\n\n```python\n(.*?)```", README.read_text(), re.DOTALL)
    names = {}
    exec(code[1].replace("folder/", str(outliers)).replace("32768", "256"), names)
    assert capsys.readouterr().out.strip()
    assert names["model"].dtype == torch.bfloat16
    assert names["handle"].attached


@pytest.mark.parametrize("method", ["self-extend", "dca", "rerope", "string"])
def test_outliers_among_special_tokens_are_not_read(outliers, method):
    """At the first tokens of this vocabulary rounding alone moves a logit by more than 5 % of the largest."""
    model = AutoModelForCausalLM.from_pretrained(outliers)
    with rw.attachment.attached(model, method, target=256) as handle:
        assert handle.attached


def test_ids_of_the_check_are_ordinary():
    """They lie in the middle of the vocabulary, and none is an id that the config names, single or in a list."""
    from ropewalk.attachment.check import TOKENS, _ordinary_ids

    ids = _ordinary_ids(LlamaConfig(vocab_size=49_152)).tolist()
    assert len(set(ids)) == TOKENS
    assert 6144 <= min(ids) < 7000
    assert 39_000 < max(ids) < 43_008
    named = LlamaConfig(vocab_size=49_152, bos_token_id=ids[0], eos_token_id=ids[1:3])
    assert not set(ids[:3]) & set(_ordinary_ids(named).tolist())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("broken", ["pairing", "scale", "keys"])
def test_a_broken_attention_is_noticed(monkeypatch, broken, dtype):
    """Pairs that are mixed up, a scale that is lost, positions off by one between queries and keys are refused."""
    model = small_model("llama").to(dtype)
    if broken == "pairing":
        wrong = live_attention.Slice(trailing=False, interleaved=True)
        monkeypatch.setattr("ropewalk.attachment.handle.possible_slices", lambda own: [wrong])
    if broken == "scale":
        plain = live_attention.attend_remapped
        monkeypatch.setattr(live_attention, "attend_remapped", lambda q, *rest: plain(0.9 * q, *rest))
    if broken == "keys":
        right = live_attention.TokenLayout.position_ids
        monkeypatch.setattr(live_attention.TokenLayout, "position_ids", lambda self: right(self) + 1)
    with pytest.raises(rw.RopeError, match="outputs of the attached model differ from those before") as error:
        rw.attach(model, "rerope", target=256)
    assert ("dtype=torch.float32" in str(error.value)) == (dtype != torch.float32)
    assert attachment_of(model) is None
    assert model.model.layers[0].self_attn.config is model.config


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_that_its_config_does_not_describe_is_detached(dtype):
    """If the config has another theta than the live frequencies, the short forward differs."""
    model = small_model("llama")
    model.config.rope_parameters["rope_theta"] = 100.0
    for weight in model.parameters():  # not `.to`, which would round the frequencies
        weight.data = weight.data.to(dtype)
    with pytest.raises(rw.RopeError, match="outputs of the attached model differ from those before"):
        rw.attach(model)
    assert attachment_of(model) is None
    assert not any("forward" in vars(module) for module in model.modules())
