"""Small random models of many families, with every rope block that a config can have, in each of its spellings."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from ropewalk.atomic_io import write_json
from ropewalk.checkpoints.opening import quietly
from ropewalk.errors import RopeError
from ropewalk.rope.model_ropes import ModelRopes
from ropewalk.serving import apply
from ropewalk.tokenizer import TextTokenizer

TRAINED, CONTEXT, PROMPT, SHORT = 128, 512, 400, 100  # tokens
Record = dict[str, Any]
_SHAPE: Record = {
    "vocab_size": 320, "hidden_size": 128, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 256, "eos_token_id": 256,
}  # fmt: skip
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
_LATENT = {"q_lora_rank": 32, "kv_lora_rank": 32, "qk_rope_head_dim": 32, "qk_nope_head_dim": 32, "v_head_dim": 32,
           "n_routed_experts": 4, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 64,
           "first_k_dense_replace": 1}  # fmt: skip
_FULL = {"layer_types": ["full_attention", "full_attention"]}
FAMILIES: dict[str, Record] = {
    "llama": {}, "mistral": {"sliding_window": None}, "qwen2": {}, "qwen3": {"head_dim": 64}, "phi3": {},
    # llama.cpp expects these numbers: five sliding layers of six, one of four without rotation
    "gemma3_text": {"head_dim": 64, "query_pre_attn_scalar": 64, "num_hidden_layers": 6, "sliding_window": 64},
    "gemma2": {"head_dim": 64, "query_pre_attn_scalar": 64}, "starcoder2": {"sliding_window": None},
    "smollm3": {"num_hidden_layers": 4},
    "gemma": {"head_dim": 64}, "olmo2": {}, "olmo3": {"num_hidden_layers": 4, "sliding_window": 64}, "stablelm": {},
    "glm": {"head_dim": 64}, "glm4": {"head_dim": 64}, "cohere": {"logit_scale": 1.0},
    "cohere2": {"head_dim": 64, "logit_scale": 1.0, "num_hidden_layers": 4}, "gpt_neox": {"intermediate_size": 512},
    "granite": {},
    "exaone4": {"head_dim": 64, "sliding_window": None, "sliding_window_pattern": 4, **_FULL},
    "ernie4_5": {"head_dim": 64}, "seed_oss": {"head_dim": 64}, "hunyuan_v1_dense": {"head_dim": 64}, "apertus": {},
    "nemotron": {}, "phi": {}, "ministral3": {"head_dim": 64}, "arcee": {}, "helium": {"head_dim": 64},
    "qwen3_moe": {"head_dim": 64, "norm_topk_prob": True, **_EXPERTS},
    "olmoe": {"num_experts": 4, "num_experts_per_tok": 2},
    "mixtral": {"head_dim": 64, "num_local_experts": 4, "num_experts_per_tok": 2}, "qwen2_moe": {
        **_EXPERTS, "shared_expert_intermediate_size": 64},
    "granitemoe": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "gpt_oss": {"head_dim": 64, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 64},
    "deepseek_v3": _LATENT, "nanochat": {}, "falcon": {"new_decoder_architecture": True, "num_kv_heads": 2},
}  # fmt: skip
"""Families of transformers, and the sizes of their models."""
WINDOWS: dict[str, Record] = {
    "mistral": {"sliding_window": 64}, "starcoder2": {"sliding_window": 64}, "phi3": {"sliding_window": 64},
    "qwen2": {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 1},
    "qwen3": {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 1},
    "gemma2": {"sliding_window": 64}, "cohere2": {"sliding_window": 64},
    "exaone4": {"sliding_window": 64, "layer_types": ["sliding_attention", "full_attention"]},
}  # fmt: skip
"""Families that can have windows, and the keys of such a config: its layers without a window may rotate nothing."""


def _yarn(**more: Any) -> Record:
    return {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": TRAINED, **more}


def longrope(pairs: int) -> Record:
    """Return a LongRoPE block for a number of pairs."""
    lists = {f"{name}_factor": [1.0 + step * pair for pair in range(pairs)] for name, step in
             (("short", 0.02), ("long", 0.2))}  # fmt: skip
    return {"rope_type": "longrope", "factor": 4.0, "original_max_position_embeddings": TRAINED, **lists}


BLOCKS: dict[str, Record | None] = {
    "plain": {}, "linear": {"rope_type": "linear", "factor": 4.0}, "dynamic": {"rope_type": "dynamic", "factor": 4.0},
    "yarn": _yarn(), "yarn, attention_factor 1.3": _yarn(attention_factor=1.3),
    "yarn, truncate false": _yarn(truncate=False), "yarn, betas 8 and 2": _yarn(beta_fast=8, beta_slow=2),
    "yarn, mscale 0.7 and 0.5": _yarn(mscale=0.7, mscale_all_dim=0.5),
    "llama3": {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": TRAINED},
    "longrope, long": None, "longrope, short": None,
    "window": {}, "window, yarn": _yarn(),
}  # fmt: skip
"""Keys over those of the family's own block; None: `longrope`, whose lists have an entry for each pair."""
TABLES_ONLY: dict[str, Record] = {"proportional": {"rope_type": "proportional", "partial_rotary_factor": 0.25}}
"""Blocks of which only tables are compared (tables.py)."""
METHODS = {"plain": "plain", "linear": "pi", "dynamic": "dynamic", "yarn": "yarn", "llama3": "llama3"}
"""The method of `extend apply` that writes a block."""
UNSCALED = "queries unscaled"
"""The end of a block's name: without Ministral 3's factor of the queries by their position."""
SPELLINGS = ("rope_parameters", "rope_scaling", "extend apply")


