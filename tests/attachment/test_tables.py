"""Exact tables in live models: nothing changes near, nothing moves far, and `detach` gives everything back."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM, DeepseekV4Config, ModernBertDecoderConfig

import ropewalk as rw
from ropewalk.attachment import attachment_of
from ropewalk.attachment.rotary import PerCall, TablesForward
from ropewalk.rope.model_ropes import ModelRopes
from tests.attachment.families import ALL, outputs_of, small_model
from tests.parity import causal

NEAR, FAR = torch.arange(24)[None], torch.arange(24)[None] + 1_000_000
IDS = torch.randint(3, 64, (1, 24), generator=torch.Generator().manual_seed(1))
DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}


@pytest.mark.parametrize("name", ALL)
@torch.no_grad()
def test_exact_at_any_position(name):
    """Attached, the logits are those of before, and a shift of all positions by 1,000,000 moves none."""
    model = small_model(name)
    before, far = outputs_of(model, IDS), outputs_of(model, IDS, position_ids=FAR)
    with rw.attach(model) as handle:
        near = outputs_of(model, IDS)
        assert (near - before).abs().max() <= 1e-4
        assert (outputs_of(model, IDS, position_ids=FAR) - near).abs().max() <= 1e-4
        assert handle.difference <= 1e-4
        assert len(handle.ropes) == len(handle.positions.sliding_windows) == 4
    assert (far - before).abs().max() > 1e-3  # what the model's own float32 angles do
    assert torch.equal(outputs_of(model, IDS, position_ids=FAR), far)


def test_layers_know_their_ropes_and_windows():
    """Layers without rotation have no rope, and full layers no window, also where every module holds the number."""
    with rw.attach(small_model("exaone4")) as handle:
        assert [rope is not None for rope in handle.ropes] == [True, False, True, False]
        assert handle.positions.sliding_windows == (8, None, 8, None)
    with rw.attach(small_model("gemma3_text")) as handle:
        assert [rope.theta for rope in handle.ropes] == [1e4, 1e6, 1e4, 1e6]
    with rw.attach(small_model("qwen2")) as handle:
        assert handle.positions.sliding_windows == (None, None, 8, 8)
    masked = {"use_sliding_window": True, "sliding_window": 16}  # every layer, which no reading of the config knows
    with pytest.raises(rw.RopeError, match="no effect"):
        rw.attach(causal.small_model("qwen3_moe", **masked), "dca", target=256)
    for stated, window in ((8, 8), (None, None)):
        own = ModelRopes.from_hf(ModernBertDecoderConfig(sliding_window=stated))
        assert set(own.sliding_windows) == {None, window}


@torch.no_grad()
def test_axes_of_multimodal_positions():
    """Three axes that differ: the attached model turns each pair by its own axis."""
    model = small_model("qwen2_vl_text")
    ids = torch.stack([torch.arange(24), torch.arange(24) // 5, torch.arange(24) % 5])[:, None]
    before = outputs_of(model, IDS, position_ids=ids)
    with rw.attach(model) as handle:
        assert (outputs_of(model, IDS, position_ids=ids) - before).abs().max() <= 1e-4
        assert (outputs_of(model, IDS) - before).abs().max() > 0.1
        handle.set_positions(handle.own.with_rope(None))
        assert torch.equal(outputs_of(model, IDS, position_ids=ids), outputs_of(model, IDS))
        with pytest.raises(RuntimeError, match="expanded size"):  # nor are other axes ignored without a rope
            outputs_of(model, IDS, position_ids=ids[:2])


@torch.no_grad()
def test_a_cast_model_gets_the_frequencies_that_its_config_says():
    """`.to(bfloat16)` rounds the live frequencies; ours are as exact as before the cast."""
    model = small_model("llama").to(torch.bfloat16)
    module = model.model.rotary_emb
    x, positions = torch.zeros(1, 1, dtype=torch.bfloat16), torch.tensor([[4095]])
    angles = 4095 * 10_000.0 ** (-torch.arange(0, 16, 2, dtype=torch.float64) / 16)
    truth = torch.cat([angles, angles]).cos()
    assert (module(x, positions)[0][0, 0].double() - truth).abs().max() > 0.5
    with rw.attach(model):
        cos, sin = module(x, positions)
        assert cos.dtype == sin.dtype == torch.bfloat16
        assert (cos[0, 0].double() - truth).abs().max() <= 2**-8


@pytest.mark.parametrize("broken", ["theta", "pairing", "axes"])
def test_a_wrong_reading_of_a_class_is_noticed(monkeypatch, broken):
    """A config read with another theta, arranged for another pairing, or with its axes mixed up is refused."""
    from ropewalk.attachment import handle

    def wrong(rope):
        changes = {"theta": {"theta": rope.theta * 1.01}, "axes": {"axes": rope.axes and rope.axes[::-1]}}
        return replace(rope, **changes.get(broken, {}))

    read = handle.positions_of
    monkeypatch.setattr(handle, "positions_of", lambda model, config: read(model, config).mapped(wrong))
    if broken == "pairing":
        model = small_model("cohere")
        kind = type(model.model.rotary_emb)
        monkeypatch.setattr(kind, "forward", lambda self, x, position_ids: (x, x))
    else:
        model = small_model("qwen2_vl_text")
    with pytest.raises(rw.RopeError, match="differ from those of the config"):
        rw.attach(model)


def test_tables_that_turn_forwards_for_a_class_that_turns_back():
    """nanochat's function turns by minus the angle of its tables."""
    model = small_model("nanochat")
    with rw.attach(model) as handle:
        assert all(frequency < 0 for rope in handle.ropes for frequency in rope.inv_freq)
        _, sin = model.model.rotary_emb(torch.zeros(1, 1), torch.tensor([[1]]))
        assert sin[0, 0, 0].item() == pytest.approx(math.sin(1.0), abs=1e-7)


