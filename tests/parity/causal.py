"""Every causal family of transformers, small, with random weights, under `rw.attach`: logits, shifts, greedy tokens."""

from __future__ import annotations

import contextlib
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

import ropewalk as rw
from ropewalk.attachment import handle
from tests.parity.check import reason, rounded, sabotaged
from tests.parity.classes import modeling_files

SHIFT, TOLERANCE, NEW, LARGEST = 1_000_000, 1e-4, 4, 100_000_000
IDS = torch.randint(3, 64, (1, 24), generator=torch.Generator().manual_seed(1))
_FUNCTIONS = ("codegen", "gptj", "roformer")  # families whose rotation is a function and no class
_BORROWED = ("exaone", "sarvam_mla", "sarvam_moe")  # families with another family's class
_MLA = {"kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}
SMALL: dict[str, Any] = {  # what every family is shrunk to, where its config has the key
    **dict.fromkeys(("hidden_size", "n_embd", "intermediate_size", "ffn_hidden_size", "d_model"), 64),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_attention_heads", "n_head", "n_heads"), 4),
    **dict.fromkeys(("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "num_key_value_heads", "moe_topk", "moe_k"), 2),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "expert_ffn_hidden_size"), 32),
    **dict.fromkeys(("n_group", "topk_group", "bos_token_id", "n_shared_experts"), 1),
    **dict.fromkeys(("max_position_embeddings", "n_positions"), 64),
    **_MLA,
    "vocab_size": 64,
    "head_dim": 16,
    "rotary_dim": 8,
    "pad_token_id": 0,
    "eos_token_id": 2,
    "sliding_window": 8,
}
_SECTIONS = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}
_QUARTER = {**_SECTIONS, "partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1]}
_COMPRESSED = ("compressed_sparse_attention", "heavily_compressed_attention")
_TOWER = {
    "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 64,
}  # fmt: skip
CHANGES: dict[str, dict[str, Any]] = {  # what else single families need
    **{name: {"rope_parameters": _QUARTER} for name in ("qwen3_5_text", "qwen3_5_moe_text")},
    "qwen4_exp_text": {
        "rope_parameters": _QUARTER, "indexer_head_dim": 16, "indexer_n_heads": 2, "indexer_kv_heads": 1,
        "indexer_budget": 8, "indexer_compress_ratio": 2,
    },
    "dbrx": {"attn_config": {"kv_n_heads": 2, "clip_qkv": 8, "rope_theta": 1e4}, "ffn_config": {"ffn_hidden_size": 64}},
    "cohere_compass_text": {
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "rope_parameters": {"sliding_attention": _SECTIONS, "full_attention": None},
    },
    "dots3_note_text": {"swa_qk_nope_head_dim": 8, "swa_head_dim": 16, "swa_v_head_dim": 8},
    "gemma3n_text": {"num_kv_shared_layers": 0, "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 64},
    "longcat_flash": {"head_dim": 8},
    "gemma4_text": {"num_kv_shared_layers": 0, "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 64},
    "granitemoehybrid": {"position_embedding_type": "rope", "layer_types": ["mamba", "attention"] * 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "dory": {"n_input_layers": 1, "n_output_layers": 1},
    "mimo_v2_flash": {"head_dim": 24, "v_head_dim": 24},
    "zaya": {"num_experts_per_tok": 1},
    "bailing_hybrid": {"layer_group_size": 2},
    "blt": {
        "encoder_hash_byte_group_vocab": 64,
        **{
            f"{part}_config": {**_TOWER, "hidden_size_global": 64}
            for part in ("patcher", "encoder", "decoder", "global")
        },
    },
    "roformer": {"is_decoder": True},
    "phi4_multimodal": {"vision_config": _TOWER, "audio_config": {**_TOWER, "num_blocks": 1}},
    "deepseek_v4": {
        "num_key_value_heads": 1,
        "head_dim": 16,
        "partial_rotary_factor": 0.5,
        "layer_types": ["sliding_attention", *_COMPRESSED, "sliding_attention"],
        "compress_rates": dict(zip(_COMPRESSED, (2, 4), strict=True)),
        "index_head_dim": 16,
        "index_n_heads": 2,
        "index_topk": 64,  # fewer are chosen among ties, which a chunk breaks otherwise
        "o_groups": 2,
        "o_lora_rank": 16,
    },
    "bamba": {"attn_layer_indices": [1, 3]},
    "zamba2": {"use_mem_rope": True, "layers_block_type": ["mamba", "hybrid"] * 2},
}  # fmt: skip


TEXTS = {"emu3": "Emu3ForCausalLM", "mllama": "MllamaForCausalLM"}  # composites whose text part has a class of its own


@cache
def causal_families() -> tuple[str, ...]:
    """The causal language models of transformers that have a rotation; of composites their text parts."""
    from transformers.models.auto.configuration_auto import model_type_to_module_name
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as NAMES

    folders = {*modeling_files(), *_FUNCTIONS, *_BORROWED}
    rotary = [name for name in NAMES if model_type_to_module_name(name) in folders]
    return tuple(name for name in rotary if f"{name}_text" not in rotary)


def check_causal(name: str) -> dict[str, Any]:
    """The row of one family.

    `status` is "exact" (the logits within 1e-4 of the largest, the same greedy tokens, a wrong theta and a wrong width
    are noticed), "refused" with our reason, "differs", or "not built": the small config does not fit the family.
    """
    row: dict[str, Any] = {"family": name}
    try:
        model = small_model(name)
        before = logits_of(model)
    except Exception as error:
        return {**row, "status": "not built", "reason": f"{type(error).__name__}: {str(error).strip()[:120]}"}
    try:
        rw.attach(model).detach()
    except rw.RopeError as error:
        return {**row, "status": "refused", "reason": reason(error)}
    tokens, moved = greedy(model), _shifted(model, before)
    attached = rw.attach(model)
    error = (logits_of(model) - before).abs().max().item() / max(1.0, before.abs().max().item())
    row |= {"logits": rounded(error), "greedy": torch.equal(greedy(model), tokens)}
    row |= {"shift": _shifted(model, before), "shift before": moved}
    attached.detach()
    row["noticed"] = [wrong for wrong in ("theta", "width") if _noticed(model, wrong)]
    exact = error <= TOLERANCE and row["greedy"] and row["noticed"] == ["theta", "width"]
    exact = exact and torch.equal(logits_of(model), before)
    return {**row, "status": "exact" if exact else "differs"}


def small_model(name: str, *, attn_implementation: str = "eager", seed: int = 0, **changes: Any) -> nn.Module:
    """A random model in eval mode, with matrices so large that attention matters; `changes` of its config on top."""
    import transformers
    from transformers import AutoModelForCausalLM
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.utils import logging

    logging.set_verbosity_error()
    torch.manual_seed(seed)
    cls = CONFIG_MAPPING[name]
    known = {field.name for field in fields(cls)} if is_dataclass(cls) else set(vars(cls()))
    known |= set(getattr(cls, "attribute_map", {}))
    sizes = SMALL | ({"num_key_value_heads": 4} if "qk_rope_head_dim" in known else {})
    if "qk_rope_head_dim" in known:  # their classes derive it
        known -= {"head_dim"}
    if name in TEXTS:
        cls = type(cls().get_text_config())
        known = {field.name for field in fields(cls)}
    config = cls(**{key: value for key, value in sizes.items() if key in known} | CHANGES.get(name, {}) | changes)
    build = AutoModelForCausalLM.from_config
    if name in TEXTS:
        config._attn_implementation = "eager"
        build = getattr(transformers, TEXTS[name])
    with torch.device("meta"):
        size = sum(parameter.numel() for parameter in build(config).parameters())
    if size > LARGEST:
        raise ValueError(f"the small config still makes {size:,} parameters")
    model = build(config) if name in TEXTS else build(config, attn_implementation=attn_implementation)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2 and parameter.requires_grad:  # RoFormer keeps its table of positions as one
                parameter.normal_(std=1.5 / parameter.shape[-1] ** 0.5)
    return model.eval()


@torch.no_grad()
def logits_of(model: nn.Module, shift: int | None = None) -> Tensor:
    """The logits of a short text, its first position 0, or the shift."""
    positions = {} if shift is None else {"position_ids": torch.arange(IDS.shape[1])[None] + shift}
    out: Tensor = model(input_ids=IDS, use_cache=False, **positions).logits
    return out


@torch.no_grad()
def greedy(model: nn.Module) -> Tensor:
    """The tokens that follow it, one by one through the model's own cache."""
    out: Tensor = model.generate(IDS, max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False)  # type: ignore[operator]
    return out[:, IDS.shape[1] :]


def _shifted(model: nn.Module, before: Tensor) -> float | None:
    """How far a shift of all positions moves the logits, of the largest; None where positions cannot be given."""
    with contextlib.suppress(TypeError, ValueError, IndexError, RuntimeError):
        moved = (logits_of(model, SHIFT) - before).abs().max().item()
        return rounded(moved / max(1.0, before.abs().max().item()))
    return None


def _noticed(model: nn.Module, wrong: str) -> bool:
    """Whether attach refuses a reading with another theta, or one pair fewer."""
    read = handle.positions_of

    def misread(model: Any, config: Any) -> Any:
        return read(model, config).mapped(lambda rope: sabotaged(rope)[wrong])

    with mock.patch.object(handle, "positions_of", misread):
        try:
            rw.attach(model).detach()
        except rw.RopeError:
            return True
    return False
