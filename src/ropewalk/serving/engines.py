"""Serving engines: the supported files, and known deviations of each engine, with version and source.

Nothing is inferred by analogy. "run" means that we ran the engine; everything else is from `source`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from ropewalk.errors import RopeError

ENGINES = ("vllm", "sglang", "llama.cpp", "ollama", "transformers")
"""The engines that are configured by a config or a .gguf file."""
RUNNERS = (*ENGINES, "python")
"""All ways to run a model: an engine, or a Python program, which can also apply methods in attention (`rw.attach`)."""
READS_GGUF = ("llama.cpp", "ollama")
"""The engines that load a .gguf file; the others load a Hugging Face folder."""
CONVERTER = "llama.cpp's converter"
"""convert_hf_to_gguf.py, which converts a Hugging Face folder to a .gguf file. `caveats_of` treats it as an engine."""
NOT_WRITTEN = " (not written)"
"""The end of an architecture's name, if ropewalk copies no .gguf file of it with other keys."""
READERS_OF_CONFIGS = {"vllm": "vLLM", CONVERTER: CONVERTER}
"""The engines, with their titles, that a model card describes next to transformers."""
RULES_CHECKED = ("default", "linear", "dynamic", "yarn", "llama3", "longrope")
"""The `rope_type`s that were looked up in the sources of vLLM and of llama.cpp's converter."""
MULTIPLIES_LENGTH = ("linear", "dynamic")
"""The rules for which vLLM and SGLang multiply `max_position_embeddings`, the trained length there, by the factor.

Source: vLLM's `_get_and_verify_max_len`, SGLang's `get_context_length`.
"""
NOT_MULTIPLIED = "gemma3"
"""A part of the names of model types for which vLLM does not multiply the length (same function)."""


@dataclass(frozen=True, kw_only=True)
class Caveat:
    """One known deviation of engines.

    - `engines`: the engines. `text`: the behaviour and the cure. `versions`: the versions with this behaviour.
      `source`: the file or issue that shows it.
    - `rules`: only for these `rope_type`s; empty: all. `keys`: only for blocks with one of these keys.
    - `scaled`: only with an extension. `composite`: only for configs with a language model under `text_config`.
    - `several`: only if each layer type has its own block. `shortened`: only if `max_position_embeddings` is less than
      the length of the block.
    """

    engines: tuple[str, ...]
    text: str
    versions: str
    source: str
    rules: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    scaled: bool = True
    composite: bool = False
    several: bool = False
    shortened: bool = False

    @property
    def of_the_block(self) -> bool:
        """Return whether it concerns this engine's handling of a `rope_type`, not serving in general."""
        return bool(self.rules) and len(self.engines) <= 2


_STATIC = ("linear", "yarn", "llama3", "longrope", "default")

