"""The table of model families: the rotation of each class, as plain data."""

from __future__ import annotations

from typing import Any

from ropewalk.families import adjustments as own
from ropewalk.families.family import (
    ALTERNATING,
    HALF,
    INTERLEAVED,
    Condition,
    FamilyTable,
    Indexer,
    partial_types,
    two_thetas,
    variant,
)

FAMILIES = FamilyTable()
add = FAMILIES.add

# --- half-split pairs over the whole head
add("mistral", HALF, sliding_window=4096, windowed=True)
add("smollm3", HALF, theta=2_000_000.0, flags="no_rope_layers")
add(
    "llama ministral qwen2 qwen2_moe qwen3_moe olmo olmo2 olmoe granite granitemoe "
    "granitemoeshared granite_docling_text granite4_vision_text diffllama doge dots1 aria_text "
    "chameleon eurobert esmc falcon_h1 hyperclovax idefics jais2 kyutai_speech_to_text mimi "
    "moshi voxtral_realtime_text arcee gradium_phonon_tts pocket_tts mimi_encoder mimi_decoder "
    "lasr_encoder deepseek_ocr2_encoder pocket_tts_audio_tokenizer nemotron3_diarization_audio",
    HALF,
)
_WITHOUT_HEAD_DIM = own.ignoring(*own.HEAD_DIM_KEYS)
add("deepseek_ocr2_text unlimited_ocr_text", HALF, adjust=_WITHOUT_HEAD_DIM)
add("starcoder2", HALF, windowed=True)
add("qwen3 qwen3_omni_moe_talker_code_predictor jetmoe seed_oss hrm_text internlm3", HALF, head_dim=128)
add("iquestcoder molmo2_text dia_encoder dia_decoder", HALF, head_dim=128)
add("gemma t5_gemma_module", HALF, head_dim=256)
_TYPES = ALTERNATING["layer_types"]
add("gemma2 vaultgemma", HALF, layer_types=_TYPES, head_dim=256, sliding_window=4096)
add("minimax lfm2 lfm2_moe emu3_text_model", HALF, theta=1_000_000.0)
add("mixtral", HALF, theta=1_000_000.0, windowed=True)
add("phimoe", HALF, theta=1_000_000.0, windowed=True, resets_cache=True)
add("bitnet csm csm_depth_decoder_model evolla exaone flex_olmo mllama_text_model", HALF, theta=500_000.0)
add("muse_glimmer_assistant", HALF, theta=500_000.0, head_dim=128)
add("esm", HALF, fixed=True, top_thetas=(), switch=("position_embedding_type", "rotary", "absolute"))
_CONFORMER = variant(HALF, fixed=True, top_thetas=("rotary_embedding_base",))
add("wav2vec2-bert", _CONFORMER, switch=("position_embeddings_type", "rotary", "relative_key"))
add("wav2vec2-conformer", _CONFORMER, switch=("position_embeddings_type", "rotary", "relative"))
add("seamless_m4t", _CONFORMER, switch=("position_embeddings_type", "rotary", "relative"), adjust=own.speech_encoder)
_CLVP = variant(HALF, fixed=True, top_thetas=(), converts=False, adjust=own.projection)
_CLVP_SIZES = {"rotary_dim": 32, "num_attention_heads": 12}
add("clvp_encoder", _CLVP, defaults=_CLVP_SIZES, switch=("use_rotary_embedding", True, True))
add("nanochat", HALF, finish=own.backwards)
add("nomic_bert", HALF, theta=1_000.0)
add("gte", HALF, theta=160_000.0)
add("jina_embeddings_v3", HALF, theta=20_000.0)
add("hy_v3", HALF, theta=11_158_840.0, head_dim=128)
add("timesfm2_5", HALF, head_dim=80)
add("neucodec xcodec2 voxtral_realtime_encoder", HALF, head_dim=64)
add("hunyuan_v1_dense hunyuan_v1_moe", HALF, meanings={"dynamic": ("ntk", "alpha")})
add("falcon", HALF, switch=("alibi", False, False), defaults={"max_position_embeddings": 2048})
add("dbrx", HALF, defaults={"max_position_embeddings": 2048})
_ZAMBA = {"hidden_size": 2560, "num_attention_heads": 32}
add("zamba2", HALF, defaults=_ZAMBA, adjust=own.two_streams, switch=("use_mem_rope", True, False))
add("granitemoehybrid", HALF, switch=("position_embedding_type", "rope", None))
add("lara_mini", HALF, **ALTERNATING, head_dim=128, sliding_window=512)
add("exaone4 exaone_moe", HALF, **ALTERNATING, sliding_window=4096, without_window="rotate")
add("kolibri1", HALF, **ALTERNATING, head_dim=128, sliding_window=513, without_window="rotate")
add("afmoe", HALF, **ALTERNATING, head_dim=128)
add("flint", HALF, **ALTERNATING, head_dim=128, sliding_window=513, without_window="still")

