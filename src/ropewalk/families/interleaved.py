"""Families with interleaved pairs, and those with multi-head latent attention."""

from __future__ import annotations

from dataclasses import replace

from ropewalk.families.family import ALTERNATING, INTERLEAVED, FamilyTable
from ropewalk.families.half_split import GPT_OSS, MINISTRAL

FAMILIES = FamilyTable()
MLA = replace(INTERLEAVED, mla=True, head_dim=64)

# --- interleaved pairs
FAMILIES.add("gptj codegen", INTERLEAVED, rotary_dim=64, fixed=True)
FAMILIES.add("cohere", INTERLEAVED, theta=500_000.0)
FAMILIES.add("cohere2", INTERLEAVED, **ALTERNATING, sliding_window=4096, rope_needs_window=True)
FAMILIES.add("helium", INTERLEAVED, theta=100_000.0, head_dim=128)
FAMILIES.add("ernie4_5", INTERLEAVED, theta=500_000.0, head_dim=128)
FAMILIES.add("ernie4_5_moe blt_local_encoder blt_local_decoder blt_global_transformer", INTERLEAVED, theta=500_000.0)
FAMILIES.add("blt_patcher", INTERLEAVED)
FAMILIES.add(
    "llama4_text",
    INTERLEAVED,
    theta=500_000.0,
    head_dim=128,
    layer_types=("chunked_attention", "full_attention"),
    nope=("full_attention",),
    flags="no_rope_layers",
    window_key="attention_chunk_size",
    sliding_window=8192,
)
FAMILIES.add("glm glm4", INTERLEAVED, partial=0.5, head_dim=128)
FAMILIES.add("moonshine", INTERLEAVED, partial=0.9)
FAMILIES.add(
    "moonshine_streaming", INTERLEAVED, partial=1.0, block={"rope_theta": 10_000.0, "partial_rotary_factor": 0.8}
)
FAMILIES.add("pe_audio_encoder pe_video_encoder pe_audio_video_encoder", INTERLEAVED, theta=20_000.0, head_dim=128)
FAMILIES.add("openai_privacy_filter", INTERLEAVED, theta=150_000.0, head_dim=64, block=GPT_OSS)

# --- a slice of qk_rope_head_dim features turns (multi-head latent attention)
FAMILIES.add("deepseek_v2 deepseek_v32 glm_moe_dsa", MLA)
FAMILIES.add("deepseek_v3 axk1 youtu", MLA, reads_flag=True)
FAMILIES.add("glm4_moe_lite", MLA, reads_flag=True, partial=1.0)
FAMILIES.add("bailing_hybrid", MLA, theta=6_000_000.0)
FAMILIES.add("longcat_flash", MLA, theta=10_000_000.0)
FAMILIES.add(
    "mistral4",
    MLA,
    reads_flag=True,
    keys=MINISTRAL,
    max_position_embeddings=1_048_576,
    block={
        "rope_type": "yarn",
        "rope_theta": 10_000.0,
        "factor": 128.0,
        "original_max_position_embeddings": 8192,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
    },
)
FAMILIES.add("minicpm3", MLA, interleaved=False, head_dim=32)
FAMILIES.add("hy_v4", MLA, interleaved=False)
