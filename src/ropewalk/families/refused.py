"""Families that a RopeConfig cannot describe, and why; and families that have no rotary embedding."""

from __future__ import annotations

REFUSED: dict[str, str] = {
    "blt": "each of its four parts has a rope of its own, over bytes or over patches (pass the config of one part)",
    "hunyuan_vl_text": "with different axes its formula is not a rotation",
    "vjepa2": "its formula is not a rotation",
    "kimi_linear": "it has no rotation",
    "inkling2_text": "it has no rotation",
    "mistral_large4_text": "its frequencies are multiplied by learned numbers, which only the checkpoint holds",
    "qwen2_5_omni_dit": "of its heads only the first turns",
    "olmo_hybrid": "its released checkpoints have no rotation (a null rope_theta says so)",
}
REFUSED |= {"mistral_large4": REFUSED["mistral_large4_text"], "hunyuan_vl": REFUSED["hunyuan_vl_text"]}

_ENCODINGS = {
    "learned absolute positions": "gpt2 openai-gpt gpt_bigcode gpt_neo opt biogpt bert roberta xlm xlm-roberta "
    "camembert distilbert albert electra ernie mobilebert longformer big_bird bart mbart blenderbot whisper "
    "clip vit git trocr",
    "sinusoidal absolute positions": "xglm marian pegasus m2m_100 ctrl fsmt speech_to_text",
    "a relative position bias": "t5 mt5 umt5 longt5 switch_transformers pop2piano mpnet",
    "relative positions": "deberta deberta-v2 xlnet transfo-xl funnel",
    "ALiBi": "bloom mpt",
    "no positions, because it is recurrent": "mamba mamba2 falcon_mamba rwkv xlstm",
}
NO_ROTATION: dict[str, str] = {name: encoding for encoding, names in _ENCODINGS.items() for name in names.split()}
"""The position encoding of families without a rotary embedding, by `model_type`."""