@dataclass(frozen=True)
class Case:
    """A checkpoint: its family, block and spelling, the folder, and the prompt's length in tokens."""

    family: str
    block: str
    spelling: str
    folder: Path
    prompt: int


class Models:
    """The checkpoints of one family, written into a folder.

    **Arguments:** `family`: a key of `FAMILIES`. `place`: an empty folder.
    """

    def __init__(self, family: str, place: Path) -> None:
        self.family, self.place = family, place
        self.weights: dict[str, torch.Tensor] = {}

    def config(self, block: str) -> Any:
        """Return the config of transformers with a block; None if the family has no such block."""
        changes: Record = {**_SHAPE, **FAMILIES[self.family]}
        if block.startswith("window"):
            if self.family not in WINDOWS:
                return None
            changes |= WINDOWS[self.family]
        changes["max_position_embeddings"] = TRAINED if block == "dynamic" else CONTEXT
        config = AutoConfig.for_model(self.family, **changes)
        own = dict(config.rope_parameters)
        if block.endswith(UNSCALED):
            block = block.removesuffix(f", {UNSCALED}")
            own["llama_4_scaling_beta"] = 0.0
        wanted = {**BLOCKS, **TABLES_ONLY}[block]
        if wanted is None:
            rotated = next(rope for rope in ModelRopes.from_hf(config).rotating.values()).pairs
            wanted = longrope(rotated)
            changes["original_max_position_embeddings"] = TRAINED
        if not wanted and own.get("rope_type", "default") != "default":
            wanted = {"rope_type": "default"}
        if any(isinstance(value, dict) for value in own.values()):
            own = {key: _merged(value, wanted) if key == "full_attention" else value for key, value in own.items()}
        else:
            own = _merged(own, wanted)
        return AutoConfig.for_model(self.family, **{**changes, "rope_parameters": own})

    def model(self, config: Any) -> Any:
        """Return the model of a config in float32 and eval mode; all of the family have the same weights."""
        with quietly():
            torch.manual_seed(5)
            model = AutoModelForCausalLM.from_config(config).float().eval()
        if not self.weights:
            for name, weight in model.named_parameters():
                if weight.ndim > 1:
                    torch.nn.init.normal_(weight.data, 0.0, 0.15)
                if name.endswith(
                    ("lm_head.weight", "embed_out.weight", "embed_tokens.weight", "word_embeddings.weight")
                ):
                    weight.data[:32] = weight.data[127:] = 0.0  # the likeliest token is a printable character
            self.weights = {name: weight.clone() for name, weight in model.state_dict().items()}
        model.load_state_dict(self.weights)
        return model

    def cases(self, blocks: list[str]) -> Iterator[tuple[Case, Any]]:
        """Yield each checkpoint, and the config from which transformers builds the reference."""
        for block in blocks:
            try:
                config = self.config(block)
                if config is None:
                    continue
                self.model(config)
            except Exception:  # each class raises its own for a rule that it does not support
                continue
            prompt = SHORT if block == "longrope, short" else PROMPT
            first = self.place / f"{block} {SPELLINGS[0]}"
            self._write(config, first)
            yield Case(self.family, block, SPELLINGS[0], first, prompt), config
            former = self.place / f"{block} {SPELLINGS[1]}"
            if self._former(first, former):
                yield Case(self.family, block, SPELLINGS[1], former, prompt), config
            applied = self.place / f"{block} {SPELLINGS[2]}"
            if block in METHODS and (own := self._applied(METHODS[block], applied)) is not None:
                yield Case(self.family, block, SPELLINGS[2], applied, prompt), own
            for folder in (first, former, applied):
                shutil.rmtree(folder, ignore_errors=True)

    def _write(self, config: Any, folder: Path) -> None:
        with quietly():
            self.model(config).save_pretrained(folder)
        TextTokenizer.bytes().save(folder)

    def _former(self, first: Path, folder: Path) -> bool:
        """Write the keys of transformers 4; return whether transformers 5 reads the same ropes."""
        shutil.copytree(first, folder)
        content = json.loads((folder / "config.json").read_text())
        block = content.pop("rope_parameters")
        if any(isinstance(value, dict) for value in block.values()):
            content["rope_local_base_freq"] = (block.get("sliding_attention") or {}).get("rope_theta")
            block = dict(block["full_attention"])
        content["rope_theta"] = block.pop("rope_theta", 10000.0)
        share = block.pop("partial_rotary_factor", None)
        if share is not None:
            content["partial_rotary_factor"] = share
        if self.family == "gpt_neox":
            content |= {"rotary_pct": content.pop("partial_rotary_factor"), "rotary_emb_base": content["rope_theta"]}
        rule = block.get("rope_type", "default")
        content["rope_scaling"] = None if rule == "default" else {**block, "type": rule}
        write_json(folder / "config.json", content)
        try:
            ropes = [ModelRopes.from_hf(AutoConfig.from_pretrained(place)) for place in (first, folder)]
        except Exception:  # each class raises its own
            return False
        return ropes[0] == ropes[1]

    def _applied(self, method: str, folder: Path) -> Any:
        """Write what `extend apply` makes of a plain checkpoint; return its config, or None if it refuses."""
        source = self.place / "source"
        if not source.is_dir():
            config = self.config("plain")
            config.max_position_embeddings = TRAINED
            self._write(config, source)
        try:
            apply(source, folder, method=method, target=None if method == "plain" else CONTEXT)
        except RopeError:
            return None
        if method == "plain":  # its length would stop the prompt
            content = json.loads((folder / "config.json").read_text())
            write_json(folder / "config.json", {**content, "max_position_embeddings": CONTEXT})
        return AutoConfig.from_pretrained(folder)


def _merged(own: Mapping[str, Any], wanted: Mapping[str, Any]) -> Record:
    """Return a block with theta and the partial factor of its own, and wanted keys."""
    if not wanted:
        return dict(own)
    scaled = ("llama_4_scaling_beta", "original_max_position_embeddings") if own.get("llama_4_scaling_beta") else ()
    kept = {key: value for key, value in own.items() if key in ("rope_theta", "partial_rotary_factor", *scaled)}
    return {**kept, **wanted}
