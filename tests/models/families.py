"""Tiny random Llamas, made by transformers: the oracle of the checkpoint tests."""

from __future__ import annotations

from typing import Any

import torch
import transformers

SIZES: dict[str, Any] = {
    "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "pad_token_id": None, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip

LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
LONGROPE = {
    "rope_type": "longrope", "short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [1.0, 2.0, 4.0, 8.0],
    "original_max_position_embeddings": 32, "factor": 4.0,
}  # fmt: skip

# name -> what differs from SIZES
CASES: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama-biases": {"attention_bias": True, "mlp_bias": True, "rms_norm_eps": 0.1},
    "llama-multi-query": {"num_key_value_heads": 1},
    "llama-head-dim": {"head_dim": 16},
    "llama-linear": {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}},
    "llama-llama3": {"rope_parameters": {**LLAMA3, "rope_theta": 5e5}},
    "llama-yarn": {"rope_parameters": {**YARN, "rope_theta": 1e4}},
    "llama-longrope": {"rope_parameters": {**LONGROPE, "rope_theta": 1e4}},
    "llama-dynamic": {
        "rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4},
        "max_position_embeddings": 32,
    },
    "smollm2": {"tie_word_embeddings": True, "rope_parameters": {"rope_type": "default", "rope_theta": 1e5}},
}


def make(name: str, **changes: Any) -> Any:
    """A transformers model of the case, float32, with weights large enough that every mistake shows."""
    config = transformers.LlamaConfig(**SIZES | CASES[name] | changes)
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for tensor_name, tensor in model.named_parameters():
            if tensor.ndim == 1:
                tensor.copy_(torch.randn_like(tensor) * 0.2 + ("norm" in tensor_name))
            else:
                tensor.copy_(torch.randn_like(tensor) * (0.5 if "embed" in tensor_name else tensor.shape[1] ** -0.5))
    return model


def input_ids(length: int = 48, batch: int = 2) -> torch.Tensor:
    """Random tokens of the small vocabulary."""
    return torch.randint(0, SIZES["vocab_size"], (batch, length), generator=torch.Generator().manual_seed(1))
