"""The rope of sparse attention's indexer, against transformers' live modules."""

from __future__ import annotations

import importlib
import inspect
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import ropewalk as rw
from ropewalk.families import FAMILIES
from ropewalk.rope.config import indexer_rope
from tests.rope.models import rotary_class

transformers = pytest.importorskip("transformers")
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 1024}
INDEXED = [name for name, family in FAMILIES.items() if family.module.indexer is not None]
SIZES = {"hidden_size": 48, "num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": 24, "kv_lora_rank": 16,
         "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8, "index_head_dim": 20, "index_n_heads": 3,
         "index_topk": 4, "num_hidden_layers": 4, "max_position_embeddings": 4096}  # fmt: skip

CHANGES = {"axk2": {"head_dim": 8}, "dots3_note_text": {"qk_rope_head_dim": 64, "index_head_dim": 76}}


def live(family: str, block: dict[str, Any] | None = None) -> tuple[Any, Any, Any]:
    """A config, and its live rotary module and indexer, with random weights."""
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(family, **(SIZES | CHANGES.get(family, {})))
    config.allow_global_per_layer_attribute_access = True  # dots3 note has other numbers in its windowed layers
    if block is not None:
        config.rope_parameters = block
    modeling = importlib.import_module(type(config).__module__.replace("configuration_", "modeling_"))
    kind = next(value for name, value in vars(modeling).items() if name.endswith("Indexer"))
    indexer = kind(config, layer_idx=0)
    with torch.no_grad():
        for weight in indexer.parameters():
            weight.normal_()
    return config, rotary_class(config)(config), indexer


def keys_of(indexer: Any, rotary: Any, ids: torch.Tensor, config: Any, label: str | None) -> tuple[Any, Any]:
    """The live indexer's keys before the rotation and after it."""
    seen: dict[str, torch.Tensor] = {}
    taken = SimpleNamespace(update_indexer=lambda k, *_: seen.setdefault("rotated", k))
    hook = indexer.k_norm.register_forward_hook(lambda _, __, out: seen.update(k=out))
    seq = ids.shape[1]
    hidden = torch.randn(*ids.shape, config.hidden_size)
    options = {} if label is None else {"layer_type": label}
    mask = torch.full((seq, seq), float("-inf")).triu(1)[None]
    calls = {"q_resid": torch.randn(*ids.shape, config.q_lora_rank), "attention_mask": mask, "position_ids": ids,
             "position_embeddings": rotary(hidden, ids, **options),
             "past_key_values": taken, "cache": taken}  # fmt: skip
    known = inspect.signature(indexer.forward).parameters
    with torch.no_grad():
        indexer(hidden, **{name: value for name, value in calls.items() if name in known})
    hook.remove()
    return seen["k"], seen["rotated"]


@pytest.mark.parametrize("block", [None, YARN], ids=["own", "yarn"])
@pytest.mark.parametrize("family", INDEXED)
def test_it_rotates_as_the_live_indexer(family, block):
    """Its keys, to rounding; the other pairing, the other features and the attention's width are noticed."""
    if block is not None and family == "dots3_note_text":
        pytest.skip("its blocks are by layer type")
    config, rotary, indexer = live(family, block)
    alpha = getattr(rotary, "alpha", None)
    if alpha is not None:
        with torch.no_grad():  # from transformers 5.24 on it is a parameter
            alpha.copy_(torch.tensor([0.4, -0.3, 0.2, -1.0]))
    rope, offset = indexer_rope(config, alpha=alpha)
    assert (rope.head_dim, rope.rotary_dim) == ((76, 64) if family in CHANGES and family != "axk2" else (20, 8))
    ids = torch.arange(40, 60)[None]
    label = FAMILIES[family].module.indexer.layer_type
    k, rotated = keys_of(indexer, rotary, ids, config, label)
    interleaved = rope.interleaved

    # an interleaved indexer leaves its pairs half-split, in queries and keys alike: no product changes
    def ours(rope: rw.RopeConfig, offset: int) -> torch.Tensor:
        found = rw.RotaryEmbedding(rope).rotate(k[:, :, None], position_ids=ids, rotary_offset=offset)[:, :, 0]
        if interleaved:
            window = slice(offset, offset + rope.rotary_dim)
            found[..., window] = rw.convert_pairing(found[..., window], to="half")
        return found

    torch.testing.assert_close(ours(rope, offset), rotated, rtol=0, atol=5e-5)
    assert (ours(rope, 12 - offset) - rotated).abs().max() > 0.1
    other = replace(rope, interleaved=not rope.interleaved)
    assert (ours(other, offset) - rotated).abs().max() > 0.1


def test_models_without_an_indexer_are_refused():
    """The error names the family; so is a head that is too narrow."""
    with pytest.raises(rw.RopeError, match="deepseek_v3 has no indexer"):
        indexer_rope({"model_type": "deepseek_v3", "qk_rope_head_dim": 64})
    released = {"model_type": "glm_moe_dsa", "indexer_rope_interleave": True, "qk_rope_head_dim": 64}
    assert indexer_rope(released)[0].interleaved
    with pytest.raises(rw.RopeError, match="contradicts the pairing"):
        indexer_rope({**released, "indexer_rope_interleave": False})
    with pytest.raises(rw.RopeError, match="index_head_dim"):
        indexer_rope({"model_type": "deepseek_v32", "qk_rope_head_dim": 64, "index_head_dim": 32})


def sparse_model(family: str, **changes: Any) -> Any:
    """A small causal model whose indexers choose 6 of the earlier tokens."""
    torch.manual_seed(0)
    experts = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "n_group": 1,
               "topk_group": 1, "first_k_dense_replace": 1}  # fmt: skip
    fields = {**SIZES, **experts, "index_topk": 6, "vocab_size": 64, "intermediate_size": 32, "pad_token_id": 0}
    config = transformers.AutoConfig.for_model(family, **{**fields, **changes})
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.normal_(std=1.5 / weight.shape[-1] ** 0.5)
    return model


def run(model: Any, ids: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The logits, and what each indexer chose."""
    picked: list[torch.Tensor] = []
    hooks = [
        module.register_forward_hook(lambda _, __, out: picked.append(out.sort().values))
        for module in model.modules()
        if type(module).__name__.endswith("Indexer")
    ]
    with torch.no_grad():
        logits = model(ids, use_cache=False).logits
    for hook in hooks:
        hook.remove()
    return logits, picked


@pytest.mark.parametrize("family", ["deepseek_v32", "glm_moe_dsa"])
def test_a_method_changes_the_indexer_with_the_attention(family):
    """Under YaRN the indexers choose, and the model computes, what transformers does with the config that says so."""
    model, ids = sparse_model(family), torch.randint(1, 64, (1, 60))
    _, before = run(model, ids)
    handle = rw.attach(model, "yarn", target=16_384)
    logits, picked = run(model, ids)
    fields = handle.rope_fields()
    handle.detach()
    changed = sparse_model(family, **fields)
    assert changed.config.rope_parameters["rope_type"] == "yarn"
    expected, theirs = run(changed, ids)
    assert len(picked) >= 1
    for ours, other in zip(picked, theirs, strict=True):
        assert torch.equal(ours[:, 6:], other[:, 6:])
    assert any(not torch.equal(ours[:, 6:], other[:, 6:]) for ours, other in zip(picked, before, strict=True))
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4 * float(expected.abs().max()))