FLAT = {"type": "yarn", "factor": 4, "original_max_position_embeddings": 16, "beta_fast": 32, "beta_slow": 1}
"""The rope_scaling of DeepSeek-V4, smaller."""


@torch.no_grad()
def test_blocks_that_several_layer_types_share(tmp_path):
    """DeepSeek-V4 names its blocks for branches: as released, and as its class writes it; saved under a method."""
    fields = {
        "vocab_size": 64, "hidden_size": 64, "moe_intermediate_size": 32, "num_hidden_layers": 3, "head_dim": 16,
        "num_attention_heads": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "q_lora_rank": 16, "o_groups": 2,
        "o_lora_rank": 16, "index_head_dim": 16, "index_n_heads": 2, "index_topk": 64, "max_position_embeddings": 64,
        "sliding_window": 8, "qk_rope_head_dim": 8, "compress_ratios": [0, 4, 128],
    }  # fmt: skip
    config = DeepseekV4Config(**fields, rope_scaling=dict(FLAT))  # it writes into the dict
    config.compress_rates = {"compressed_sparse_attention": 2, "heavily_compressed_attention": 4}
    released = {"model_type": "deepseek_v4", **fields, "rope_scaling": FLAT, "rope_theta": 1e4}
    for label in ("sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention", "main"):
        read = rw.RopeConfig.from_hf(config, layer_type=label)
        assert read == rw.RopeConfig.from_hf(released | {"compress_rope_theta": 160_000}, layer_type=label)
        assert rw.inverse_frequencies(read).attention_factor == 1.0
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    before = outputs_of(model, IDS)
    with rw.attach(model, "yarn", target=128) as handle:
        assert [rope.theta for rope in handle.ropes] == [10_000.0, 160_000.0, 160_000.0]
        assert handle.positions.sliding_windows == (8, None, None)
        under = outputs_of(model, IDS)
        model.save_pretrained(tmp_path)
    assert (under - before).abs().max() > 1e-3
    again = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert (outputs_of(again, IDS) - under).abs().max() <= 1e-5


def test_lengths_follow_the_call_or_are_fixed():
    """Dynamic NTK goes by each call's largest position as in transformers; `seq_len` fixes it; a method by target."""
    model = small_model("llama", rope_parameters=DYNAMIC)
    module, x = model.model.rotary_emb, torch.zeros(1, 1)
    expected = {n: module(x, torch.arange(n)[None])[0][0, :8] for n in (200, 100, 8)}  # growth first: it has a state
    with rw.attach(model) as handle:
        for n in (8, 200):
            torch.testing.assert_close(module(x, torch.arange(n)[None])[0][0, :8], expected[n], atol=1e-5, rtol=0)
        compiled = torch.compile(module, backend="eager")
        torch.testing.assert_close(compiled(x, torch.arange(200)[None])[0][0, :8], expected[200], atol=1e-5, rtol=0)
        handle.seq_len = 200
        torch.testing.assert_close(module(x, torch.arange(8)[None])[0][0], expected[200], atol=1e-5, rtol=0)
    with rw.attach(small_model("llama"), "dynamic", target=256) as handle:
        assert handle.seq_len == 256


