"""Methods in the attention of live models: our decoder gives the numbers, and decoding equals the full forward."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask
from transformers import AutoModelForCausalLM, DynamicCache, FalconConfig, StaticCache

import ropewalk as rw
from ropewalk import compiled
from ropewalk.attachment import attachment_of, live_attention
from ropewalk.checkpoints.live_model import cache_argument
from ropewalk.methods import METHODS, Reach
from ropewalk.rope.extensions import DualChunk, ReRoPE, SelfExtend
from ropewalk.rope.model_ropes import ModelRopes
from ropewalk.rotation.backends import reference
from tests.attachment.families import ALL, outputs_of, small_model
from tests.models.forms import Louder
from tests.parity import causal


@dataclass(frozen=True)
class Sharper(Louder):
    """Logits that grow by half over the texts of this file."""

    def logit_scale(self, index: torch.Tensor) -> torch.Tensor:
        return 1 + index.double() / 300


RULES = [ReRoPE(20), SelfExtend(4, 16), DualChunk(24, 32), Sharper(), ReRoPE(20, log_n=32)]
WINDOWED = {"mistral", "starcoder2", "cohere2", "exaone4"}  # every layer that rotates sees a window: nothing to remap
LARGE_THETAS = ("cohere", "ernie4_5", "gemma3_text", "gpt_oss", "mixtral", "olmo3", "smollm3", "solar_open")
NO_EFFECT = {**dict.fromkeys(WINDOWED, "yarn abf dca"), **dict.fromkeys(LARGE_THETAS, "abf")}
NO_EFFECT |= {"nanochat": "yarn abf"}  # whose explicit frequencies no method scales
IDS = torch.randint(3, 64, (2, 150), generator=torch.Generator().manual_seed(1))
MASK = torch.ones_like(IDS)
MASK[0, :37] = 0


@pytest.fixture(scope="module")
def decoder(llama, tmp_path_factory) -> rw.Decoder:
    """The same weights as our own decoder."""
    folder = tmp_path_factory.mktemp("llama")
    llama.save_pretrained(folder)
    return rw.load(folder)


def under(own: ModelRopes, rule: object) -> ModelRopes:
    """A rule in every layer that can take it."""
    layers = zip(own.ropes, own.sliding_windows, strict=True)
    able = (rope is not None and (window is None or not rule.remaps) for rope, window in layers)
    return replace(own, extensions=tuple(rule if takes else None for takes in able))


@pytest.mark.parametrize("method", METHODS)
@torch.no_grad()
def test_every_method_is_that_of_our_decoder(llama, decoder, method):
    """Logits of our decoder, whose methods have oracles of their own; the model without a method differs."""
    ids = IDS[:, :128]
    positions = METHODS[method].positions(decoder.config.positions, Reach(64, 256))
    expected = decoder.with_positions(rope=positions.ropes, extension=positions.extensions)(ids, seq_len=256)
    with rw.attach(llama, method, target=256):
        assert (outputs_of(llama, ids) - expected).abs().max() <= 1e-4
    if METHODS[method].extends:
        assert (outputs_of(llama, ids) - expected).abs().max() > 0.1


@torch.no_grad()
def test_a_rope_for_each_layer(llama, decoder):
    """Layers that share a rotary module get ropes of their own, and one of them none."""
    with rw.attach(llama) as handle:
        one = handle.own.ropes[0]
        ropes = (one, replace(one, theta=500.0), None, replace(one, theta=90.0))
        handle.set_positions(handle.own.with_rope(ropes))
        expected = decoder.with_positions(rope=ropes)(IDS)
        assert (outputs_of(llama, IDS) - expected).abs().max() <= 1e-4
    assert (outputs_of(llama, IDS) - expected).abs().max() > 0.1


def check_rule(model: torch.nn.Module, handle: object, rule: object) -> None:
    """Under a rule: greedy tokens and their logits from the cache of a left-padded batch are those of full forwards."""
    handle.set_positions(under(handle.own, rule))
    whole = outputs_of(model, IDS)
    if not hasattr(model, "generate"):
        for row, pad in ((0, 37), (1, 0)):
            alone = outputs_of(model, IDS[row : row + 1, pad:])
            positions = (MASK.cumsum(-1) - 1).clamp(min=0)
            batch = outputs_of(model, IDS, attention_mask=MASK, position_ids=positions)
            assert (batch[row, pad:] - alone[0]).abs().max() <= 2e-4
        return
    made = model.generate(
        IDS[:, :140], attention_mask=MASK[:, :140], max_new_tokens=8, do_sample=False, eos_token_id=None,
        return_dict_in_generate=True, output_logits=True,
    )  # fmt: skip
    for row, pad in ((0, 37), (1, 0)):
        alone = outputs_of(model, made.sequences[row : row + 1, pad:])[0, 140 - pad - 1 : -1]
        decoded = torch.stack([step[row] for step in made.logits])
        assert (decoded - alone).abs().max() <= 2e-4
        assert torch.equal(alone.argmax(-1), made.sequences[row, 140:])
    chunked, key = model(input_ids=IDS[:, :90], use_cache=True), cache_argument(model)
    chunked = model(input_ids=IDS[:, 90:], **{key: getattr(chunked, key)}).logits
    assert (chunked - whole[:, 90:]).abs().max() <= 2e-4


@pytest.mark.parametrize("name", ALL)
@torch.no_grad()
def test_decoding_equals_the_full_forward(name):
    """Each family with its windows, sinks, softcap, NoPE layers, grouped queries and latent attention."""
    model = small_model(name)
    own = outputs_of(model, IDS)
    with rw.attach(model) as handle:
        rules = RULES[:4] if name == "llama" else [RULES[1], RULES[3]]
        for rule in rules:
            if rule.remaps and name in WINDOWED:
                continue
            check_rule(model, handle, rule)
            assert (outputs_of(model, IDS) - own).abs().max() > 0.05
    assert torch.equal(outputs_of(model, IDS), own)


@pytest.mark.parametrize("name", ALL)
@torch.no_grad()
def test_a_method_changes_the_logits_or_is_refused(name):
    """A window hides distant tokens from every layer that rotates, or theta is large enough: no method does nothing."""
    model, ids, refused = small_model(name), IDS[:1], {}
    own = outputs_of(model, ids)[:, 64:]
    for method in ("yarn", "abf", "dca"):
        try:
            with rw.attach(model, method, target=256):
                assert (outputs_of(model, ids)[:, 64:] - own).abs().max() > 1e-3, method
        except rw.RopeError as error:
            refused[method] = str(error)
    assert " ".join(refused) == NO_EFFECT.get(name, "")
    assert all("has no effect on this model" in reason for reason in refused.values()) or name == "nanochat"


@pytest.mark.parametrize("rule", [RULES[0], RULES[2], RULES[4]])
def test_gradients_and_the_kernel_agree(llama, rule):
    """With gradients the scores are written out; without, kernels serve: one loss, and a slope that is its own."""
    with rw.attach(llama) as handle:
        handle.set_positions(under(handle.own, rule))
        with torch.no_grad():
            quick = llama(input_ids=IDS, labels=IDS).loss
        llama.zero_grad()
        loss = llama(input_ids=IDS, labels=IDS).loss
        loss.backward()
        assert (quick - loss.detach()).abs() <= 1e-4
        grads = [weight.grad for weight in llama.parameters()]
        assert all(grad is not None and grad.isfinite().all() and grad.abs().max() > 0 for grad in grads)
        weight = llama.model.layers[0].self_attn.k_proj.weight
        with torch.no_grad():  # one directional derivative by a central difference
            step = 1e-3 * weight.grad / weight.grad.norm()
            slope = (weight.grad * step).sum()
            weight += step
            above = llama(input_ids=IDS, labels=IDS).loss
            weight -= 2 * step
            below = llama(input_ids=IDS, labels=IDS).loss
            weight += step
        assert (above - below) / 2 == pytest.approx(float(slope), rel=0.05)
    llama.zero_grad()


@torch.no_grad()
def test_packed_documents(llama):
    """Documents in one row, told apart by position ids that start again, are counted each by itself."""
    positions = torch.cat([torch.arange(60), torch.arange(90)])[None]
    row = IDS[1:]
    with rw.attach(llama) as handle:
        handle.set_positions(under(handle.own, RULES[1]))
        packed = outputs_of(llama, row, position_ids=positions, use_cache=False)
        alone = torch.cat([outputs_of(llama, row[:, :60]), outputs_of(llama, row[:, 60:])], 1)
        assert (packed - alone).abs().max() <= 1e-4
        assert (packed - outputs_of(llama, row)).abs().max() > 0.1
        with pytest.raises(rw.RopeError, match="`position_ids` has different numbers"):
            outputs_of(llama, row, position_ids=positions, use_cache=True)  # one row then, whose positions jump


@pytest.mark.parametrize("by_kernel", [True, False])
@torch.no_grad()
def test_a_static_cache(llama, monkeypatch, by_kernel):
    """A cache of fixed size, whose free slots the mask hides, gives the tokens of a growing one, by kernels or not."""
    if not by_kernel:
        monkeypatch.setattr("ropewalk.attention.remap.choose_attention", lambda *tensors, **_: reference)
    options = {"attention_mask": MASK, "max_new_tokens": 6, "do_sample": False, "eos_token_id": None}
    with rw.attach(llama, "self-extend", target=256):
        cache = StaticCache(config=llama.config, max_cache_len=200)
        made = llama.generate(IDS, **{cache_argument(llama): cache}, disable_compile=True, **options)
        assert torch.equal(made, llama.generate(IDS, **options))
        cache = StaticCache(config=llama.config, max_cache_len=200)
        filled = llama(IDS, **{cache_argument(llama): cache}).logits  # without a mask over the free slots
        assert (filled - outputs_of(llama, IDS)).abs().max() <= 1e-4
    assert not torch.equal(made, llama.generate(IDS, **options))


@torch.no_grad()
def test_only_this_model_and_only_while_attached(llama):
    """Its config, another model that shares it, and its modules are as before; a copy detaches by itself."""
    other = type(llama)(llama.config).eval()
    other.load_state_dict(llama.state_dict())
    own = outputs_of(other, IDS)
    before = [set(vars(module)) for module in llama.modules()]
    with rw.attach(llama, "dca", target=256):
        assert torch.equal(outputs_of(other, IDS), own)
        assert llama.config._attn_implementation == other.config._attn_implementation == "sdpa"
        changed = outputs_of(llama, IDS)
        assert not torch.equal(changed, own)
        copied = copy.deepcopy(llama)
        attachment_of(llama).detach()
        assert torch.equal(outputs_of(llama, IDS), own)
        assert torch.equal(outputs_of(copied, IDS), changed)
        attachment_of(copied).detach()
        assert torch.equal(outputs_of(copied, IDS), own)
    assert [set(vars(module)) for module in llama.modules()] == before
    assert all(not module._forward_pre_hooks for module in copied.modules())


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2", "gpt_oss", "deepseek_v2"])
@torch.no_grad()
def test_our_kernel_serves(name, monkeypatch):
    """`kernels=True`: whole texts, chunks, windows and padded rows give the logits of transformers' attention."""
    model = small_model(name)
    served, request = [], live_attention.AttentionRequest
    monkeypatch.setattr(live_attention, "AttentionRequest", lambda *given: served.append(1) or request(*given))
    expected = outputs_of(model, IDS)
    padded = outputs_of(model, IDS, attention_mask=MASK, position_ids=(MASK.cumsum(-1) - 1).clamp(min=0))
    options = {"attention_mask": MASK, "max_new_tokens": 6, "do_sample": False, "eos_token_id": None}
    tokens, weights = model.generate(IDS, **options), model(IDS, output_attentions=True).attentions
    with rw.attach(model, kernels=True):
        assert (outputs_of(model, IDS) - expected).abs().max() <= 1e-4
        for one, own in zip(model(IDS, output_attentions=True).attentions, weights, strict=True):
            torch.testing.assert_close(one, own, rtol=1e-4, atol=1e-6)  # of eager attention: kernels store none
        ours = outputs_of(model, IDS, attention_mask=MASK, position_ids=(MASK.cumsum(-1) - 1).clamp(min=0))
        assert (ours - padded)[MASK.bool()].abs().max() <= 1e-4
        assert torch.equal(model.generate(IDS, **options), tokens)
        for cache in (DynamicCache(config=model.config), StaticCache(config=model.config, max_cache_len=200)):
            parts = [model(ids, **{cache_argument(model): cache}).logits for ids in IDS.split(90, 1)]
            assert (torch.cat(parts, 1) - expected).abs().max() <= 1e-4
        with torch.enable_grad():
            assert model(input_ids=IDS, labels=IDS).loss.requires_grad
    assert bool(served) == (
        name != "deepseek_v2" and compiled.kernels is not None
    )  # its values are narrower than its keys: transformers' own serves


