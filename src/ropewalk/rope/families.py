"""How each model family turns its heads: facts about the classes, which no config.json states.

Which two features form a pair, whether a partial rotation is honoured, and which values stand where a config is silent
are decided by a model's class. This table names them by `model_type`, as read from transformers 5.23 and measured there
by tests/rope/test_parity.py; for models whose code lies beside their weights, `SOURCES` says where it was read. A
family that is not here is not guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

Mrope = Literal["contiguous", "interleaved", "ernie"]
Block = Mapping[str, Any]


@dataclass(frozen=True)
class Family:
    """What a model class does with its rotary settings.

    - `interleaved`: pairs are (0,1), (2,3), ...; False: (i, i + rotary_dim/2). `reads_flag`: `rope_interleave` chooses.
    - `partial`: None rotates the whole head whatever the config says; a number is the default fraction.
    - `theta`, `head_dim`, `max_position_embeddings`, `block`: used where the config is silent, as released ones are on
      what equals the class default. `head_dim` None: hidden_size / num_attention_heads.
    - `mla`: multi-head latent attention: only a slice of `qk_rope_head_dim` features turns, and it is what we describe.
    - `blocks`: for each layer type its default block, for families with several; a block of None is a layer without
      rotation. `theta_keys`: the older top-level spelling of each theta. `scaled`: where a flat `rope_scaling` belongs.
    - `nope`: layer types that the class never rotates, though the config gives one block for all.
    - `switch`: the key that turns rotation on or off for the whole model, the value that turns it on, the default.
    - `mrope`, `mrope_section`: how pairs follow the axes (temporal, height, width), and the default sections.
    - `head_dim_of`: for a layer type, the key of its own head_dim and that key's default.
    - `head_width`: head_dim is this many times hidden_size / num_attention_heads (Zamba2 attends over two streams).
    - `rotary_dim`: the class reads `rotary_dim` alone, and this is its default (GPT-J).
    - `dynamic_alpha`: `dynamic` with `alpha` is NTK-aware scaling by a fixed alpha (HunYuan).
    - `yarn_is_longrope`: a block of type "yarn" means LongRoPE (Phi-3's first configs).
    - `axial`: a vision tower with H in the first half of the pairs and W in the second, each with its own ladder.
    - `keys`: further keys that its block may hold; they act in attention, not on the rotation.
    - `theta_ratio`: a key whose number multiplies theta.
    - `holds`: for a key of the config, the values (None where it is absent) for which all this is true, and why not
      for others.
    """

    interleaved: bool
    reads_flag: bool = False
    partial: float | None = None
    theta: float = 10_000.0
    head_dim: int | None = None
    max_position_embeddings: int | None = None
    head_width: int = 1
    block: Block = field(default_factory=dict)
    mla: bool = False
    blocks: Mapping[str, Block | None] = field(default_factory=dict)
    theta_keys: Mapping[str, str] = field(default_factory=dict)
    scaled: tuple[str, ...] = ()
    nope: tuple[str, ...] = ()
    switch: tuple[str, Any, Any] | None = None
    mrope: Mrope | None = None
    mrope_section: tuple[int, ...] = ()
    head_dim_of: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    rotary_dim: int | None = None
    dynamic_alpha: bool = False
    yarn_is_longrope: bool = False
    axial: bool = False
    keys: tuple[str, ...] = ()
    theta_ratio: str | None = None
    holds: Mapping[str, tuple[Callable[[Any], bool], str]] = field(default_factory=dict)


_HALF = Family(interleaved=False)
_INTERLEAVED = Family(interleaved=True)
_MLA = Family(interleaved=True, mla=True, head_dim=64)
FAMILIES: dict[str, Family] = {}


def _add(names: str, family: Family, **changes: Any) -> None:
    for name in names.split():
        FAMILIES[name] = replace(family, **changes)


def _two_thetas(sliding: float, full: float, **full_block: Any) -> Mapping[str, Block]:
    return {"sliding_attention": {"rope_theta": sliding}, "full_attention": {"rope_theta": full, **full_block}}


# --- half-split pairs over the whole head
_add(
    "llama mistral ministral qwen2 qwen2_moe qwen3_moe olmo olmo2 olmoe starcoder2 granite granitemoe "
    "granitemoeshared granite_docling_text granite4_vision_text diffllama doge dots1 aria_text "
    "chameleon deepseek_ocr2_text eurobert esmc falcon_h1 hyperclovax idefics jais2 kyutai_speech_to_text mimi "
    "moshi unlimited_ocr_text voxtral_realtime_text arcee gradium_phonon_tts pocket_tts mimi_encoder mimi_decoder "
    "lasr_encoder deepseek_ocr2_encoder",
    _HALF,
)
_add("qwen3 seed_oss hrm_text internlm3 iquestcoder molmo2_text kolibri1 dia_encoder dia_decoder", _HALF, head_dim=128)
_add("gemma gemma2 vaultgemma t5_gemma_module", _HALF, head_dim=256)
_add("mixtral minimax lfm2 lfm2_moe emu3_text_model", _HALF, theta=1_000_000.0)
_add("phimoe", _HALF, theta=1_000_000.0)
_add("bitnet csm csm_depth_decoder_model flex_olmo mllama_text_model", _HALF, theta=500_000.0)
_add("smollm3", _HALF, theta=2_000_000.0)
_add("nomic_bert", _HALF, theta=1_000.0)
_add("gte", _HALF, theta=160_000.0)
_add("jina_embeddings_v3", _HALF, theta=20_000.0)
_add("hy_v3", _HALF, theta=11_158_840.0, head_dim=128)
_add("timesfm2_5", _HALF, head_dim=80)
_add("neucodec xcodec2 voxtral_realtime_encoder", _HALF, head_dim=64)
_add("hunyuan_v1_dense hunyuan_v1_moe", _HALF, dynamic_alpha=True)
_add("jetmoe", _HALF)
_add("falcon", _HALF, switch=("alibi", False, False), max_position_embeddings=2048)
_add("dbrx", _HALF, max_position_embeddings=2048)
_add("zamba2", _HALF, head_width=2, switch=("use_mem_rope", True, False))
_add("granitemoehybrid", _HALF, switch=("position_embedding_type", "rope", None))
_add("exaone4 exaone_moe", _HALF)
_add("afmoe flint", _HALF, head_dim=128, nope=("full_attention",))

# --- half-split, whole head, with a scaling rule as the class default
_GPT_OSS = {
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
_MINISTRAL = ("llama_4_scaling_beta", "max_position_embeddings")
_add("gpt_oss", _HALF, theta=150_000.0, head_dim=64, block=_GPT_OSS)
_add("apertus", _HALF, theta=12_000_000.0, block={**_LLAMA3, "factor": 8.0})
_add("cwm", _HALF, theta=1_000_000.0, head_dim=128, block={**_LLAMA3, "factor": 16.0})
_add(
    "higgs_audio_v2",
    _HALF,
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
_add(
    "ministral3",
    _HALF,
    head_dim=128,
    keys=_MINISTRAL,
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
_add("gpt_neox stablelm", _HALF, partial=0.25)
_add("bamba glm4_moe nemotron persimmon phi recurrent_gemma", _HALF, partial=0.5)
_add("glmasr_encoder nemotron3_5_transcribe_asr_audio", _HALF, partial=0.5)
_add("gpt_neox_japanese", _HALF, partial=1.0)
_add("phi3 phi4_multimodal", _HALF, partial=1.0, yarn_is_longrope=True)
_add("solar_open", _HALF, partial=1.0, theta=1_000_000.0, head_dim=128)
_add("minimax_m2", _HALF, partial=1.0, theta=5_000_000.0, head_dim=128)
_add("qwen3_next", _HALF, partial=0.25, head_dim=256)

# --- half-split, several thetas
_GEMMA3_KEYS = {"full_attention": "rope_theta", "sliding_attention": "rope_local_base_freq"}
_BERT_KEYS = {"full_attention": "global_rope_theta", "sliding_attention": "local_rope_theta"}
_PROPORTIONAL = {"rope_type": "proportional", "partial_rotary_factor": 0.25}
_GEMMA3 = replace(
    _HALF, head_dim=256, blocks=_two_thetas(1e4, 1e6), theta_keys=_GEMMA3_KEYS, scaled=("full_attention",)
)
_GEMMA4 = replace(
    _HALF,
    head_dim=256,
    blocks=_two_thetas(1e4, 1e6, **_PROPORTIONAL),
    head_dim_of={"full_attention": ("global_head_dim", 512)},
)
_MODERNBERT = replace(
    _HALF,
    blocks=_two_thetas(1e4, 160_000.0),
    theta_keys=_BERT_KEYS,
    scaled=("full_attention", "sliding_attention"),
)
_add("gemma3_text t5gemma2_text t5gemma2_decoder", _GEMMA3, max_position_embeddings=131_072)
_add("gemma3n_text", _GEMMA3, max_position_embeddings=32_768)
_add("gemma4_text gemma4_unified_text diffusion_gemma_text", _GEMMA4)
_add("embedding_gemma2_text", _GEMMA4, blocks=_two_thetas(1e4, 1e6))
_add("modernbert modernbert-decoder", _MODERNBERT)
_add(
    "olmo3",
    _HALF,
    blocks=_two_thetas(500_000.0, 500_000.0),
    theta_keys={"full_attention": "rope_theta", "sliding_attention": "rope_theta"},
    scaled=("full_attention",),
)
_add("lfm3", _HALF, head_dim=128, blocks=_two_thetas(1e4, 1e6, rope_type="proportional", partial_rotary_factor=0.5))
_add("ultrabert", _HALF, blocks=_two_thetas(1e4, 2_560_000.0))
_add(
    "laguna",
    _HALF,
    head_dim=128,
    partial=1.0,
    blocks={
        "full_attention": {"rope_theta": 500_000.0, "partial_rotary_factor": 0.5},
        "sliding_attention": {"rope_theta": 10_000.0},
    },
)
_add("mellum", _HALF, head_dim=128, partial=1.0, blocks=_two_thetas(1e4, 500_000.0))
_add("mimo_v2_flash", _HALF, head_dim=192, partial=0.334, blocks=_two_thetas(1e4, 5_000_000.0))
_add("beam", _HALF, head_dim=128, blocks={"sliding_attention": {"rope_theta": 10_000.0}, "full_attention": None})
_add(
    "zaya",
    _HALF,
    head_dim=128,
    partial=1.0,
    blocks={
        "hybrid": {"rope_theta": 5_000_000.0, "partial_rotary_factor": 0.5},
        "hybrid_sliding": {"rope_theta": 10_000.0, "partial_rotary_factor": 0.5},
    },
)

# --- half-split, three axes
_QWEN2_VL = replace(_HALF, theta=1_000_000.0, mrope="contiguous", mrope_section=(16, 24, 24))
_QWEN3_VL = replace(_HALF, theta=500_000.0, mrope="interleaved", mrope_section=(24, 20, 20))
_QWEN3_5 = replace(_HALF, partial=0.25, head_dim=256, mrope="interleaved", mrope_section=(11, 11, 10))
_add("qwen2_vl qwen2_vl_text qwen2_5_vl qwen2_5_vl_text qwen2_5_omni_text", _QWEN2_VL)
_add("paddleocr_vl_text", _QWEN2_VL, theta=500_000.0, head_dim=128)
_add("qwen3_vl_text", _QWEN3_VL, head_dim=128)
_add("qwen3_vl_moe_text", _QWEN3_VL)
_add("qwen3_omni_moe_text", _QWEN3_VL, theta=1_000_000.0)
_add("qwen3_5_text qwen3_5_moe_text", _QWEN3_5)
_add("cosmos3_edge_text", _QWEN3_VL, theta=100_000_000.0, head_dim=128)
_add("glm4v_moe_text", _HALF, partial=0.5, mrope="contiguous", mrope_section=(8, 12, 12))
_add("glm_image_text", _HALF, partial=1.0, mrope="contiguous", mrope_section=(8, 12, 12))

# --- interleaved pairs
_add("gptj codegen", _INTERLEAVED, rotary_dim=64)
_add("cohere", _INTERLEAVED, theta=500_000.0)
_add("cohere2", _INTERLEAVED, nope=("full_attention",))
_add("helium", _INTERLEAVED, theta=100_000.0, head_dim=128)
_add("ernie4_5", _INTERLEAVED, theta=500_000.0, head_dim=128)
_add("ernie4_5_moe blt_local_encoder blt_local_decoder blt_global_transformer", _INTERLEAVED, theta=500_000.0)
_add("blt_patcher", _INTERLEAVED)
_add("llama4_text", _INTERLEAVED, theta=500_000.0, head_dim=128)
_add("glm glm4", _INTERLEAVED, partial=0.5, head_dim=128)
_add("moonshine", _INTERLEAVED, partial=0.9)
_add("moonshine_streaming", _INTERLEAVED, partial=0.8)
_add("pe_audio_encoder pe_video_encoder pe_audio_video_encoder", _INTERLEAVED, theta=20_000.0, head_dim=128)
_add("openai_privacy_filter", _INTERLEAVED, theta=150_000.0, head_dim=64, block=_GPT_OSS)
_add("glm4v_text glm_ocr_text", _INTERLEAVED, partial=1.0, mrope="contiguous", mrope_section=(8, 12, 12))
_add("ernie4_5_vl_moe_text", _INTERLEAVED, theta=500_000.0, mrope="ernie", mrope_section=(22, 22, 20))

# --- a slice of qk_rope_head_dim features turns (multi-head latent attention)
_add("deepseek_v2 deepseek_v32 glm_moe_dsa", _MLA)
_add("deepseek_v3 axk1 youtu glm4_moe_lite", _MLA, reads_flag=True)
_add("bailing_hybrid", _MLA, theta=6_000_000.0)
_add("longcat_flash", _MLA, theta=10_000_000.0)
_add("mistral4", _MLA, reads_flag=True, keys=_MINISTRAL)
_add("minicpm3", _MLA, interleaved=False, head_dim=32)
_add("hy_v4", _MLA, interleaved=False)

# --- vision towers: H in the first half of the pairs, W in the second
_add(
    "qwen2_vl_vision qwen2_5_vl_vision qwen2_5_omni_vision_encoder qwen3_vl_vision qwen3_vl_moe_vision "
    "qwen3_omni_moe_vision_encoder qwen3_5_vision qwen3_5_moe_vision qwen4_exp_vision glm4v_vision glm4v_moe_vision "
    "glm_ocr_vision glm5_next_vision ernie4_5_vl_moe_vision paddleocr_vl_vision exaone4_5_vision video_llama_3_vision "
    "mlcd_vision_model cohere_compass_vision dots3_note_vision_encoder",
    _HALF,
    axial=True,
)


# --- model types whose code lies beside their weights
def _is_plain(block: Any) -> bool:
    """Whether a rope block is absent, or of a rule without an attention factor."""
    rule = block.get("rope_type", block.get("type")) if isinstance(block, Mapping) else None
    return rule in (None, "default", "linear", "dynamic")


_LONGROPE = "whether its LongRoPE also scales queries and keys is not known here"
_STEPS = "beyond seq_length its frequencies change in steps of their own (up to it, `use_dynamic_ntk` may be false)"
_TWO_POSITIONS = "ChatGLM-6B turns each half of a head by positions of its own"
_DIVIDED = "ChatGLM2-6B-32K divides positions by its rope_ratio, where later models multiply theta by it"
_add("internlm2 deepseek bailing_moe exaone", _HALF)
_add("internlm", _HALF, holds={"rotary": (lambda block: block is None, "its `rotary` block is not read here")})
_add("minicpm", _HALF, holds=dict.fromkeys(("rope_scaling", "rope_parameters"), (_is_plain, _LONGROPE)))
_add("baichuan", _HALF, holds={"hidden_size": (lambda size: size == 4096, "only the 7B models turn, others use ALiBi")})
_add("qwen", _HALF, partial=1.0, holds={"use_dynamic_ntk": (lambda flag: flag is False, _STEPS)})
_add("minimax_text_01 minimax_m1", _HALF, partial=1.0)
_add("llada", _HALF, switch=("rope", True, False))
_add("kimi_k2", _MLA)
_add(
    "chatglm",
    _INTERLEAVED,
    partial=0.5,
    theta_ratio="rope_ratio",
    holds={
        "position_encoding_2d": (lambda flag: not flag, _TWO_POSITIONS),
        "original_rope": (lambda flag: flag in (None, True), "false pairs otherwise (CogAgent)"),
        "_name_or_path": (lambda name: "chatglm2-6b-32k" not in str(name).lower(), _DIVIDED),
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

# --- families that cannot be described, and why
REFUSED: dict[str, str] = {
    "nanochat": "it rotates by minus the angle",
    "deepseek_v4": "it turns the last features of the head, and turns the attention's output back",
    "hunyuan_vl_text": "with different axes its formula is not a rotation",
    "vjepa2": "its formula is not a rotation",
    "kimi_linear": "it has no rotation",
    "olmo_hybrid": "its released checkpoints have no rotation (a null rope_theta says so)",
}
REFUSED |= {"nanochat_text": REFUSED["nanochat"], "hunyuan_vl": REFUSED["hunyuan_vl_text"]}


def family_name(model_type: str) -> str | None:
    """The table's name of a `model_type`: itself, or a composite config's text part; None where it is unknown."""
    for name in (model_type, f"{model_type}_text"):
        if name in FAMILIES or name in REFUSED:
            return name
    return None
