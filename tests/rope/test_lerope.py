"""LeRoPE's learned factors, against the formula written out here and transformers' own Mistral Large 4."""

from __future__ import annotations

import importlib
import inspect
import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import ropewalk as rw
from ropewalk.checkpoints.load import read_alpha
from ropewalk.families import FAMILIES
from ropewalk.rope.config import indexer_rope
from ropewalk.rope.model_ropes import ModelRopes
from ropewalk.rope.scaling import DynamicNTK, LeRoPE, Linear, Stacked, YaRN, rule_from_dict
from tests.rope.models import rotary_class

ALPHA = (0.3, -0.2, 0.1, -0.7, 0.05, 0.0, 1.1, -0.4)
BLOCK = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 8.0, "original_max_position_embeddings": 512,
         "beta_fast": 32.0, "beta_slow": 1.0, "attention_factor": 1.25}  # fmt: skip
CONFIG: dict[str, Any] = {"model_type": "mistral_large4_text", "qk_rope_head_dim": 16, "rope_parameters": BLOCK,
                          "max_position_embeddings": 4096}  # fmt: skip


def rope(**changes: Any) -> rw.RopeConfig:
    """The rope of the config with our alpha."""
    return rw.RopeConfig.from_hf({**CONFIG, **changes}, alpha=ALPHA)


@pytest.mark.parametrize("block", [BLOCK, {"rope_type": "default", "rope_theta": 5e5}])
def test_it_is_what_transformers_computes(block):
    """The rotation of the live class, by its own tables and its own function, with alpha from the live module."""
    modeling = pytest.importorskip("transformers.models.mistral_large4.modeling_mistral_large4")
    from transformers import AutoConfig

    fields = {**CONFIG, "rope_parameters": block}
    config = AutoConfig.for_model(fields.pop("model_type"), **fields)
    module = modeling.MistralLarge4TextRotaryEmbedding(config)
    module.alpha.data.copy_(torch.tensor(ALPHA))  # a buffer, or from transformers 5.24 on a parameter
    ours = rw.RopeConfig.from_hf(config, alpha=module.alpha)
    x, ids = torch.randn(2, 3, 7, 16), torch.randint(0, 500, (2, 7))
    turned, _ = modeling.apply_rotary_pos_emb_interleave(x, None, *module(x, ids))
    rotary, halves = rw.RotaryEmbedding(ours), partial(rw.convert_pairing, to="half")  # the order of its result
    found = halves(rotary.rotate(x, position_ids=ids, layout="bhsd"))
    torch.testing.assert_close(found, turned, rtol=0, atol=2e-4)  # its angles are float32
    plain = rw.RotaryEmbedding(replace(ours, scaling=ours.scaling.of))
    assert (halves(plain.rotate(x, position_ids=ids, layout="bhsd")) - turned).abs().max() > 0.5


def test_without_alpha_nothing_is_assumed():
    """The config alone is refused, with the call that reads alpha; so is an alpha that would have no effect."""
    for read in (rw.RopeConfig.from_hf, ModelRopes.from_hf):
        with pytest.raises(rw.RopeError, match=r"ropewalk\.checkpoints\.load\.read_alpha\(folder\)"):
            read(CONFIG)
        with pytest.raises(rw.RopeError, match="no effect"):
            read({"model_type": "llama", "head_dim": 16}, alpha=ALPHA)
        with pytest.raises(rw.RopeError, match="one `alpha` for each pair"):
            read(CONFIG, alpha=ALPHA[:-1])
    with pytest.raises(rw.RopeError, match="one finite number"):
        rw.RopeConfig.from_hf(CONFIG, alpha=(*ALPHA[:-1], math.nan))


def test_every_layer_type_and_none():
    """The composite's model_type too; zeros are plain YaRN."""
    zeros = (0.0,) * 8
    composite = {"model_type": "mistral_large4", "text_config": {k: v for k, v in CONFIG.items() if k != "model_type"}}
    assert rw.RopeConfig.from_hf(composite, alpha=ALPHA) == rope()
    assert ModelRopes.from_hf(CONFIG, alpha=ALPHA).by_type == {None: rope()}
    plain = rw.RopeConfig.from_hf({**CONFIG, "model_type": "mistral4"})
    np.testing.assert_allclose(rw.RopeConfig.from_hf(CONFIG, alpha=zeros).columns_at(), plain.columns_at(), rtol=1e-15)


