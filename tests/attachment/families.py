"""Small random models of transformers, one for each family: weights large enough that attention matters."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

SMALL: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
"""What every family is shrunk to."""

EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": 8},
    "qwen2": {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2},
    "qwen3": {},
    "gemma": {},
    "gemma2": {"sliding_window": 8},
    "gemma3_text": {"sliding_window": 8, "sliding_window_pattern": 2},
    "phi": {"partial_rotary_factor": 0.5},
    "phi3": {"sliding_window": None},
    "olmo2": {},
    "granite": {},
    "glm4": {},
    "gpt_neox": {"rotary_pct": 0.25},
    "stablelm": {},
    "starcoder2": {"sliding_window": 8},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 4},  # a choice flips at ties of the router
    "qwen3_moe": {"num_experts": 4, **EXPERTS},
    "cohere2": {"sliding_window": 8},
    "smollm3": {},
    "exaone4": {"sliding_window": 8, "sliding_window_pattern": 2},
    "gpt_oss": {"sliding_window": 8, "num_local_experts": 4, "num_experts_per_tok": 2, "rope_parameters": {
        "rope_type": "yarn", "rope_theta": 150000.0, "factor": 4.0, "original_max_position_embeddings": 16,
        "finetuned": True}},
    "deepseek_v2": {"num_key_value_heads": 4, "kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8,
                    "qk_nope_head_dim": 8, "v_head_dim": 8, "n_routed_experts": 4, "first_k_dense_replace": 1,
                    "n_group": 1, "topk_group": 1, **EXPERTS},
    "deepseek_v3": {"num_key_value_heads": 4, "kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8,
                    "qk_nope_head_dim": 8, "v_head_dim": 8, "n_routed_experts": 4, "first_k_dense_replace": 1,
                    "n_group": 1, "topk_group": 1, **EXPERTS},
    "ernie4_5": {},
    "olmo3": {"sliding_window": 8},
    "cohere": {},
    "qwen2_vl_text": {},
    "solar_open": {"n_routed_experts": 4, "n_group": 1, "topk_group": 1, **EXPERTS},
    "nanochat": {},
}  # fmt: skip
"""What else each needs; windows are short, so that a short text passes them."""


FAST = ["llama", "gemma2", "gemma3_text", "cohere2", "smollm3", "gpt_oss", "deepseek_v2", "deepseek_v3", "gpt_neox",
        "glm4", "qwen2_vl_text"]  # fmt: skip
ALL = [name if name in FAST else pytest.param(name, marks=pytest.mark.thorough) for name in FAMILIES]


def small_model(name: str, *, attn_implementation: str | None = None, seed: int = 0, **changes: Any) -> nn.Module:
    """A random model in eval mode: matrices of a size that makes attention sharp; `changes` of its config go on top."""
    torch.manual_seed(seed)
    attn_implementation = attn_implementation or ("eager" if name in ("gemma2", "gpt_oss") else "sdpa")
    fields = {**SMALL, **FAMILIES[name], **changes}
    if name in ("deepseek_v2", "deepseek_v3"):
        fields.pop("head_dim")
    if name.startswith("qwen2_vl"):
        fields["rope_parameters"] = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}
    config = AutoConfig.for_model(name, **fields)
    if name.startswith("qwen2_vl"):
        from transformers import Qwen2VLTextModel

        config._attn_implementation = attn_implementation
        model = Qwen2VLTextModel(config)
    else:
        model = AutoModelForCausalLM.from_config(config, attn_implementation=attn_implementation)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=1.5 / parameter.shape[-1] ** 0.5)
    return model.eval()


def outputs_of(model: nn.Module, input_ids: torch.Tensor, **options: Any) -> torch.Tensor:
    """Logits, or hidden states of a model without a head."""
    out = model(input_ids=input_ids, **options)
    return out.logits if "logits" in out else out.last_hidden_state


def quantized(model: nn.Module) -> nn.Module:
    """The model with int8 weights and activations, as torchao's Int8DynamicActivationInt8WeightConfig computes."""

    def steps(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-9) / 127
        return (x / scale).round(), scale

    class Int8Linear(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            (x, scale), (weight, of_rows) = steps(x), steps(self.weight)
            return x @ weight.T * scale * of_rows.T + (0 if self.bias is None else self.bias)

    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = Int8Linear
    return model


def apart(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """The largest difference of gradients, of the largest of them."""
    assert one.keys() == other.keys()
    assert min(float(x.abs().max()) for x in one.values()) > 0
    size = max(float(x.abs().max()) for x in one.values())
    return max(float((one[name] - other[name]).abs().max()) for name in one) / size
