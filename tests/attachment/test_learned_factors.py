"""A live Mistral Large 4: learned factors of its frequencies, layers without rotation, an indexer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig

import ropewalk as rw
from ropewalk.audit import check
from ropewalk.checkpoints.checkpoint import Checkpoint
from ropewalk.checkpoints.load import read_alpha
from ropewalk.rope.scaling import LeRoPE, Stacked

modeling = pytest.importorskip("transformers.models.mistral_large4.modeling_mistral_large4")
ALPHA = torch.tensor([0.3, -0.2, 0.1, -0.7])
SIZES: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 32, "moe_intermediate_size": 16, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 4, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8, "index_head_dim": 16,
    "index_n_heads": 2, "index_topk": 6, "max_position_embeddings": 4096,
    "rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "attention_factor": 1.0,
                        "original_max_position_embeddings": 512, "beta_fast": 32.0, "beta_slow": 1.0},
}  # fmt: skip


def live(alpha: torch.Tensor = ALPHA) -> Any:
    """A small model with large weights, so that attention matters."""
    torch.manual_seed(0)
    model = modeling.MistralLarge4TextModel(AutoConfig.for_model("mistral_large4_text", **SIZES)).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(std=0.3 if weight.ndim > 1 else 1.0)
        model.rotary_emb.alpha.data.copy_(alpha)
    return model


def hidden(model: Any, ids: torch.Tensor, **options: Any) -> torch.Tensor:
    """The hidden states of the last layer."""
    with torch.no_grad():
        return model(ids, use_cache=False, **options).last_hidden_state


def test_attaching_is_exact():
    """The learned frequencies of the live module count, not those of the config alone; detaching restores it."""
    model, ids = live(), torch.randint(0, 64, (2, 40))
    before = hidden(model, ids)
    scale = float(before.abs().max())
    other = hidden(live(torch.zeros(4)), ids)
    assert (other - before).abs().max() > 1e-2 * scale
    handle = rw.attach(model)
    assert [rope is None for rope in handle.ropes] == [False, False, False, True]
    assert handle.ropes[0].scaling.alpha == tuple(ALPHA.double().tolist())
    torch.testing.assert_close(hidden(model, ids), before, rtol=0, atol=1e-4 * scale)
    handle.detach()
    assert torch.equal(hidden(model, ids), before)


def test_a_method_is_on_top_of_the_learned_frequencies(tmp_path):
    """Queries, keys and the indexer get the method's tables: those of a model whose module has these numbers.

    No rope in a config.json is a method on learned frequencies: the saved model has its name for `attach`.
    """
    model, ids = live(), torch.randint(0, 64, (1, 40))
    handle = rw.attach(model, "pi", target=16_384)
    assert isinstance(handle.ropes[0].scaling, Stacked)
    assert isinstance(handle.ropes[0].scaling.of, LeRoPE)
    found = hidden(model, ids)
    with pytest.warns(UserWarning, match="gives different ropes"):
        model.save_pretrained(tmp_path)
    with rw.attach(type(model).from_pretrained(tmp_path)) as again:
        assert again.ropes == handle.ropes
    handle.detach()
    model.rotary_emb.inv_freq.div_(4)
    torch.testing.assert_close(found, hidden(model, ids), rtol=0, atol=1e-4 * float(found.abs().max()))


def test_the_check_of_a_live_model():
    """Frequencies are compared with their factors; a wrong one is named."""
    model = live()
    assert check(model) == ()
    model.rotary_emb.inv_freq.mul_(1.1)
    (found,) = check(model)
    assert (found.code, found.severity) == ("frequencies", "error")
    assert "every frequency multiplied by 1.1" in found.message


def test_factors_on_the_meta_device_are_refused():
    """What they will be is unknown."""
    with torch.device("meta"):
        model = modeling.MistralLarge4TextModel(AutoConfig.for_model("mistral_large4_text", **SIZES))
    with pytest.raises(rw.RopeError, match="not on the meta device"):
        rw.attach(model)
    (found,) = check(model)
    assert (found.code, found.severity) == ("meta", "note")


def test_the_composite_model_and_its_files(tmp_path):
    """With its vision tower; transformers writes alpha under Mistral's name, and both readings of it agree."""
    tower = {"model_type": "pixtral", "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1,
             "num_attention_heads": 2, "head_dim": 16, "patch_size": 4, "image_size": 16}  # fmt: skip
    config = AutoConfig.for_model("mistral_large4", text_config=SIZES, vision_config=tower)
    torch.manual_seed(0)
    model = modeling.MistralLarge4ForConditionalGeneration(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(std=0.3)
        model.model.language_model.rotary_emb.alpha.data.copy_(ALPHA)
    with rw.attach(model) as handle:
        own = handle.ropes[0]
        assert handle.ropes[3] is None
    assert check(model) == ()
    model.save_pretrained(tmp_path)
    assert rw.RopeConfig.from_hf(tmp_path, alpha=read_alpha(tmp_path)) == own
    assert Checkpoint.open(tmp_path).ropes.rotating == {None: own}
    again = modeling.MistralLarge4ForConditionalGeneration.from_pretrained(tmp_path)
    assert torch.equal(again.model.language_model.rotary_emb.alpha, ALPHA)
