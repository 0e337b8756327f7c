"""Families whose code lies beside their weights, and where it was read."""

from __future__ import annotations

from ropewalk.families.family import HALF, INTERLEAVED, Condition, FamilyTable
from ropewalk.families.interleaved import MLA

FAMILIES = FamilyTable()

_PLAIN = ("default", "linear", "dynamic")  # rules without an attention factor
_LONGROPE = "whether its LongRoPE also scales queries and keys is not known here"
_STEPS = "beyond seq_length its frequencies change in steps of their own (up to it, `use_dynamic_ntk` may be false)"
_TWO_POSITIONS = "ChatGLM-6B turns each half of a head by positions of its own"
_DIVIDED = "ChatGLM2-6B-32K divides positions by its rope_ratio, where later models multiply theta by it"
FAMILIES.add("internlm2 deepseek bailing_moe exaone", HALF)
FAMILIES.add("internlm", HALF, holds={"rotary": Condition("its `rotary` block is not read here", values=(None,))})
FAMILIES.add(
    "minicpm", HALF, holds=dict.fromkeys(("rope_scaling", "rope_parameters"), Condition(_LONGROPE, rope_types=_PLAIN))
)
FAMILIES.add(
    "baichuan", HALF, holds={"hidden_size": Condition("only the 7B models turn, others use ALiBi", values=(4096,))}
)
FAMILIES.add("qwen", HALF, partial=1.0, holds={"use_dynamic_ntk": Condition(_STEPS, values=(False,))})
FAMILIES.add("minimax_text_01 minimax_m1", HALF, partial=1.0)
FAMILIES.add("llada", HALF, switch=("rope", True, False))
FAMILIES.add("kimi_k2", MLA)
FAMILIES.add(
    "chatglm",
    INTERLEAVED,
    partial=0.5,
    theta_ratio="rope_ratio",
    holds={
        "position_encoding_2d": Condition(_TWO_POSITIONS, values=(None, False, 0)),
        "original_rope": Condition("false pairs otherwise (CogAgent)", values=(None, True)),
        "_name_or_path": Condition(_DIVIDED, without="chatglm2-6b-32k"),
    },
)
SOURCES: dict[str, str] = {  # GitHub repositories at a commit; copies of a release where the release is no repository
    "baichuan": "alibaba/alimama-video-narrator modeling_baichuan.py@58f8af3; 13B: Mrgengli/baichuan_python@c3b700b",
    "bailing_moe": "inclusionAI/Ming modeling_bailing_moe.py@22f8315",
    "chatglm": "THUDM/LongAlign modeling_chatglm.py@21d6e84; rope_ratio: vllm-project/vllm models/chatglm.py@028aedf",
    "deepseek": "mindspore-lab/mindnlp models/deepseek/modeling_deepseek.py@4842e87",
    "exaone": "ml-explore/mlx-lm models/exaone.py@1205638",
    "internlm": "yangulei/internlm-20b modeling_internlm.py@5d2ec53",
    "internlm2": "IntMeGroup/HarmonyIQA modeling_internlm2.py@79a7bf6",
    "kimi_k2": "MoonshotAI/Kimi-K2 docs/deploy_guidance.md: DeepSeek-V3's code under another model_type",
    "llada": "QuentinFitteRey/LLada-Reasoning modeling_llada.py@dad4f02",
    "minicpm": "mindspore-lab/mindnlp models/minicpm/modeling_minicpm.py@8f4fefb",
    "minimax_m1": "MiniMax-AI/vllm models/minimax_text_01.py@cc737ee",
    "minimax_text_01": "MiniMax-AI/vllm models/minimax_text_01.py@cc737ee",
    "qwen": "QwenLM/Qwen-Audio modeling_qwen.py@0b0e882",
}
