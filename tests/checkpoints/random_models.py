"""Small random models of many families of transformers, large enough in their weights that positions matter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

import ropewalk as rw
from ropewalk.checkpoints.opening import quietly
from ropewalk.models.config import DecoderConfig
from ropewalk.models.decoder import Decoder
from ropewalk.tokenizer import TextTokenizer

SHAPE: dict[str, Any] = {
    "vocab_size": 257, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 32, "initializer_range": 0.3, "pad_token_id": 0,
    "bos_token_id": 256, "eos_token_id": 256,
}  # fmt: skip
_SLIDING = {"sliding_window": 12}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
_LATENT = {
    "num_key_value_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8,
    "v_head_dim": 8, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "n_group": 1,
    "topk_group": 1, "first_k_dense_replace": 1,
}  # fmt: skip
_YARN = {"rope_type": "yarn", "rope_theta": 150000.0, "factor": 2.0, "original_max_position_embeddings": 16,
         "finetuned": True}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "gemma2": {"head_dim": 8, **_SLIDING},
    "gemma3_text": {"head_dim": 8, "layer_types": ["sliding_attention", "full_attention"], **_SLIDING},
    "phi3": {},
    "gpt_oss": {"head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2, "rope_parameters": _YARN, **_SLIDING},
    "granite": {"logits_scaling": 3.0},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "gpt_neox": {},
    "deepseek_v3": _LATENT,
    "cohere": {"logit_scale": 1.0},
    "glm4": {"head_dim": 8},
    "stablelm": {},
    "starcoder2": _SLIDING,
    "falcon": {"new_decoder_architecture": False, "multi_query": False},
    "qwen3_moe": {"head_dim": 8, **_EXPERTS},
    "exaone4": _SLIDING,
    "nemotron": {},
    "nanochat": {},
}  # fmt: skip


def random_model(family: str, **changes: Any) -> Any:
    """A model of the family in eval mode; positions and attention matter to its logits."""
    torch.manual_seed(5)
    config = AutoConfig.for_model(family, **{**SHAPE, **FAMILIES.get(family, {}), **changes})
    return AutoModelForCausalLM.from_config(config).eval()


def folder_of(family: str, place: Path, **changes: Any) -> Path:
    """A checkpoint of such a model with a tokenizer of bytes."""
    with quietly():
        random_model(family, **changes).save_pretrained(place)
    TextTokenizer.bytes().save(place)
    return place


# --- our own small models


SIZES: dict[str, Any] = {
    "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2,
}  # fmt: skip
HALF = rw.RopeConfig(head_dim=8, interleaved=False, max_position_embeddings=64)


def make(**changes: Any) -> Decoder:
    """A small random decoder in eval mode."""
    return Decoder(DecoderConfig(**SIZES | {"rope": HALF, "initializer_range": 0.2} | changes)).eval()


def change_config(folder: Path, **changes: Any) -> None:
    """Put other values into a folder's config.json; `...` takes a key away."""
    path = folder / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not ...}))
