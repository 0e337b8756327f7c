"""List what is known of serving engines: what each ignores or does differently, with the version and the source.

Nothing here was concluded by analogy. "run" was run by us; everything else is from what `source` names.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

ENGINES = ("vllm", "sglang", "llama.cpp", "ollama", "transformers")
READS_GGUF = ("llama.cpp", "ollama")
"""The engines that load a .gguf file here; the others load a Hugging Face folder."""
CONVERTER = "llama.cpp's converter"
"""convert_hf_to_gguf.py, which makes a .gguf file of a Hugging Face folder. `caveats_of` takes it as an engine."""
RULES_CHECKED = ("default", "linear", "dynamic", "yarn", "llama3", "longrope")
"""The `rope_type`s that were looked up in the sources of vLLM and of llama.cpp's converter."""
MULTIPLIES_LENGTH = ("linear", "dynamic")
"""The rules whose factor vLLM and SGLang multiply `max_position_embeddings` by, so that the trained length stays there.

Source: vLLM's `_get_and_verify_max_len`, SGLang's `get_context_length`.
"""
NOT_MULTIPLIED = "gemma3"
"""The model types with this in their name, whose length vLLM takes as it stands; read in the same function."""


@dataclass(frozen=True, kw_only=True)
class Caveat:
    """Describe one thing that an engine ignores or does differently.

    - `engines`: the engines concerned. `says`: what they do, and the cure. `versions`: where it was seen. `source`:
      the file or issue that shows it.
    - `rules`: only these `rope_type`s; empty: all. `keys`: only blocks with one of these keys. `scaled`: only with an
      extension. `composite`: only configs that hold their language model under `text_config`.
    - `several`: only where layer types have blocks of their own. `windows`: only where layers with a window share the
      block of others.
    """

    engines: tuple[str, ...]
    says: str
    versions: str
    source: str
    rules: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    scaled: bool = True
    composite: bool = False
    several: bool = False
    windows: bool = False

    @property
    def of_the_block(self) -> bool:
        """Return whether it is about this engine's reading of a `rope_type`, not about serving in general."""
        return bool(self.rules) and len(self.engines) <= 2


_STATIC = ("linear", "yarn", "llama3", "longrope", "default")

