"""Models from GGUF files: the config, the tensors and the tokenizer for transformers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ropewalk.checkpoints.gguf_file import ROPE_TENSORS, GGUFFile
from ropewalk.checkpoints.gguf_rope import PERMUTED, SIZES, gguf_fields, gguf_ropes, model_type_of, own_keys
from ropewalk.checkpoints.load import WithoutValues, check_layers
from ropewalk.errors import RopeError, library_errors
from ropewalk.imports import need
from ropewalk.rope.model_ropes import ModelRopes
from ropewalk.rope.pairing import convert_pairing
from ropewalk.rope.values import is_number
from ropewalk.tokenizer import TextTokenizer

_LESS_ONE = ("gemma2", "gemma3")  # transformers adds 1 to their norms
_READ = (*PERMUTED, "qwen2moe", "qwen3moe", "gemma2", "gemma3", "gemma4", "phi3", "starcoder2", "stablelm", "falcon")

# Keys of the metadata, and the names of the same number in a config: the first that its class has.
_NAMES: dict[str, tuple[str, ...]] = {
    **{key: (name,) for key, name in SIZES.items()},
    "feed_forward_length": ("intermediate_size",),
    "attention.layer_norm_epsilon": ("norm_epsilon", "layer_norm_epsilon", "layer_norm_eps"),
    "attention.layer_norm_rms_epsilon": ("rms_norm_eps",),
    "attn_logit_softcapping": ("attn_logit_softcapping",),
    "final_logit_softcapping": ("final_logit_softcapping",),
    "expert_feed_forward_length": ("moe_intermediate_size", "intermediate_size"),
    "expert_shared_feed_forward_length": ("shared_expert_intermediate_size",),
    "expert_count": ("num_experts", "num_local_experts"),
    "expert_used_count": ("num_experts_per_tok",),
    "use_parallel_residual": ("use_parallel_residual",),
}
_ZERO_IS_NONE = ("attention.sliding_window", "attn_logit_softcapping", "final_logit_softcapping")
_UNNAMED = ("vocab_size", "tensor_data_layout", "feed_forward_length", "attention.head_count_kv",
            "attention.key_length", "attention.value_length")  # fmt: skip
_BIASES = {
    "attention_bias": "blk.0.attn_q.bias",
    "use_qkv_bias": "blk.0.attn_q.bias",
    "mlp_bias": "blk.0.ffn_down.bias",
}


def gguf_config(file: GGUFFile) -> Any:
    """Return the transformers config with which a GGUF file computes its model.

    **Raises:** `RopeError` for an architecture whose tensors we do not know, a split file, missing or unknown metadata,
    and a rope that the config cannot express.
    """
    kit, (arch, own), tensors = need("transformers", "transformers"), own_keys(file), file.tensors
    if arch not in _READ:
        raise file.error(
            "the weights of this architecture are not read from GGUF files.",
            facts={"general.architecture": arch, "known": sorted(_READ)},
            cure="Use the model's Hugging Face folder.",
        )
    if file.metadata.get("split.count", 0) not in (0, 1):
        raise file.error(
            "this is one part of a split GGUF file.",
            facts={"split.count": file.metadata["split.count"]},
            cure="Join the parts with llama.cpp's `llama-gguf-split --merge`.",
        )
    epsilon = own.get("attention.layer_norm_epsilon", own.get("attention.layer_norm_rms_epsilon", "missing"))
    if not is_number(epsilon) or epsilon <= 0:
        facts = {f"{arch}.attention.layer_norm_epsilon, or _rms_epsilon": epsilon}
        raise file.error("a number is missing from the metadata.", facts=facts)
    embedding = tensors.get("token_embd.weight")
    check_layers(own.get("block_count"), 0 if embedding is None else len(tensors), str(file.path))
    ropes, vocab = gguf_ropes(file), 0 if embedding is None else embedding.shape[0]  # the first checks the sizes
    rule = "load: transformers rejects the metadata of the GGUF file, or a value has the wrong type."
    with library_errors(rule, facts={"file": str(file.path)}, cure="Use the model's Hugging Face folder."):
        kind = kit.CONFIG_MAPPING[model_type_of(file)]
        known, more = vars(kind()), _gemma4_fields(own, file) if arch == "gemma4" else _more_fields(arch, own, file)
        fields: dict[str, Any] = {name: bias in tensors for name, bias in _BIASES.items() if name in known}
        for key, value in own.items():
            name = next((name for name in _NAMES.get(key, ()) if name in known), None)
            says = not value if key == "attention.causal" else bool(value)
            if name is not None:
                fields[name] = None if value == 0 and key in _ZERO_IS_NONE else value
            elif says and not (key.startswith("rope.") or key in _UNNAMED):
                raise file.error(
                    "the metadata contains an unknown key, so the model may be a different one.",
                    facts={key: value, "model_type": kind.model_type},
                    cure="Use the model's Hugging Face folder.",
                )
        for name, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding")):
            token = file.metadata.get(f"tokenizer.ggml.{key}_token_id")
            fields[f"{name}_token_id"] = token if isinstance(token, int) and token < vocab else None
        tied = "output.weight" not in tensors or arch == "falcon"
        config = kind(**{**fields, "vocab_size": vocab, "tie_word_embeddings": tied, **more})
        _put_ropes(config, ropes, file)
    return config


def _more_fields(arch: str, own: Mapping[str, Any], file: GGUFFile) -> dict[str, Any]:
    """Return what no single key of the metadata states."""
    head = own.get("attention.key_length", own["embedding_length"] // own["attention.head_count"])
    if own.get("attention.value_length", head) != head:
        facts = {key: own.get(key) for key in ("attention.key_length", "attention.value_length")}
        raise file.error("keys and values must have the same width.", facts=facts)
    fields: dict[str, Any] = {} if arch == "falcon" else {"head_dim": head}
    if arch == "qwen3moe":
        fields["norm_topk_prob"] = True  # as llama.cpp computes it
    if arch in PERMUTED and own.get("attention.sliding_window"):
        fields |= {"use_sliding_window": True, "max_window_layers": 0}
    return fields


def _gemma4_fields(own: dict[str, Any], file: GGUFFile) -> dict[str, Any]:
    """Return the fields of Gemma 4's config that differ by layer, and remove their keys from `own`.

    Source: `Gemma4Model.set_gguf_parameters` in llama.cpp's conversion/gemma.py, b11549.
    """
    sliding, layers = own.pop("attention.sliding_window_pattern", None), own["block_count"]
    wide, heads = (
        of if isinstance(of, list) else [of] * layers
        for of in (own.get("feed_forward_length"), own.get("attention.head_count_kv"))
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
    return {
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


def _put_ropes(config: Any, ropes: ModelRopes, file: GGUFFile) -> None:
    """Add the file's ropes to the config, over the class's own, whose numbers stay only if both have one rule."""
    present, stated = config.rope_parameters or {}, gguf_fields(file, ropes)["rope_parameters"]
    blocks = {"full_attention": stated} if "rope_type" in stated else stated
    nested = any(isinstance(one, dict) for one in present.values())
    if not nested and len({*ropes.rotating.values()}) > 1:
        raise file.error("the layers of the file have different ropes, but this family has one.", facts=dict(blocks))
    for name, block in blocks.items():
        own = present.get(name, {}) if nested else present
        same = own.get("rope_type", "default") == block["rope_type"]
        kept = {key: value for key, value in own.items() if same or key in ("partial_rotary_factor", "mrope_section")}
        if "partial_rotary_factor" in own:
            block.setdefault("partial_rotary_factor", 1.0)
        if block["rope_type"] != "default" and own_keys(file)[1].get("rope.scaling.finetuned") is True:
            block["finetuned"] = True
        blocks[name] = kept | block
        if "original_max_position_embeddings" in block and "original_max_position_embeddings" in vars(config):
            config.original_max_position_embeddings = block["original_max_position_embeddings"]
    config.rope_parameters = {**present, **blocks} if nested else next(iter(blocks.values()))
    try:
        ModelRopes.from_hf(config)
    except RopeError as error:
        raise file.error(
            "the rope of the GGUF file does not fit what transformers computes for this architecture.",
            facts={"rope": blocks, "reason": error.rule},
            cure="Use the model's Hugging Face folder.",
        ) from error


def gguf_tensors(file: GGUFFile, config: Any, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return the file's tensors as transformers names and orders them, for the result of `gguf_config`.

    Those of other names keep them, so that the loader reports them. Raises `RopeError` for a tensor of another shape
    than the config's, before a model of damaged sizes is built.
    """
    gguf, arch = need("gguf"), str(file.metadata["general.architecture"])
    with torch.device("meta"), WithoutValues():
        model = need("transformers").AutoModelForCausalLM.from_config(config)
    number = next(number for number, name in gguf.MODEL_ARCH_NAMES.items() if name == arch)
    table, read, left = gguf.get_tensor_name_map(number, config.num_hidden_layers), dict[str, Tensor](), {*file.tensors}
    for name, weight in model.state_dict().items():
        stem, _, kind = name.rpartition(".")
        stem, kind = (stem, kind) if kind in ("weight", "bias") else (name, "weight")
        stems = [table.get_name(stem)]
        if stem.endswith("experts.gate_up_proj"):
            stems = [table.get_name(stem.replace("gate_up", half)) for half in ("gate", "up")]
        here = [f"{one}.{kind}" for one in stems]
        if not left.issuperset(here):
            continue  # the loader reports it, unless it is tied
        left -= {*here}
        if arch in _LESS_ONE and name.endswith("norm.weight"):
            tensor = (file.read(here[0]) - 1).to(dtype)
        else:
            tensor = torch.cat([file.read(one, dtype) for one in here], 1) if here[1:] else file.read(here[0], dtype)
        if PERMUTED.get(arch) and ".self_attn." in name and stem.endswith(("q_proj", "k_proj")):
            tensor = convert_pairing(tensor, to="half", head_dim=config.head_dim, dim=0)
        read[name] = tensor[None] if stem.endswith("shared_expert_gate") else tensor
        if read[name].shape != weight.shape:
            facts = {"tensor": here[0], "stored": tuple(tensor.shape), "metadata": tuple(weight.shape)}
            raise file.error("the shape of a tensor differs from the metadata.", facts=facts)
    if arch == "gemma4":
        return read  # files of Gemma 4 repeat keys and values in layers that share them
    return read | {name: file.read(name) for name in sorted(left - {*ROPE_TENSORS})}


