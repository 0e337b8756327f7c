"""Models from GGUF files: the config, the tensors and the tokenizer for transformers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from ropewalk.checkpoints.gguf_file import ROPE_TENSORS, GGUFFile
from ropewalk.checkpoints.gguf_rope import divisors_of, own_keys, rope_parameters
from ropewalk.checkpoints.gguf_tokenizer import tokenizer_from_metadata
from ropewalk.errors import RopeError, library_errors
from ropewalk.imports import need
from ropewalk.rope.config import fraction_of
from ropewalk.rope.model_ropes import ModelRopes
from ropewalk.rope.pairing import convert_pairing
from ropewalk.tokenizer import TextTokenizer

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
SIZES = {
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "block_count": "num_hidden_layers",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "context_length": "max_position_embeddings",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
}
# Keys that change nothing if they have this value (None: any value).
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


def gguf_tokenizer(file: GGUFFile) -> TextTokenizer | None:
    """Return the tokenizer of a GGUF file, or None if it has none."""
    return tokenizer_from_metadata(file.metadata, str(file.path)) if "tokenizer.ggml.model" in file.metadata else None


def config_fields(file: GGUFFile) -> dict[str, Any]:
    """Return the content of a config.json for the file, of an architecture in `PERMUTED`."""
    arch = file.metadata.get("general.architecture")
    if arch not in PERMUTED:
        raise file.error("unknown architecture.", facts={"general.architecture": arch, "known": sorted(PERMUTED)})
    own = _own_keys(file)
    for key, value in own.items():
        harmless = key in _HARMLESS and _HARMLESS[key] in (None, value)
        if not (key in SIZES or key.startswith("rope.") or harmless):
            raise _unknown_key(file, {key: value})
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
        widths = ("attention.key_length", "attention.value_length", "rope.dimension_count")
        raise file.error(
            "keys, values and rotation must have the same width.", facts={key: own.get(key) for key in widths}
        )
    _check_sizes(file, config, head_dim)
    window = own.get("attention.sliding_window")
    if window and arch == "llama":
        config["model_type"] = "mistral"
    if window:
        config |= {"sliding_window": window, "use_sliding_window": True, "max_window_layers": 0}
    config |= {
        "vocab_size": embedding.shape[0],
        "head_dim": head_dim,
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_down.bias" in file.tensors,
        "rope_parameters": rope_parameters(own, divisors_of(file), head_dim, str(file.path), arch=arch),
    }
    return config


def _check_sizes(file: GGUFFile, config: Mapping[str, Any], head_dim: int) -> None:
    """Raise `RopeError` for sizes that the tensors do not have, before a model of these sizes is built."""
    layers, hidden = config["num_hidden_layers"], config["hidden_size"]
    if layers > len(file.tensors):
        raise file.error(
            "tensors are missing from the checkpoint.", facts={"tensors": len(file.tensors), "block_count": layers}
        )
    shapes = {
        "token_embd": (None, hidden),
        "blk.0.attn_q": (config["num_attention_heads"] * head_dim, hidden),
        "blk.0.attn_k": (config["num_key_value_heads"] * head_dim, hidden),
        "blk.0.ffn_up": (config["intermediate_size"], hidden),
    }
    for name, wanted in shapes.items():
        tensor = file.tensors.get(f"{name}.weight")
        if tensor is not None and any(size not in (None, own) for size, own in zip(wanted, tensor.shape, strict=True)):
            raise file.error(
                "the shape of a tensor differs from the metadata.",
                facts={"tensor": f"{name}.weight", "file": tensor.shape, "metadata": wanted},
            )


def _own_keys(file: GGUFFile) -> dict[str, Any]:
    """Return the architecture's metadata; raise `RopeError` for one part of a split file, which lacks tensors."""
    if file.metadata.get("split.count", 0) not in (0, 1):
        raise file.error(
            "this is one part of a split GGUF file.",
            facts={"split.count": file.metadata["split.count"]},
            cure="Join the parts with llama.cpp's `llama-gguf-split --merge`.",
        )
    return own_keys(file)[1]


def _unknown_key(file: GGUFFile, facts: dict[str, Any]) -> RopeError:
    return file.error(
        "the metadata contains an unknown key, so the model may be a different one.",
        facts=facts,
        cure="Use the model's Hugging Face folder.",
    )


