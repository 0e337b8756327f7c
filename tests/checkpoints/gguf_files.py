"""GGUF files of many families, by gguf's own writer and table of names, as llama.cpp's are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from torch import Tensor

from ropewalk.tokenizer import byte_alphabet

ARCHITECTURES = {"gemma2": "gemma2", "gemma3_text": "gemma3", "phi3": "phi3", "starcoder2": "starcoder2",
                 "qwen3_moe": "qwen3moe", "qwen2_moe": "qwen2moe", "falcon": "falcon", "llama": "llama",
                 "mistral": "llama", "smollm3": "smollm3", "qwen2": "qwen2", "qwen3": "qwen3",
                 "gemma4_text": "gemma4", "gpt_oss": "gpt-oss"}  # fmt: skip


def write_foreign(model: Any, path: Path, metadata: Mapping[str, Any] | None = None, **tensors: Tensor) -> Path:
    """A model of transformers as a GGUF file in F32, with a tokenizer of bytes; further `metadata` and `tensors`."""
    config, arch = model.config, ARCHITECTURES[model.config.model_type]
    number = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == arch)
    names = gguf.get_tensor_name_map(number, config.num_hidden_layers)
    writer = gguf.GGUFWriter(path, arch)
    fields = config.to_dict()
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(fields.get("num_key_value_heads", config.num_attention_heads))
    if "intermediate_size" in fields:
        writer.add_feed_forward_length(config.intermediate_size)
    if "rms_norm_eps" in fields:
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    else:
        writer.add_layer_norm_eps(
            fields.get("norm_epsilon") or fields.get("layer_norm_eps") or config.layer_norm_epsilon
        )
    if "head_dim" in fields and arch not in ("falcon", "gemma4"):
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    if fields.get("sliding_window"):
        writer.add_sliding_window(config.sliding_window)
    for key in ("attn", "final"):
        if fields.get(f"{key}_logit_softcapping"):
            writer.add_float32(f"{arch}.{key}_logit_softcapping", fields[f"{key}_logit_softcapping"])
    experts = fields.get("num_experts") or fields.get("num_local_experts")
    if experts:
        writer.add_expert_count(experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(fields.get("moe_intermediate_size", config.intermediate_size))
    if "shared_expert_intermediate_size" in fields:
        writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)
    ropes = config.rope_parameters
    writer.add_rope_freq_base(ropes.get("full_attention", ropes)["rope_theta"])
    _add_tokenizer(writer, config.vocab_size)
    for key, value in (metadata or {}).items():
        add = {str: writer.add_string, bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32,
               list: writer.add_array}  # fmt: skip
        add[type(value)](f"{arch}.{key}", value)
    for name, tensor in model.state_dict().items() if arch != "gpt-oss" else ():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        for of_file, values in _as_stored(name, tensor, arch, config):
            stem, _, suffix = of_file.rpartition(".")
            stem, suffix = (of_file, "weight") if suffix not in ("weight", "bias") else (stem, suffix)
            found = names.get_name(stem)
            assert found is not None, f"gguf has no name for {of_file}"
            writer.add_tensor(f"{found}.{suffix}", values)
    for name, tensor in tensors.items():
        writer.add_tensor(f"{name}.weight", tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _as_stored(name: str, tensor: Tensor, arch: str, config: Any) -> list[tuple[str, np.ndarray[Any, Any]]]:
    """As llama.cpp's converter writes it: Llama's pairs interleaved, Gemma's norms with their one, experts apart."""
    values = np.ascontiguousarray(tensor.detach().float().numpy())
    if arch in ("llama", "smollm3") and (".q_proj." in name or ".k_proj." in name):
        heads = config.num_attention_heads if ".q_proj." in name else config.num_key_value_heads
        halves = values.reshape(heads, 2, len(values) // heads // 2, *values.shape[1:])
        return [(name, np.ascontiguousarray(halves.swapaxes(1, 2).reshape(values.shape)))]
    if name.endswith("layer_scalar"):
        return [(f"{name}.weight", values)]
    if arch in ("gemma2", "gemma3") and name.endswith("norm.weight"):
        return [(name, values + 1)]
    if name.endswith("shared_expert_gate.weight"):
        return [(name, values[0])]
    if name.endswith("experts.gate_up_proj"):
        stem, half = name.removesuffix("gate_up_proj"), values.shape[1] // 2
        gate, up = (np.ascontiguousarray(part) for part in (values[:, :half], values[:, half:]))
        return [(f"{stem}gate_proj", gate), (f"{stem}up_proj", up)]
    return [(name, values)]


def _add_tokenizer(writer: gguf.GGUFWriter, vocab_size: int) -> None:
    """GPT-2's kind with a token for each byte, the end of a text, unused ones, and two bytes 0, for which llama.cpp
    needs a pair.
    """
    letters = sorted(byte_alphabet().items(), key=lambda item: item[1])
    pairs = [f"{letters[0][0]} {letters[0][0]}"][: vocab_size - 257]
    unused = [f"[PAD{number}]" for number in range(258, vocab_size)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(
        [letter for letter, _ in letters] + ["<|endoftext|>"] + [pair.replace(" ", "") for pair in pairs] + unused
    )
    writer.add_token_types([1] * 256 + [3] + [1] * len(pairs) + [5] * len(unused))
    writer.add_token_merges(pairs)
    writer.add_eos_token_id(256)
    writer.add_bos_token_id(256)
