"""GGUF files of many families: the logits of the model that was written, or a refusal."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from ropewalk.audit.traps import findings_of
from ropewalk.checkpoints.checkpoint import Checkpoint
from ropewalk.checkpoints.gguf import gguf_config
from ropewalk.checkpoints.gguf_file import GGUFFile
from ropewalk.checkpoints.opening import load_live, open_reader, reader_of
from ropewalk.checkpoints.reader import Reader
from ropewalk.errors import RopeError
from ropewalk.methods import Reach
from ropewalk.rope.scaling import YaRN
from tests.checkpoints.gguf_files import ARCHITECTURES, write_foreign
from tests.checkpoints.random_models import random_model
from tests.checkpoints.test_transformers import CLOSE, ids_of, losses_of

EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
SHAPES: dict[str, dict[str, Any]] = {
    "gemma3_text": {"num_hidden_layers": 6, "layer_types": None},  # the file does not say them: every sixth is full
    "qwen3_moe": {"norm_topk_prob": True},  # as llama.cpp computes it
    "qwen2_moe": {"shared_expert_intermediate_size": 24, **EXPERTS},
    "falcon": {"multi_query": True, "num_kv_heads": 1},
    "llama": {"attention_bias": True},
    "mistral": {"sliding_window": 12, "head_dim": 8},
    "smollm3": {"num_hidden_layers": 5, "sliding_window": None, "no_rope_layers": None},  # the fourth has no rope
    "qwen3": {"head_dim": 16, "tie_word_embeddings": True},
    "gemma4_text": {
        "head_dim": 8, "global_head_dim": 16, "num_key_value_heads": 4, "num_global_key_value_heads": 2,
        "attention_k_eq_v": True, "hidden_size_per_layer_input": 4, "vocab_size_per_layer_input": 257,
        "num_hidden_layers": 6, "layer_types": [*["sliding_attention"] * 2, "full_attention"] * 2,
        "num_kv_shared_layers": 3, "use_double_wide_mlp": True, "sliding_window": 12, "tie_word_embeddings": True,
    },
}  # fmt: skip
# What llama.cpp's converter adds for Gemma 4 (`Gemma4Model` in conversion/gemma.py, b11549).
FURTHER: dict[str, dict[str, Any]] = {
    "gemma4_text": {
        "attention.sliding_window_pattern": [True, True, False] * 2, "attention.head_count_kv": [4, 4, 2] * 2,
        "feed_forward_length": [48] * 3 + [96] * 3, "attention.shared_kv_layers": 3,
        "embedding_length_per_layer_input": 4, "rope.freq_base_swa": 1e4,
        **{f"{name}{end}": width for end, width in (("", 16), ("_swa", 8))
           for name in ("attention.key_length", "attention.value_length", "rope.dimension_count")},
    },
}  # fmt: skip
TENSORS = {"gemma4_text": {"rope_freqs": torch.tensor([1.0] * 2 + [1e30] * 6)}}


def of(family: str, **changes: Any) -> Any:
    """A random model of the family in a shape that its GGUF file can say."""
    return random_model(family, **{**SHAPES.get(family, {}), **changes})


@pytest.mark.parametrize("family", [family for family in ARCHITECTURES if family != "gpt_oss"])
def test_a_file_computes_what_was_written(family: str, tmp_path: Path) -> None:
    """Every weight and every number of the config; the tokenizer from the file."""
    model, ids = of(family), ids_of(40)
    path = write_foreign(model, tmp_path / "model.gguf", FURTHER.get(family), **TENSORS.get(family, {}))
    reader = reader_of(load_live(path, None, "cpu"))
    assert isinstance(reader, Reader)
    assert abs(reader.window_losses(ids, chunk=16) - losses_of(model, ids)).max() < CLOSE
    assert reader.tokenizer is not None
    assert reader.tokenizer.decode(reader.tokenizer.encode("A whale")) == "A whale"


def test_the_rope_is_the_files(tmp_path: Path) -> None:
    """Gemma 3's linear scaling of its full layers, which transformers' reader ignores."""
    scaled = {"rope_type": "linear", "factor": 8.0, "rope_theta": 1_000_000.0}
    ropes = {"full_attention": scaled, "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0}}
    model, ids = of("gemma3_text", rope_parameters=ropes), ids_of(40)
    said = {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0, "rope.freq_base_swa": 10_000.0}
    path = write_foreign(model, tmp_path / "gemma.gguf", said)
    assert abs(open_reader(path).window_losses(ids) - losses_of(model, ids)).max() < CLOSE
    assert Checkpoint.open(path).ropes.rotating["full_attention"].scaling is not None
    blob = path.rename(tmp_path / "sha256-0")  # as Ollama stores it
    assert Checkpoint.open(blob).arch == "gemma3"


PHI = {"rope.scaling.original_context_length": 16, "rope.scaling.attn_factor": 1.25}
PHIS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # shape of the model; what `Phi3MiniModel` writes
    "Phi-3.5": ({"sliding_window": 30}, PHI),
    "Phi-4": ({}, PHI | {"attention.sliding_window": 0}),
    "Phi-4-mini": ({"hidden_size": 64}, PHI | {"attention.sliding_window": 0, "rope.dimension_count": 12}),
    "typed": ({}, PHI | {"rope.scaling.type": "longrope"}),
}


def pair(pairs: int, least: float = 1.0) -> dict[str, torch.Tensor]:
    """Divisors of LongRoPE below and beyond the original length."""
    return {f"rope_factors_{side}": torch.linspace(least, most, pairs) for side, most in (("short", 2.5), ("long", 5))}


@pytest.mark.parametrize("name", PHIS)
def test_phi_as_llama_cpp_writes_it(name: str, tmp_path: Path) -> None:
    """Two lists, as a rule without a type of scaling, in conversion/phi.py of b11549; one of them rotates 12 of 16."""
    shape, said = PHIS[name]
    width = said.get("rope.dimension_count", 8)
    lists = pair(width // 2)
    block = {"rope_type": "longrope", "rope_theta": 10_000.0, "original_max_position_embeddings": 16,
             "attention_factor": 1.25, "partial_rotary_factor": 0.75 if width == 12 else 1.0,
             **{f"{side}_factor": lists[f"rope_factors_{side}"].tolist() for side in ("short", "long")}}  # fmt: skip
    model = of("phi3", rope_parameters=block, original_max_position_embeddings=16, **shape)
    path, ids = write_foreign(model, tmp_path / "phi.gguf", said, **lists), ids_of(40)
    reader = open_reader(path)
    for length in (14, 40):
        window = ids[:length]
        assert abs(reader.window_losses(window) - losses_of(model, window)).max() < CLOSE
    assert [one for one in findings_of(Checkpoint.open(path)) if one.severity != "note"] == []


YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 64}
_NUMBERS = {"ext_factor": 0.5, "attn_factor": 1.5, "beta_fast": 8.0, "beta_slow": 2.0}
IGNORED = {f"rope.scaling.yarn_{name}": value for name, value in _NUMBERS.items()}
LINEAR = {"rope.scaling.type": "linear", "rope.scaling.factor": 2.0}
SAID = {"rope.scaling.original_context_length": 64, "rope.scaling.attn_factor": 1.2}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("family", "shape", "said", "tensors"),
    [
        ("phi3", {}, SAID, pair(4)),
        ("phi3", {"hidden_size": 64}, SAID | {"rope.dimension_count": 12}, pair(6)),
        ("phi3", {}, SAID | LINEAR, pair(4)),
        ("phi3", {}, SAID | LINEAR | {"rope.scaling.type": "longrope"}, pair(4)),
        ("phi3", {}, SAID | LINEAR | {"rope.scaling.type": "none"}, pair(4)),
        ("llama", {}, LINEAR, {"rope_freqs": torch.linspace(1, 4, 4)}),
        ("qwen3", {}, YARN | IGNORED, {}),
        ("llama", {}, YARN | IGNORED | {"rope.scaling.attn_factor": 1.3}, {}),
    ],
)
def test_a_real_llama_cpp_agrees(
    family: str, shape: dict[str, Any], said: dict[str, Any], tensors: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    """Divisors multiply a linear factor whatever the type is; YaRN's four numbers change nothing. Run with b11549."""
    pytest.importorskip("xllamacpp", reason="llama.cpp is in the extra llama-cpp")
    from tests.serving.test_gguf_server import misfits

    model = of(family, max_position_embeddings=256, vocab_size=258, **shape)
    path, lengths = write_foreign(model, tmp_path / "m.gguf", said, **tensors), (66, 70, 77, 83, 90, 101, 108, 115)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # names the ignored numbers
        assert misfits(path, path, "as-is", Reach(256, 512), lengths)["as-is"] < 0.02  # the cache is in float16


def test_the_metadata_of_gpt_oss_is_read(tmp_path: Path) -> None:
    """Its experts are stored in another order: the rope is read, no weights."""
    path = write_foreign(of("gpt_oss"), tmp_path / "oss.gguf", YARN)
    rope = Checkpoint.open(path).ropes.rotating[None]
    assert rope.scaling == YaRN(4.0, 64)  # truncated as in llama.cpp, not as in the published config
    with pytest.raises(RopeError, match=r"(?s)not read from GGUF files.*gpt-oss.*Hugging Face folder"):
        open_reader(path)


def test_a_rope_that_its_class_does_not_have_is_refused(tmp_path: Path) -> None:
    """Starcoder2 rotates the whole head."""
    path = write_foreign(of("starcoder2"), tmp_path / "odd.gguf", {"rope.dimension_count": 4})
    with pytest.raises(RopeError, match="does not fit what transformers computes"):
        gguf_config(GGUFFile(path))