CAVEATS: tuple[Caveat, ...] = (
    Caveat(
        engines=("vllm",),
        text="Only some model classes apply blocks by layer type (Gemma 3 does). Others apply one flat block (OLMo 3, "
        "in July 2026): check the server (`ropewalk verify`).",
        versions="vLLM's gemma3.py with `config.rope_parameters[layer_type]`; not before November 2025",
        source="vllm-project/vllm#28542, EuroEval/EuroEval#2089",
        several=True,
    ),
    Caveat(
        engines=("vllm",),
        text="With transformers 4, a `rope_theta` at the top of the config is put into the blocks by layer type, and "
        "the server stops: rope_parameters should have a 'rope_type' key.",
        versions="0.16.0 and 0.19.0",
        source="users' patches of vllm's transformers_utils/config.py, patch_rope_parameters",
        several=True,
    ),
    Caveat(
        engines=("sglang",),
        text="On CPUs with AMX, Gemma 3 takes only theta from the block of its full layers and drops the scaling "
        "silently. Elsewhere it applies the block.",
        versions="main at 038c87d",
        source="sglang's gemma3_causal.py; see sgl-project/sglang#26013",
        several=True,
    ),
    Caveat(
        engines=("vllm", "sglang", "llama.cpp", "ollama", "transformers"),
        text="The factor is fixed when the engine starts, so it applies to short prompts too. One user measured 15 to "
        "20 % less in agentic tasks with YaRN 4 on Qwen3-32B, another 39 to 26.5 on Arena-Hard with Qwen3-8B. Serve "
        "short prompts from the model without it.",
        versions="vLLM 0.8.5.post1 and 0.9.2rc2",
        source="vllm-project/vllm#18728, QwenLM/Qwen3#1567",
        rules=_STATIC,
    ),
    Caveat(
        engines=("vllm",),
        text="--rope-scaling was removed, and the server stops if it is passed. Use --hf-overrides.",
        versions="from 0.11.1",
        source="vllm-project/vllm#28006, quoted in vllm-project/recipes#856",
    ),
    Caveat(
        engines=("vllm",),
        text="Older servers call the block `rope_scaling` and expect `rope_theta` outside it.",
        versions="before the change of November 2025 (0.10.2's example has the old keys)",
        source="vllm-project/vllm#28542, docs.vllm.ai v0.10.2",
    ),
    Caveat(
        engines=("vllm",),
        text="Older servers ignore `attention_factor` in a yarn block: 0.1 ln(factor) + 1 applies.",
        versions="0.25; read in 0.33.0",
        source="vllm-project/vllm#48351; 0.33.0's yarn_scaling_rope.py",
        rules=("yarn",),
        keys=("attention_factor",),
    ),
    Caveat(
        engines=("vllm",),
        text="`mscale` and `mscale_all_dim` in a yarn block are ignored.",
        versions="0.25.0; read since September 2026, unless there is an `attention_factor`",
        source="vllm-project/vllm#48621, #56446; 0.33.0's yarn_scaling_rope.py",
        rules=("yarn",),
        keys=("mscale", "mscale_all_dim"),
    ),
    Caveat(
        engines=(CONVERTER,),
        text="`truncate` in a yarn block is not applied as in transformers. Compare outputs before you rely on it.",
        versions="0274f0f",
        source="llama.cpp's conversion/base.py",
        rules=("yarn",),
        keys=("truncate",),
    ),
    Caveat(
        engines=("vllm",),
        text="One list of divisors is used for every prompt: `long_factor` once --max-model-len is beyond the original "
        "length. The factor for queries and keys is `short_mscale` and `long_mscale`, not `attention_factor`; exported "
        "folders have all three.",
        versions="main at 63c2b7a",
        source="vllm's phi3_long_rope_scaled_rope.py",
        rules=("longrope",),
    ),
    Caveat(
        engines=("vllm",),
        text="It extends nothing at any factor: the base is multiplied by a power of factor x (length / length) - "
        "(factor - 1), which is 1, unless the block has vLLM's own `max_trained_positions`. Use --method ntk.",
        versions="0.33.0",
        source="vllm's rotary_embedding/__init__.py and dynamic_ntk_scaling_rope.py",
        rules=("dynamic",),
    ),
    Caveat(
        engines=("sglang",),
        text="Without --context-length the server uses the length that it derives from the config.",
        versions="2024 to 2025",
        source="sgl-project/sglang#2108, QwenLM/Qwen3#1443",
    ),
    Caveat(
        engines=("sglang",),
        text="It refuses a --context-length beyond the derived length unless "
        "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1. With the overrides here the derived length suffices.",
        versions="since November 2024",
        source="sgl-project/sglang#2943, #1778",
    ),
    Caveat(
        engines=("sglang",),
        text="Some model classes use the config's `rope_scaling` and not `rope_parameters`, so a block of transformers "
        "5 was silently ignored. LFM2 was fixed in May 2026.",
        versions="before that change",
        source="sgl-project/sglang#26187",
    ),
    Caveat(
        engines=("sglang",),
        text="Overrides of the outer config have no effect on a language model that uses `text_config`, silently. "
        "Newer servers merge an override of `text_config` into it. A written folder works with both.",
        versions="June 2026; 0.5.23 merges",
        source="sgl-project/sglang#27974; 0.5.23's utils/hf_transformers/config.py",
        composite=True,
    ),
    Caveat(
        engines=("sglang",),
        text="`attention_factor` in a yarn block is ignored: 0.1 ln(factor) + 1 applies, times `attn_factor`. Laguna "
        "has its own code, which applied it twice until August 2026.",
        versions="0.5.23",
        source="sglang's rotary_embedding/factory.py; sgl-project/sglang#33558",
        rules=("yarn",),
        keys=("attention_factor",),
    ),
    Caveat(
        engines=(CONVERTER,),
        text="The rule is left out of the file, so the scaling is lost. Use --method ntk.",
        versions="0274f0f",
        source="llama.cpp's conversion/base.py (`set_gguf_parameters`)",
        rules=("dynamic",),
    ),
    Caveat(
        engines=(CONVERTER,),
        text="`attention_factor`, `mscale` and `mscale_all_dim` in a yarn block are not applied as in transformers. "
        "Compare outputs before you rely on them.",
        versions="0274f0f",
        source="llama.cpp's conversion/base.py (`set_gguf_parameters`)",
        rules=("yarn",),
        keys=("attention_factor", "mscale", "mscale_all_dim"),
    ),
    Caveat(
        engines=(CONVERTER,),
        text="Some versions take the original length only from the top of config.json, and 8,192 otherwise; exported "
        "folders have it there.",
        versions="0274f0f; 0c1e570 reads the block too",
        source="llama.cpp's conversion/llama.py (`generate_extra_tensors`)",
        rules=("llama3",),
    ),
    Caveat(
        engines=(CONVERTER,),
        text="The divisors are written for Phi-3 only; other families lose this rope. Write a .gguf file with "
        "`ropewalk extend apply` instead (Llama's architecture).",
        versions="0274f0f",
        source="llama.cpp's conversion/base.py (`set_gguf_parameters`)",
        rules=("longrope",),
    ),
    Caveat(
        engines=("llama.cpp",),
        text="The server refuses prompts beyond the file's context_length, whatever --ctx-size is. YaRN flags raise "
        "that limit since August 2026; earlier versions also need --override-kv ARCH.context_length=int:LENGTH. "
        "Flags for a base or a linear factor do not raise it, so these two are written into the file.",
        versions="run: xllamacpp 2026.10.11549",
        source="ggml-org/llama.cpp#17459, #22140, #28030",
    ),
    Caveat(
        engines=("llama.cpp",),
        text="The length of the server's context, not of the prompt, selects the list of divisors.",
        versions="run: xllamacpp 2026.10.11549",
        source="llama.cpp's llama_model::get_rope_factors",
        rules=("longrope",),
    ),
    Caveat(
        engines=("ollama",),
        text="A Modelfile has no parameter for scaling: the keys must be in the .gguf file.",
        versions="docs/modelfile.md at 037a28b",
        source="ollama/ollama#3508, docs/modelfile.md",
    ),
    Caveat(
        engines=("ollama",),
        text="If Ollama runs a model in its own engine, not in llama.cpp, its llama and qwen3 use `rope.freq_scale`, "
        "which no converter writes, and ignore `rope.scaling.factor` and YaRN's keys, so the scaling is silently lost. "
        "Run `ropewalk verify`.",
        versions="model/models/qwen3/model.go at 0312c5a, llama/model.go at 02e2ab6; other versions were not checked",
        source="ollama/ollama, and its open #12308",
        rules=("linear", "yarn"),
    ),
    Caveat(
        engines=("transformers",),
        text="The frequencies are computed when the model is built. Later changes of `model.config` have no effect.",
        versions="5",
        source="MakazhanAlpamys/Soup#793",
    ),
    Caveat(
        engines=("transformers",),
        text="Version 4 ignores `rope_parameters`: there the block is `rope_scaling`, with `config.rope_theta`.",
        versions="4",
        source="huggingface/transformers#42513, vllm-project/vllm#28542",
    ),
    Caveat(
        engines=("transformers",),
        text="Version 4 takes YaRN's factor from max_position_embeddings / original_max_position_embeddings, which is "
        "a smaller factor here. Use version 5, or set max_position_embeddings to the factor times the original length.",
        versions="4.56",
        source="transformers' modeling_rope_utils.py (`_compute_yarn_parameters`)",
        rules=("yarn",),
        shortened=True,
    ),
    Caveat(
        engines=("transformers",),
        text="With a cache, keys keep the base of their rotation, so long answers differ from one forward pass.",
        versions="all",
        source="huggingface/transformers#25104",
        rules=("dynamic",),
    ),
)


