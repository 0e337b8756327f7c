"""The source code of the rows for families outside transformers."""

from __future__ import annotations

SOURCES: dict[str, str] = {  # GitHub repositories at a commit; copies if the release is not on GitHub
    "baichuan": "alibaba/alimama-video-narrator modeling_baichuan.py@58f8af3; 13B: Mrgengli/baichuan_python@c3b700b",
    "bailing_moe": "inclusionAI/Ming modeling_bailing_moe.py@22f8315",
    "chatglm": "THUDM/LongAlign modeling_chatglm.py@21d6e84; rope_ratio: vllm-project/vllm models/chatglm.py@028aedf",
    "deepseek": "mindspore-lab/mindnlp models/deepseek/modeling_deepseek.py@4842e87",
    "internlm": "yangulei/internlm-20b modeling_internlm.py@5d2ec53",
    "internlm2": "IntMeGroup/HarmonyIQA modeling_internlm2.py@79a7bf6",
    "kimi_k2": "MoonshotAI/Kimi-K2 docs/deploy_guidance.md: DeepSeek-V3's code under a different model_type",
    "llada": "QuentinFitteRey/LLada-Reasoning modeling_llada.py@dad4f02",
    "minicpm": "mindspore-lab/mindnlp models/minicpm/modeling_minicpm.py@8f4fefb",
    "minimax_m1": "MiniMax-AI/vllm models/minimax_text_01.py@cc737ee",
    "minimax_text_01": "MiniMax-AI/vllm models/minimax_text_01.py@cc737ee",
    "qwen": "QwenLM/Qwen-Audio modeling_qwen.py@0b0e882",
}