CAVEATS: tuple[Caveat, ...] = (
    Caveat(
        engines=ENGINES,
        says="This config has one block for all layers, so layers with a short window are scaled too. The doctor "
        "leaves them as they were trained: what it measured is `rw.attach`'s.",
        versions="all",
        source="src/ropewalk/methods/method.py, transformers' modeling_gemma2.py",
        windows=True,
    ),
    Caveat(
        engines=("vllm",),
        says="Blocks by layer type are read by the classes that look for them (Gemma 3 does). Others read one flat "
        "block (OLMo 3, in July 2026): ask the server (`ropewalk verify`).",
        versions="vLLM's gemma3.py with `config.rope_parameters[layer_type]`; not before November 2025",
        source="vllm-project/vllm#28542, EuroEval/EuroEval#2089",
        several=True,
    ),
    Caveat(
        engines=("vllm",),
        says="Beside transformers 4, a `rope_theta` at the top of the config is put into the blocks by layer type, and "
        "the server stops: rope_parameters should have a 'rope_type' key.",
        versions="0.16.0 and 0.19.0",
        source="users' patches of vllm's transformers_utils/config.py, patch_rope_parameters",
        several=True,
    ),
    Caveat(
        engines=("sglang",),
        says="On CPUs with AMX, Gemma 3 takes theta alone from the block of its full layers: the scaling is lost in "
        "silence. Elsewhere it reads the block.",
        versions="main at 038c87d",
        source="sglang's gemma3_causal.py; see sgl-project/sglang#26013",
        several=True,
    ),
    Caveat(
        engines=("vllm", "sglang", "llama.cpp", "ollama", "transformers"),
        says="The factor is fixed when the engine starts, so short prompts are read under it too. One user measured "
        "15 to 20 % less in agentic tasks with YaRN 4 on Qwen3-32B, another 39 to 26.5 on Arena-Hard with Qwen3-8B. "
        "Serve short prompts from the model without it.",
        versions="vLLM 0.8.5.post1 and 0.9.2rc2",
        source="vllm-project/vllm#18728, QwenLM/Qwen3#1567",
        rules=_STATIC,
    ),
    Caveat(
        engines=("vllm",),
        says="--rope-scaling is gone: the server stops at the flag. --hf-overrides takes its place.",
        versions="from 0.11.1",
        source="vllm-project/vllm#28006, quoted in vllm-project/recipes#856",
    ),
    Caveat(
        engines=("vllm",),
        says="Older servers know the block as `rope_scaling`, with `rope_theta` beside it and not in it.",
        versions="before the change of November 2025 (0.10.2's example has the old keys)",
        source="vllm-project/vllm#28542, docs.vllm.ai v0.10.2",
    ),
    Caveat(
        engines=("vllm",),
        says="`attention_factor` in a yarn block is dropped: 0.1 ln(factor) + 1 is taken.",
        versions="0.25, open in July 2026",
        source="vllm-project/vllm#48351",
        rules=("yarn",),
        keys=("attention_factor",),
    ),
    Caveat(
        engines=("vllm",),
        says="`mscale` and `mscale_all_dim` in a yarn block are ignored.",
        versions="0.25.0; read since September 2026",
        source="vllm-project/vllm#48621, #56446",
        rules=("yarn",),
        keys=("mscale", "mscale_all_dim"),
    ),
    Caveat(
        engines=("vllm", CONVERTER),
        says="`truncate` in a yarn block is not read as transformers does: compare outputs before relying on it.",
        versions="main at 926c71f; 0274f0f",
        source="vllm's rotary_embedding/__init__.py; llama.cpp's conversion/base.py",
        rules=("yarn",),
        keys=("truncate",),
    ),
    Caveat(
        engines=("vllm",),
        says="One list of divisors is used for every prompt: `long_factor` once --max-model-len is beyond the original "
        "length. The factor for queries and keys is `short_mscale` and `long_mscale`, not `attention_factor`; exported "
        "folders have all three.",
        versions="main at 63c2b7a",
        source="vllm's phi3_long_rope_scaled_rope.py",
        rules=("longrope",),
    ),
    Caveat(
        engines=("vllm",),
        says="One base is fixed for max_position_embeddings x factor tokens; with factor 1 nothing is extended. "
        "Use --method ntk.",
        versions="main at 3cfbaf3",
        source="vllm's dynamic_ntk_scaling_rope.py",
        rules=("dynamic",),
    ),
    Caveat(
        engines=("sglang",),
        says="Without --context-length the server keeps the length that it derives from the config.",
        versions="2024 to 2025",
        source="sgl-project/sglang#2108, QwenLM/Qwen3#1443",
    ),
    Caveat(
        engines=("sglang",),
        says="A --context-length beyond what it derives is refused; SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1 allows "
        "it. The overrides here state a length that is derived.",
        versions="since November 2024",
        source="sgl-project/sglang#2943, #1778",
    ),
    Caveat(
        engines=("sglang",),
        says="Some model classes read `rope_scaling` from the config and not `rope_parameters`, so that a block of "
        "transformers 5 was dropped in silence. LFM2 was mended in May 2026.",
        versions="before that change",
        source="sgl-project/sglang#26187",
    ),
    Caveat(
        engines=("sglang",),
        says="Overrides are put on the outer config, and the language model reads `text_config`: nothing happens, in "
        "silence. Change config.json instead (`ropewalk extend apply`).",
        versions="June 2026",
        source="sgl-project/sglang#27974",
        composite=True,
    ),
    Caveat(
        engines=("sglang",),
        says="Its YaRN multiplies 0.1 ln(factor) + 1 by a factor of its own: an `attention_factor` copied there was "
        "applied twice for Laguna until August 2026; other models were not checked.",
        versions="before that change",
        source="sgl-project/sglang#33558",
        rules=("yarn",),
        keys=("attention_factor",),
    ),
    Caveat(
        engines=(CONVERTER,),
        says="The rule is left out of the file, so texts are read unscaled. Use --method ntk.",
        versions="0274f0f",
        source="llama.cpp's conversion/base.py (`set_gguf_parameters`)",
        rules=("dynamic",),
    ),
    Caveat(
        engines=(CONVERTER,),
        says="`attention_factor`, `mscale` and `mscale_all_dim` in a yarn block are not read as transformers does: "
        "compare outputs before relying on it.",
        versions="0274f0f",
        source="llama.cpp's conversion/base.py (`set_gguf_parameters`)",
        rules=("yarn",),
        keys=("attention_factor", "mscale", "mscale_all_dim"),
    ),
    Caveat(
        engines=(CONVERTER,),
        says="It looks for the original length at the top of config.json and else takes 8,192; exported folders have "
        "it there.",
        versions="0274f0f",
        source="llama.cpp's conversion/llama.py (`generate_extra_tensors`)",
        rules=("llama3",),
    ),
    Caveat(
        engines=(CONVERTER,),
        says="The divisors are written for Phi-3 only. Other families lose this rope: write a .gguf file by "
        "`ropewalk extend apply` instead (Llama's architecture).",
        versions="0274f0f",
        source="llama.cpp's conversion/base.py (`set_gguf_parameters`)",
        rules=("longrope",),
    ),
    Caveat(
        engines=("llama.cpp",),
        says="A prompt beyond the file's context_length is refused whatever --ctx-size says. YaRN flags raise that "
        "limit since August 2026; before, they need --override-kv ARCH.context_length=int:LENGTH beside them. Flags "
        "for a base or a linear factor raise nothing, so these two are written into the file.",
        versions="run: xllamacpp 2026.10.11549",
        source="ggml-org/llama.cpp#17459, #22140, #28030",
    ),
    Caveat(
        engines=("llama.cpp",),
        says="The list of divisors is chosen by the length of the server's context, not of the prompt.",
        versions="run: xllamacpp 2026.10.11549",
        source="llama.cpp's llama_model::get_rope_factors",
        rules=("longrope",),
    ),
    Caveat(
        engines=("ollama",),
        says="A Modelfile has no parameter for scaling: the keys must be in the .gguf file.",
        versions="docs/modelfile.md at 037a28b",
        source="ollama/ollama#3508, docs/modelfile.md",
    ),
    Caveat(
        engines=("ollama",),
        says="Where Ollama runs a model by its own engine, not by llama.cpp, its llama and qwen3 read "
        "`rope.freq_scale`, which no converter writes, and neither `rope.scaling.factor` nor YaRN's keys: the scaling "
        "would be lost in silence. Run `ropewalk verify`.",
        versions="model/models/qwen3/model.go at 0312c5a, llama/model.go at 02e2ab6; other versions were not read",
        source="ollama/ollama, and its open #12308",
        rules=("linear", "yarn"),
    ),
    Caveat(
        engines=("transformers",),
        says="The frequencies are computed when the model is built: changing `model.config` later changes nothing.",
        versions="5",
        source="MakazhanAlpamys/Soup#793",
    ),
    Caveat(
        engines=("transformers",),
        says="Version 4 does not know `rope_parameters`: there the block is `rope_scaling`, with `config.rope_theta`.",
        versions="4",
        source="huggingface/transformers#42513, vllm-project/vllm#28542",
    ),
    Caveat(
        engines=("transformers",),
        says="With a cache, keys stay rotated by the base of their moment: long answers differ from one forward pass.",
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
    windows: bool = False,
) -> list[Caveat]:
    """Return what is known of an engine that matters for a rope with the keys `block` and the `rope_type` `rule`.

    >>> [caveat.source for caveat in caveats_of("vllm", {"mscale"}, "yarn", scaled=True)][-1]
    'vllm-project/vllm#48621, #56446'
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
        and (windows or not one.windows)
    ]