# --- half-split, whole head, with a scaling rule as the class default


def _yarn(factor: float, length: int, **more: Any) -> dict[str, Any]:
    lengths = {"factor": factor, "original_max_position_embeddings": length}
    return {"rope_type": "yarn", **lengths, "beta_fast": 32.0, "beta_slow": 1.0, **more}


def _llama3(factor: float, theta: float, length: int = 8192, low: float = 1.0, high: float = 4.0) -> dict[str, Any]:
    lengths = {"factor": factor, "original_max_position_embeddings": length}
    return {"rope_type": "llama3", "rope_theta": theta, **lengths, "low_freq_factor": low, "high_freq_factor": high}


GPT_OSS = _yarn(32.0, 4096, truncate=False)
_MSCALES = {"mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}
MINISTRAL: dict[str, Any] = {
    "block_keys": ("llama_4_scaling_beta", "max_position_embeddings", "original_max_position_embeddings"),
    "query_scale": (("llama_4_scaling_beta", 0.0), ("original_max_position_embeddings", 0.0)),
}
add("gpt_oss", HALF, layer_types=_TYPES, theta=150_000.0, head_dim=64, block=GPT_OSS, sliding_window=128)
add("apertus apertus1p5_text", HALF, theta=12e6, block=_llama3(8.0, 12e6))
add("cwm", HALF, theta=1_000_000.0, head_dim=128, block=_llama3(16.0, 1_000_000.0))
add("higgs_audio_v2", HALF, head_dim=128, block=_llama3(32.0, 500_000.0, 1024, low=0.125, high=0.5))
add("ministral3", HALF, head_dim=128, **MINISTRAL, block=_yarn(16.0, 16384, rope_theta=1_000_000.0, **_MSCALES))

# --- half-split, partial
_NEOX = variant(HALF, fraction_keys=("rotary_pct",), top_thetas=("rotary_emb_base",))
add("gpt_neox", _NEOX, partial=0.25)
add("stablelm", HALF, partial=0.25)
add("bamba glm4_moe nemotron persimmon phi", HALF, partial=0.5)
add("recurrent_gemma", HALF, partial=0.5, window_key="attention_window_size", sliding_window=2048, windowed=True)
add("sarvam_moe", HALF, partial=1.0, theta=8_000_000.0, head_dim=64)
add("glmasr_encoder dots3_note_audio_encoder", HALF, partial=0.5)
add("nemotron3_5_transcribe_asr_audio", HALF, partial=1.0, block={"rope_theta": 10_000.0, "partial_rotary_factor": 0.5})
add("gpt_neox_japanese", _NEOX, partial=1.0)
_PHI = variant(HALF, partial=1.0, windowed=True, resets_cache=True, meanings={"yarn": ("longrope", None)})
add("phi3 phi4_multimodal", _PHI, defaults={"original_max_position_embeddings": 4096})
add("solar_open", HALF, partial=1.0, theta=1_000_000.0, head_dim=128)
_ROTARY_DIM = ("partial_rotary_factor", "rotary_dim")
add("minimax_m2", HALF, partial=1.0, theta=5_000_000.0, head_dim=128, fraction_keys=_ROTARY_DIM)
# Its class ignores `rotary_dim`. The released config also states the fraction, 0.5, so both mean 64 of 128 features.
add("minimax_m3_vl_text", HALF, partial=1.0, theta=5_000_000.0, head_dim=128)
add("qwen3_next", HALF, partial=0.25, head_dim=256, gated=True)


_SCALED = ("linear", "dynamic", "yarn", "llama3", "longrope", "proportional")
MLA = variant(INTERLEAVED, mla=True, head_dim=64, softmax_mscale=True)
DEEPSEEK = variant(MLA, deepseek=True)

# --- interleaved pairs
add("gptj codegen", INTERLEAVED, defaults={"rotary_dim": 64}, fixed=True, top_thetas=(), looked_up="embed_positions")
_ROFORMER = {"hidden_size": 768, "num_attention_heads": 12}  # with `rotary_value`, values rotate, too
add("roformer", INTERLEAVED, fixed=True, top_thetas=(), defaults=_ROFORMER, looked_up="embed_positions.weight")
add("cohere", INTERLEAVED, theta=500_000.0)
add("cohere2", INTERLEAVED, **ALTERNATING, sliding_window=4096, without_window="still")
_FORCED = "its first dense layers rotate although they have no window, and other layers of that type do not"
add(
    "cohere2_moe",
    INTERLEAVED,
    **ALTERNATING,
    head_dim=128,
    sliding_window=4096,
    without_window="still",
    holds={
        "first_k_dense_replace": Condition(_FORCED, values=(None, 0)),
        "mlp_layer_types": Condition(_FORCED, without="dense"),
        "rope_scaling": Condition("its class ignores `rope_scaling`: write `rope_parameters`", values=(None,)),
    },
)
add("helium", INTERLEAVED, theta=100_000.0, head_dim=128)
add("ernie4_5", INTERLEAVED, theta=500_000.0, head_dim=128)
add("ernie4_5_moe blt_local_encoder blt_local_decoder blt_global_transformer", INTERLEAVED, theta=500_000.0)
add("blt_patcher", INTERLEAVED)
add(
    "llama4_text",
    INTERLEAVED,
    theta=500_000.0,
    head_dim=128,
    layer_types=("chunked_attention", "full_attention"),
    nope=("full_attention",),
    flags="no_rope_layers",
    query_scale=(("attn_scale", 0.1), ("floor_scale", 8192.0)),
    window_key="attention_chunk_size",
    sliding_window=8192,
)
add("glm glm4", INTERLEAVED, partial=0.5, head_dim=128)
add("moonshine", INTERLEAVED, partial=0.9)
add("moonshine_streaming", INTERLEAVED, partial=1.0, block={"rope_theta": 10_000.0, "partial_rotary_factor": 0.8})
add("pe_audio_encoder pe_video_encoder pe_audio_video_encoder", INTERLEAVED, theta=20_000.0, head_dim=128)
add("openai_privacy_filter", INTERLEAVED, theta=150_000.0, head_dim=64, block=GPT_OSS)

# --- only a slice of qk_rope_head_dim features rotates (multi-head latent attention)
add("deepseek_v2", DEEPSEEK)
add("deepseek_v32", DEEPSEEK, indexer=Indexer(interleaved=False))
add("glm_moe_dsa", DEEPSEEK, indexer=Indexer(interleaved=True))
add("deepseek_v3", DEEPSEEK, reads_flag=True)
add("axk1 youtu", MLA, reads_flag=True)
add("sarvam_mla", MLA, reads_flag=True, meanings={"deepseek_yarn": ("yarn", None)})
add("glm4_moe_lite", DEEPSEEK, reads_flag=True, partial=1.0)
add("bailing_hybrid", MLA, theta=6_000_000.0)
add("longcat_flash", DEEPSEEK, theta=1e7, partial=1.0, slice_of=("head_dim",), defaults={"head_dim": 64})
add(
    "mistral4",
    MLA,
    reads_flag=True,
    **MINISTRAL,
    holds={
        "rope_parameters": Condition("without a scaling rule its class rotates whole heads", rope_types=_SCALED),
        "rope_scaling": Condition("with `rope_scaling` its class rotates whole heads", values=(None,)),
    },
    slice_of=("qk_nope_head_dim", "qk_rope_head_dim"),
    defaults={"qk_nope_head_dim": 64, "qk_rope_head_dim": 64, "max_position_embeddings": 1_048_576},
    block=_yarn(128.0, 8192, rope_theta=10_000.0, **_MSCALES),
)
add(
    "mistral_large4_text",
    MLA,
    flags="no_rope_layers",
    learned="alpha",
    indexer=Indexer(interleaved=True),
    defaults={"max_position_embeddings": 1_048_576},
    block=_yarn(2048.0, 512, rope_theta=10_000.0, attention_factor=1.0),
)
add("axk2", MLA, head_dim=32, indexer=Indexer(interleaved=False))
add(
    "dots3_note_text",
    MLA,
    softmax_mscale=False,
    indexer=Indexer(interleaved=True, layer_type="indexed_attention"),
    blocks={"indexed_attention": {"rope_theta": 80_000_000.0}, "sliding_attention": {"rope_theta": 50_000.0}},
    theta_keys={"indexed_attention": "rope_theta", "sliding_attention": "swa_rope_theta"},
    head_dim_of={"sliding_attention": ("swa_qk_rope_head_dim", 64)},
)
add(  # the last features of a head rotate, and those of the attention's output rotate back
    "deepseek_v4",
    MLA,
    softmax_mscale=False,
    slice_of=("head_dim",),
    defaults={"head_dim": 512},
    blocks={"main": {"rope_theta": 10_000.0}, "compress": {"rope_theta": 160_000.0}},
    theta_keys={"main": "rope_theta", "compress": "compress_rope_theta"},
    scaled=("compress",),
    adjust=own.compressed,
    block_of={
        "sliding_attention": "main",
        "compressed_sparse_attention": "compress",
        "heavily_compressed_attention": "compress",
    },
)
add("minicpm3", MLA, interleaved=False, head_dim=32)
add("hy_v4", MLA, interleaved=False, indexer=Indexer(interleaved=False, last=True))


_GEMMA3_KEYS = {"full_attention": "rope_theta", "sliding_attention": "rope_local_base_freq"}
_BERT_KEYS = {"full_attention": "global_rope_theta", "sliding_attention": "local_rope_theta"}
_PROPORTIONAL = {"rope_type": "proportional", "partial_rotary_factor": 0.25}
_GEMMA3 = variant(HALF, head_dim=256, blocks=two_thetas(1e4, 1e6), theta_keys=_GEMMA3_KEYS, scaled=("full_attention",))
_GEMMA4 = variant(
    HALF,
    head_dim=256,
    blocks=two_thetas(1e4, 1e6, **_PROPORTIONAL),
    head_dim_of={"full_attention": ("global_head_dim", 512)},
    values_from_keys=("attention_k_eq_v", False),
)
_BERT_BLOCKS = two_thetas(1e4, 160_000.0)
_MODERNBERT = variant(HALF, blocks=_BERT_BLOCKS, theta_keys=_BERT_KEYS, scaled=tuple(_BERT_KEYS))
add("gemma3_text t5gemma2_text t5gemma2_decoder", _GEMMA3, defaults={"max_position_embeddings": 131_072})
add("dory", HALF, head_dim=256, blocks=two_thetas(1e4, 1e7), sliding_window=1024)
add("gemma3n_text", _GEMMA3, defaults={"max_position_embeddings": 32_768})
add("gemma4_text gemma4_unified_text", _GEMMA4)
add("diffusion_gemma_text", _GEMMA4, values_from_keys=("attention_k_eq_v", True))  # and its config has no flag
add("embedding_gemma2_text", _GEMMA4, blocks=two_thetas(1e4, 1e6))
add("modernbert", _MODERNBERT, window_key="local_attention", sliding_window=128)
add("modernbert-decoder", _MODERNBERT, adjust=own.half_window)
_OLMO3 = variant(HALF, blocks=two_thetas(500_000.0, 500_000.0), scaled=("full_attention",))
add("olmo3", _OLMO3, theta_keys={"full_attention": "rope_theta"})  # a top-level theta is of the full layers only
_LFM3 = two_thetas(1e4, 1e6, rope_type="proportional", partial_rotary_factor=0.5)
add("lfm3", HALF, head_dim=128, theta=1_000_000.0, blocks=_LFM3)
_NO_THETA = Condition("its top-level `rope_theta` is a list by layer, or has no effect", values=(None,))
add("ultrabert", HALF, blocks=two_thetas(1e4, 2_560_000.0), holds={"rope_theta": _NO_THETA})
_LAGUNA = {**partial_types(full_attention=(500_000.0, 0.5)), "sliding_attention": {"rope_theta": 10_000.0}}
_MELLUM = partial_types(full_attention=(500_000.0, 1.0), sliding_attention=(10_000.0, 1.0))
_MIMO = partial_types(full_attention=(5_000_000.0, 0.334), sliding_attention=(10_000.0, 0.334))
_ZAYA = partial_types(hybrid=(5_000_000.0, 0.5), hybrid_sliding=(10_000.0, 0.5))
add("laguna", HALF, head_dim=128, partial=1.0, blocks=_LAGUNA)
add("mellum", HALF, head_dim=128, partial=1.0, fraction_keys=(), blocks=_MELLUM)
add("mimo_v2_flash", HALF, head_dim=192, partial=0.334, adjust=own.whole_if_scaled, blocks=_MIMO)
add("zaya", HALF, head_dim=128, partial=1.0, blocks=_ZAYA)
add("beam", HALF, head_dim=128, blocks={"sliding_attention": {"rope_theta": 10_000.0}, "full_attention": None})
add("granite_swa granitemoe_swa", HALF, lists={"layer_rope_theta": "rope_theta"})
_MUSE = variant(HALF, **ALTERNATING, lists={"layer_rope_theta": "rope_theta"}, adjust=own.fourth_from_last)
add("muse_glimmer_text", _MUSE, head_dim=128)
add("muse_spark_text", _MUSE, head_dim=64, block={"rope_type": "default", "rope_theta": 500_000.0})
add(
    "step3p5",
    HALF,
    head_dim=128,
    partial=1.0,
    lists={"rope_theta": "rope_theta", "partial_rotary_factors": "partial_rotary_factor"},
    fraction_keys=(),
    scaled=("full_attention",),
    holds={"yarn_only_types": Condition("its class scales only full layers", values=(None, ["full_attention"]))},
)


# --- half-split, three axes
_QWEN2_VL = variant(HALF, theta=1_000_000.0, mrope="contiguous", defaults={"mrope_section": (16, 24, 24)})
_QWEN3_VL = variant(HALF, theta=500_000.0, mrope="interleaved", defaults={"mrope_section": (24, 20, 20)})
_QWEN3_5 = variant(
    _QWEN3_VL, theta=1e4, partial=0.25, head_dim=256, defaults={"mrope_section": (11, 11, 10)}, gated=True
)
add("qwen2_vl qwen2_vl_text qwen2_5_vl qwen2_5_vl_text qwen2_5_omni_text", _QWEN2_VL)
add("paddleocr_vl_text", _QWEN2_VL, theta=500_000.0, head_dim=128)
add("qwen3_vl_text", _QWEN3_VL, head_dim=128)
add("qwen3_vl_moe_text", _QWEN3_VL)
add("qwen3_omni_moe_text", _QWEN3_VL, theta=1_000_000.0)
add("qwen3_5_text qwen3_5_moe_text", _QWEN3_5)
add("qwen2_5_omni_talker", _QWEN2_VL, head_dim=128)
add("qwen3_omni_moe_talker_text", _QWEN3_VL, theta=10_000.0)
add("qwen4_exp_text", _QWEN3_5, partial=1.0)
add(  # every config states the rotation of its layer types
    "cohere_compass_text", _QWEN3_VL, theta=10_000.0, blocks={"full_attention": None, "sliding_attention": None}
)
_NEOMME = partial_types(full_attention=(1_000_000.0, 0.25), sliding_attention=(10_000.0, 1.0))
_NEOMME = {label: {"rope_type": "default", **(block or {})} for label, block in _NEOMME.items()}
add(
    "neomme",
    HALF,
    head_dim=64,
    partial=1.0,
    mrope="alternating",
    theta_keys=dict.fromkeys(_NEOMME, "rope_theta"),
    blocks=_NEOMME,
    adjust=own.filled_from(_NEOMME),
)
add("cosmos3_edge_text", _QWEN3_VL, theta=100_000_000.0, head_dim=128, block={"rope_theta": 100_000_000.0})
_GLM_V = variant(HALF, partial=1.0, mrope="contiguous", defaults={"mrope_section": (8, 12, 12)})
add("glm4v_moe_text", _GLM_V, partial=0.5)
add("glm_image_text", _GLM_V)
add("glm4v_text glm_ocr_text", _GLM_V, interleaved=True)
add("ernie4_5_vl_moe_text", INTERLEAVED, theta=500_000.0, mrope="ernie", defaults={"mrope_section": (22, 22, 20)})

# --- vision towers: positions are (row, column), even if their class takes the column first
add(
    "qwen2_vl_vision qwen2_5_vl_vision qwen2_5_omni_vision_encoder qwen3_vl_vision qwen3_vl_moe_vision "
    "qwen3_omni_moe_vision_encoder qwen3_5_vision qwen3_5_moe_vision qwen4_exp_vision glm4v_vision glm4v_moe_vision "
    "glm_ocr_vision glm5_next_vision ernie4_5_vl_moe_vision paddleocr_vl_vision exaone4_5_vision video_llama_3_vision "
    "mlcd_vision_model cohere_compass_vision dots3_note_vision_encoder",
    HALF,
    axial=(0, 1),
)
add("lfm3_vl_vision", HALF, axial=(0, 1), theta=1_000_000.0)
add("muse_glimmer_vision muse_spark_vision step3p5_vision", HALF, axial=(1, 0))
add("minimax_m3_vl_vision", HALF, axial=(0, 1, 2))
add("kimi_k25_vision", HALF, axial=(1, 0), finish=own.in_turn)
add("inkling2_vision sam3_vit_model", INTERLEAVED, axial=(1, 0))
_UNSCALED = Condition("its class ignores scaling", rope_types=("default", "axial"))
add("llama4_vision_model", INTERLEAVED, axial=(1, 0), holds=dict.fromkeys(own.BLOCK_KEYS, _UNSCALED))
_MEMORY = variant(INTERLEAVED, axial=(1, 0), adjust=own.memory_attention)
add("sam2_video sam3_tracker_video edgetam_video", _MEMORY, top_thetas=("memory_attention_rope_theta", "rope_theta"))
add("pixtral", HALF, axial=(0, 1), finish=own.one_ladder)
add("gemma4_vision", HALF, axial=(1, 0), finish=own.axis_blocks, converts=False, theta=100.0, head_dim=64)
add("efficientloftr", INTERLEAVED, axial=(0, 1), adjust=own.all_heads, finish=own.in_turn, converts=False)

# --- vision towers with coordinates between -2 pi and 2 pi: `grid_positions(height, width, normalized=True)`
_DINO = variant(HALF, axial=(0, 1), theta=100.0)
add("dinov3_vit sapiens2", _DINO, fixed=True)
add("eomt_dinov3", _DINO)


_PLAIN = ("default", "linear", "dynamic")  # rules without an attention factor
_LONGROPE = "it is not known whether its LongRoPE also scales queries and keys"
_STEPS = "beyond seq_length its frequencies change in steps (for shorter texts set `use_dynamic_ntk` to false)"
_TWO_POSITIONS = "ChatGLM-6B rotates each half of a head by different positions"
_DIVIDED = "ChatGLM2-6B-32K divides positions by its rope_ratio; later models multiply theta by it"
add("internlm2 deepseek bailing_moe", HALF)
add("internlm", HALF, holds={"rotary": Condition("its `rotary` block is not supported", values=(None,))})
add("minicpm", HALF, holds=dict.fromkeys(own.BLOCK_KEYS, Condition(_LONGROPE, rope_types=_PLAIN)))
add("baichuan", HALF, holds={"hidden_size": Condition("only the 7B models rotate; others use ALiBi", values=(4096,))})
_STEPLESS = {"use_dynamic_ntk": Condition(_STEPS, values=(False,))}
add("qwen", HALF, partial=1.0, top_thetas=("rotary_emb_base", "rope_theta"), holds=_STEPLESS)
add("minimax_text_01 minimax_m1", HALF, partial=1.0, fraction_keys=_ROTARY_DIM)
add("llada", HALF, switch=("rope", True, False))
add("kimi_k2", DEEPSEEK)
add(
    "chatglm",
    INTERLEAVED,
    partial=0.5,
    top_thetas=("rope_theta", "rope_ratio"),
    adjust=own.rope_ratio,
    holds={
        "position_encoding_2d": Condition(_TWO_POSITIONS, values=(None, False, 0)),
        "original_rope": Condition("false pairs otherwise (CogAgent)", values=(None, True)),
        "_name_or_path": Condition(_DIVIDED, without="chatglm2-6b-32k"),
    },
)

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

REFUSED: dict[str, str] = {
    "blt": "each of its four parts has a separate rope, over bytes or patches (pass the config of one part)",
    "hunyuan_vl_text": "its formula is not a rotation if axes differ",
    "vjepa2": "its formula is not a rotation",
    "interns1_pro_text": "its cosines and sines are learned sums of several frequencies (FoPE)",
    "path_attn": "its positions are products of matrices that depend on the text (PaTH, arXiv:2505.16381)",
    "forgetting_transformer": "a forget gate decays its scores, with or without RoPE (FoX, arXiv:2503.02130)",
    "qwen2_5_omni_dit": "only its first head rotates",
    "olmo_hybrid": "its released checkpoints have no rotation (rope_theta is null)",
}
REFUSED |= {"interns1_pro": REFUSED["interns1_pro_text"], "hunyuan_vl": REFUSED["hunyuan_vl_text"]}
"""The reasons for families that RopeConfig cannot describe, by `model_type`."""

_ENCODINGS = {
    "learned absolute positions": "gpt2 openai-gpt gpt_bigcode gpt_neo opt biogpt bert roberta xlm xlm-roberta "
    "camembert distilbert albert electra ernie mobilebert longformer big_bird bart mbart blenderbot whisper "
    "clip vit git trocr bert-generation bigbird_pegasus blenderbot-small data2vec-text gpt-sw3 megatron-bert mvp "
    "plbart prophetnet reformer rembert roberta-prelayernorm roc_bert xlm-roberta-xl xmod",
    "sinusoidal absolute positions": "xglm marian pegasus m2m_100 ctrl fsmt speech_to_text musicgen_decoder "
    "musicgen_melody_decoder",
    "a relative position bias": "t5 mt5 umt5 longt5 switch_transformers pop2piano mpnet cpmant inkling_text "
    "inkling2_text",
    "relative positions": "deberta deberta-v2 xlnet transfo-xl funnel",
    "ALiBi": "bloom mpt",
    "no positions, because it is recurrent": "mamba mamba2 falcon_mamba rwkv xlstm",
    "no positions in attention, because its other layers are recurrent": "jamba kimi_linear nemotron_h zamba",
}
NO_ROTATION: dict[str, str] = {name: encoding for encoding, names in _ENCODINGS.items() for name in names.split()}
"""The position encoding of families without a rotary embedding, by `model_type`."""
