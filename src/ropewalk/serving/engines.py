"""Serving engines: their one list, and what each applies of a rope, by model type and rule, with version and source.

`applied` is the one rule of `extend apply` and `serve-config`. Nothing is inferred by analogy: for the families that
were run, what was measured decides (`ropewalk.serving.measured`), for others what was read in the sources, in the
versions of `TABLE`. This module does not import torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ropewalk.families import FAMILIES
from ropewalk.serving.measured import about, measured

CONVERTER = "llama.cpp's converter"
"""convert_hf_to_gguf.py, which converts a Hugging Face folder to a .gguf file. `applied` treats it as an engine."""
MULTIPLIES_LENGTH = ("linear", "dynamic")
"""The rules for which vLLM and SGLang multiply `max_position_embeddings`, the trained length there, by the factor."""
NOT_MULTIPLIED = "gemma3"
"""A part of the names of model types for which neither multiplies the length."""


@dataclass(frozen=True, kw_only=True)
class ServingEngine:
    """An engine, and the options of its command that concern the rope, for `serve-config` and `inspect --command`.

    - `title`: its name in text. `gguf`: whether it loads a .gguf file; the others load a Hugging Face folder.
    - `only_run`: whether its classes differ so much that only what was measured is known.
    - `read`: the version and the function that applies a block, unless a deviation concerns it.
    - `program`: pattern of the word that starts the engine. `model`: the options of its path, besides a first word.
    - `length`: the options of the context's length. `over`: the option of the JSON that is put over the config.
    - `others`: further options, each with a value.
    - `longer`: the variable of the environment that permits more than the config's length.
    - `starts`: the words with which `serve-config` starts it, up to the model.
    - `source`: the files and the version of which the options were read.
    """

    title: str
    gguf: bool = False
    only_run: bool = False
    read: str = ""
    program: str = ""
    starts: tuple[str, ...] = ()
    model: tuple[str, ...] = ()
    length: tuple[str, ...] = ()
    over: str = ""
    others: tuple[str, ...] = ()
    longer: str = ""
    source: str = ""

    @property
    def valued(self) -> set[str]:
        """Return the options that are looked at; each has a value."""
        return {*self.model, *self.length, *self.others} | ({self.over} if self.over else set())


_GGUF = "src/llama-context.cpp and src/llama-model.cpp (`get_rope_factors`) in llama-cpp-python 0.3.36"
TABLE = {
    "vllm": ServingEngine(
        title="vLLM",
        read="0.33.0's rotary_embedding/__init__.py (`get_rope`)",
        program=r"(.*/)?vllm|vllm\.entrypoints\..*|vllm/vllm-\S+",
        starts=("vllm", "serve"),
        model=("--model",),
        length=("--max-model-len",),
        over="--hf-overrides",
        longer="VLLM_ALLOW_LONG_MAX_MODEL_LEN",
        source="vLLM 0.32.0's config/model.py (`_apply_dict_overrides`, `_get_and_verify_max_len`)",
    ),
    "sglang": ServingEngine(
        title="SGLang",
        read="0.5.23's rotary_embedding/factory.py (`get_rope`)",
        program=r"(.*/)?sglang|sglang\.launch_server|lmsysorg/sglang\S*",
        starts=("python", "-m", "sglang.launch_server", "--model-path"),
        model=("--model-path", "--model"),
        length=("--context-length",),
        over="--json-model-override-args",
        longer="SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN",
        source="SGLang 0.5.23's utils/hf_transformers/config.py (`get_config`) and common.py (`get_context_length`)",
    ),
    "llama.cpp": ServingEngine(
        title="llama.cpp",
        gguf=True,
        read=_GGUF,
        program=r"(.*[/\\])?llama-(server|cli|completion)(\.exe)?|\S*llama\.cpp:(server|full|light)\S*",
        starts=("llama-server", "-m"),
        model=("--model", "-m"),
        length=("--ctx-size", "-c"),
        others=(
            "--rope-scaling", "--rope-scale", "--rope-freq-base", "--rope-freq-scale", "--yarn-orig-ctx",
            "--yarn-ext-factor", "--yarn-attn-factor", "--yarn-beta-slow", "--yarn-beta-fast", "--override-kv",
            "--parallel", "-np",
        ),
        source="llama.cpp's common/arg.cpp, src/llama-context.cpp and server-context.cpp in xllamacpp 2026.10.11549",
    ),
    "ollama": ServingEngine(title="Ollama", gguf=True, read=_GGUF),
    "mlx": ServingEngine(
        title="mlx-lm",
        only_run=True,
        program=r"(.*/)?mlx_lm(\.(server|generate|chat))?",
        starts=("mlx_lm.server", "--model"),
        model=("--model",),
        source="mlx-lm 0.32.2's server.py, generate.py and each model's `ModelArgs`",
    ),
    "onnx": ServingEngine(title="ONNX Runtime GenAI", only_run=True),
    "transformers": ServingEngine(
        title="transformers", read="5.23's modeling_rope_utils.py (`ROPE_INIT_FUNCTIONS`)"
    ),
    CONVERTER: ServingEngine(
        title=CONVERTER, read="conversion/base.py (`TextModel.set_gguf_parameters`) in llama-cpp-python 0.3.36"
    ),
}  # fmt: skip
"""The engines, and the converter of one. mlx-lm has no option for the rope: it reads only the config."""
ENGINES = tuple(name for name in TABLE if name != CONVERTER)
"""The engines that are configured by a config or a .gguf file."""
RUNNERS = (*ENGINES, "python")
"""All ways to run a model: an engine, or a Python program, which can also apply methods in attention (`rw.attach`)."""
FLAGS = {name: one for name, one in TABLE.items() if one.program}
"""The engines whose commands are read."""
ROPE_FLAGS = {
    name: one.over or ", ".join(flag for flag in one.others if flag.startswith(("--rope", "--yarn-orig")))
    for name, one in FLAGS.items()
    if one.over or one.others
}
"""The flags of each engine that replace the model's own rope, in words."""
_ONLY_RUN = tuple(name for name, one in TABLE.items() if one.only_run)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A rope to be applied by an engine.

    - `block`: the `rope_parameters`, or one for each layer type. `model_type`: of the language model's config.
    - `arch`: llama.cpp's architecture; None: Llama's. `converted`: whether llama.cpp's converter writes this rope.
    - `extends`: whether it differs from the checkpoint's own. `scaled`: whether it has a scaling without training.
    - `length`: tokens of the context, or None. `interleaved`: whether pairs are neighbouring features.
    - `override`: whether a command or a script puts the block over the config's.
    - `spelling`: of the block in the config: `rope_parameters` as transformers 5 writes it, `rope_scaling` with
      `rope_theta` as version 4, or both, as `extend apply`. `windowed`: whether a layer has a window.
    """

    block: Mapping[str, Any]
    model_type: str = ""
    arch: str | None = None
    converted: bool = False
    extends: bool = True
    scaled: bool = True
    length: int | None = None
    interleaved: bool = False
    override: bool = False
    spelling: str = "extend apply"
    windowed: bool = False

    @property
    def blocks(self) -> list[Mapping[str, Any]]:
        return blocks_of(self.block)

    @property
    def several(self) -> bool:
        return "rope_type" not in self.block

    def has(self, *keys: str) -> bool:
        """Return whether a block has one of these keys."""
        return any(key in one for key in keys for one in self.blocks)

    def is_type(self, *starts: str) -> bool:
        return self.model_type.startswith(starts)

    @property
    def scaled_length(self) -> float:
        """Return factor times original length of a block, in tokens; 0 without them."""
        return max(float(one.get("factor", 0) * one.get("original_max_position_embeddings", 0)) for one in self.blocks)

    @property
    def two_lists(self) -> bool:
        """Return whether the frequencies depend on the length, by two lists of divisors."""
        return any(one.get("short_factor") != one.get("long_factor") for one in self.blocks)

    @property
    def own_attention(self) -> bool:
        """Return whether the factor of queries and keys in a yarn block is not 0.1 ln(factor) + 1."""
        return any(not math.isclose(_attention(one), _attention({"factor": one["factor"]})) for one in self.blocks
                   if one["rope_type"] == "yarn" and one.get("factor"))  # fmt: skip

    @property
    def rows(self) -> set[str]:
        """Return the names of the measured blocks that concern it: those of benchmarks/engines/models.py."""
        names = {"plain", "window"} if self.windowed else {"plain"}
        for one in self.blocks:
            if one["rope_type"] == "longrope":
                names |= {"longrope, long", "longrope, short"} if self.two_lists else {"longrope, long"}
            elif one["rope_type"] == "yarn":
                special = {
                    "yarn, attention_factor 1.3": self.own_attention and one.get("attention_factor") is not None,
                    "yarn, truncate false": one.get("truncate") is False,
                    "yarn, betas 8 and 2": one.get("beta_fast") is not None and one.get("beta_slow") is not None,
                    "yarn, mscale 0.7 and 0.5": self.own_attention and bool(one.get("mscale")),
                }
                names |= {name for name, given in special.items() if given} or {"yarn"}
            elif one["rope_type"] != "default":
                names.add(one["rope_type"])
        return names


def _attention(block: Mapping[str, Any]) -> float:
    """Return the factor of queries and keys of a yarn block, as transformers computes it."""
    if block.get("attention_factor") is not None:
        return float(block["attention_factor"])
    grown = 0.1 * math.log(max(1.0, block["factor"]))
    first, second = float(block.get("mscale") or 0), float(block.get("mscale_all_dim") or 0)
    return (grown * first + 1) / (grown * second + 1) if first and second else grown + 1


@dataclass(frozen=True)
class Deviation:
    """One known behaviour of engines.

    - `effect`: "lost": the rope is not applied as measured. "unknown": nobody knows. "differs": it is, with this
      difference. "note": neither; it concerns the command.
    - `engines`: the engines. `text`: a clause if the rope is lost or unknown, else sentences.
    - `versions`: the versions with this behaviour. `before`: the first version without it; None: the newest has it.
      `source`: the file or issue that shows it.
    - `rules`, `model_types`: only for these `rope_type`s and language models; empty: all. `when`: a further condition.
    - `code`: that of `ropewalk.serving.measured` which shows it. Where the engine was run, the record decides;
      elsewhere it is known if it was `read`.
    - `measured`: the engine that showed it, with version and date; "" if it was read.
    """

    effect: Literal["lost", "unknown", "differs", "note"]
    engines: tuple[str, ...]
    text: str
    source: str = ""
    code: str = ""
    read: bool = True
    measured: str = ""
    versions: str = ""
    before: str | None = None
    rules: tuple[str, ...] = ()
    model_types: tuple[str, ...] = ()
    when: Callable[[Case], bool] = field(default=lambda case: True, metadata={"json": False})

    def holds(self, case: Case) -> bool:
        return (not self.rules or any(one["rope_type"] in self.rules for one in case.blocks)) and self.when(case)

    @property
    def evidence(self) -> str:
        """Return how it is known, in words."""
        read = self.source and f"read in {self.source}"
        return "; ".join(one for one in (self.measured and f"measured in {self.measured}", read, self.versions) if one)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """How an engine treats a rope, with the reason, how it is known, and all caveats.

    - `checked`: the version that was run, or the version and the function that were read.
    """

    state: Literal["applied", "differs", "unknown", "lost"]
    reason: str | None
    source: str
    checked: str
    caveats: tuple[Deviation, ...]


_SCALED = ("linear", "dynamic", "yarn", "llama3", "longrope", "proportional")
_NOT_YARN = tuple(rule for rule in _SCALED if rule != "yarn")
_DEEPSEEK = tuple(name for name, family in FAMILIES.items() if family.module.deepseek)
_OWN_FACTOR = ("qwen3_vl", "qwen3_5", "qwen4")  # their classes pass `mrope_positions_factor`
_LLAMAS = ("", "llama", "mistral", "llama4_text", "granite", "arcee", "apertus")  # LlamaModel there, and factors in C++
_TWO_ROPES = ("gemma3_text", "gemma4_text", "olmo3", "modernbert", "laguna")
_ONLY_THETA = ("gemma", "gemma2", "mixtral", "olmo", "persimmon", "phi", "stablelm", "starcoder2")
_IN_CPP = "in llama-cpp-python 0.3.36"

_RUN = ("vllm", "mlx", "onnx")
# fmt: off
_SHOWN: tuple[tuple[Literal["lost", "differs", "note"], tuple[str, ...], str, str], ...] = (
    ("lost", _RUN, "not loaded", "it does not load a model of this family with this block"),
    ("lost", _ONLY_RUN, "unscaled", "its class of this family drops the scaling"),
    ("lost", ("mlx",), "theta", "its class of this family does not read `rope_parameters`, and its own theta applies"),
    ("lost", ("mlx",), "partial", "its class of this family rotates every feature of a head"),
    ("differs", _RUN, "untruncated", "The ends of yarn's ramp are not rounded."),
    ("differs", ("llama.cpp",), "sliding", "The attention factor is applied to layers with a window, too."),
    ("differs", _RUN, "not the rope", "The answers differ from those of transformers with the plain rope, too."),
    ("differs", _RUN, "unknown", "The answers differ from those of transformers, for an unknown reason."),
    ("note", ("mlx",), "window", "Windows are ignored: every layer attends to all tokens."),
)
"""What only runs showed, by code: effect, engines, code and text of a `Deviation`."""
DEVIATIONS: tuple[Deviation, ...] = (
    Deviation("lost", ("vllm",),
        "its gpt-oss class builds yarn from the block's factor and betas, whatever the rope_type is",
        "0.33.0's model_executor/models/gpt_oss.py, lines 111 to 125",
        model_types=("gpt_oss",),
        when=lambda case: case.block["rope_type"] != "yarn" or (case.extends and not case.has("beta_fast"))),
    Deviation("lost", ("vllm",),
        "its DeepSeek classes compute DeepSeek's yarn for every scaled block",
        "0.33.0's model_executor/models/deepseek_v2.py, lines 1115 to 1120 and 542 to 547; "
        "models/deepseek_v32/attention.py, lines 154 to 159",
        rules=_NOT_YARN, model_types=_DEEPSEEK),
    Deviation("lost", ("sglang",),
        "its DeepSeek class sets every scaled block to deepseek_yarn",
        "0.5.23's models/deepseek_v2.py, lines 2065 and 2066",
        rules=_NOT_YARN, model_types=_DEEPSEEK),
    Deviation("lost", ("sglang",),
        "its class of this family takes only theta from the block",
        "0.5.23's models/gemma.py, line 130; gemma2.py, 154; mixtral.py, 174; olmo.py, 87; persimmon.py, 92; "
        "phi.py, 69; stablelm.py, 146; starcoder2.py, 103",
        rules=_SCALED, model_types=_ONLY_THETA),
    Deviation("lost", ("sglang",),
        "its class of this family takes only the rope_type, theta and the rotated fraction from the block",
        "0.5.23's models/gemma4_causal.py, lines 388 to 423",
        rules=("linear", "dynamic", "yarn", "llama3", "longrope"), when=lambda case: case.is_type("gemma4")),
    Deviation("lost", ("sglang",),
        "its config class of OLMo 3 takes one flat rope_theta and rope_scaling, not a block for each layer type",
        "0.5.23's configs/olmo3.py (`Olmo3Config`), models/olmo2.py, lines 104 to 143",
        model_types=("olmo3",),
        when=lambda case: case.spelling == "rope_parameters" or flat_block(case.block) is None),
    Deviation("lost", ("sglang",),
        "its config class of Qwen3-Next checks a scaling before it has the length, so the server stops",
        "run: 0.5.23's configs/qwen3_next.py, line 221",
        rules=_SCALED, model_types=("qwen3_next",)),
    Deviation("lost", ("sglang",),
        "its Qwen3-VL class takes the rope that was loaded, not that of a JSON below `text_config`",
        "run: 0.5.23's models/qwen3_vl.py and utils/hf_transformers/common.py (`_patch_text_config`)",
        model_types=("qwen3_vl_text",), when=lambda case: case.override),
    Deviation("lost", ("vllm", "sglang"),
        "under M-RoPE it applies theta and yarn, and for other rules a rope of one axis",
        "vLLM 0.33.0's rotary_embedding/__init__.py (`get_rope`), SGLang 0.5.23's rotary_embedding/factory.py",
        rules=_NOT_YARN, when=lambda case: case.has("mrope_section")),
    Deviation("lost", ("vllm",),
        "under M-RoPE its class of this family computes yarn's ramp for four times the original length",
        "0.33.0's rotary_embedding/mrope.py, lines 351 to 369 (`MRotaryEmbedding`); only models/qwen3_vl.py and "
        "qwen3_5.py pass another `mrope_positions_factor`",
        rules=("yarn",), when=lambda case: case.has("mrope_section") and not case.is_type(*_OWN_FACTOR)),
    Deviation("lost", ("sglang",),
        "under M-RoPE it stops at `mscale` in a yarn block",
        "0.5.23's rotary_embedding/mrope.py, lines 442 to 459 (`YaRNScalingMRotaryEmbedding`)",
        rules=("yarn",), when=lambda case: case.has("mrope_section") and case.has("mscale", "mscale_all_dim")),
    Deviation("lost", ("vllm", "sglang"),
        "it rotates halves under longrope, but this family rotates neighbouring features, so the server stops",
        "vLLM 0.33.0's phi3_long_rope_scaled_rope.py, SGLang 0.5.23's rotary_embedding/rope_variant.py "
        "(`Phi3LongRoPEScaledRotaryEmbedding`)",
        rules=("longrope",), when=lambda case: case.interleaved),
    Deviation("lost", ("sglang",),
        "its class of this family makes longrope's table only as long as the original length",
        "0.5.23's models/ministral3.py, lines 126 to 128",
        rules=("longrope",), model_types=("ministral3",)),
    Deviation("lost", ("vllm",),
        "it fixes one base when it starts, and beyond the original length its table has no rows: the answers are NaN",
        "0.33.0's dynamic_ntk_scaling_rope.py; its line 67 in 0.32.0",
        code="nan", rules=("dynamic",), when=lambda case: case.extends),
    Deviation("lost", ("sglang",),
        "it fixes one base when it starts, that of factor x factor - (factor - 1), for prompts of every length",
        "0.5.23's rotary_embedding/rope_variant.py (`DynamicNTKScalingRotaryEmbedding`)",
        rules=("dynamic",)),
    Deviation("lost", ("sglang",),
        "its classes except Gemma 4's rotate every pair, because they do not pass the block's partial_rotary_factor",
        "0.5.23's rotary_embedding/factory.py, lines 156 and 428; models/llama.py, lines 199 and 225",
        rules=("proportional",), when=lambda case: not case.is_type("gemma4")),
    Deviation("lost", (CONVERTER,),
        "llama.cpp's converter was not checked for several ropes of this family",
        f"src/models/gemma3.cpp, gemma4.cpp, olmo2.cpp, modern-bert.cpp and laguna.cpp {_IN_CPP}",
        when=lambda case: case.several and case.model_type not in _TWO_ROPES),
    Deviation("lost", (CONVERTER,),
        "llama.cpp's converter has no class for this family",
        f"conversion/__init__.py {_IN_CPP}",
        model_types=("gptj",)),
    Deviation("lost", (CONVERTER,),
        "llama.cpp's converter removes the scaling of this family",
        f"conversion/command_r.py, lines 31 and 51; bert.py, line 614; nemotron.py, line 165 {_IN_CPP}",
        rules=_SCALED, model_types=("cohere", "cohere2", "modernbert", "nemotron")),
    Deviation("lost", (CONVERTER,),
        "llama.cpp's converter writes neither theta nor a scaling for this family",
        f"conversion/gptneox.py, line 20; stablelm.py, 25; gemma.py, 39 and 84; falcon.py, 18; phi.py, 21 {_IN_CPP}",
        model_types=("gpt_neox", "stablelm", "gemma", "gemma2", "falcon", "phi"),
        when=lambda case: any((one["rope_type"], one.get("rope_theta")) != ("default", 1e4) for one in case.blocks)),
    Deviation("lost", (CONVERTER,),
        "llama.cpp's converter writes only theta and longrope for Phi-3",
        f"conversion/phi.py, lines 148 to 215, {_IN_CPP}",
        rules=("linear", "yarn", "llama3"), model_types=("phi3",)),
    Deviation("lost", (CONVERTER,),
        "llama.cpp's converter takes only yarn for this family",
        f"conversion/mistral3.py, line 28, {_IN_CPP}",
        model_types=("ministral3",), when=lambda case: case.block["rope_type"] != "yarn"),
    Deviation("lost", (CONVERTER,),
        "llama.cpp's converter leaves the rule out of the file. Use --method ntk",
        f"conversion/base.py (`set_gguf_parameters`) {_IN_CPP}",
        rules=("dynamic",), when=lambda case: case.extends),
    Deviation("lost", (CONVERTER,),
        "llama.cpp's converter writes llama3's divisors only for Llama's architecture and its relatives",
        f"conversion/llama.py (`generate_extra_tensors`) {_IN_CPP}",
        rules=("llama3",), when=lambda case: case.model_type not in _LLAMAS),
    Deviation("lost", (CONVERTER,),
        "llama.cpp's converter writes longrope's divisors only for Phi-3, with an attention factor from the lengths. "
        "`ropewalk extend apply` writes them into .gguf files of Llama's architecture",
        f"conversion/base.py (`set_gguf_parameters`), phi.py, lines 176 to 212, {_IN_CPP}",
        rules=("longrope",), when=lambda case: case.model_type != "phi3" or case.has("attention_factor")),
    Deviation("lost", (CONVERTER,),
        "llama.cpp's converter applies proportional frequencies only for Gemma 4, as in the published config",
        f"conversion/gemma.py, lines 736 to 762, {_IN_CPP}",
        rules=("proportional",), when=lambda case: not case.is_type("gemma4")),
    Deviation("lost", ("onnx",),
        "its builder divides by zero under a yarn block without `beta_fast` and `beta_slow`",
        "0.18.0's builders/base.py, line 673", code="not loaded", read=False, rules=("yarn",)),
    *(Deviation(effect, engines, text, code=code, read=False) for effect, engines, code, text in _SHOWN),
    Deviation("unknown", _ONLY_RUN,
        "no run shows whether its class of this family applies this rule", code="not run", read=False,
        when=lambda case: case.scaled or case.extends),
    Deviation("note", _ONLY_RUN, "It was not run with this family.", code="not run", read=False),
    Deviation("differs", ("mlx",),
        "`attention_factor` in a yarn block is ignored: 0.1 ln(factor) + 1 applies.",
        "mlx-lm's models/rope_utils.py (`initialize_rope`)", versions="0.32.2", code="attention_factor",
        rules=("yarn",), when=lambda case: case.own_attention and case.has("attention_factor")),
    Deviation("differs", ("mlx",),
        "`truncate` in a yarn block is ignored: the ends of its ramp are rounded.",
        "mlx-lm's models/rope_utils.py, line 151", versions="0.32.2", code="truncate",
        rules=("yarn",), when=lambda case: any(one.get("truncate") is False for one in case.blocks)),
    Deviation("differs", ("mlx",),
        "`long_factor` is used for prompts of every length.", code="long", read=False,
        when=lambda case: case.two_lists),
    Deviation("differs", ("vllm",),
        "One list of divisors is used for every prompt: `long_factor` once --max-model-len is beyond the original "
        "length.",
        "vllm's phi3_long_rope_scaled_rope.py",
        code="long", versions="0.33.0", rules=("longrope",), when=lambda case: case.two_lists),
    Deviation("differs", ("llama.cpp", "ollama"),
        "The length of the server's context, not of the prompt, selects the list of divisors.",
        "llama.cpp's llama_model::get_rope_factors",
        code="long", versions="xllamacpp 2026.10.11549", rules=("longrope",), when=lambda case: case.two_lists),
    Deviation("differs", ("sglang",),
        "The longest prompt of a batch selects the list of divisors for all of its prompts.",
        "sglang's rotary_embedding/rope_variant.py, line 143 (`Phi3LongRoPEScaledRotaryEmbedding.forward`)",
        versions="0.5.23", rules=("longrope",), when=lambda case: case.two_lists),
    Deviation("differs", ("vllm",),
        "`llama_4_scaling_beta` in the block is ignored: queries beyond the original length are not scaled.",
        "vllm's model_executor/models/mistral.py, lines 106 to 115, which take it from params.json",
        code="queries", versions="0.33.0", model_types=("ministral3",),
        when=lambda case: any(one.get("llama_4_scaling_beta", 0.1) for one in case.blocks)),  # the class's own: 0.1
    Deviation("differs", ("vllm",),
        "`attention_factor`, `mscale` and `mscale_all_dim` in a yarn block are ignored: 0.1 ln(factor) + 1 applies.",
        "vllm-project/vllm#48351, #48621, #56446",
        versions="before 0.32.0, which was run", before="0.32.0", rules=("yarn",),
        when=lambda case: case.own_attention and not case.is_type(*_DEEPSEEK, "deepseek_v4")),  # V4's class forces 1
    Deviation("differs", ("vllm",),
        "YaRN is applied to layers of compression ratio 0, too, which the model was trained without.",
        "vllm-project/vllm#54815",
        versions="before September 2026", before="0.32.0", rules=("yarn",), model_types=("deepseek_v4",)),
    Deviation("differs", ("vllm",),
        "`attention_factor` in the block is ignored: 0.1 ln(factor) + 1 applies.",
        "vllm's model_executor/models/gpt_oss.py, lines 111 to 125",
        versions="0.33.0", model_types=("gpt_oss",), when=lambda case: case.own_attention),
    Deviation("differs", ("sglang",),
        "`attention_factor` in a yarn block is ignored: 0.1 ln(factor) + 1 applies, times `attn_factor`.",
        "sglang's rotary_embedding/factory.py; sgl-project/sglang#33558",
        versions="0.5.23", rules=("yarn",),
        when=lambda case: case.own_attention and case.has("attention_factor") and case.model_type != "laguna"),
    Deviation("differs", (CONVERTER,),
        "`truncate` in a yarn block is not applied as in transformers. Compare outputs before you rely on it.",
        "llama.cpp's conversion/base.py",
        versions="0.3.36 of llama-cpp-python", rules=("yarn",),
        when=lambda case: any(one.get("truncate") is False for one in case.blocks)),
    Deviation("differs", (CONVERTER,),
        "`attention_factor`, `mscale` and `mscale_all_dim` in a yarn block are not applied as in transformers. Compare "
        "outputs before you rely on them.",
        "llama.cpp's conversion/base.py (`set_gguf_parameters`)",
        versions="0.3.36 of llama-cpp-python", rules=("yarn",),
        when=lambda case: case.own_attention and not case.is_type(*_DEEPSEEK, "ministral3")),
    Deviation("differs", ("transformers",),
        "With a cache, keys keep the base of their rotation, so long answers differ from one forward pass.",
        "huggingface/transformers#25104",
        versions="all", rules=("dynamic",), when=lambda case: case.extends),
    Deviation("note", ("ollama",),
        "If Ollama runs a model in its own engine, not in llama.cpp, its llama and qwen3 use `rope.freq_scale`, which "
        "no converter writes, and ignore `rope.scaling.factor` and YaRN's keys, so the scaling is silently lost. "
        "`ropewalk verify` cannot check Ollama, whose /v1/completions returns no log-probabilities.",
        "ollama/ollama, its open #12308, and openai/openai.go (`ToCompletion`) at fb30760",
        versions="model/models/qwen3/model.go at 0312c5a, llama/model.go at 02e2ab6; other versions were not checked",
        rules=("linear", "yarn"), when=lambda case: case.arch in (None, "llama", "qwen3")),
    Deviation("note", ("sglang",),
        "On CPUs with AMX, Gemma 3 takes only theta from the block of its full layers and drops the scaling silently. "
        "Elsewhere it applies the block.",
        "sglang's gemma3_causal.py; see sgl-project/sglang#26013",
        versions="main at 038c87d", rules=_SCALED, model_types=("gemma3_text",)),
    Deviation("note", ENGINES,
        "The factor is fixed when the engine starts, so it applies to short prompts too. One user measured 15 to 20 % "
        "less in agentic tasks with YaRN 4 on Qwen3-32B, another 39 to 26.5 on Arena-Hard with Qwen3-8B. Serve short "
        "prompts from the model without it.",
        "vllm-project/vllm#18728, QwenLM/Qwen3#1567",
        versions="vLLM 0.8.5.post1 and 0.9.2rc2", when=lambda case: case.scaled and not case.two_lists),
    Deviation("note", ("vllm", CONVERTER),
        "The dynamic rule is not applied beyond the trained length, so the server stops there.",
        "vllm's dynamic_ntk_scaling_rope.py, llama.cpp's conversion/base.py (`set_gguf_parameters`)",
        versions="0.33.0, 0.3.36 of llama-cpp-python", rules=("dynamic",), when=lambda case: not case.extends),
    Deviation("note", ("transformers",),
        "Version 4 ignores `rope_parameters`: there the block is `rope_scaling`, with `config.rope_theta`.",
        "huggingface/transformers#42513, vllm-project/vllm#28542",
        versions="4", when=lambda case: case.override),
    Deviation("note", ("transformers",),
        "Version 4 takes YaRN's factor from max_position_embeddings / original_max_position_embeddings, which is a "
        "smaller factor here. Use version 5, or set max_position_embeddings to the factor times the original length.",
        "transformers' modeling_rope_utils.py (`_compute_yarn_parameters`)",
        versions="4.56", rules=("yarn",),
        when=lambda case: case.length is not None and case.length < case.scaled_length),
)
# fmt: on


def blocks_of(block: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the single blocks of `rope_parameters`: itself, or one for each layer type, scaled ones first.

    >>> blocks_of({"near": {"rope_type": "default"}, "far": {"rope_type": "yarn"}})[0]
    {'rope_type': 'yarn'}
    """
    return [block] if "rope_type" in block else sorted(block.values(), key=lambda one: one["rope_type"] == "default")