# --- the tokenizer

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3, _QWEN2 = _WORDS % r"\p{N}{1,3}", _WORDS % r"\p{N}"
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

# The expressions by which each `tokenizer.ggml.pre` splits text before the merges, applied one after the other.
CUTS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone"), (r"\p{N}", _GPT2)),
    **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling"), (_GPT2,)),
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral", "smaug-bpe", "dbrx"), (_LLAMA3,)),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "stablelm2", "hunyuan"), (_QWEN2,)),
    "tekken": (_TEKKEN,),
    "default": (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"),
}
_NORMAL, _CONTROL, _USER_DEFINED = 1, 3, 4  # of `tokenizer.ggml.token_type`
# With these, a word that is itself a token is not split, and a text begins with the bos token by default.
_WHOLE_WORDS = frozenset({"llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral", "tekken"})


def gguf_tokenizer(file: GGUFFile) -> TextTokenizer | None:
    """Return the tokenizer of a GGUF file, or None if it has none."""
    return tokenizer_from_metadata(file.metadata, str(file.path)) if "tokenizer.ggml.model" in file.metadata else None


def tokenizer_from_metadata(metadata: Mapping[str, Any], source: str) -> TextTokenizer:
    """Return the `TextTokenizer` in a GGUF file's metadata; `source` names the file in errors."""
    own = {key.removeprefix("tokenizer.ggml."): value for key, value in metadata.items()}
    for key, known in (("model", ("gpt2", "llama")), ("pre", sorted(CUTS)))[: 2 if own.get("model") == "gpt2" else 1]:
        if own.get(key, "default") not in known:
            raise RopeError(
                "TextTokenizer: the GGUF file has no supported tokenizer.",
                facts={"file": source, f"tokenizer.ggml.{key}": own.get(key), "known": known},
                cure="Use the model's Hugging Face folder with its tokenizer.json, or pass your own tokenizer.",
            )
    rule = "TextTokenizer: the tokenizer in the GGUF file's metadata is damaged."
    cure = "Fetch or convert the file again."
    for key, of in (("tokens", str), ("merges", str), ("scores", float), ("token_type", int)):
        entries = own.get(key, [])
        if not isinstance(entries, list) or not all(isinstance(entry, of) for entry in entries):
            facts = {"file": source, f"tokenizer.ggml.{key}": f"not a list of {of.__name__}"}
            raise RopeError(rule, facts=facts, cure=cure)
    with library_errors(rule, facts={"file": source}, cure=cure):
        return _made(own, metadata.get("tokenizer.chat_template"))


