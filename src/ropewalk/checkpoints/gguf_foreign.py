"""GGUF files of families that are not built here: transformers' own reader, whose reading is held to the file.

transformers maps a part of the metadata and passes over the rest. What it passes over is put into the config where its
meaning is known, and refused where it is not: a scaling of the rope, a soft cap or a width would be lost in silence.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ropewalk.checkpoints.gguf_file import GGUFFile
from ropewalk.checkpoints.gguf_rope import rope_parameters
from ropewalk.errors import RopeError
from ropewalk.optional import need
from ropewalk.rope.ropes import ropes_of_layer_types

# Keys that transformers' reader passes over, and the config's key of the same number, where the class has it.
_FURTHER = {
    "attention.layer_norm_epsilon": ("norm_epsilon", "layer_norm_epsilon", "layer_norm_eps"),
    "attention.layer_norm_rms_epsilon": ("rms_norm_eps",),
    "attention.key_length": ("head_dim",),
    "attention.value_length": ("head_dim",),
    "attention.sliding_window": ("sliding_window",),
    "attn_logit_softcapping": ("attn_logit_softcapping",),
    "final_logit_softcapping": ("final_logit_softcapping",),
    "expert_feed_forward_length": ("moe_intermediate_size",),
    "expert_shared_feed_forward_length": ("shared_expert_intermediate_size",),
    "expert_count": ("num_experts", "num_local_experts"),
    "expert_used_count": ("num_experts_per_tok",),
    "use_parallel_residual": ("use_parallel_residual",),
}
_HARMLESS = ("vocab_size", "tensor_data_layout", "attention.causal", "pooling_type", "context_length")
_MAPPED = ("block_count", "feed_forward_length", "embedding_length", "attention.head_count", "attention.head_count_kv")
_ROPE_TENSORS = ("rope_freqs", "rope_factors_long", "rope_factors_short")


def foreign_config(path: Path) -> Any:
    """The transformers config of a GGUF file, with what transformers' reader passes over.

    Raises `RopeError` for an architecture that it does not read, a split file, metadata whose meaning is not known, and
    a rope that the config cannot say.
    """
    file, kit = GGUFFile(path), need("transformers", "transformers")
    supported = need("transformers.modeling_gguf_pytorch_utils").GGUF_SUPPORTED_ARCHITECTURES
    arch = str(file.metadata.get("general.architecture"))
    known = {name.replace("_", "").replace("-", "") for name in supported}
    if arch.replace("_", "").replace("-", "") not in known:
        raise file.error(
            "neither ropewalk nor transformers' GGUF reader builds this architecture.",
            facts={"general.architecture": arch, "transformers": kit.__version__},
            cure="Use the model's Hugging Face folder.",
        )
    if file.metadata.get("split.count", 0) not in (0, 1):
        raise file.error(
            "this is one part of a GGUF that is split into several.",
            facts={"split.count": file.metadata["split.count"]},
            cure="Join the parts with llama.cpp's `llama-gguf-split --merge`.",
        )
    try:
        config = kit.AutoConfig.from_pretrained(path.parent, gguf_file=path.name, local_files_only=True)
    except (ValueError, KeyError, TypeError, OSError, IndexError) as error:
        raise file.error(
            "transformers' reader refuses the file's metadata.", facts={"error": str(error)[:400]}
        ) from error
    own = {key.removeprefix(f"{arch}."): value for key, value in file.metadata.items() if key.startswith(f"{arch}.")}
    if (config.pad_token_id or 0) >= config.vocab_size:
        config.pad_token_id = None  # the class's default, for another vocabulary
    _complete(config, own, file)
    _put_rope(config, own, file)
    return config


def _complete(config: Any, own: dict[str, Any], file: GGUFFile) -> None:
    """Put the keys that transformers passes over into the config; refuse those whose meaning is not known."""
    for key, value in own.items():
        names = [name for name in _FURTHER.get(key, ()) if hasattr(config, name)]
        if names:
            setattr(config, names[0], value)
        elif not (key.startswith("rope.") or key in _HARMLESS or key in _MAPPED or not value):
            raise file.error(
                "the metadata holds a key that is not understood, so the model may compute something else.",
                facts={key: value, "model_type": config.model_type},
                cure="Use the model's Hugging Face folder.",
            )


def _put_rope(config: Any, own: dict[str, Any], file: GGUFFile) -> None:
    """The rope as the file says it; llama.cpp's files of Gemma 3 scale the layers of full attention alone."""
    factors = {
        name: [float(one) for one in file.read(f"{name}.weight").flatten()]
        for name in _ROPE_TENSORS
        if f"{name}.weight" in file.tensors
    }
    width = own.get("rope.dimension_count")
    local = own.pop("rope.freq_base_swa", None)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    block = rope_parameters(own, factors, head_dim, str(file.path))
    if "rope.freq_base" not in own:
        block.pop("rope_theta")
    present = config.rope_parameters or {}
    nested = {key: dict(one) for key, one in present.items() if isinstance(one, dict)}
    if nested:
        nested["full_attention"] = {**nested["full_attention"], **block}
        if local is not None:
            nested["sliding_attention"]["rope_theta"] = float(local)
        config.rope_parameters = nested
    else:
        if local not in (None, present.get("rope_theta")):
            raise file.error("the file has two thetas, and this family one.", facts={"rope.freq_base_swa": local})
        config.rope_parameters = {**present, **block}
    if block.get("original_max_position_embeddings") and hasattr(config, "original_max_position_embeddings"):
        config.original_max_position_embeddings = block["original_max_position_embeddings"]
    read = [rope for rope in ropes_of_layer_types(config).values() if rope is not None]
    if width is not None and any(rope.rotary_dim != width for rope in read):
        raise RopeError(
            "load: transformers' reader gives the model another rotary width than the GGUF file says.",
            facts={"file": str(file.path), "rope.dimension_count": width, "read": read[0].rotary_dim},
            cure="Use the model's Hugging Face folder.",
        )