def flat_block(block: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the block for transformers 4's `rope_scaling` of OLMo 3, which scales only full layers; None without one.

    >>> flat_block({"full_attention": {"rope_type": "yarn"}, "sliding_attention": {"rope_type": "yarn"}}) is None
    True
    """
    full = block.get("full_attention", block)
    others = (one for label, one in block.items() if isinstance(one, Mapping) and label != "full_attention")
    alike = all(one == {"rope_type": "default", "rope_theta": full.get("rope_theta")} for one in others)
    return full if alike and "rope_type" in full else None


def applied(engine: str, case: Case) -> Answer:
    """Return whether an engine applies a rope as measured, with a difference, or not, and how that is known.

    For the newest version that was run or read, with notes about older ones.

    >>> answer = applied("vllm", Case(block={"rope_type": "yarn", "factor": 4.0}, model_type="llama"))
    >>> answer.state, answer.checked
    ('applied', 'measured in vLLM 0.32.0, 2026-11-28')
    >>> applied("sglang", Case(block={"rope_type": "yarn", "factor": 4.0}, model_type="gemma2")).reason
    'its class of this family takes only theta from the block'
    """
    engines = (engine, *((CONVERTER,) if case.converted and TABLE[engine].gguf else ()))
    outcomes = {row: measured(engine, case.model_type, row, case.spelling) for row in case.rows}
    codes = {code for outcome in outcomes.values() for code in outcome or ()}
    was_run = all(outcome is not None for row, outcome in outcomes.items() if row != "window")
    codes |= {"not run"} if TABLE[engine].only_run and not was_run else set()
    caveats = []
    for one in DEVIATIONS:
        shown = one.code in codes and engine in one.engines
        known = one.read and not (one.code and was_run) and bool({*engines} & {*one.engines})
        known &= not one.model_types or case.model_type in one.model_types
        if (shown or known) and one.holds(case):
            caveats.append(replace(one, measured=about(engine)) if shown and one.code != "not run" else one)
    order = ("lost", "unknown", "differs", "note")
    caveats.sort(key=lambda one: (one.before is not None, order.index(one.effect)))
    first = next((one for one in caveats if one.before is None and one.effect != "note"), None)
    read = TABLE[engines[-1]].read
    checked = f"read in {read}" if read else "not run"
    if (was_run and len(engines) == 1) or (first is not None and first.measured):
        checked = f"measured in {about(engine)}"
    return Answer(
        state="applied" if first is None or first.effect == "note" else first.effect,
        reason=None if first is None else first.text,
        source=checked if first is None else first.evidence,
        checked=checked,
        caveats=tuple(one for one in caveats if one.effect in ("differs", "note")),
    )
