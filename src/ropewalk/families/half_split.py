"""Families with half-split pairs and one theta."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ropewalk.families.family import ALTERNATING, HALF, DecoderShape, FamilyTable

FAMILIES = FamilyTable()

# --- those that our decoder can express
_COMMON: dict[str, Any] = {
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "attention_dropout": 0.0,
    "initializer_range": 0.02,
    "head_dim": None,
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "residual_dropout": 0.0,
}
_WINDOWED: dict[str, Any] = {
    **_COMMON,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
    "layer_types": None,
}
FAMILIES.add(
    "llama",
    HALF,
    decoder=DecoderShape(
        "LlamaForCausalLM",
        {**_COMMON, "num_key_value_heads": None, "max_position_embeddings": 2048},
        mlp_bias=True,
    ),
)
FAMILIES.add(
    "mistral",
    HALF,
    sliding_window=4096,
    windowed=True,
    decoder=DecoderShape(
        "MistralForCausalLM",
        {**_COMMON, "num_key_value_heads": 8, "max_position_embeddings": 131072, "sliding_window": 4096},
        qkv_bias=False,
        windows="all",
    ),
)
FAMILIES.add(
    "ministral",
    HALF,
    decoder=DecoderShape(
        "MinistralForCausalLM",
        {
            **_WINDOWED,
            "num_key_value_heads": 8,
            "max_position_embeddings": 131072,
            "use_sliding_window": True,
            "max_window_layers": 0,
        },
        qkv_bias=False,
        windows="by layer type",
    ),
)
FAMILIES.add("qwen2", HALF, decoder=DecoderShape("Qwen2ForCausalLM", _WINDOWED, qkv_bias=True, windows="by layer type"))
FAMILIES.add(
    "qwen3",
    HALF,
    head_dim=128,
    decoder=DecoderShape("Qwen3ForCausalLM", {**_WINDOWED, "head_dim": 128}, qk_norm=True, windows="by layer type"),
)
FAMILIES.add(
    "smollm3",
    HALF,
    theta=2_000_000.0,
    decoder=DecoderShape(
        "SmolLM3ForCausalLM",
        {
            **_WINDOWED,
            "num_key_value_heads": 4,
            "sliding_window": None,
            "tie_word_embeddings": True,
            "no_rope_layers": None,
            "no_rope_layer_interval": 4,
        },
        mlp_bias=True,
        windows="by layer type",
    ),
)

# --- half-split pairs over the whole head
FAMILIES.add(
    "qwen2_moe qwen3_moe olmo olmo2 olmoe granite granitemoe "
    "granitemoeshared granite_docling_text granite4_vision_text diffllama doge dots1 aria_text "
    "chameleon deepseek_ocr2_text eurobert esmc falcon_h1 hyperclovax idefics jais2 kyutai_speech_to_text mimi "
    "moshi unlimited_ocr_text voxtral_realtime_text arcee gradium_phonon_tts pocket_tts mimi_encoder mimi_decoder "
    "lasr_encoder deepseek_ocr2_encoder pocket_tts_audio_tokenizer nemotron3_diarization_audio",
    HALF,
)
FAMILIES.add("starcoder2", HALF, windowed=True)
FAMILIES.add("seed_oss hrm_text internlm3 iquestcoder molmo2_text dia_encoder dia_decoder", HALF, head_dim=128)
FAMILIES.add("gemma gemma2 vaultgemma t5_gemma_module", HALF, head_dim=256)
FAMILIES.add("minimax lfm2 lfm2_moe emu3_text_model", HALF, theta=1_000_000.0)
FAMILIES.add("mixtral phimoe", HALF, theta=1_000_000.0, windowed=True)
FAMILIES.add("bitnet csm csm_depth_decoder_model flex_olmo mllama_text_model", HALF, theta=500_000.0)
FAMILIES.add("evolla", HALF, theta=500_000.0)
FAMILIES.add("muse_glimmer_assistant", HALF, theta=500_000.0, head_dim=128)
FAMILIES.add("qwen3_omni_moe_talker_code_predictor", HALF, head_dim=128)
FAMILIES.add("esm", HALF, switch=("position_embedding_type", "rotary", "absolute"))
_CONFORMER = replace(HALF, theta_key="rotary_embedding_base")
FAMILIES.add("wav2vec2-bert", _CONFORMER, switch=("position_embeddings_type", "rotary", "relative_key"))
FAMILIES.add("wav2vec2-conformer", _CONFORMER, switch=("position_embeddings_type", "rotary", "relative"))
FAMILIES.add(
    "seamless_m4t",
    _CONFORMER,
    switch=("position_embeddings_type", "rotary", "relative"),
    heads_key="speech_encoder_attention_heads",
)
FAMILIES.add(  # values turn as well
    "clvp_encoder",
    HALF,
    projected=32,
    sizes={"projection_dim": 768, "num_attention_heads": 12},
    switch=("use_rotary_embedding", True, True),
    fixed=True,
)
FAMILIES.add("nanochat", HALF, backwards=True)
FAMILIES.add("nomic_bert", HALF, theta=1_000.0)
FAMILIES.add("gte", HALF, theta=160_000.0)
FAMILIES.add("jina_embeddings_v3", HALF, theta=20_000.0)
FAMILIES.add("hy_v3", HALF, theta=11_158_840.0, head_dim=128)
FAMILIES.add("timesfm2_5", HALF, head_dim=80)
FAMILIES.add("neucodec xcodec2 voxtral_realtime_encoder", HALF, head_dim=64)
FAMILIES.add("hunyuan_v1_dense hunyuan_v1_moe", HALF, meanings={"dynamic": ("ntk", "alpha")})
FAMILIES.add("jetmoe", HALF, head_dim=128)
FAMILIES.add("falcon", HALF, switch=("alibi", False, False), max_position_embeddings=2048)
FAMILIES.add("dbrx", HALF, max_position_embeddings=2048)
FAMILIES.add(
    "zamba2",
    HALF,
    head_width=2,
    sizes={"hidden_size": 2560, "num_attention_heads": 32},
    head_dim_keys=("head_dim", "attention_head_dim"),
    switch=("use_mem_rope", True, False),
)
FAMILIES.add("granitemoehybrid", HALF, switch=("position_embedding_type", "rope", None))
FAMILIES.add("exaone4 exaone_moe", HALF, **ALTERNATING, sliding_window=4096, nope_needs_window=True)
FAMILIES.add("kolibri1", HALF, **ALTERNATING, head_dim=128, sliding_window=513, nope_needs_window=True)
FAMILIES.add("afmoe", HALF, **ALTERNATING, head_dim=128)
FAMILIES.add("flint", HALF, **ALTERNATING, head_dim=128, sliding_window=513, rope_needs_window=True)

# --- half-split, whole head, with a scaling rule as the class default
GPT_OSS = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
MINISTRAL = ("llama_4_scaling_beta", "max_position_embeddings")
FAMILIES.add("gpt_oss", HALF, theta=150_000.0, head_dim=64, block=GPT_OSS)
FAMILIES.add("apertus", HALF, theta=12_000_000.0, block={**_LLAMA3, "factor": 8.0, "rope_theta": 12_000_000.0})
FAMILIES.add("cwm", HALF, theta=1_000_000.0, head_dim=128, block={**_LLAMA3, "factor": 16.0, "rope_theta": 1_000_000.0})
FAMILIES.add(
    "higgs_audio_v2",
    HALF,
    head_dim=128,
    block={
        "rope_type": "llama3",
        "rope_theta": 500_000.0,
        "factor": 32.0,
        "low_freq_factor": 0.125,
        "high_freq_factor": 0.5,
        "original_max_position_embeddings": 1024,
    },
)
FAMILIES.add(
    "ministral3",
    HALF,
    head_dim=128,
    keys=MINISTRAL,
    block={
        "rope_type": "yarn",
        "rope_theta": 1_000_000.0,
        "factor": 16.0,
        "original_max_position_embeddings": 16384,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
    },
)

# --- half-split, partial
FAMILIES.add("gpt_neox", HALF, partial=0.25, fraction_keys=("rotary_pct",))
FAMILIES.add("stablelm", HALF, partial=0.25)
FAMILIES.add("bamba glm4_moe nemotron persimmon phi recurrent_gemma", HALF, partial=0.5)
FAMILIES.add("glmasr_encoder dots3_note_audio_encoder", HALF, partial=0.5)
FAMILIES.add(
    "nemotron3_5_transcribe_asr_audio",
    HALF,
    partial=1.0,
    block={"rope_theta": 10_000.0, "partial_rotary_factor": 0.5},
)
FAMILIES.add("gpt_neox_japanese", HALF, partial=1.0, fraction_keys=("rotary_pct",))
FAMILIES.add("phi3 phi4_multimodal", HALF, partial=1.0, windowed=True, meanings={"yarn": ("longrope", None)})
FAMILIES.add("solar_open", HALF, partial=1.0, theta=1_000_000.0, head_dim=128)
FAMILIES.add("minimax_m2 minimax_m3_vl_text", HALF, partial=1.0, theta=5_000_000.0, head_dim=128)
FAMILIES.add("qwen3_next", HALF, partial=0.25, head_dim=256)