def test_a_method_starts_from_the_learned_frequencies():
    """A rule on top scales them; the length scaling alone can be removed."""
    learned = rope().scaling
    halved = replace(rope(), scaling=Stacked(learned, Linear(2.0)))
    np.testing.assert_allclose(halved.columns_at(), np.array(rope().columns_at()) / 2, rtol=1e-15)
    unscaled = rope().unscaled()
    np.testing.assert_allclose(unscaled.columns_at(), 1e4 ** (-np.arange(8) / 8) * np.exp(ALPHA), rtol=1e-14)
    assert unscaled.unscaled() == unscaled
    assert unscaled.scaling_is_trained is None
    trained = rope(rope_parameters={**BLOCK, "factor": 8.0})
    assert (trained.scaling_is_trained, trained.trained_length, trained.original_length) == (True, 4096, 512)


@pytest.mark.parametrize("of", [None, DynamicNTK(4.0), YaRN(4.0, 512)])
def test_it_takes_over_what_its_rule_needs(of):
    """Lengths act as in the rule without factors."""
    config = rw.RopeConfig(16, interleaved=True, scaling=LeRoPE(ALPHA, of), max_position_embeddings=64)
    plain = replace(config, scaling=of)
    for length in (32, 64, 300):
        expected = np.array(plain.columns_at(length)) * np.exp(ALPHA)
        np.testing.assert_allclose(config.columns_at(length), expected, rtol=1e-14)
    names = ("needs_seq_len", "switch_length", "original_length", "scaled_length")
    assert [getattr(config, name) for name in names] == [getattr(plain, name) for name in names]
    assert config.longest_at(100) == plain.longest_at(100)
    assert rule_from_dict(config.scaling.to_dict()) == config.scaling


def test_its_block_is_that_of_the_config():
    """Without the factors, which the class applies itself; a method on top of them has no block."""
    for block in (BLOCK, {"rope_type": "default", "rope_theta": 10_000.0}):
        written = rope(rope_parameters=block).to_hf()
        assert rope(rope_parameters=written) == rope(rope_parameters=block)
        assert written["rope_type"] == block["rope_type"]
    with pytest.raises(rw.RopeError, match="by them again"):
        replace(rope(), scaling=Stacked(rope().scaling, Linear(2.0))).to_hf()


@pytest.mark.parametrize("name", ["lerope.alpha", "model.language_model.rotary_emb.alpha"])
def test_alpha_is_read_from_a_checkpoint(name: str, tmp_path: Path):
    """From Mistral's own files and from transformers', whichever shard holds it."""
    save_file = pytest.importorskip("safetensors.torch").save_file
    save_file({"layers.0.attention.wq.weight": torch.randn(2, 2)}, tmp_path / "model-00001-of-00002.safetensors")
    with pytest.raises(rw.RopeError, match="exactly one"):
        read_alpha(tmp_path)
    stored = torch.tensor(ALPHA, dtype=torch.float32)
    save_file({name: stored, f"{name}s": torch.zeros(8)}, tmp_path / "model-00002-of-00002.safetensors")
    assert read_alpha(tmp_path) == tuple(stored.double().tolist())
    save_file({name: stored}, tmp_path / "copy.safetensors")
    with pytest.raises(rw.RopeError, match="exactly one"):
        read_alpha(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(rw.RopeError, match="safetensors"):
        read_alpha(tmp_path / "empty")


# --- the rope of the indexer of sparse attention


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
        indexer_rope({"model_type": "deepseek_v32", "qk_rope_head_dim": 64, "index_head_dim": 62})
    assert indexer_rope({"model_type": "deepseek_v32", "qk_rope_head_dim": 64, "index_head_dim": 64})[1] == 0


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
    fields = handle._written_fields()
    handle.detach()
    changed = sparse_model(family, **fields)
    assert changed.config.rope_parameters["rope_type"] == "yarn"
    expected, theirs = run(changed, ids)
    assert len(picked) >= 1
    for ours, other in zip(picked, theirs, strict=True):
        assert torch.equal(ours[:, 6:], other[:, 6:])
    assert any(not torch.equal(ours[:, 6:], other[:, 6:]) for ours, other in zip(picked, before, strict=True))
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4 * float(expected.abs().max()))