@pytest.mark.parametrize("name", ["gemma2", "gpt_oss"])
@torch.no_grad()
def test_windowed_layers_keep_their_rope(name):
    """One rotary module for all layers: only those that see beyond the trained length get the method's rope."""
    model = small_model(name)
    own = outputs_of(model, IDS)
    short = outputs_of(model, IDS[:, :8])
    with rw.attach(model, "yarn" if name == "gemma2" else "pi", target=256) as handle:
        windowed = [window is not None for window in handle.positions.sliding_windows]
        assert windowed == [True, False, True, False]
        first = handle.own.ropes[0]
        assert [rope == first for rope in handle.ropes] == windowed
        mixed = outputs_of(model, IDS)
        assert (mixed - own).abs().max() > 0.05
        made = model.generate(IDS[:, :120], max_new_tokens=6, do_sample=False, eos_token_id=None)
        assert torch.equal(outputs_of(model, made)[:, 119:-1].argmax(-1), made[:, 120:])
    assert torch.equal(outputs_of(model, IDS[:, :8]), short)


@torch.no_grad()
def test_what_cannot_be_told_is_refused():
    """Axes that differ, extensions where no layer can take them."""
    model = small_model("qwen2_vl_text")
    with rw.attach(model, "rerope", target=256):
        ids = torch.stack([torch.arange(150), torch.arange(150) // 5, torch.arange(150) % 5])[:, None]
        with pytest.raises(rw.RopeError, match="plain text"):
            outputs_of(model, IDS[:1], position_ids=ids)
    with (
        rw.attach(small_model("cohere2")) as handle,
        pytest.raises(rw.RopeError, match="attention to all earlier tokens"),
    ):
        handle.set_positions(replace(handle.own, extensions=(RULES[0], None, None, None)))
    with rw.attach(small_model("smollm3")) as handle, pytest.raises(rw.RopeError, match="neither a rope"):
        handle.set_positions(replace(handle.own, extensions=(None, None, None, RULES[0])))
    model = causal.small_model("moshi")
    with rw.attach(model) as handle:
        handle.set_positions(handle.own.with_rope((None, *handle.own.ropes[1:])))
        with pytest.raises(rw.RopeError, match="does not pass position ids to its attention layers"):
            outputs_of(model, IDS)
    model = small_model("llama")
    model.model.layers[1].self_attn.forward = lambda hidden_states, **_: (hidden_states, None)
    with pytest.raises(rw.RopeError, match="does not go through transformers' attention functions"):
        rw.attach(model, "rerope", target=256)
    shape = {"vocab_size": 64, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    falcon = AutoModelForCausalLM.from_config(FalconConfig(**shape, max_position_embeddings=64))
    with pytest.raises(rw.RopeError, match="depends on the name"):  # its attention asks for sdpa
        rw.attach(falcon, "dca", target=256)
    flash = copy.copy(small_model("llama").config)  # what flash attention loads depends on its name
    flash._attn_implementation_internal = "flash_attention_2"
    with pytest.raises(rw.RopeError, match="set_attn_implementation"):
        live_attention.check_module(torch.nn.Identity(), flash)
    # DeepSeek-V3.2 passes the choice of its indexer to "sdpa" only: under our name, its layers would see every token
    model = causal.small_model("deepseek_v32", attn_implementation="sdpa", index_n_heads=2, index_topk=16)
    ids = IDS[:1, :40]
    plain = outputs_of(model, ids)
    for method in ("self-extend", None):
        with pytest.raises(rw.RopeError, match="depends on the name"):
            rw.attach(model, method, target=256 if method else None, kernels=method is None)
    assert attachment_of(model) is None
    assert torch.equal(outputs_of(model, ids), plain)
    with rw.attach(model, "yarn", target=256):  # a method of frequencies changes no function
        assert not torch.equal(outputs_of(model, ids), plain)


@torch.no_grad()
def test_tensors_that_are_not_read_are_not_ignored(llama, monkeypatch):
    """An option of attention that we do not know: remapped positions refuse it, the kernel leaves the call alone.

    So it does with dropout.
    """
    dropping, logits = small_model("llama", attention_dropout=0.5).train(), []
    for kernels in (False, True):
        with rw.attach(dropping, kernels=kernels):
            torch.manual_seed(0)
            logits.append(outputs_of(dropping, IDS))
    assert (logits[1] - logits[0]).abs().max() <= 1e-4
    unknown, bias = {"indices": torch.zeros(1)}, {"position_bias": torch.randn(1, 4, 150, 150)}
    biased = outputs_of(llama, IDS, **bias)
    with rw.attach(llama, kernels=True), monkeypatch.context() as patched:
        patched.setattr(live_attention.LayerAttention, "_by_kernel", lambda *_: pytest.fail("the kernel serves it"))
        outputs_of(llama, IDS, **unknown)
        assert (outputs_of(llama, IDS, **bias) - biased).abs().max() <= 1e-4
    with rw.attach(llama, "self-extend", target=256):
        with pytest.raises(rw.RopeError, match="do not support some arguments"):
            outputs_of(llama, IDS, **unknown)
        layer, q = llama.model.layers[0].self_attn, torch.randn(1, 4, 5, 16)
        outs = [live_attention.attend_live(layer, q, q, q, None, **scale)[0] for scale in ({}, {"scaling": 1 / 4})]
        assert torch.equal(*outs)  # without a scale, torch's


@torch.no_grad()
def test_flex_attention_chosen_after_attaching_is_refused(monkeypatch):
    """Its masks are no tensors."""
    uncompiled = lambda *given, _compile, **options: create_block_mask(*given, **options)  # noqa: E731
    monkeypatch.setattr("transformers.masking_utils.create_block_mask", uncompiled)
    model = small_model("llama")
    with rw.attach(model, "dca", target=256):
        model.set_attn_implementation("flex_attention")
        with pytest.raises(rw.RopeError, match=r"(?s)only masks.*BlockMask"):
            outputs_of(model, IDS[:1])


@pytest.mark.parametrize("additive", [False, True])
def test_masks_are_read_as_intervals(additive: bool) -> None:
    """A causal mask leaves no mask, a padded one intervals of keys; numbers such as ALiBi's are neither."""
    q, causal_mask = torch.zeros(1, 2, 5, 8), torch.ones(5, 5, dtype=torch.bool).tril()[None, None]
    padded = causal_mask & (torch.arange(5) >= 2)

    def form(mask: torch.Tensor) -> torch.Tensor:
        return torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min) if additive else mask

    plain, masked = (live_attention.read_layout(q, q, form(mask), None) for mask in (causal_mask, padded))
    assert plain.plain
    assert not isinstance(plain, live_attention.MaskedLayout)
    assert isinstance(masked, live_attention.MaskedLayout)
    assert [edge[0, 2:].tolist() for edge in masked.intervals or ()] == [[2, 2, 2], [3, 4, 5]]
    for mask, low, high in ((causal_mask, 0, [1, 2, 3, 4, 5]), (padded, 2, [3, 4, 5])):
        bounds = live_attention.read_bounds(q, q, form(mask))
        assert bounds is not None
        assert (bounds.low[0, -3:].tolist(), bounds.high[0].tolist()[-len(high) :]) == ([low] * 3, high)
    slopes, of_heads = torch.where(causal_mask, -torch.arange(5.0), -1e9), form(padded).expand(1, 2, 5, 5)
    assert live_attention.read_bounds(q, q, slopes) is live_attention.read_bounds(q, q, of_heads) is None
