"""The table of llama.cpp's architectures: what each computes from the metadata of a GGUF file, as plain data.

Source: llama.cpp b11549: `llama_model_rope_type` and `llama_model_base::load_hparams` in src/llama-model.cpp, and
`load_arch_hparams` and the graph of each architecture in src/models/. The names are those of the package gguf 0.19.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Windows:
    """The layers with a sliding window, and their rope.

    - `period`: of the layers, the last of each period attends to all tokens, or the first if `first`; 0: none does;
      None: the file must list the layers. `attention.sliding_window_pattern` of a file takes precedence.
    - `size`: default in tokens; 0: no layer has a window. None: the file must state it. `fixed`: tokens, whatever the
      file's size is. `layers`: only models with this number of layers have windows.
    - `theta`: default theta of these layers; None: that of the others. `own_theta`: `rope.freq_base_swa` replaces it.
    - `scaled`: whether the file's scaling applies to these layers. `kind`: the name of their type.
    """

    period: int | None
    first: bool = False
    size: int | None = 0
    fixed: int | None = None
    layers: int | None = None
    theta: float | None = None
    own_theta: bool = True
    scaled: bool = True
    kind: str = "sliding_attention"


@dataclass(frozen=True)
class Architecture:
    """The rotation of an architecture.

    - `interleaved`: pairs are (0, 1), (2, 3), ... in the order of the file's rows; False: (i, i + rotary_dim/2).
    - `family`: the `model_type` of the same models in `FAMILIES`, for facts about their training; None: several.
    - `axes`: the order of `rope.dimension_sections`: files with them pair half-split. `needs_axes`: all have them.
    - `divisors`: tensors that divide the frequencies: "fixed" (`rope_freqs`), "lists" (`rope_factors_long` and
      `_short`), "either" (lists if the type is longrope), "ignored" or None (not loaded). `full_only`: only in layers
      without a window.
    - `whole`: files must rotate the whole head. `plain`: the whole head rotates with theta 10,000, unscaled, whatever
      the file states. `half_in_full`: layers without a window rotate half of `rope.dimension_count`.
    - `mla`: multi-head latent attention: only a slice of `rope.dimension_count` features rotates, and we describe this
      slice. `scales_logits`: YaRN also multiplies the softmax scale.
    - `windows`: of its layers, or None. `full_rotates`: whether layers without a window rotate if others have one.
    - `still_every`: every n-th layer does not rotate: the last of each n, or the first if `still_first`.
      `still_without_window`: where no layer has a window, "none" of them is left out, or the "last" layer of the model.
    - `interval`: default of `full_attention_interval`: other layers are recurrent. In all architectures, layers without
      key and value heads have no attention.
    - `layers`: only models with this number of layers rotate. `switch`: `rope.scaling.finetuned` enables the rotation.
    - `alpha`: `rope.scaling.alpha` multiplies theta, as in NTK-aware scaling.
    - `yarn`: keys of `rope.scaling.yarn_*` that apply, and their defaults; "log_multiplier" is mscale_all_dim, and
      "tenth" a tenth of it. `equal_mscales`: mscale is the same number, so the attention factor is 1.
    """

    interleaved: bool
    family: str | None = None
    axes: Literal["contiguous", "interleaved"] | None = None
    needs_axes: bool = False
    divisors: Literal["fixed", "lists", "either", "ignored"] | None = None
    full_only: bool = False
    whole: bool = False
    plain: bool = False
    half_in_full: bool = False
    mla: bool = False
    scales_logits: bool = False
    windows: Windows | None = None
    full_rotates: bool = True
    still_every: int = 0
    still_first: bool = False
    still_without_window: Literal["none", "last"] | None = None
    interval: int = 0
    layers: int | None = None
    switch: bool = False
    alpha: bool = False
    yarn: dict[str, float] = field(default_factory=dict)
    equal_mscales: bool = False

    @property
    def scales_by_flags(self) -> bool:
        """Return whether llama-server's flags scale the rotation of a file as they state it, and nothing else."""
        return not (self.plain or self.scales_logits or self.yarn.get("beta_fast", 32.0) != 32.0)


ARCHITECTURES: dict[str, Architecture] = {}
"""The architectures that rotate, by `general.architecture`."""


def _add(names: str, interleaved: bool, **row: Any) -> None:
    """Add a row for each of `names` (separated by blanks), "arch" or "arch=family"."""
    for name in names.split():
        arch, _, family = name.partition("=")
        assert arch not in ARCHITECTURES, f"{arch} is described twice"
        ARCHITECTURES[arch] = Architecture(interleaved, **{"family": family or None, **row})


_SAME = Windows(4, size=None, own_theta=False)


def _local(period: int | None, **more: Any) -> Windows:
    """Return windows whose layers have a theta of their own, 10,000 unless the file states it, and no scaling."""
    return Windows(period, **{"size": None, "theta": 1e4, "scaled": False, **more})