@pytest.mark.traced
@pytest.mark.parametrize(
    ("method", "changes"),
    [("yarn", {}), ("rerope", {}), pytest.param(None, {"rope_parameters": DYNAMIC}, marks=pytest.mark.thorough)],
)
@torch.no_grad()
def test_compiled(method, changes):
    """One graph: other tables, remapped positions, a factor of the logits; the logits are those of eager mode.

    Dynamic NTK breaks the graph to read a call's length. tests/models/test_extensions.py compiles every extension.
    """
    model, ids = small_model("llama", num_hidden_layers=1, **changes), IDS.repeat(1, 4)
    with rw.attach(model, method, target=256 if method else None):
        torch.compiler.reset()
        compiled = torch.compile(model, backend="eager", fullgraph=method is not None)
        assert (compiled(ids).logits - outputs_of(model, ids)).abs().max() <= 1e-5


def test_positions_of_any_kind(llama):
    """`set_positions` puts other ropes into a live model, and refuses what its modules cannot say, unchanged."""
    with rw.attach(llama) as handle:
        theirs = handle.own.ropes[0]
        faster = replace(theirs, theta=500.0)
        handle.set_positions(handle.own.with_rope(faster))
        changed = outputs_of(llama, IDS)
        assert handle.ropes == (faster,) * 4
        with pytest.raises(rw.RopeError, match="rotate the same pairs"):
            handle.set_positions(handle.own.with_rope(replace(theirs, rotary_dim=8)))
        with pytest.raises(rw.RopeError, match="one entry for each layer"):
            handle.set_positions(ModelRopes((theirs,), (None,), (None,)))
        assert torch.equal(outputs_of(llama, IDS), changed)
        handle.set_positions(handle.own.with_rope(None))  # without any rope
        assert torch.equal(outputs_of(llama, IDS), outputs_of(llama, IDS, position_ids=FAR * 3))


def test_a_value_belongs_to_one_tensor_and_one_key():
    """It is kept until the tensor is another, or written to, or the key is another."""
    calls, given = PerCall(), torch.zeros(2)
    made = iter(range(9))
    assert [calls.of(key, given, lambda: next(made)) for key in ("a", "a", "b", "b", "a")] == [0, 0, 1, 1, 2]
    assert calls.of("a", given.clone(), lambda: next(made)) == 3
    assert [calls.of("a", given, lambda: next(made)) for _ in range(2)] == [4, 4]
    given.add_(1)
    assert calls.of("a", given, lambda: next(made)) == 5
    calls.forget()
    assert calls.of("a", given, lambda: next(made)) == 6


def test_refusals(llama):
    """Models that cannot be attached are refused with the reason, as are methods without a target."""
    bare = copy.deepcopy(llama)
    bare.model.rotary_emb = torch.nn.Identity()
    with pytest.raises(rw.RopeError, match="no rotary module"):
        rw.attach(bare)
    scaled = copy.deepcopy(llama)
    forward = {"forward": lambda self, x, position_ids, scale: None}
    scaled.model.rotary_emb.__class__ = type("RotaryOfThree", (type(llama.model.rotary_emb),), forward)
    with pytest.raises(rw.RopeError, match="arguments other than hidden states and position ids"):
        rw.attach(scaled)
    with pytest.raises(rw.RopeError, match="must be a live transformers model"):
        rw.attach(torch.nn.Linear(2, 2))
    with pytest.raises(rw.RopeError, match="Pass target="):
        rw.attach(llama, "yarn")
    with pytest.raises(rw.RopeError, match="beyond the trained length"):
        rw.attach(llama, "yarn", target=64)
    assert attachment_of(llama) is None
    assert not any(isinstance(vars(module).get("forward"), TablesForward) for module in llama.modules())