def hugging_face_tensors(file: GGUFFile, head_dim: int, dtype: torch.dtype | None) -> dict[str, Tensor]:
    """Return the file's tensors as transformers names and orders them, with the permutation of q and k undone."""
    permuted = PERMUTED[file.metadata["general.architecture"]]
    tensors = {}
    for name in file.tensors:
        if name in ROPE_TENSORS:
            continue
        back = permuted and re.fullmatch(r"blk\.\d+\.attn_[qk]\.(weight|bias)", name) is not None
        tensor = file.read(name, dtype)
        tensors[_name_of(name)] = convert_pairing(tensor, to="half", head_dim=head_dim, dim=0) if back else tensor
    return tensors


def _name_of(name: str) -> str:
    """Return transformers' name of a GGUF tensor; an unknown tensor keeps its own and is reported."""
    match = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.(weight|bias)", name)
    if match is None:
        return name
    layer, part, kind = match.groups()
    theirs = OUTER.get(part) if layer is None else INNER.get(part)
    if theirs is None:
        return name
    outer = theirs if theirs == "lm_head" else f"model.{theirs}"
    return f"{outer}.{kind}" if layer is None else f"model.layers.{layer}.{theirs}.{kind}"


# Other families, which transformers computes

# Keys that transformers' reader ignores, and the config's keys for the same number, if the class has one.
_FURTHER = {
    "attention.layer_norm_epsilon": ("norm_epsilon", "layer_norm_epsilon", "layer_norm_eps"),
    "attention.layer_norm_rms_epsilon": ("rms_norm_eps",),
    "attention.key_length": ("head_dim",),
    "attention.value_length": ("head_dim",),
    "attention.sliding_window": ("sliding_window",),
    "attn_logit_softcapping": ("attn_logit_softcapping",),
    "final_logit_softcapping": ("final_logit_softcapping",),
    "expert_feed_forward_length": ("moe_intermediate_size", "intermediate_size"),
    "expert_shared_feed_forward_length": ("shared_expert_intermediate_size",),
    "expert_count": ("num_experts", "num_local_experts"),
    "expert_used_count": ("num_experts_per_tok",),
    "use_parallel_residual": ("use_parallel_residual",),
}
_ZERO_IS_NONE = ("attention.sliding_window", "attn_logit_softcapping", "final_logit_softcapping")
_HARMLESS_FOREIGN = ("vocab_size", "tensor_data_layout", "attention.causal", "pooling_type", "context_length")
_MAPPED = ("block_count", "feed_forward_length", "embedding_length", "attention.head_count", "attention.head_count_kv")


@contextmanager
def read_by_transformers(file: GGUFFile) -> Iterator[None]:
    """Make transformers read this file through `GGUFFile` inside the block: gguf's reader takes 29 times as long."""
    fields = {}
    for key, typed in file.typed.items():
        if ".rope.scaling." in key:  # `_put_rope` reads them; transformers' reader of gpt-oss fails on them
            continue
        values = typed.value if typed.element is not None else [typed.value]
        parts = [value if isinstance(value, bytes) else (value,) for value in values]
        types = [typed.kind] if typed.element is None else [typed.kind, typed.element]
        fields[key] = SimpleNamespace(parts=parts, data=range(len(parts)), types=types)
    kinds = need("gguf").GGMLQuantizationType
    tensors = [
        SimpleNamespace(name=name, tensor_type=kinds(tensor.kind), data=file.stored(name))
        for name, tensor in file.tensors.items()
    ]
    reader = SimpleNamespace(fields=fields, tensors=tensors)
    theirs = need("transformers.modeling_gguf_pytorch_utils", "transformers")
    with (
        mock.patch.object(need("gguf"), "GGUFReader", return_value=reader),
        mock.patch.object(theirs, "tqdm", lambda items, **_: items),
    ):
        yield


def gguf_config(file: GGUFFile) -> dict[str, Any]:
    """Return the content of a config.json with which transformers computes the model of a file.

    Raises `RopeError` as `foreign_config`.
    """
    if file.metadata.get("general.architecture") in PERMUTED:
        return config_fields(file)
    config: dict[str, Any] = foreign_config(file).to_dict()
    return config