def caveats_of(
    engine: str,
    block: Collection[str],
    rule: str,
    *,
    scaled: bool,
    composite: bool = False,
    several: bool = False,
    shortened: bool = False,
) -> list[Caveat]:
    """Return the caveats of an engine for a rope with the keys `block` and the `rope_type` `rule`.

    The other arguments are those of `Caveat`.

    >>> caveats_of("vllm", {"mscale"}, "yarn", scaled=True)[-1].text
    '`mscale` and `mscale_all_dim` in a yarn block are ignored.'
    """
    return [
        one
        for one in CAVEATS
        if engine in one.engines
        and (not one.rules or rule in one.rules)
        and (not one.keys or any(key in block for key in one.keys))
        and (scaled or not one.scaled)
        and (composite or not one.composite)
        and (several or not one.several)
        and (shortened or not one.shortened)
    ]


_SCALED = ("linear", "dynamic", "yarn", "llama3", "longrope", "proportional")
_NOT_YARN = tuple(rule for rule in _SCALED if rule != "yarn")
_DEEPSEEK = ("deepseek_v2", "deepseek_v3", "deepseek_v32")


@dataclass(frozen=True, kw_only=True)
class Limit:
    """A kind of `rope_parameters` block that engines do not apply as measured.

    - `engines`: the engines. `reason`: a clause without a full stop. `source`: the file that shows it.
    - `rules`: for these `rope_type`s; empty: all. `keys`: only for blocks with one of these keys.
    - `model_types`: only for these language models; empty: all. `archs`: not for these architectures of llama.cpp.
    - `several`: only if each layer type has its own block.
    """

    engines: tuple[str, ...]
    reason: str
    source: str
    rules: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    model_types: tuple[str, ...] = ()
    archs: tuple[str, ...] = ()
    several: bool = False

    def applies(self, engine: str | None, block: Mapping[str, Any], arch: str | None, model_type: str) -> bool:
        """Return whether it concerns this engine and block; an architecture of None counts as one of `archs`."""
        blocks = blocks_of(block)
        return (
            engine in self.engines
            and (not self.rules or any(one["rope_type"] in self.rules for one in blocks))
            and (not self.keys or any(key in one for key in self.keys for one in blocks))
            and (not self.model_types or model_type in self.model_types)
            and not (self.archs and (arch is None or arch in self.archs))
            and ("rope_type" not in block or not self.several)
        )


