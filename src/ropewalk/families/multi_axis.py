"""Families whose positions have several coordinates: M-RoPE of language models, and vision towers."""

from __future__ import annotations

from dataclasses import replace

from ropewalk.families.family import HALF, INTERLEAVED, FamilyTable

FAMILIES = FamilyTable()

# --- half-split, three axes
_QWEN2_VL = replace(HALF, theta=1_000_000.0, mrope="contiguous", mrope_section=(16, 24, 24))
_QWEN3_VL = replace(HALF, theta=500_000.0, mrope="interleaved", mrope_section=(24, 20, 20))
_QWEN3_5 = replace(HALF, partial=0.25, head_dim=256, mrope="interleaved", mrope_section=(11, 11, 10))
FAMILIES.add("qwen2_vl qwen2_vl_text qwen2_5_vl qwen2_5_vl_text qwen2_5_omni_text", _QWEN2_VL)
FAMILIES.add("paddleocr_vl_text", _QWEN2_VL, theta=500_000.0, head_dim=128)
FAMILIES.add("qwen3_vl_text", _QWEN3_VL, head_dim=128)
FAMILIES.add("qwen3_vl_moe_text", _QWEN3_VL)
FAMILIES.add("qwen3_omni_moe_text", _QWEN3_VL, theta=1_000_000.0)
FAMILIES.add("qwen3_5_text qwen3_5_moe_text", _QWEN3_5)
FAMILIES.add("qwen2_5_omni_talker", _QWEN2_VL, head_dim=128)
FAMILIES.add("qwen3_omni_moe_talker_text", _QWEN3_VL, theta=10_000.0)
FAMILIES.add("qwen4_exp_text", _QWEN3_5, partial=1.0)
FAMILIES.add(  # which of its layers turn, and how, every config says
    "cohere_compass_text", _QWEN3_VL, theta=10_000.0, blocks={"full_attention": None, "sliding_attention": None}
)
FAMILIES.add(
    "neomme",
    HALF,
    head_dim=64,
    partial=1.0,
    mrope="alternating",
    blocks={
        "full_attention": {"rope_theta": 1_000_000.0, "partial_rotary_factor": 0.25},
        "sliding_attention": {"rope_theta": 10_000.0, "partial_rotary_factor": 1.0},
    },
)
FAMILIES.add("cosmos3_edge_text", _QWEN3_VL, theta=100_000_000.0, head_dim=128, block={"rope_theta": 100_000_000.0})
FAMILIES.add("glm4v_moe_text", HALF, partial=0.5, mrope="contiguous", mrope_section=(8, 12, 12))
FAMILIES.add("glm_image_text", HALF, partial=1.0, mrope="contiguous", mrope_section=(8, 12, 12))
FAMILIES.add("glm4v_text glm_ocr_text", INTERLEAVED, partial=1.0, mrope="contiguous", mrope_section=(8, 12, 12))
FAMILIES.add("ernie4_5_vl_moe_text", INTERLEAVED, theta=500_000.0, mrope="ernie", mrope_section=(22, 22, 20))

# --- vision towers: positions are (row, column), whichever their class takes first
FAMILIES.add(
    "qwen2_vl_vision qwen2_5_vl_vision qwen2_5_omni_vision_encoder qwen3_vl_vision qwen3_vl_moe_vision "
    "qwen3_omni_moe_vision_encoder qwen3_5_vision qwen3_5_moe_vision qwen4_exp_vision glm4v_vision glm4v_moe_vision "
    "glm_ocr_vision glm5_next_vision ernie4_5_vl_moe_vision paddleocr_vl_vision exaone4_5_vision video_llama_3_vision "
    "mlcd_vision_model cohere_compass_vision dots3_note_vision_encoder",
    HALF,
    axial=(0, 1),
)
FAMILIES.add("lfm3_vl_vision", HALF, axial=(0, 1), theta=1_000_000.0)
FAMILIES.add("muse_glimmer_vision muse_spark_vision step3p5_vision", HALF, axial=(1, 0))
FAMILIES.add("minimax_m3_vl_vision", HALF, axial=(0, 1, 2))
FAMILIES.add("kimi_k25_vision", HALF, axial=(1, 0), in_turn=True)
FAMILIES.add("inkling2_vision sam3_vit_model llama4_vision_model", INTERLEAVED, axial=(1, 0))
FAMILIES.add(
    "sam2_video sam3_tracker_video edgetam_video",
    INTERLEAVED,
    axial=(1, 0),
    sizes={
        "memory_attention_hidden_size": 256,
        "memory_attention_num_attention_heads": 1,
        "memory_attention_downsample_rate": 1,
    },
    width_key="memory_attention_hidden_size",
    heads_key="memory_attention_num_attention_heads",
    divisor_key="memory_attention_downsample_rate",
    theta_key="memory_attention_rope_theta",
)
FAMILIES.add("pixtral", HALF, axial=(0, 1), one_ladder=True)
FAMILIES.add("gemma4_vision", HALF, axial=(0, 1), halves=True, theta=100.0)
FAMILIES.add("efficientloftr", INTERLEAVED, axial=(0, 1), in_turn=True, whole_width=True)

# --- those that take coordinates between -2 pi and 2 pi: `grid_positions(height, width, normalized=True)`
FAMILIES.add("dinov3_vit eomt_dinov3 sapiens2", HALF, axial=(0, 1), theta=100.0)