def foreign_config(file: GGUFFile) -> Any:
    """Return the transformers config of a GGUF file, completed with keys ignored by transformers' reader.

    **Raises:** `RopeError` for an architecture not supported by transformers' GGUF reader, a split file, unknown
    metadata, and a rope that the config cannot express.
    """
    kit, path = need("transformers", "transformers"), file.path
    arch = str(file.metadata.get("general.architecture"))
    if arch in PERMUTED:
        return _known_config(config_fields(file), file)
    supported = need("transformers.modeling_gguf_pytorch_utils").GGUF_SUPPORTED_ARCHITECTURES
    known = {name.replace("_", "").replace("-", "") for name in supported}
    if arch.replace("_", "").replace("-", "") not in known:
        raise file.error(
            "neither ropewalk nor transformers' GGUF reader supports this architecture.",
            facts={"general.architecture": arch, "transformers": kit.__version__},
            cure="Use the model's Hugging Face folder.",
        )
    own = _own_keys(file)
    rule = "load: transformers rejects the metadata of the GGUF file, or a value has the wrong type."
    with library_errors(rule, facts={"file": str(path)}, cure="Use the model's Hugging Face folder."):
        if arch == "gemma4":
            config = _known_config(_gemma4_fields(own, file), file)
        else:
            with read_by_transformers(file):
                config = kit.AutoConfig.from_pretrained(path.parent, gguf_file=path.name, local_files_only=True)
        _remove_padding(config)
        _complete(config, own, file)
        _put_rope(config, own, file)
    return config


def _gemma4_fields(own: dict[str, Any], file: GGUFFile) -> dict[str, Any]:
    """Return a config for Gemma 4, and remove its keys with one value for each layer from `own`.

    Source: `Gemma4Model.set_gguf_parameters` in llama.cpp's conversion/gemma.py, b11549.
    """
    fields: dict[str, Any] = {name: own.get(key) for key, name in SIZES.items()}
    sliding, layers = own.pop("attention.sliding_window_pattern", None), fields["num_hidden_layers"]
    wide, heads = (
        of if isinstance(of, list) else [of] * layers
        for of in (fields["intermediate_size"], fields["num_key_value_heads"])
    )
    keys = ("attention.key_length", "attention.value_length", "rope.dimension_count")
    local, whole = ([own.pop(f"{key}{end}", None) for key in keys] for end in ("_swa", ""))
    if (
        not isinstance(sliding, list)
        or {len(sliding), len(wide), len(heads)} != {layers}
        or not 0 < sum(sliding) < layers
    ):
        raise file.error(
            "the layers of the metadata differ in number, or are all of one kind.", facts={"layers": layers}
        )
    if len({*local}) > 1 or len({*whole}) > 1:
        raise file.error("keys, values and rotation must have the same width.", facts={"_swa": local, "full": whole})
    full = sliding.index(False)
    return fields | {
        "model_type": "gemma4_text",
        "vocab_size": file.tensors["token_embd.weight"].shape[0],
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "layer_types": ["sliding_attention" if one else "full_attention" for one in sliding],
        "head_dim": local[0],
        "global_head_dim": whole[0],
        "num_key_value_heads": heads[sliding.index(True)],
        "num_global_key_value_heads": heads[full],
        "attention_k_eq_v": f"blk.{full}.attn_v.weight" not in file.tensors,
        "intermediate_size": min(wide),
        "use_double_wide_mlp": max(wide) > min(wide),
        "hidden_size_per_layer_input": own.pop("embedding_length_per_layer_input", 0),
        "vocab_size_per_layer_input": file.tensors["token_embd.weight"].shape[0],
        "num_kv_shared_layers": own.pop("attention.shared_kv_layers", 0),
        "enable_moe_block": bool(own.get("expert_count")),
        "top_k_experts": own.pop("expert_used_count", None),
    }


def _known_config(fields: dict[str, Any], file: GGUFFile) -> Any:
    """Return the transformers config with these fields and the file's special tokens."""
    for name in ("bos_token_id", "eos_token_id"):
        token = file.metadata.get(f"tokenizer.ggml.{name}")
        fields[name] = token if isinstance(token, int) and token < fields["vocab_size"] else None
    config = need("transformers", "transformers").CONFIG_MAPPING[fields["model_type"]](**fields)
    _remove_padding(config)
    return config


