"""An attached model among wrappers, hooks and copies, and what it writes."""

from __future__ import annotations

import copy
import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from accelerate.hooks import ModelHook, add_hook_to_module, remove_hook_from_module
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

import ropewalk as rw
from ropewalk.attachment import attachment_of, live_attention
from ropewalk.attachment.check import TOKENS, ShortForward, ordinary_ids, typical_difference
from ropewalk.attachment.config_keys import fields_under
from ropewalk.attachment.rotary import LayerTables, belongs_to
from ropewalk.methods import METHODS, Reach
from ropewalk.methods.faulty_rules import ScaledLogits
from ropewalk.rope.model_ropes import ModelRopes, is_windowed
from tests.attachment.families import outputs_of, quantized, small_model
from tests.parity import causal

IDS = torch.randint(3, 64, (1, 200), generator=torch.Generator().manual_seed(1))
SAID = [name for name, record in METHODS.items() if record.config is not None and not record.crops]


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft asks transformers by it
@torch.no_grad()
def test_a_wrapper_shares_the_handle_of_its_model(tmp_path):
    """The model, the model inside it and peft's wrapper around it share one rotary module, and so one handle.

    After `attach` of the wrapper, the merged model is saved with the method.
    """
    from peft import LoraConfig, get_peft_model

    model = small_model("llama")
    own = outputs_of(model, IDS)
    wrapper = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj"]))
    for first in (model, model.model, wrapper):
        handle = rw.attach(first)
        for second in (model, model.model, wrapper):
            assert attachment_of(second) is handle
            with pytest.raises(rw.RopeError, match="already attached"):
                rw.attach(second, "yarn", target=256)
        handle.detach()
    inner = rw.attach(model.model, "yarn", target=256)
    with pytest.raises(rw.RopeError, match="already attached"):
        handle.set_positions(handle.own)  # of a handle that was detached
    inner.detach()
    assert torch.equal(outputs_of(model, IDS), own)
    assert not any("forward" in vars(module) for module in model.modules())
    with rw.attach(wrapper, "yarn", target=256):
        wrapper.merge_and_unload().save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["rope_parameters"]["rope_type"] == "yarn"


@torch.no_grad()
def test_hooks_survive_detach(llama):
    """Hooks of torch and of accelerate that are put on a rotary module after `attach` still run after `detach`."""
    model, calls = copy.deepcopy(llama), []
    rotary, own = model.model.rotary_emb, outputs_of(llama, IDS)

    class Hook(ModelHook):
        def pre_forward(self, module, *args, **options):
            calls.append("accelerate")
            return args, options

    handle = rw.attach(model, "yarn", target=256)
    changed = outputs_of(model, IDS)
    rotary.register_forward_pre_hook(lambda *_: calls.append("before"))
    rotary.register_forward_hook(lambda *_: calls.append("after"))
    add_hook_to_module(rotary, Hook())
    handle.set_positions(handle.positions)
    assert torch.equal(outputs_of(model, IDS), changed)
    handle.detach()
    calls.clear()
    assert torch.equal(outputs_of(model, IDS), own)
    assert calls == ["before", "accelerate", "after"]
    with rw.attach(model, "yarn", target=256):
        assert torch.equal(outputs_of(model, IDS), changed)
        remove_hook_from_module(rotary)  # puts what it wrapped, ours, into the place of the forward
    assert torch.equal(outputs_of(model, IDS), own)


@torch.no_grad()
def test_copies(llama, tmp_path):
    """A shallow copy shares the modules, and after `detach` saves the plain model; a part of a deep copy is attached.

    `torch.save` of a whole model would write functions of this process, and is refused with the cure.
    """
    own = outputs_of(llama, IDS)
    with rw.attach(llama, "yarn", target=256):
        changed = outputs_of(llama, IDS)
        shallow, inner = copy.copy(llama), copy.deepcopy(llama.model)
        shallow.save_pretrained(tmp_path / "attached")
        for part in (llama, llama.model, llama.model.rotary_emb):
            with pytest.raises(rw.RopeError, match="cannot be pickled"):
                torch.save(part, io.BytesIO())
    assert attachment_of(shallow) is None
    assert torch.equal(outputs_of(shallow, IDS), own)
    shallow.save_pretrained(tmp_path / "plain")
    types = [json.loads((tmp_path / name / "config.json").read_text())["rope_parameters"]["rope_type"]
             for name in ("attached", "plain")]  # fmt: skip
    assert types == ["yarn", "default"]
    under = llama.lm_head(outputs_of(inner, IDS))
    assert torch.equal(under, changed)
    attachment_of(inner).detach()
    assert torch.equal(llama.lm_head(outputs_of(inner, IDS)), own)