def _made(own: Mapping[str, Any], chat: object) -> TextTokenizer:
    """Return the tokenizer of metadata without their prefix; whatever does not fit raises."""
    kit, tokens = need("tokenizers"), own["tokens"]
    types = own.get("token_type") or [_NORMAL] * len(tokens)
    bytes_of = own["model"] == "gpt2"
    tokenizer = _byte_level(own, tokens) if bytes_of else _sentencepiece(own, tokens, types)
    for special, control in ((True, _CONTROL), (False, _USER_DEFINED)):  # matched before the text is split
        chosen = [token for token, its in zip(tokens, types, strict=True) if its == control and token]
        tokenizer.add_tokens([kit.AddedToken(token, normalized=False, special=special) for token in chosen])
    ids = {key: own.get(f"{key}_token_id") for key in ("bos", "eos", "eot", "eom")}
    begin, *end = [[one] if isinstance(one, int) and 0 <= one < len(tokens) else [] for one in ids.values()]
    ends = [one for found in end for one in found]
    bos = own.get("add_bos_token")
    if bos is None:
        bos = not bytes_of or own.get("pre") in _WHOLE_WORDS
    _surround(tokenizer, begin if bos else [], ends[:1] if own.get("add_eos_token") else [])
    return TextTokenizer(
        tokenizer, begin[0] if begin else None, ends, chat_template=chat if isinstance(chat, str) else None
    )


