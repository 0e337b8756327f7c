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


DYNAMIC = Trained(False, source="dynamic NTK changes nothing up to max_position_embeddings")
FINETUNED = "the config contains `finetuned`"
_QWEN = (
    "qwen2 qwen2_moe qwen2_vl qwen2_vl_text qwen2_5_vl qwen2_5_vl_text qwen2_5_omni_text qwen3 qwen3_moe qwen3_vl_text "
    "qwen3_vl_moe_text qwen3_omni_moe_text qwen3_next qwen3_5_text qwen3_5_moe_text"
)
_LLAMA_3 = {"rope_theta": 500_000.0, "original_max_position_embeddings": 8192}
_LLAMA_4 = Trained(True, 262_144, "Meta AI, The Llama 4 herd (2025): pre-trained and post-trained with a 256K context")
_DEEPSEEK = {"max_position_embeddings": 163_840}
_PHI_4 = Trained(True, source="Phi-4: arXiv:2503.01743, section 2")
FACTS = (
    # --- trained with the scaling in their config
    Row(
        "llama mllama_text_model",
        "llama3",
        Trained(True, source="Llama 3.1 to 3.3: arXiv:2407.21783, section 3.4.2 (8K to 128K in six stages)"),
        _LLAMA_3,
    ),
    Row("llama4_text", "llama3 default", _LLAMA_4, {"max_position_embeddings": 10_485_760}),
    Row("llama4_text", "llama3 default", _LLAMA_4, {"max_position_embeddings": 1_048_576}),
    Row(
        "llama",
        "linear",
        Trained(True, source="LongChat and Vicuna 16k: LMSYS, How Long Can Open-Source LLMs Truly Promise (2023)"),
        length_key="max_sequence_length",
    ),
    Row(
        "llama",
        "linear",
        Trained(True, source="DeepSeek-Coder: arXiv:2401.14196, section 3.5"),
        {"rope_theta": 100_000.0, "factor": 4.0, "max_position_embeddings": 16_384},
    ),
    Row(
        "gemma3_text",
        "linear",
        Trained(True, source="Gemma 3: arXiv:2503.19786, section 2.1 (32K, then 128K)"),
        {"factor": 8.0},
    ),
    Row("phi3", "longrope", _PHI_4, {"vocab_size": 200_064, "max_position_embeddings": 131_072}),
    Row("phi4_multimodal", "longrope", _PHI_4, {"original_max_position_embeddings": 4096}),
    Row(
        "phi3 phimoe",
        "longrope",
        Trained(True, source="Phi-3 and Phi-3.5: arXiv:2404.14219, section 2"),
        {"max_position_embeddings": 131_072, "original_max_position_embeddings": 4096},
    ),
    Row(
        "deepseek_v2",
        "yarn",
        Trained(True, 32_768, "DeepSeek-V2: arXiv:2405.04434, section 3.1.4 (trained at 32K, evaluated to 128K)"),
        _DEEPSEEK,
    ),
    Row(
        "deepseek_v3",
        "yarn",
        Trained(True, 131_072, "DeepSeek-V3: arXiv:2412.19437, section 4.3 (32K, then 128K)"),
        _DEEPSEEK,
    ),
    Row(
        "deepseek_v32",
        "yarn",
        Trained(True, 131_072, "DeepSeek-V3.2-Exp: its report (from DeepSeek-V3.1-Terminus, extended to 128K)"),
        _DEEPSEEK,
    ),
    Row(
        "gpt_oss",
        "yarn",
        Trained(True, source="gpt-oss: arXiv:2508.10925, section 2.2 (to 131,072 by YaRN)"),
        {"factor": 32.0, "original_max_position_embeddings": 4096},
    ),
    Row(
        "olmo3",
        "yarn",
        Trained(True, source="Olmo 3: arXiv:2512.13961 (8K to 64K by YaRN, full attention only)"),
        {"factor": 8.0, "original_max_position_embeddings": 8192},
    ),
    Row(
        "ministral3",
        "yarn",
        Trained(True, source="Ministral 3: arXiv:2601.08584 (to 256K by YaRN)"),
        {"factor": 16.0, "original_max_position_embeddings": 16_384},
    ),
    *(
        Row(
            name, "llama3", Trained(True, source="the class's own default block, transformers 5.23"), {"factor": factor}
        )
        for name, factor in (("apertus", 8.0), ("cwm", 16.0), ("higgs_audio_v2", 32.0))
    ),
    Row(
        "mistral_large4_text",
        "yarn",
        Trained(True, source="transformers 5.23, MistralLarge4TextConfig: YaRN over a 512-token pretraining window"),
        {"original_max_position_embeddings": 512},
    ),
    # --- options for inference
    Row(_QWEN, "yarn", Trained(False, source="the Qwen models' cards: YaRN is added to config.json for long texts")),
    Row("smollm3", "yarn", Trained(False, source="SmolLM3: its model card (trained to 64K, YaRN to 128K)")),
    Row("glm4", "yarn", Trained(False, source="GLM-4-0414: its model card (32K, YaRN beyond)")),
    # --- without scaling, trained to a different length than the config states
    Row(
        "qwen3 qwen3_moe",
        "default",
        Trained(
            length=32_768, source="Qwen3: arXiv:2505.09388, section 3.2; its card: 40,960 includes a prompt of 8,192"
        ),
        {"max_position_embeddings": 40_960},
    ),
    Row(
        "qwen2_5_vl qwen2_5_vl_text",
        "default",
        Trained(
            length=32_768, source="Qwen2.5-VL: arXiv:2502.13923, table 2; its card: config.json is set up to 32,768"
        ),
        {"max_position_embeddings": 128_000},
    ),
    Row(
        "mistral",
        "default",
        Trained(length=8192, source="Mistral 7B v0.1: arXiv:2310.06825, table 1 (context 8,192, window 4,096)"),
        {"rope_theta": 10_000.0, "max_position_embeddings": 32_768},
    ),
    Row(
        "cohere",
        "default",
        Trained(source="Command R: its model card (128K) and `model_max_length`; see vllm-project/vllm#3727"),
        length_key="model_max_length",
    ),
)


def trained_as(family: str, rule: str, fields: Mapping[str, Any]) -> Trained | None:
    """Return the facts about a checkpoint's training, or None if nothing is known.

    **Arguments:**
    - `family`: name in the table.
    - `rule`: the `rope_type`, "default" without scaling.
    - `fields`: keys of the config and of its rope block, with the class's defaults.

    >>> trained_as("qwen2", "yarn", {}).with_scaling, trained_as("llama", "yarn", {})
    (False, None)
    """
    if rule == "dynamic":
        return DYNAMIC
    if isinstance(fields.get("finetuned"), bool) and rule != "default":
        return Trained(fields["finetuned"], source=FINETUNED)
    for fact in FACTS:
        if family in fact.families.split() and rule in fact.rules.split() and fact.where.items() <= fields.items():
            length = fields.get(fact.length_key or "")
            if fact.length_key is None or isinstance(length, int):
                return fact.trained if fact.length_key is None else replace(fact.trained, length=length)
    return None
