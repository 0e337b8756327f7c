"""The ropes that the engines' own code computes from configs and overrides, as `make engines` recorded them.

`Case` is one config with one override, `recorded` what the engine made of it, and `cases` all that tests need:
tables.py builds their models in each engine, without weights, and writes benchmarks/results/engine-tables.json.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import itertools
import json
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import transformers
from engines.models import BLOCKS, longrope
from transformers.models.auto import modeling_auto as classes

from ropewalk.errors import RopeError
from ropewalk.methods import Reach
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.model_ropes import ModelRopes
from ropewalk.serving.plan import Served, serving_plan, text_of
from ropewalk.serving.serve import with_keys

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "benchmarks" / "results" / "engine-tables.json"
CONFIGS = ROOT / "tests" / "fixtures" / "configs"
NAMES = sorted(path.stem for path in CONFIGS.glob("*.json"))
PLANNED = [name for name in NAMES if name != "phi_3_5_vision_su"]  # its config needs its own code
ENGINES = ("vllm", "sglang")
SCALED = ("yarn", "ntk", "llama3", "resonance")
LAYERS = 12  # two of the longest pattern of layer types
ROWS = 1 << 15  # of a table, at most: benchmarks/engines/layer_ropes.py cuts longer ones
FLAT = ("llama_2_7b", "qwen2_0_5b", "qwen3_8b", "mistral_7b_v0_3", "stablelm_3b", "llama_3_1_8b")
NESTED = ("qwen3_5_9b", "qwen3_vl_4b", "ministral_3_3b")
Record = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A config for an engine, and the JSON of its `--hf-overrides` or `--json-model-override-args`, or None."""

    engine: str
    config: Record
    over: Record | None = None

    @property
    def key(self) -> str:
        text = json.dumps([self.engine, self.config, self.over], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Measured:
    """The rope of a layer, measured: see benchmarks/engines/layer_ropes.py."""

    inv_freq: Sequence[float]
    factor: float
    pairing: str
    rows: int | None = None
    long: tuple[Sequence[float], float, int, int] | None = None
    sections: Sequence[int] | None = None

    def is_of(self, rope: RopeConfig, length: int) -> bool:
        """Whether it is a rope at a length: frequencies, factor, pairing, axes, and enough rows of a table."""
        frequencies, factor, rows = self.inv_freq, self.factor, self.rows
        if self.long and length > self.long[2]:
            frequencies, factor, _, rows = self.long
        wanted = rope.columns_at(length)
        return (
            len(frequencies) == len(wanted)
            and np.allclose(frequencies, wanted, rtol=3e-6, atol=0)
            and abs(factor / rope.attention_factor_at(length) - 1) < 1e-6
            and self.pairing == ("interleaved" if rope.interleaved else "halves")
            and list(self.sections or ()) == list(rope.axes or ())
            and (rows is None or rows >= min(length, ROWS))
        )


@dataclass(frozen=True)
class Recorded:
    """What an engine made of a case: the rope of each layer, and the length in tokens; or its error."""

    layers: dict[int, Measured]
    length: int | None = None
    error: str = ""
    types: Sequence[str] = ()

    @property
    def of_transformers(self) -> bool:
        """Whether the engine has no class of its own, and takes that of transformers (SGLang's needs a GPU)."""
        return not self.layers and (not self.error or "No accelerator" in self.error)

    def has(self, ropes: ModelRopes, length: int) -> bool:
        """Whether every layer that rotates has its rope at a length."""
        pairs = [(of_layer(ropes, layer, self.types), measured) for layer, measured in self.layers.items()]
        rotating = [(rope, measured) for rope, measured in pairs if rope is not None]
        return bool(rotating) and all(measured.is_of(rope, length) for rope, measured in rotating)


def of_layer(ropes: ModelRopes, layer: int, types: Sequence[str] = ()) -> RopeConfig | None:
    """The rope of a layer, by its type if there is one rope for each; `types`: those of all layers."""
    by_type = layer < len(types) and types[layer] in ropes.labels
    return ropes.ropes[ropes.labels.index(types[layer]) if by_type else layer if layer < ropes.num_layers else 0]


@functools.cache
def _file() -> Record:
    return json.loads(FILE.read_text())


def recorded(case: Case) -> Recorded:
    """The engine's own result."""
    found = _file()["cases"].get(case.key)
    if found is None:
        raise LookupError(f"{FILE.name} lacks this config: make engines ENGINES={case.engine} records it")
    ropes = _file()["ropes"]
    layers = {layer: Measured(**ropes[n]) for layer, n in enumerate(found.get("layers", ())) if n is not None}
    types = text_of(case.config).get("layer_types", ())
    return Recorded(layers, found.get("length"), found.get("error", ""), types)


LEFT_OUT: dict[tuple[str, ...], Record] = {
    ("llama", "qwen2", "qwen3"): {"vocab_size": 64, "intermediate_size": 64},
    ("deepseek_v2", "deepseek_v3"): {"moe_layer_freq": 1, "topk_method": "greedy", "n_shared_experts": 1,
                                     "n_routed_experts": 64, "first_k_dense_replace": 1, "num_experts_per_tok": 6},
    ("gemma2",): {"hidden_act": "gelu_pytorch_tanh"},
    ("gemma4",): {"vision_config": {"model_type": "gemma4_vision"}},
    ("qwen2_vl", "qwen2_5_vl"): {"vision_config": {"in_chans": 3}},
}  # fmt: skip
"""Keys by model type that a fixture leaves out, every published file has, and a class of an engine needs."""


def completed(content: Record) -> Record:
    """Return a config with its class and the keys that were left out."""
    kind = content["model_type"]
    added = {key: value for kinds, keys in LEFT_OUT.items() if kind in kinds for key, value in keys.items()}
    return {**added, "architectures": [architecture(kind)], **content}


def content_of(name: str) -> Record:
    """A published config with at most LAYERS layers, its class, and the sizes that the fixture leaves out."""
    content: Record = json.loads((CONFIGS / f"{name}.json").read_text())
    for part in (content, content.get("text_config", {})):
        count = part.get("num_hidden_layers", 0)
        for key, value in part.items():
            part[key] = value[:LAYERS] if isinstance(value, list) and len(value) == count > LAYERS else value
        part |= {"num_hidden_layers": LAYERS} if count > LAYERS else {}
    content = completed(content)
    types = getattr(text_config(content), "layer_types", None)
    text_of(content).update({"layer_types": list(types)} if types else {})  # else a pattern of the class
    return content


def text_config(content: Record) -> Any:
    """The language model's config as transformers loads it."""
    fields = {key: value for key, value in content.items() if key not in ("model_type", "_source")}
    return transformers.AutoConfig.for_model(content["model_type"], **copy.deepcopy(fields)).get_text_config()


def architecture(model_type: str) -> str:
    """The name of the class of a model type."""
    maps = (classes.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES, classes.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
            classes.MODEL_MAPPING_NAMES)  # fmt: skip
    return str(next(names[model_type] for names in maps if model_type in names))


def planned(engine: str, name: str, method: str) -> tuple[Case, Served, RopeError | None]:
    """`of_plan` of a published config."""
    return of_plan(engine, content_of(name), method)


def of_plan(
    engine: str, content: Record, method: str, trained: int | None = None
) -> tuple[Case, Served, RopeError | None]:
    """The config that `serve-config` gives an engine for four times the length, also if it refuses."""
    source = Served.of(content, trained)
    reach = Reach(source.trained, 4 * source.trained)
    found = serving_plan(source, engine, method, reach)
    if isinstance(found, RopeError) or "override" not in found.steps[-1]:
        keys = source.under(method, reach)
        written = copy.deepcopy(content)
        if not isinstance(keys, str):
            with_keys(source, keys, written)
        return Case(engine, json.loads(json.dumps(written))), source, found if isinstance(found, RopeError) else None
    words = shlex.split(found.steps[-1])
    over = next(json.loads(words[at + 1]) for at, word in enumerate(words) if "override" in word)
    return Case(engine, content, over), source, None


def yarn(trained: int, **more: Any) -> Record:
    """A block of YaRN 4."""
    return {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": trained, **more}


def commanded(engine: str, name: str, complete: bool) -> Case:
    """A command with YaRN 4, with every key of the config's block or with those of YaRN only."""
    content = content_of(name)
    source = Served.of(content, None)
    own = text_config(content).rope_parameters.items() if complete else ()
    block = yarn(source.trained, **{key: value for key, value in own if key.startswith(("rope_th", "mr", "par"))})
    over = {"rope_parameters": block, "max_position_embeddings": 4 * source.trained}
    return Case(engine, content, {"text_config": over} if name in NESTED else over)


_OWN = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 2.0, "original_max_position_embeddings": 64,
        "attention_factor": 1.0, "beta_fast": 64.0, "mrope_section": [2, 1, 1], "mrope_interleaved": True}  # fmt: skip
MERGED = {
    "model_type": "qwen3_vl", "architectures": [architecture("qwen3_vl")],
    "text_config": {"model_type": "qwen3_vl_text", "hidden_size": 32, "num_attention_heads": 4, "head_dim": 8,
                    "num_key_value_heads": 4, "num_hidden_layers": 1, "max_position_embeddings": 128,
                    "rope_parameters": _OWN},
}  # fmt: skip
"""A config with keys that an override below `text_config` would not remove; and such an override."""
MERGED_OVER = Case(
    "vllm", MERGED, {"text_config": {"rope_parameters": {**yarn(64), "rope_theta": 1e6, "mrope_section": [2, 1, 1]}}}
)


_SMALL = {"vocab_size": 320, "hidden_size": 128, "intermediate_size": 96, "num_hidden_layers": 2,
          "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 64, "rms_norm_eps": 1e-6,
          "tie_word_embeddings": False}  # fmt: skip
LENGTHS: list[Record] = [
    {"max_position_embeddings": 100}, {"max_position_embeddings": 100, "model_max_length": 800},
    {"max_position_embeddings": 100, "max_seq_len": 50}, {},
    {"max_position_embeddings": 100, "rope_scaling": {"type": "dynamic", "factor": 2.0}},
    {"max_position_embeddings": 100, "rope_scaling": {"rope_type": "yarn", "factor": 2.0}},
    {"max_position_embeddings": 100, "rope_parameters": {**yarn(50), "rope_theta": 1e4}},
    {"max_position_embeddings": 8, "rope_scaling": {"rope_type": "linear", "factor": 8.0}, "model_type": "gemma3_text",
     "hidden_activation": "gelu_pytorch_tanh"},
]  # fmt: skip
"""Keys of configs from which engines derive a length."""


def of_length(engine: str, keys: Record) -> Case:
    """A small config with some keys."""
    return Case(engine, completed({"model_type": "llama", **_SMALL, **keys}))


def of_block(engine: str, family: str, block: str, former: bool) -> Case:
    """A small config with a block of the matrix, in the spelling of transformers 5 or 4."""
    written = BLOCKS[block]
    written = longrope(32) if written is None else written
    content = completed({"model_type": family, **_SMALL, "max_position_embeddings": 128 if block == "dynamic" else 512})
    if former:
        scaling = {"rope_scaling": {**written, "type": written["rope_type"]}} if written else {}
        return Case(engine, {**content, "rope_theta": 5e5, **scaling})
    return Case(engine, {**content, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5, **written}})


BLOCK_NAMES = [block for block in BLOCKS if "window" not in block and "short" not in block]
"""Blocks of the matrix that are one rope for all layers and prompts."""
OF_BLOCKS = list(itertools.product((*ENGINES, "mlx"), ("llama", "qwen3")))


def cases() -> Iterator[Case]:
    """All cases that tests ask for."""
    for (engine, family), block, former in itertools.product(OF_BLOCKS, BLOCK_NAMES, (False, True)):
        yield of_block(engine, family, block, former)
    yield from (of_plan("vllm", MERGED, "yarn", trained=64)[0], MERGED_OVER)
    for engine in ENGINES:
        for name in PLANNED:
            yield from (planned(engine, name, method)[0] for method in SCALED)
        yield from (of_length(engine, keys) for keys in LENGTHS)
        for name in (*FLAT, *NESTED):
            yield from (commanded(engine, name, complete) for complete in (True, False))