def _remove_padding(config: Any) -> None:
    """Remove the class's default for the padding token if it belongs to a different vocabulary."""
    if (config.pad_token_id or 0) >= config.vocab_size:
        config.pad_token_id = None


def foreign_tensors(file: GGUFFile, config: Any, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return the file's tensors as transformers names and orders them, for the result of `foreign_config`.

    Raises the errors of transformers' reader.
    """
    if file.metadata["general.architecture"] in PERMUTED:
        return hugging_face_tensors(file, config_fields(file)["head_dim"], dtype)
    kit = need("transformers")
    with torch.device("meta"):
        names = kit.AutoModelForCausalLM.from_config(config)
    with read_by_transformers(file):
        load = need("transformers.modeling_gguf_pytorch_utils").load_gguf_checkpoint
        read = load(str(file.path), return_tensors=True, model_to_load=names, torch_dtype=dtype)
    scalars = (re.fullmatch(r"blk\.(\d+)\.layer_output_scale\.weight", name) for name in file.tensors)  # Gemma 4's
    own = {f"model.layers.{one[1]}.layer_scalar": file.read(one[0], dtype) for one in scalars if one is not None}
    return {**read["tensors"], **own}


def _complete(config: Any, own: dict[str, Any], file: GGUFFile) -> None:
    """Add the keys ignored by transformers to the config; raise `RopeError` for unknown ones."""
    for key, value in own.items():
        name = next((name for name in _FURTHER.get(key, ()) if name in vars(config)), None)
        if name is not None:
            setattr(config, name, None if value == 0 and key in _ZERO_IS_NONE else value)
        elif not (key.startswith("rope.") or key in _HARMLESS_FOREIGN or key in _MAPPED or not value):
            raise _unknown_key(file, {key: value, "model_type": config.model_type})


def _over(present: Mapping[str, Any], block: Mapping[str, Any]) -> dict[str, Any]:
    """Return a file's block over the class's own, whose numbers stay only if both have one rule."""
    same = present.get("rope_type", "default") == block["rope_type"]
    kept = ("rope_theta", "partial_rotary_factor", "mrope_section")
    return {**{key: value for key, value in present.items() if same or key in kept}, **block}


def _put_rope(config: Any, own: dict[str, Any], file: GGUFFile) -> None:
    """Add the file's rope to the config; llama.cpp's files of Gemma 3 and 4 scale only layers of full attention."""
    fields, local = vars(config), own.pop("rope.freq_base_swa", None)
    head_dim = fields.get("head_dim") or config.hidden_size // config.num_attention_heads
    width = own.get("rope.dimension_count", head_dim)
    arch = str(file.metadata["general.architecture"])
    block = rope_parameters(own, divisors_of(file), width, str(file.path), arch=arch)
    if "rope.freq_base" not in own:
        block.pop("rope_theta")
    present = config.rope_parameters or {}
    nested = {key: dict(one) for key, one in present.items() if isinstance(one, dict)}
    if nested:
        nested["full_attention"] = _over(nested["full_attention"], block)
        if local is not None:
            nested["sliding_attention"]["rope_theta"] = float(local)
        config.rope_parameters = nested
    else:
        if local not in (None, present.get("rope_theta")):
            raise file.error("the file has two thetas, but this family has one.", facts={"rope.freq_base_swa": local})
        if width != head_dim or "partial_rotary_factor" in present:
            block["partial_rotary_factor"] = fraction_of(width, head_dim)
        config.rope_parameters = _over(present, block)
    if block.get("original_max_position_embeddings") and "original_max_position_embeddings" in fields:
        config.original_max_position_embeddings = block["original_max_position_embeddings"]
    try:
        ModelRopes.from_hf(config)
    except RopeError as error:
        raise file.error(
            "the rope of the GGUF file does not fit what transformers computes for this architecture.",
            facts={"rope.dimension_count": width, "reason": error.rule},
            cure="Use the model's Hugging Face folder.",
        ) from error
