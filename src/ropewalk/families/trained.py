"""The training of published checkpoints: with or without the scaling in their config, and to which length.

A config.json states neither. A scaling used in training is part of the model. Any other scaling is an option for
inference, and the model was trained with unscaled frequencies. Each fact has its source. Nothing is guessed about other
checkpoints (the doctor measures them).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class Trained:
    """Facts about a checkpoint's training.

    - `with_scaling`: True: the scaling in its config is part of the model. False: it is an option for inference. None:
      unknown, or no scaling.
    - `length`: tokens of its longest training sequences, if `max_position_embeddings` is a different number.
    - `source`: the publication.
    """

    with_scaling: bool | None = None
    length: int | None = None
    source: str = ""


@dataclass(frozen=True)
class Row:
    """A fact about the checkpoints of some families.

    - `families`, `rules`: names separated by blanks; rules are `rope_type`s, "default" without scaling.
    - `where`: required values of the config's keys.
    - `length_key`: required key of the config that states the trained length.
    """

    families: str
    rules: str
    trained: Trained
    where: Mapping[str, Any] = field(default_factory=dict)
    length_key: str | None = None


def _fact(
    families: str,
    rules: str,
    source: str,
    scaled: bool | None = None,
    length: int | None = None,
    *,
    longest: int | None = None,
    original: int | None = None,
    **where: Any,
) -> Row:
    """Return a row; `longest` and `original` are the required numbers of the two keys of lengths."""
    keys = {"max_position_embeddings": longest, "original_max_position_embeddings": original}
    where |= {key: value for key, value in keys.items() if value is not None}
    return Row(families, rules, Trained(scaled, length, source), where)


_LLAMA_3 = "Llama 3.1 to 3.3: arXiv:2407.21783, section 3.4.2 (8K to 128K in six stages)"
_LLAMA_4 = "Meta AI, The Llama 4 herd (2025): pre-trained and post-trained with a 256K context"
_VICUNA = "LongChat and Vicuna 16k: LMSYS, How Long Can Open-Source LLMs Truly Promise (2023)"
_PHI_4 = "Phi-4: arXiv:2503.01743, section 2"
_DEEPSEEK_2 = "DeepSeek-V2: arXiv:2405.04434, section 3.1.4 (trained at 32K, evaluated to 128K)"
_DEEPSEEK_3 = "DeepSeek-V3: arXiv:2412.19437, section 4.3 (32K, then 128K)"
_DEEPSEEK_32 = "DeepSeek-V3.2-Exp: its report (from DeepSeek-V3.1-Terminus, extended to 128K)"
_MISTRAL_4 = "transformers 5.23, MistralLarge4TextConfig: YaRN over a 512-token pretraining window"
_CODER = "DeepSeek-Coder: arXiv:2401.14196, section 3.5"
_PHI_3 = "Phi-3 and Phi-3.5: arXiv:2404.14219, section 2"
_GPT_OSS = "gpt-oss: arXiv:2508.10925, section 2.2 (to 131,072 by YaRN)"
_OLMO_3 = "Olmo 3: arXiv:2512.13961 (8K to 64K by YaRN, full attention only)"
_DEFAULT = "the class's own default block, transformers 5.23"
_QWEN = (
    "qwen2 qwen2_moe qwen2_vl qwen2_vl_text qwen2_5_vl qwen2_5_vl_text qwen2_5_omni_text qwen3 qwen3_moe qwen3_vl_text "
    "qwen3_vl_moe_text qwen3_omni_moe_text qwen3_next qwen3_5_text qwen3_5_moe_text"
)
_QWEN_3 = "Qwen3: arXiv:2505.09388, section 3.2; its card: 40,960 includes a prompt of 8,192"
_QWEN_2_5_VL = "Qwen2.5-VL: arXiv:2502.13923, table 2; its card: config.json is set up to 32,768"
_MISTRAL = "Mistral 7B v0.1: arXiv:2310.06825, table 1 (context 8,192, window 4,096)"
_COMMAND_R = "Command R: its model card (128K) and `model_max_length`; see vllm-project/vllm#3727"
FACTS = (
    # --- trained with the scaling in their config
    _fact("llama mllama_text_model", "llama3", _LLAMA_3, True, rope_theta=500_000.0, original=8192),
    _fact("llama4_text", "llama3 default", _LLAMA_4, True, 262_144, longest=10_485_760),
    _fact("llama4_text", "llama3 default", _LLAMA_4, True, 262_144, longest=1_048_576),
    Row("llama", "linear", Trained(True, source=_VICUNA), length_key="max_sequence_length"),
    _fact("llama", "linear", _CODER, True, rope_theta=100_000.0, factor=4.0, longest=16_384),
    _fact("gemma3_text", "linear", "Gemma 3: arXiv:2503.19786, section 2.1 (32K, then 128K)", True, factor=8.0),
    _fact("phi3", "longrope", _PHI_4, True, vocab_size=200_064, longest=131_072),
    _fact("phi4_multimodal", "longrope", _PHI_4, True, original=4096),
    _fact("phi3 phimoe", "longrope", _PHI_3, True, longest=131_072, original=4096),
    _fact("deepseek_v2", "yarn", _DEEPSEEK_2, True, 32_768, longest=163_840),
    _fact("deepseek_v3", "yarn", _DEEPSEEK_3, True, 131_072, longest=163_840),
    _fact("deepseek_v32", "yarn", _DEEPSEEK_32, True, 131_072, longest=163_840),
    _fact("gpt_oss", "yarn", _GPT_OSS, True, factor=32.0, original=4096),
    _fact("olmo3", "yarn", _OLMO_3, True, factor=8.0, original=8192),
    _fact("ministral3", "yarn", "Ministral 3: arXiv:2601.08584 (to 256K by YaRN)", True, factor=16.0, original=16_384),
    _fact("apertus", "llama3", _DEFAULT, True, factor=8.0),
    _fact("cwm", "llama3", _DEFAULT, True, factor=16.0),
    _fact("higgs_audio_v2", "llama3", _DEFAULT, True, factor=32.0),
    _fact("mistral_large4_text", "yarn", _MISTRAL_4, True, original=512),
    # --- options for inference
    _fact(_QWEN, "yarn", "the Qwen models' cards: YaRN is added to config.json for long texts", False),
    _fact("smollm3", "yarn", "SmolLM3: its model card (trained to 64K, YaRN to 128K)", False),
    _fact("glm4", "yarn", "GLM-4-0414: its model card (32K, YaRN beyond)", False),
    # --- without scaling, trained to a different length than the config states
    _fact("qwen3 qwen3_moe", "default", _QWEN_3, length=32_768, longest=40_960),
    _fact("qwen2_5_vl qwen2_5_vl_text", "default", _QWEN_2_5_VL, length=32_768, longest=128_000),
    _fact("mistral", "default", _MISTRAL, length=8192, rope_theta=10_000.0, longest=32_768),
    Row("cohere", "default", Trained(source=_COMMAND_R), length_key="model_max_length"),
)


def trained_as(family: str, rule: str, fields: Mapping[str, Any]) -> Trained | None:
    """Return the facts about a checkpoint's training, or None if nothing is known.

    `rule` is the `rope_type`, "default" without scaling, and `fields` are the keys of the config and of its rope block,
    with the class's defaults.

    >>> trained_as("qwen2", "yarn", {}).with_scaling, trained_as("llama", "yarn", {})
    (False, None)
    """
    if rule == "dynamic":
        return Trained(False, source="dynamic NTK changes nothing up to max_position_embeddings")
    if isinstance(fields.get("finetuned"), bool) and rule != "default":
        return Trained(fields["finetuned"], source="the config contains `finetuned`")
    for fact in FACTS:
        if family in fact.families.split() and rule in fact.rules.split() and fact.where.items() <= fields.items():
            length = fields.get(fact.length_key or "")
            if fact.length_key is None or isinstance(length, int):
                return fact.trained if fact.length_key is None else replace(fact.trained, length=length)
    return None
