"""Families whose layer types differ in theta, in width or in scaling."""

from __future__ import annotations

from dataclasses import replace

from ropewalk.families.family import ALTERNATING, HALF, FamilyTable, two_thetas

FAMILIES = FamilyTable()
_GEMMA3_KEYS = {"full_attention": "rope_theta", "sliding_attention": "rope_local_base_freq"}
_BERT_KEYS = {"full_attention": "global_rope_theta", "sliding_attention": "local_rope_theta"}
_PROPORTIONAL = {"rope_type": "proportional", "partial_rotary_factor": 0.25}
_GEMMA3 = replace(HALF, head_dim=256, blocks=two_thetas(1e4, 1e6), theta_keys=_GEMMA3_KEYS, scaled=("full_attention",))
_GEMMA4 = replace(
    HALF,
    head_dim=256,
    blocks=two_thetas(1e4, 1e6, **_PROPORTIONAL),
    head_dim_of={"full_attention": ("global_head_dim", 512)},
)
_MODERNBERT = replace(
    HALF,
    blocks=two_thetas(1e4, 160_000.0),
    theta_keys=_BERT_KEYS,
    scaled=("full_attention", "sliding_attention"),
    window_key="local_attention",
    sliding_window=128,
)
FAMILIES.add("gemma3_text t5gemma2_text t5gemma2_decoder", _GEMMA3, max_position_embeddings=131_072)
FAMILIES.add("gemma3n_text", _GEMMA3, max_position_embeddings=32_768)
FAMILIES.add("gemma4_text gemma4_unified_text diffusion_gemma_text", _GEMMA4)
FAMILIES.add("embedding_gemma2_text", _GEMMA4, blocks=two_thetas(1e4, 1e6))
FAMILIES.add("modernbert modernbert-decoder", _MODERNBERT)
FAMILIES.add(
    "olmo3",
    HALF,
    blocks=two_thetas(500_000.0, 500_000.0),
    theta_keys={"full_attention": "rope_theta", "sliding_attention": "rope_theta"},
    scaled=("full_attention",),
)
FAMILIES.add(
    "lfm3", HALF, head_dim=128, blocks=two_thetas(1e4, 1e6, rope_type="proportional", partial_rotary_factor=0.5)
)
FAMILIES.add("ultrabert", HALF, blocks=two_thetas(1e4, 2_560_000.0))
FAMILIES.add(
    "laguna",
    HALF,
    head_dim=128,
    partial=1.0,
    blocks={
        "full_attention": {"rope_theta": 500_000.0, "partial_rotary_factor": 0.5},
        "sliding_attention": {"rope_theta": 10_000.0},
    },
)
FAMILIES.add(
    "mellum",
    HALF,
    head_dim=128,
    partial=1.0,
    blocks={
        "full_attention": {"rope_theta": 500_000.0, "partial_rotary_factor": 1.0},
        "sliding_attention": {"rope_theta": 10_000.0, "partial_rotary_factor": 1.0},
    },
)
FAMILIES.add(
    "mimo_v2_flash",
    HALF,
    head_dim=192,
    partial=0.334,
    scaled_partial=1.0,
    blocks={
        "full_attention": {"rope_theta": 5_000_000.0, "partial_rotary_factor": 0.334},
        "sliding_attention": {"rope_theta": 10_000.0, "partial_rotary_factor": 0.334},
    },
)
FAMILIES.add("beam", HALF, head_dim=128, blocks={"sliding_attention": {"rope_theta": 10_000.0}, "full_attention": None})
FAMILIES.add("granite_swa granitemoe_swa", HALF, thetas="layer_rope_theta")
_MUSE = replace(
    HALF,
    thetas="layer_rope_theta",
    layer_types=ALTERNATING["layer_types"],
    nope=ALTERNATING["nope"],
    nope_from_last=4,
)
FAMILIES.add("muse_glimmer_text", _MUSE, head_dim=128)
FAMILIES.add("muse_spark_text", _MUSE, theta=500_000.0, head_dim=64)
FAMILIES.add(
    "step3p5",
    HALF,
    head_dim=128,
    partial=1.0,
    thetas="rope_theta",
    fractions="partial_rotary_factors",
    scaled=("full_attention",),
)
FAMILIES.add(
    "zaya",
    HALF,
    head_dim=128,
    partial=1.0,
    blocks={
        "hybrid": {"rope_theta": 5_000_000.0, "partial_rotary_factor": 0.5},
        "hybrid_sliding": {"rope_theta": 10_000.0, "partial_rotary_factor": 0.5},
    },
)