# under a yarn block DeepSeek's class also scales the softmax by the block's mscale, which no rope describes
SAVED = [*(("llama", method) for method in (None, *SAID)), ("glm4", "pi"), ("glm4", "yarn"), ("glm4", "dynamic"),
         ("deepseek_v3", "pi"), ("deepseek_v3", "dynamic"), ("gemma3_text", "yarn")]  # fmt: skip
FACTORS = {"pi": ("linear", 4.0), "yarn": ("yarn", 4.0), "dynamic": ("dynamic", 1.0)}  # of a target of 4 x 64


@pytest.mark.parametrize(("name", "method"), SAVED)
@torch.no_grad()
def test_a_saved_model_is_the_attached_one(tmp_path, name, method):
    """Loaded by transformers only, with its float32 angles; the live config stays as it was.

    Gemma 3's full layers get the method's block, windowed ones keep theirs.
    """
    model = small_model(name)
    own, stated = outputs_of(model, IDS), dict(model.config.rope_parameters)
    with rw.attach(model, method, target=256):
        expected = outputs_of(model, IDS)
        model.save_pretrained(tmp_path)
        assert (model.config.rope_parameters, model.config.max_position_embeddings) == (stated, 64)
    block = json.loads((tmp_path / "config.json").read_text())["rope_parameters"]
    if name == "gemma3_text":
        assert block["sliding_attention"]["rope_type"] == "default"
        block = block["full_attention"]
    if method in FACTORS:
        assert (block["rope_type"], block["factor"]) == FACTORS[method]
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    if method == "dynamic":  # its class goes by each call's length, the handle by the target
        loaded.model.rotary_emb(torch.zeros(1, 1), torch.tensor([[255]]))
    assert (outputs_of(loaded, IDS) - expected).abs().max() <= 1e-3
    if method is not None and METHODS[method].extends:
        assert (own - expected).abs().max() > 0.1
    assert "save_pretrained" not in vars(model)


@pytest.mark.thorough
def test_every_causal_family():
    """transformers builds the config that any method writes, and each layer has the window that its config states."""
    for name in causal.causal_families():
        model = causal.small_model(name)
        config = model.config.get_text_config(decoder=True)
        try:
            own = ModelRopes.from_hf(config)
        except rw.RopeError:  # no rotation to change
            continue
        for method in METHODS:
            found = fields_under(config.to_dict(), own, method, Reach(64, 256))
            if isinstance(found, dict):
                type(config)(**{**config.to_dict(), **found})
        for module in model.modules():
            layer = getattr(module, "layer_idx", None)
            if isinstance(layer, int) and hasattr(module, "sliding_window") and belongs_to(module, config.model_type):
                window = own.sliding_windows[layer]
                if window or is_windowed(own.labels[layer] or "sliding"):  # others have the number, and do not use it
                    assert (window or 0) == max(module.sliding_window or 0, 0), (name, layer)


