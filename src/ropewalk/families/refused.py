"""Families that RopeConfig cannot describe, with the reason, and those without a rotary embedding."""

from __future__ import annotations

REFUSED: dict[str, str] = {
    "blt": "each of its four parts has a separate rope, over bytes or patches (pass the config of one part)",
    "hunyuan_vl_text": "its formula is not a rotation if axes differ",
    "vjepa2": "its formula is not a rotation",
    "kimi_linear": "it has no rotation",
    "inkling2_text": "it has no rotation",
    "interns1_pro_text": "its cosines and sines are learned sums of several frequencies (FoPE); "
    "ropewalk.rotation.FourierEmbedding.from_hf(config) builds them",
    "path_attn": "its positions are products of matrices that depend on the text (PaTH, arXiv:2505.16381)",
    "forgetting_transformer": "a forget gate decays its scores, with or without RoPE (FoX, arXiv:2503.02130)",
    "qwen2_5_omni_dit": "only its first head rotates",
    "olmo_hybrid": "its released checkpoints have no rotation (rope_theta is null)",
}
REFUSED |= {"interns1_pro": REFUSED["interns1_pro_text"], "hunyuan_vl": REFUSED["hunyuan_vl_text"]}

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
