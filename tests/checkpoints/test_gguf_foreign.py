"""GGUF files of many families: the logits of the model that was written, or a refusal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from ropewalk.checkpoints.checkpoint import Checkpoint
from ropewalk.checkpoints.gguf import foreign_config
from ropewalk.checkpoints.gguf_file import GGUFFile
from ropewalk.checkpoints.opening import load_live, open_reader, reader_of
from ropewalk.checkpoints.reader import Reader
from ropewalk.errors import RopeError
from tests.checkpoints.gguf_files import ARCHITECTURES, write_foreign
from tests.checkpoints.random_models import random_model
from tests.checkpoints.test_transformers import CLOSE, ids_of, log_probs

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
}


def of(family: str, **changes: Any) -> Any:
    """A random model of the family in a shape that its GGUF file can say."""
    return random_model(family, **{**SHAPES.get(family, {}), **changes})


def losses_of(model: Any, ids: torch.Tensor) -> Any:
    """Nats of every token but the first, by the model's own forward."""
    return -log_probs(model, ids)[:-1].gather(-1, ids[1:, None])[:, 0].numpy()


@pytest.mark.parametrize("family", ARCHITECTURES)
def test_a_file_computes_what_was_written(family: str, tmp_path: Path) -> None:
    """Every weight and every number of the config; the tokenizer from the file."""
    model, ids = of(family), ids_of(40)
    reader = reader_of(load_live(write_foreign(model, tmp_path / "model.gguf"), None, "cpu"))
    assert isinstance(reader, Reader)
    assert abs(reader.window_losses(ids, chunk=16) - losses_of(model, ids)).max() < CLOSE
    assert reader.tokenizer is not None
    assert reader.tokenizer.decode(reader.tokenizer.encode("A whale")) == "A whale"


def test_the_rope_is_the_files(tmp_path: Path) -> None:
    """Gemma 3's linear scaling of its full layers, Phi-3's two lists: transformers' reader passes over both."""
    scaled = {"rope_type": "linear", "factor": 8.0, "rope_theta": 1_000_000.0}
    ropes = {"full_attention": scaled, "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0}}
    model, ids = of("gemma3_text", rope_parameters=ropes), ids_of(40)
    said = {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0, "rope.freq_base_swa": 10_000.0}
    path = write_foreign(model, tmp_path / "gemma.gguf", said)
    assert abs(open_reader(path).window_losses(ids) - losses_of(model, ids)).max() < CLOSE
    assert Checkpoint.open(path).ropes["full_attention"].scaling is not None
    blob = path.rename(tmp_path / "sha256-0")  # as Ollama stores it
    assert Checkpoint.open(blob).arch == "gemma3"
    lists = {"short_factor": [1.0, 1.5, 2.0, 2.5], "long_factor": [2.0, 3.0, 4.0, 5.0]}
    block = {"rope_type": "longrope", "rope_theta": 10_000.0, "original_max_position_embeddings": 16, **lists}
    model = of("phi3", rope_parameters={**block, "attention_factor": 1.25}, original_max_position_embeddings=16)
    said = {"rope.scaling.type": "longrope", "rope.scaling.original_context_length": 16,
            "rope.scaling.attn_factor": 1.25}  # fmt: skip
    factors = {"rope_factors_short": lists["short_factor"], "rope_factors_long": lists["long_factor"]}
    path = write_foreign(model, tmp_path / "phi.gguf", said, **{k: torch.tensor(v) for k, v in factors.items()})
    reader = open_reader(path)
    for length in (14, 40):
        window = ids[:length]
        assert abs(reader.window_losses(window) - losses_of(model, window)).max() < CLOSE


def test_what_would_be_lost_in_silence_is_refused(tmp_path: Path) -> None:
    """A key that nobody reads, a narrower rotation, a kind of scaling, an architecture, a part of a file."""
    model = of("starcoder2")
    for key, value, words in (
        ("attention.scale", 0.5, "unknown key"),
        ("rope.dimension_count", 4, "different rotary width"),
        ("rope.scaling.type", "cubic", "unknown rope scaling"),
    ):
        with pytest.raises(RopeError, match=words):
            foreign_config(GGUFFile(write_foreign(model, tmp_path / "odd.gguf", {key: value})))
    path = write_foreign(model, tmp_path / "odd.gguf")
    path.write_bytes(path.read_bytes().replace(b"starcoder2", b"gptneox123"))
    with pytest.raises(RopeError, match="neither ropewalk nor transformers"):
        open_reader(path)