def _byte_level(own: Mapping[str, Any], tokens: list[str]) -> Any:
    """Build GPT-2's kind: byte-level BPE with the file's merges, each of two known tokens into a third."""
    kit, pre = need("tokenizers"), own.get("pre", "default")
    merges = [merge.partition(" ")[::2] for merge in own.get("merges") or []]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = kit.Tokenizer(kit.models.BPE(vocab=vocabulary, merges=merges, ignore_merges=pre in _WHOLE_WORDS))
    if pre == "qwen2":
        tokenizer.normalizer = kit.normalizers.NFC()  # as its tokenizer.json does; llama.cpp leaves it out
    cuts = [kit.pre_tokenizers.Split(kit.Regex(cut), behavior="isolated") for cut in CUTS[pre]]
    letters = kit.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = kit.pre_tokenizers.Sequence([*cuts, letters])
    tokenizer.decoder = kit.decoders.ByteLevel()
    return tokenizer


def _sentencepiece(own: Mapping[str, Any], tokens: list[str], types: list[int]) -> Any:
    """Build SentencePiece's BPE with byte fallback.

    Its merges are implied by the scores: every split of a token into two tokens, the best score first.
    """
    kit, scores, unknown = need("tokenizers"), own["scores"], own.get("unknown_token_id", 0)
    usable = {token for token, kind in zip(tokens, types, strict=True) if kind in (_NORMAL, _USER_DEFINED)}
    best = sorted(zip(scores, tokens, strict=True), key=lambda scored: -scored[0])
    pairs = ((token[:cut], token[cut:]) for _, token in best if token in usable for cut in range(1, len(token)))
    model = kit.models.BPE(
        vocab={token: number for number, token in enumerate(tokens)},
        merges=[(left, right) for left, right in pairs if left in usable and right in usable],
        unk_token=tokens[unknown] if isinstance(unknown, int) and 0 <= unknown < len(tokens) else None,
        fuse_unk=True,
        byte_fallback=True,
    )
    tokenizer = kit.Tokenizer(model)
    prefix = bool(own.get("add_space_prefix", True))
    spaces = kit.normalizers.Replace(" ", "▁")
    tokenizer.normalizer = kit.normalizers.Sequence([kit.normalizers.Prepend("▁"), spaces]) if prefix else spaces
    steps = [kit.decoders.Replace("▁", " "), kit.decoders.ByteFallback(), kit.decoders.Fuse()]
    tokenizer.decoder = kit.decoders.Sequence([*steps, *([kit.decoders.Strip(" ", 1, 0)] if prefix else [])])
    return tokenizer


def _surround(tokenizer: Any, begin: list[int], end: list[int]) -> None:
    """Make `encode(..., add_special=True)` add these tokens around a text."""
    before, after = ([tokenizer.id_to_token(number) for number in numbers] for numbers in (begin, end))
    if not (before or after):
        return
    second = [f"{piece}:1" for piece in (*before, "$B", *after)]
    tokenizer.post_processor = need("tokenizers").processors.TemplateProcessing(
        single=[*before, "$A", *after],
        pair=[*before, "$A", *after, *second],
        special_tokens=[*{*zip(before + after, begin + end, strict=True)}],
    )