@pytest.mark.parametrize("method", ["as-is", "plain"])
def test_a_block_that_no_layer_uses_is_kept(method):
    """The class may read it although the config has no such layer; a length that is not stated is the trained one."""
    blocks = {"full_attention": {"rope_type": "default", "rope_theta": 1e6},
              "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}  # fmt: skip
    fields = {"model_type": "gemma3_text", "head_dim": 16, "num_hidden_layers": 2, "hidden_size": 64,
              "layer_types": ["full_attention"] * 2, "rope_parameters": blocks}  # fmt: skip
    found = fields_under(fields, ModelRopes.from_hf(fields), method, Reach(64, 256))
    assert found["rope_parameters"].keys() == blocks.keys()
    assert {one["rope_theta"] for one in found["rope_parameters"].values()} == {1e6, 1e4}


def test_an_unknown_family_is_refused_with_its_class_and_file():
    """Who reads the refusal can look at the code."""
    model = small_model("llama")
    model.config.__class__ = type("Unheard", (type(model.config),), {"model_type": "unheard_of"})
    with pytest.raises(rw.RopeError, match=r"pairing of this model is unknown") as refused:
        rw.attach(model)
    assert refused.value.facts["class"] == "LlamaForCausalLM"
    assert refused.value.facts["file"].endswith("models/llama/modeling_llama.py")


@pytest.mark.parametrize(
    ("name", "method", "reason"),
    [("llama", "self-extend", ""), ("gemma2", "yarn", "layers with a window keep theirs")],
)
@torch.no_grad()
def test_a_method_that_no_config_expresses_is_saved_by_its_name(tmp_path, name, method, reason):
    """In attention, or a rope for some layers where a config has one: `attach` applies it to what was loaded."""
    model = small_model(name)
    with rw.attach(model, method, target=256) as handle:
        with pytest.warns(UserWarning, match=f"cannot be written.*{reason}") as warned:
            model.save_pretrained(folder := tmp_path / "a")
        assert warned[0].filename == __file__
        expected, read = outputs_of(model, IDS), AutoModelForCausalLM.from_pretrained(folder).eval()
        handle.set_positions(
            replace(handle.positions, extensions=(*handle.positions.extensions[:-1], ScaledLogits(2.0)))
        )
        with pytest.raises(rw.RopeError, match="cannot be written"):
            model.save_pretrained(tmp_path / "b")  # not what the method's name stands for
    model.save_pretrained(tmp_path / "b")
    assert "attached_method" not in (tmp_path / "b" / "config.json").read_text()
    with rw.attach(read):
        assert (outputs_of(read, IDS) - expected).abs().max() <= 1e-5
        with pytest.warns(UserWarning, match="cannot be written"):
            read.save_pretrained(again := tmp_path / "again")
    assert (again / "config.json").read_text() == (folder / "config.json").read_text()
    with rw.attach(read, "plain"):
        read.save_pretrained(tmp_path / "c")
    assert "attached_method" not in (tmp_path / "c" / "config.json").read_text()
    read.config.attached_method["target"] = "many"
    for wrong in (dict(read.config.attached_method), {"method": "dca"}, "dca"):
        read.config.attached_method = wrong
        with pytest.raises(rw.RopeError, match="attach: "):
            rw.attach(read)


# --- the check of attach

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
    code = re.search(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    names = {}
    exec(code[1].replace("folder/", str(outliers)).replace("32768", "256"), names)
    assert capsys.readouterr().out.strip()
    assert names["model"].dtype == torch.bfloat16
    assert names["handle"].attached


def test_the_tokens_of_the_check_are_ordinary():
    """They differ, are spread over the middle of the vocabulary, and none is in the config; one outlier is ignored."""
    config = small_model("llama", vocab_size=SIZE, eos_token_id=[100, 160], image_token_id=200).config
    for size in (SIZE, 0):
        config.vocab_size = size
        ids, edge = ordinary_ids(config).tolist(), (size or 256) // 8
        assert len({*ids} - {100, 160, 200}) == TOKENS
        assert edge <= min(ids) < 2 * edge
        assert 6 * edge <= max(ids) < 7 * edge
    one, other = (ShortForward(torch.zeros(1, 3, 2), torch.float32) for _ in range(2))
    other.outputs[0, 1] = 9.0
    assert typical_difference(one, other) == 0.0


@pytest.mark.parametrize("method", ["dca", "rerope"])
def test_outliers_among_special_tokens_are_not_read(outliers, method):
    """At the first tokens of this vocabulary rounding alone moves a logit by more than 5 % of the largest."""
    model = AutoModelForCausalLM.from_pretrained(outliers)
    with rw.attach(model, method, target=256) as handle:
        assert handle.attached


@pytest.mark.parametrize(("name", "method"), [("llama", None), ("glm4", "yarn"), ("qwen3", "rerope")])
def test_quantized_activations(name, method, monkeypatch):
    """They move by whole steps if cosines are rounded differently: the bound is the measured noise of the model."""
    own, options = LayerTables.__call__, {} if method is None else {"target": 256}
    monkeypatch.setattr(LayerTables, "__call__", lambda *given: own(*given[:4], given[4] or 2**-14))
    with pytest.raises(rw.RopeError, match="differ from those before"):
        rw.attach(small_model(name), method, **options)
    with rw.attach(quantized(small_model(name)), method, **options) as handle:
        assert handle.difference > 1e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("broken", ["pairing", "scale", "keys", "theta"])
def test_a_broken_attention_is_noticed(monkeypatch, broken, dtype):
    """Pairs that are mixed up, a scale that is lost, positions off by one between queries and keys are refused.

    So is a config with another theta than the live frequencies.
    """
    model = small_model("llama")
    for weight in model.parameters():  # not `.to`, which would round the frequencies
        weight.data = weight.data.to(torch.float32 if dtype == torch.int8 else dtype)
    model = quantized(model) if dtype == torch.int8 else model
    if broken == "theta":
        model.config.rope_parameters["rope_theta"] = 100.0
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
    assert not any("forward" in vars(module) for module in model.modules())
