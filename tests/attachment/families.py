"""Small random models of transformers, one for each family: weights large enough that attention matters."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.parity import causal

FAMILIES = (
    "llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "phi", "phi3", "olmo2", "granite", "glm4",
    "gpt_neox", "stablelm", "starcoder2", "mixtral", "qwen3_moe", "cohere2", "smollm3", "exaone4", "gpt_oss",
    "deepseek_v2", "deepseek_v3", "ernie4_5", "olmo3", "cohere", "qwen2_vl_text", "solar_open", "nanochat",
)  # fmt: skip
CHANGES: dict[str, dict[str, Any]] = {
    "qwen2": {"use_sliding_window": True, "max_window_layers": 2},
    "gemma3_text": {"sliding_window_pattern": 2},
    "phi3": {"sliding_window": None},
    "mixtral": {"sliding_window": None, "num_experts_per_tok": 4},  # a choice flips at ties of the router
    "exaone4": {"sliding_window_pattern": 2},
    "gpt_oss": {"rope_parameters": {
        "rope_type": "yarn", "rope_theta": 150000.0, "factor": 4.0, "original_max_position_embeddings": 16,
        "finetuned": True}},
}  # fmt: skip
"""What differs from tests/parity's small models; windows are short, so that a short text passes them."""


FAST = ["llama", "gemma2", "gemma3_text", "cohere2", "smollm3", "gpt_oss", "deepseek_v2", "deepseek_v3", "gpt_neox",
        "glm4", "qwen2_vl_text"]  # fmt: skip
ALL = [name if name in FAST else pytest.param(name, marks=pytest.mark.thorough) for name in FAMILIES]


def small_model(name: str, *, attn_implementation: str | None = None, **changes: Any) -> nn.Module:
    """A random model in eval mode: matrices of a size that makes attention sharp; `changes` of its config go on top."""
    attn_implementation = attn_implementation or ("eager" if name in ("gemma2", "gpt_oss") else "sdpa")
    if name != "qwen2_vl_text":
        return causal.small_model(name, attn_implementation=attn_implementation, **CHANGES.get(name, {}) | changes)
    from transformers import Qwen2VLTextConfig, Qwen2VLTextModel

    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
             "num_key_value_heads": 2, "vocab_size": 64, "max_position_embeddings": 64, "pad_token_id": 0}  # fmt: skip
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}
    config = Qwen2VLTextConfig(**sizes | {"rope_parameters": rope} | changes)
    config._attn_implementation = attn_implementation
    model = Qwen2VLTextModel(config)
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