def blocks_of(block: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the single blocks of `rope_parameters`: itself, or one for each layer type, scaled ones first.

    >>> blocks_of({"near": {"rope_type": "default"}, "far": {"rope_type": "yarn"}})[0]
    {'rope_type': 'yarn'}
    """
    return [block] if "rope_type" in block else sorted(block.values(), key=lambda one: one["rope_type"] == "default")


LIMITS: tuple[Limit, ...] = (
    Limit(
        engines=("vllm",),
        reason="its gpt-oss class builds yarn from the block's factor and betas, whatever the rope_type is",
        source="0.33.0's model_executor/models/gpt_oss.py, lines 111 to 125",
        rules=("default", *_NOT_YARN),
        model_types=("gpt_oss",),
    ),
    Limit(
        engines=("vllm",),
        reason="its DeepSeek classes compute DeepSeek's yarn for every scaled block",
        source="0.33.0's model_executor/models/deepseek_v2.py, lines 1115 to 1120 and 542 to 547; "
        "models/deepseek_v32/attention.py, lines 154 to 159",
        rules=_NOT_YARN,
        model_types=_DEEPSEEK,
    ),
    Limit(
        engines=("sglang",),
        reason="its DeepSeek class sets every scaled block to deepseek_yarn",
        source="0.5.23's models/deepseek_v2.py, lines 2065 and 2066",
        rules=_NOT_YARN,
        model_types=_DEEPSEEK,
    ),
    Limit(
        engines=("sglang",),
        reason="its class of this family takes only theta from the block",
        source="0.5.23's models/gemma.py, line 130; gemma2.py, 154; mixtral.py, 174; olmo.py, 87; persimmon.py, 92; "
        "phi.py, 69; stablelm.py, 146; starcoder2.py, 103",
        rules=_SCALED,
        model_types=("gemma", "gemma2", "mixtral", "olmo", "persimmon", "phi", "stablelm", "starcoder2"),
    ),
    Limit(
        engines=("vllm", "sglang"),
        reason="under M-RoPE it applies theta and yarn, and for other rules a rope of one axis",
        source="vLLM 0.33.0's rotary_embedding/__init__.py (`get_rope`), SGLang 0.5.23's rotary_embedding/factory.py",
        rules=_NOT_YARN,
        keys=("mrope_section",),
    ),
    Limit(
        engines=(CONVERTER,),
        reason="llama.cpp's converter removes the scaling of this family",
        source="conversion/command_r.py, lines 31 and 51, in llama-cpp-python 0.3.36",
        rules=_SCALED,
        model_types=("cohere", "cohere2"),
    ),
    Limit(
        engines=(CONVERTER,),
        reason="ropewalk copies no .gguf file of this architecture, and llama.cpp's converter was not checked for this "
        "rope_type",
        source="llama.cpp's conversion/base.py (`set_gguf_parameters`)",
        rules=tuple(rule for rule in _SCALED if rule not in ("linear", "yarn")),
    ),
    Limit(
        engines=("vllm",),
        reason="it fixes one base when it starts, so that the method extends nothing",
        source="0.33.0's dynamic_ntk_scaling_rope.py",
        rules=("dynamic",),
    ),
    Limit(
        engines=("sglang",),
        reason="it fixes one base when it starts, that of factor x factor - (factor - 1), for prompts of every length",
        source="0.5.23's rotary_embedding/rope_variant.py (`DynamicNTKScalingRotaryEmbedding`)",
        rules=("dynamic",),
    ),
    Limit(
        engines=READS_GGUF,
        reason="its frequencies depend on the length, but a .gguf file contains fixed ones",
        source="src/ropewalk/checkpoints/gguf_keys.py",
        rules=("dynamic",),
    ),
    Limit(
        engines=("vllm", "sglang"),
        reason="it applies proportional frequencies for Gemma 4, and was not checked for other models",
        source="vllm's rotary_embedding/__init__.py at 07b12f1 (unknown there), sglang's rotary_embedding/factory.py "
        "at 108c36c (`Gemma4RotaryEmbedding`)",
        rules=("proportional",),
    ),
    Limit(
        engines=READS_GGUF,
        reason="ropewalk writes one divisor for each pair only into .gguf files of Llama's architecture",
        source="llama.cpp's src/models/, src/ropewalk/checkpoints/gguf_keys.py",
        rules=("llama3", "longrope", "proportional"),
        archs=("llama",),
    ),
    Limit(
        engines=READS_GGUF,
        reason="ropewalk copies no .gguf file with several ropes",
        source="src/ropewalk/checkpoints/gguf_keys.py",
        several=True,
    ),
)


def limit_of(
    engine: str | None, block: Mapping[str, Any], *, arch: str | None = None, model_type: str = ""
) -> str | None:
    """Return the reason of the first limit that concerns a block; see `why_not`."""
    return next((one.reason for one in LIMITS if one.applies(engine, block, arch, model_type)), None)


def why_not(
    engine: str | None,
    method: str,
    block: Mapping[str, Any] | None,
    *,
    arch: str | None = None,
    model_type: str = "",
) -> str | None:
    """Return a short reason why an engine cannot run a method as measured; None if it can.

    **Arguments:**
    - `engine`: one of `RUNNERS`. None: any engine that uses a config or a .gguf file.
    - `method`: its name. `plain`, `as-is` and `crop` run everywhere; for `crop`, the client sends only the last tokens.
    - `block`: the method's `rope_parameters`, or a block for each layer type; None if no config expresses it.
    - `arch`: llama.cpp's architecture of the model. None: Llama's is assumed.
    - `model_type`: of the language model's config. Empty: that of no class with its own treatment.

    **Raises:** `RopeError` for an unknown engine or method.

    >>> why_not("vllm", "yarn", {"rope_type": "yarn"}) is None
    True
    >>> why_not("ollama", "dca", None)
    'it clips or regroups positions inside attention, which no config.json describes'
    """
    from ropewalk.methods import method_named  # imports torch, which this module's tables do not need

    record = method_named(method)
    if engine is not None and engine not in RUNNERS:
        raise RopeError("engine: unknown.", facts={"engine": engine}, cure=f"Choose from {', '.join(RUNNERS)}.")
    if engine == "python" or not record.extends:
        return None
    if record.config is None:
        return record.not_in_config
    if block is None:
        return "no config.json expresses it for this model"
    converts = engine in READS_GGUF and arch is not None and arch.endswith(NOT_WRITTEN)
    return limit_of(engine, block, arch=arch, model_type=model_type) or (
        limit_of(CONVERTER, block, model_type=model_type) if converts else None
    )
