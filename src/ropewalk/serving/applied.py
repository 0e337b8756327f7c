"""What does an engine apply of a rope? By model type and rule, with version and source.

`applied` is the one rule of `extend apply` and `serve-config`. Nothing is inferred by analogy: for the families that
were run, the record of `make engines` decides, for others what was read in the sources, in the versions of `TABLE`.

`measured.json` is the record's short form, written by `make docs-tables` from benchmarks/results/engines.json. For each
engine it has the version, the date, and rows of a block, the spelling of the config (or "any"), codes of what was
wrong, and the families:

- `unscaled`, `theta`, `partial`, `window`: without the scaling, with a theta of its own, rotating every feature,
  without windows. `attention_factor`, `truncate`, `untruncated`: yarn without this key, with rounded or unrounded ends
  of the ramp. `long`: the long factors at every length. `sliding`: the attention factor on windowed layers, too.
  `queries`: not scaled by position. `nan`: no numbers beyond the original length.
- `not loaded`. `not the rope`: it differs as much with the plain rope. `unknown`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from ropewalk.families import FAMILIES
from ropewalk.rope.scaling import YaRN, yarn_mscale
from ropewalk.serving.engines import CONVERTER, ENGINES, TABLE


@cache
def _record() -> dict[str, Any]:
    content: dict[str, Any] = json.loads((files(__package__ or "") / "measured.json").read_text("utf-8"))
    return content


def _run_of(engine: str) -> str:
    """Return an engine's name, version, and the date of its run."""
    return "{version}, {date}".format(**_record()[engine])


@cache
def _family(engine: str, family: str) -> dict[tuple[str, str], tuple[str, ...]]:
    rows = _record().get(engine, {"rows": ()})["rows"]
    return {(block, spelling): tuple(codes) for block, spelling, codes, families in rows if family in families.split()}


def measured(engine: str, family: str, block: str, spelling: str) -> tuple[str, ...] | None:
    """Return the codes of what an engine did wrong with a block; None if it was not run.

    A config with both spellings that was not run is read as the better one: each class reads one of them.

    >>> measured("mlx", "gemma2", "yarn", "extend apply")
    ('unscaled',)
    """
    rows = _family(engine, family)
    own = rows.get((block, spelling), rows.get((block, "any")))
    if own is not None or spelling != "extend apply":
        return own
    either = [rows[block, one] for one in ("rope_scaling", "rope_parameters") if (block, one) in rows]
    return min(either, key=lambda codes: ("unscaled" in codes or "not loaded" in codes, len(codes)), default=None)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A rope to be applied by an engine.

    - `block`: the `rope_parameters`, or one for each layer type. `model_type`: of the language model's config.
    - `arch`: llama.cpp's architecture; None: Llama's. `converted`: whether llama.cpp's converter writes this rope.
    - `extends`: whether it differs from the checkpoint's own. `scaled`: whether it has a scaling without training.
    - `interleaved`: whether pairs are neighbouring features.
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
    interleaved: bool = False
    override: bool = False
    spelling: str = "extend apply"
    windowed: bool = False

    @property
    def blocks(self) -> list[Mapping[str, Any]]:
        return blocks_of(self.block)

    def has(self, *keys: str) -> bool:
        """Return whether a block has one of these keys."""
        return any(key in one for key in keys for one in self.blocks)

    def is_type(self, *starts: str) -> bool:
        return self.model_type.startswith(starts)

    @property
    def two_lists(self) -> bool:
        """Return whether the frequencies depend on the length, by two lists of divisors."""
        return any(one.get("short_factor") != one.get("long_factor") for one in self.blocks)

    @property
    def own_attention(self) -> bool:
        """Return whether the factor of queries and keys in a yarn block is not 0.1 ln(factor) + 1."""
        for one in (one for one in self.blocks if one["rope_type"] == "yarn" and one.get("factor")):
            given: dict[str, Any] = {key: one.get(key) for key in ("attention_factor", "mscale", "mscale_all_dim")}
            own = YaRN(one["factor"], 1, **given).attention_factor_at(None, None)
            if not math.isclose(own, yarn_mscale(one["factor"], 1.0)):
                return True
        return False

    @property
    def untruncated(self) -> bool:
        return any(one.get("truncate") is False for one in self.blocks)

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


@dataclass(frozen=True)
class Deviation:
    """One known behaviour of engines.

    - `effect`: "lost": the rope is not applied as measured. "unknown": nobody knows. "differs": it is, with this
      difference. "note": neither; it concerns the command.
    - `engines`: the engines. `text`: a clause if the rope is lost or unknown, else sentences.
    - `versions`: the versions with this behaviour. `source`: the file or issue that shows it.
    - `rules`, `model_types`: only for these `rope_type`s and language models; empty: all. `when`: a further condition.
    - `code`: that of measured.json which shows it. Where the engine was run, the record decides;
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
_ONLY_RUN = tuple(name for name, one in TABLE.items() if one.only_run)
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
        when=lambda case: "rope_type" not in case.block and case.model_type not in _TWO_ROPES),
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
        rules=("yarn",), when=lambda case: case.untruncated),
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
        when=lambda case: case.untruncated),
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

    For the version that was run or read.

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
            caveats.append(replace(one, measured=_run_of(engine)) if shown and one.code != "not run" else one)
    order = ("lost", "unknown", "differs", "note")
    caveats.sort(key=lambda one: order.index(one.effect))
    first = next((one for one in caveats if one.effect != "note"), None)
    read = TABLE[engines[-1]].read
    checked = f"read in {read}" if read else "not run"
    if (was_run and len(engines) == 1) or (first is not None and first.measured):
        checked = f"measured in {_run_of(engine)}"
    return Answer(
        state="applied" if first is None or first.effect == "note" else first.effect,
        reason=None if first is None else first.text,
        source=checked if first is None else first.evidence,
        checked=checked,
        caveats=tuple(one for one in caveats if one.effect in ("differs", "note")),
    )
