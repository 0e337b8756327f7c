"""A Decoder from a GGUF file: llama.cpp's names and metadata put into Hugging Face's, q and k back into half-split.

Source: llama.cpp's convert_hf_to_gguf.py (names, permutation, rope factors) and src/llama-model.cpp (defaults).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ropewalk.checkpoints.decoder_config import config_from_hf
from ropewalk.checkpoints.gguf_file import GGUFFile
from ropewalk.checkpoints.gguf_rope import rope_parameters
from ropewalk.checkpoints.gguf_tokenizer import tokenizer_from_metadata
from ropewalk.checkpoints.materialize import Stored, materialize
from ropewalk.models.config import DecoderConfig
from ropewalk.models.decoder import Decoder
from ropewalk.rope.pairing import convert_pairing

# Architectures, and whether their converter permutes q and k for llama.cpp's interleaved rotation.
PERMUTED = {"llama": True, "smollm3": True, "qwen2": False, "qwen3": False}

OUTER = {"token_embd": "embed_tokens", "output_norm": "norm", "output": "lm_head"}
INNER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
ROPE_TENSORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
SIZES = {
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "block_count": "num_hidden_layers",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "context_length": "max_position_embeddings",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
}
# Keys that change nothing where they have the value given here (None: any value).
_HARMLESS: dict[str, Any] = {
    "vocab_size": None,
    "tensor_data_layout": None,
    "attention.key_length": None,
    "attention.value_length": None,
    "attention.sliding_window": None,
    "attention.causal": True,
    "pooling_type": 0,
    "expert_count": 0,
    "expert_used_count": 0,
    "use_parallel_residual": False,
}


def load_gguf(path: Path, dtype: torch.dtype | None = None) -> Decoder:
    """A `Decoder` and its tokenizer from a GGUF file; `load` is the door to this."""
    file = GGUFFile(path)
    config = _config(file)
    model = materialize(config, _stored_tensors(file, config), dtype, str(path))
    if "tokenizer.ggml.model" in file.metadata:
        model.tokenizer = tokenizer_from_metadata(file.metadata, str(path))
    return model


def builds_gguf(path: Path) -> bool:
    """Whether a file's architecture is built here."""
    return GGUFFile(path).metadata.get("general.architecture") in PERMUTED


def read_gguf_config(path: Path) -> DecoderConfig:
    """The `DecoderConfig` of a GGUF file."""
    return _config(GGUFFile(path))


def _config(file: GGUFFile) -> DecoderConfig:
    """What Hugging Face's config.json would say, read as that."""
    return config_from_hf(_hugging_face_config(file), str(file.path))


def _hugging_face_config(file: GGUFFile) -> dict[str, Any]:
    """The file's metadata as a config.json of its family."""
    meta, arch = file.metadata, file.metadata.get("general.architecture")
    if arch not in PERMUTED:
        raise file.error("unknown architecture.", facts={"general.architecture": arch, "known": sorted(PERMUTED)})
    if meta.get("split.count", 0) not in (0, 1):
        raise file.error(
            "this is one part of a GGUF that is split into several.",
            facts={"split.count": meta["split.count"]},
            cure="Join the parts with llama.cpp's `llama-gguf-split --merge`.",
        )
    own: dict[str, Any] = {
        key.removeprefix(f"{arch}."): value for key, value in meta.items() if key.startswith(f"{arch}.")
    }
    _check_keys(file, own)
    config: dict[str, Any] = {"model_type": arch}
    for key, name in SIZES.items():
        if key == "attention.head_count_kv" and key not in own:
            own[key] = own.get("attention.head_count")
        kind = float if name == "rms_norm_eps" else int
        if isinstance(own.get(key), bool) or not isinstance(own.get(key), kind) or not 0 < own[key] < 2**31:
            raise file.error("a number is missing from the metadata.", facts={f"{arch}.{key}": own.get(key, "missing")})
        config[name] = own[key]
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise file.error("tensors are missing from the checkpoint.", facts={"tensors": ["token_embd.weight"]})
    head_dim = own.get("attention.key_length", config["hidden_size"] // config["num_attention_heads"])
    if own.get("attention.value_length", head_dim) != head_dim or own.get("rope.dimension_count", head_dim) != head_dim:
        raise file.error(
            "keys, values and rotation must have the same width.",
            facts={
                key: own.get(key) for key in ("attention.key_length", "attention.value_length", "rope.dimension_count")
            },
        )
    window = own.get("attention.sliding_window")
    if window and arch == "llama":
        config["model_type"] = "mistral"
    if window:
        config |= {"sliding_window": window, "use_sliding_window": True, "max_window_layers": 0}
    return config | {
        "vocab_size": embedding.shape[0],
        "head_dim": head_dim,
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_down.bias" in file.tensors,
        "rope_parameters": rope_parameters(own, _factors(file), head_dim, str(file.path)),
    }


def _check_keys(file: GGUFFile, own: Mapping[str, Any]) -> None:
    """Refuse metadata that would change the computation and is not built here."""
    for key, value in own.items():
        harmless = key in _HARMLESS and _HARMLESS[key] in (None, value)
        if not (key in SIZES or key.startswith("rope.") or harmless):
            raise file.error(
                "the metadata holds a key that is not understood, so the model may compute something else.",
                facts={key: value},
                cure="Use the model's Hugging Face folder.",
            )


def _factors(file: GGUFFile) -> dict[str, list[float]]:
    """The per-pair divisors that the file stores as tensors."""
    return {
        name.removesuffix(".weight"): [float(f) for f in file.read(name).flatten()]
        for name in ROPE_TENSORS
        if name in file.tensors
    }


def _stored_tensors(file: GGUFFile, config: DecoderConfig) -> dict[str, Stored]:
    """The file's tensors, keyed by the Decoder's names; q and k of permuted architectures are put back when read."""
    permuted = PERMUTED[file.metadata["general.architecture"]]
    stored = {}
    for name, tensor in file.tensors.items():
        if name in ROPE_TENSORS:
            continue
        back = permuted and re.fullmatch(r"blk\.\d+\.attn_[qk]\.(weight|bias)", name) is not None
        read = partial(_read, file, name, config.head_dim if back else None)
        stored[_our_name(name)] = Stored(name, tensor.shape, torch.float32, read)
    return stored


def _our_name(name: str) -> str:
    """The Decoder's name of a GGUF tensor; an unknown one keeps its own, and is reported as unexpected."""
    match = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.(weight|bias)", name)
    if match is None:
        return name
    layer, part, kind = match.groups()
    ours = OUTER.get(part) if layer is None else INNER.get(part)
    if ours is None:
        return name
    return f"{ours}.{kind}" if layer is None else f"layers.{layer}.{ours}.{kind}"


def _read(file: GGUFFile, name: str, head_dim: int | None, dtype: torch.dtype | None) -> Tensor:
    """One tensor, dequantised; with `head_dim`, its heads put from interleaved into half-split order."""
    tensor = file.read(name, dtype)
    return tensor if head_dim is None else convert_pairing(tensor, to="half", head_dim=head_dim, dim=0)
