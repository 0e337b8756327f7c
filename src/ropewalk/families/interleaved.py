"""Families with interleaved pairs, and those with multi-head latent attention."""

from __future__ import annotations

from dataclasses import replace

from ropewalk.families.family import ALTERNATING, INTERLEAVED, Condition, FamilyTable
from ropewalk.families.half_split import GPT_OSS, MINISTRAL

FAMILIES = FamilyTable()
MLA = replace(INTERLEAVED, mla=True, head_dim=64)

# --- interleaved pairs
FAMILIES.add("gptj codegen", INTERLEAVED, rotary_dim=64, fixed=True, looked_up="embed_positions")
FAMILIES.add(  # with `rotary_value`, values turn as well
    "roformer",
    INTERLEAVED,
    fixed=True,
    sizes={"hidden_size": 768, "num_attention_heads": 12},
    looked_up="embed_positions.weight",
)
FAMILIES.add("cohere", INTERLEAVED, theta=500_000.0)
FAMILIES.add("cohere2", INTERLEAVED, **ALTERNATING, sliding_window=4096, rope_needs_window=True)
_FORCED = "its first dense layers rotate though they see everything, and other layers of that type do not"
FAMILIES.add(
    "cohere2_moe",
    INTERLEAVED,
    **ALTERNATING,
    head_dim=128,
    sliding_window=4096,
    rope_needs_window=True,
    holds={
        "first_k_dense_replace": Condition(_FORCED, values=(None, 0)),
        "mlp_layer_types": Condition(_FORCED, without="dense"),
    },
)
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
FAMILIES.add("axk2", MLA, head_dim=32)
FAMILIES.add(
    "dots3_note_text",
    MLA,
    blocks={"indexed_attention": {"rope_theta": 80_000_000.0}, "sliding_attention": {"rope_theta": 50_000.0}},
    theta_keys={"indexed_attention": "rope_theta", "sliding_attention": "swa_rope_theta"},
    holds={"swa_qk_rope_head_dim": Condition("its sliding layers turn another slice", values=(None, 64))},
)
FAMILIES.add(  # the last features of a head turn, and those of the attention's output turn back
    "deepseek_v4",
    MLA,
    blocks={"main": {"rope_theta": 10_000.0}, "compress": {"rope_theta": 160_000.0}},
    theta_keys={"main": "rope_theta", "compress": "compress_rope_theta"},
    scaled=("compress",),
    scaled_block={"yarn": {"attention_factor": 1.0}},
    thetas_on_top=True,
    block_of={
        "sliding_attention": "main",
        "compressed_sparse_attention": "compress",
        "heavily_compressed_attention": "compress",
    },
)
FAMILIES.add("minicpm3", MLA, interleaved=False, head_dim=32)
FAMILIES.add("hy_v4", MLA, interleaved=False)