# --- neighbouring features
_add("xverse command-r=cohere olmo=olmo arctic deepseek=deepseek chatglm=chatglm chameleon=chameleon", True)
_add("internlm2=internlm2 bailingmoe=bailing_moe ernie4_5=ernie4_5 ernie4_5-moe=ernie4_5_moe", True)
_add("neo-bert maincoder", True)
_add("baichuan=baichuan", True, layers=32)  # larger models use ALiBi
_add("llama=llama llama-embed=llama deci", True, divisors="either", whole=True)
_add("arcee=arcee", True, divisors="fixed")
_add("granitemoe=granitemoe minicpm=minicpm", True, divisors="either")
_add("granite=granite", True, divisors="either", switch=True)
_add("granitehybrid=granitemoehybrid", True, divisors="fixed", switch=True)
_add("llada=llada", True, divisors="ignored")
_add("smollm3=smollm3", True, still_every=4)
_add("cohere2=cohere2", True, windows=_SAME, full_rotates=False)
_CHUNKS = Windows(4, size=8192, fixed=8192, kind="chunked_attention")  # without them the last layer is left out
_add("llama4=llama4_text", True, divisors="fixed", windows=_CHUNKS, still_every=4, still_without_window="last")
_BETAS = {"beta_fast": 32.0, "beta_slow": 1.0}
_add("mistral3=ministral3", True, divisors="either", yarn={**_BETAS, "log_multiplier": 0.0})
_add("glm4", True, axes="contiguous")
_add("plm", True, mla=True)
_add("glm-dsa=glm_moe_dsa", True, mla=True, scales_logits=True)
_add("deepseek2", True, mla=True, scales_logits=True, yarn={"tenth": 0.0}, equal_mscales=True)
_add("mistral4=mistral4", True, mla=True, scales_logits=True, yarn={"tenth": 0.0})

# --- halves
_add("gptneox=gpt_neox dbrx=dbrx stablelm=stablelm qwen=qwen qwen2=qwen2 qwen2moe=qwen2_moe qwen3=qwen3", False)
_add("qwen3moe=qwen3_moe dream llada-moe rnd1 olmoe=olmoe phi2=phi plamo2 codeshell orion gemma=gemma", False)
_add("starcoder2=starcoder2 openelm bitnet=bitnet jais2=jais2 nemotron=nemotron bailingmoe2 dots1=dots1", False)
_add("hunyuan-moe=hunyuan_v1_moe lfm2moe=lfm2_moe seed_oss=seed_oss grovemoe minimax-m2=minimax_m2", False)
_add("nomic-bert=nomic_bert nomic-bert-moe=nomic_bert jina-bert-v3=jina_embeddings_v3 eurobert=eurobert", False)
_add("falcon=falcon", False, whole=True)
_add("plamo", False, whole=True)
_add("cogvlm deepseek2-ocr=deepseek_ocr2_text", False, divisors="ignored", plain=True)
_add("falcon-h1=falcon_h1 pangu-embedded", False, divisors="ignored")
_add("exaone=exaone", False, divisors="fixed")
_add("phi3=phi3 phimoe=phimoe", False, divisors="lists")  # it disables the windows of Phi-3
_add("minicpm3=minicpm3", False, divisors="lists", mla=True)
_add("apertus=apertus", False, divisors="either")
_add("grok", False, yarn={"ext_factor": -1.0, "attn_factor": 1.0, **_BETAS, "beta_fast": 8.0})
_add("qwen3next=qwen3_next", False, interval=4)
_add("lfm2=lfm2", False, windows=Windows(0, own_theta=False))
_add("afmoe=afmoe", False, windows=Windows(4), still_every=4)
_FIRST = Windows(4, first=True, fixed=4096)
_add("smallthinker", False, windows=_FIRST, still_every=4, still_first=True, still_without_window="none")
_LARGE = Windows(4, size=4096, layers=64, own_theta=False)
_add("exaone4=exaone4", False, divisors="fixed", windows=_LARGE, full_rotates=False)
_add("exaone-moe=exaone_moe", False, divisors="fixed", windows=_SAME, full_rotates=False)
_add("gpt-oss=gpt_oss", False, windows=Windows(2, size=None))
_add("gemma2=gemma2", False, windows=Windows(2, size=4096))
_add("olmo2=olmo2", False, windows=Windows(4, own_theta=False, scaled=False))
_add("gemma3=gemma3_text", False, windows=_local(6, size=0))
_add("gemma-embedding=gemma3_text", False, windows=_local(6))
_add("gemma3n=gemma3n_text", False, windows=_local(5))
_add("plamo3", False, windows=_local(8, size=0))
_add("modern-bert=modernbert", False, windows=_local(3, first=True, size=0))
_add("gemma4=gemma4_text", False, divisors="fixed", full_only=True, windows=_local(None))
_add("mimo2=mimo_v2_flash", False, windows=_local(None))
_add("step35=step3p5", False, divisors="either", full_only=True, half_in_full=True, windows=_local(None))

# --- halves, three axes if the file states their sections
_add("glm4moe=glm4_moe", False, axes="contiguous")
_add("hunyuan-dense=hunyuan_v1_dense hunyuan_vl", False, axes="contiguous", alpha=True)
_add("qwen2vl", False, axes="contiguous", needs_axes=True)
_add("paddleocr=paddleocr_vl_text", False, axes="contiguous", needs_axes=True)
_add("qwen3vl=qwen3_vl_text qwen3vlmoe=qwen3_vl_moe_text", False, axes="interleaved", needs_axes=True)
_add("qwen35=qwen3_5_text qwen35moe=qwen3_5_moe_text", False, axes="interleaved", needs_axes=True, interval=4)

_REASONS = {
    "a vision tower that another file's language model uses": "clip",
    "learned absolute positions": "gpt2 starcoder bert",
    "ALiBi": "mpt refact bloom jais jina-bert-v2",
    "a relative position bias": "t5 t5encoder",
    "no positions, because it is recurrent": "rwkv6 rwkv6qwen2 rwkv7 arwkv7 mamba mamba2",
    "no positions in attention, because its other layers are recurrent": "jamba nemotron_h nemotron_h_moe kimi-linear",
    "convolutions and attention without positions, to decode audio": "wavtokenizer-dec",
    "no graph: llama.cpp knows its name, and computes nothing": "gptj",
}
STILL: dict[str, str] = {arch: reason for reason, names in _REASONS.items() for arch in names.split()}
"""What the architectures without rotation use, by `general.architecture`."""
