"""What loading a folder refuses and how it names it: damaged files, wrong tensors and configs, code and pickles."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from ropewalk.checkpoints.checkpoint import Checkpoint
from ropewalk.checkpoints.load import load, save
from ropewalk.errors import RopeError
from tests.checkpoints.random_models import change_config, make
from tests.checkpoints.test_hostile import in_shards
from tests.models.material import logits


def change_weights(folder: Path, **changes: Any) -> None:
    """Put other tensors into a folder's weights (dots written as two underscores); None takes one away."""
    path = folder / "model.safetensors"
    weights = dict(load_file(path)) | {name.replace("__", "."): tensor for name, tensor in changes.items()}
    kept = {name: tensor.clone() for name, tensor in weights.items() if tensor is not None}
    path.unlink()
    save_file(kept, path, metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model__norm__weight": None}, r"(?s)are missing or unknown.*missing_keys.*'norm\.weight'"),
        ({"model__extra__weight": torch.zeros(2)}, r"(?s)are missing or unknown.*unexpected_keys.*'extra\.weight'"),
        ({"model__norm__weight": torch.zeros(31)}, r"(?s)mismatched_keys.*'norm\.weight', \(31,\), \(32,\)"),
        ({"model__norm__weight": torch.zeros(32).to(torch.float8_e5m2)}, r"(?s)plain floating type.*norm\.weight"),
        ({"lm_head__weight": torch.zeros(96, 32)}, r"(?s)ties the head.*lm_head\.weight"),
        ({"norm__weight": torch.zeros(32)}, r"(?s)stored twice.*norm\.weight"),
    ],
)
def test_wrong_tensors_are_named(changes: dict[str, Any], message: str, folder: Path) -> None:
    """Missing, unexpected, of a wrong shape or type, or a head where there should be none."""
    change_weights(folder, **changes)
    with pytest.raises(RopeError, match=message):
        load(folder)


def test_harmless_tensors_are_passed_over(folder: Path) -> None:
    """Old Llama checkpoints store inv_freq; some tied ones repeat the embedding as a head; some lack the prefix."""
    expected = logits(load(folder))
    weights = load_file(folder / "model.safetensors")
    change_weights(
        folder,
        lm_head__weight=weights["model.embed_tokens.weight"].clone(),
        model__layers__0__self_attn__rotary_emb__inv_freq=torch.zeros(4),
    )
    assert torch.equal(logits(load(folder)), expected)
    save_file({n.removeprefix("model."): t.clone() for n, t in weights.items()}, folder / "model.safetensors")
    assert torch.equal(logits(load(folder)), expected)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "mamba"}, r"(?s)unknown architecture.*'mamba'"),
        ({"model_type": ...}, "unknown architecture"),
        ({"architectures": ["MyLlamaForCausalLM"]}, r"(?s)unknown architecture.*MyLlamaForCausalLM"),
        ({"model_type": "mylm", "auto_map": {"AutoModel": "code.My"}}, r"(?s)never runs the code.*'mylm'.*code\.My"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"hidden_act": "gelu"}, "`hidden_act`.*silu gates the feed-forward"),
        ({"hidden_size": ...}, r"(?s)`hidden_size` must be a whole number.*missing"),
        ({"num_hidden_layers": "3"}, "`num_hidden_layers` must be a whole number"),
        ({"num_attention_heads": 0}, "`num_attention_heads` must be"),
        ({"rms_norm_eps": "tiny"}, "`rms_norm_eps` must be a finite number"),
        ({"partial_rotary_factor": 0.5}, "`partial_rotary_factor`.*whole heads rotate"),
        ({"rope_parameters": {"rope_type": "no-such"}}, r"(?s)rope_type.*config\.json|config\.json.*rope"),
        (
            {"layer_types": ["full_attention", "sliding_attention", "full_attention"]},
            "does not support the config's `layer_types`",
        ),
        ({"layer_types": 3}, "layer_types"),
        ({"layer_types": [["full_attention"]] * 3}, "layer_types"),
        ({"model_type": "ropewalk"}, "model_type ropewalk is damaged"),
    ],
)
def test_configs_that_are_refused(changes: dict[str, Any], message: str, folder: Path) -> None:
    """Unknown architectures, code of one's own, and numbers that are missing or impossible."""
    change_config(folder, **changes)
    with pytest.raises(RopeError, match=message):
        load(folder)


def test_missing_files_are_named(folder: Path, tmp_path: Path) -> None:
    """No such folder, no config.json, no weights."""
    with pytest.raises(RopeError, match="no such file or folder"):
        load(tmp_path / "nowhere")
    with pytest.raises(RopeError, match=r"(?s)no such file.*config\.json"):
        load(tmp_path)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(RopeError, match=r"(?s)no safetensors weights, only pickles.*pytorch_model\.bin"):
        load(folder)


def test_code_beside_a_known_family_is_not_run(folder: Path) -> None:
    """Many re-uploads carry an auto_map: the family is read as without it, and a trap in the code never springs."""
    expected = logits(load(folder))
    change_config(folder, auto_map={"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"})
    (folder / "code.py").write_text(f"open({str(folder / 'sprung')!r}, 'w')")
    assert torch.equal(logits(load(folder)), expected)
    assert not (folder / "sprung").exists()


@pytest.mark.rejects
def test_a_path_names_something(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty path is not the current folder, which `save` would replace; what is no path is said to be none."""
    save(make(), tmp_path / "model")
    monkeypatch.chdir(tmp_path / "model")
    before = sorted(Path().iterdir())
    for source in ("", None, 3, b"tiny", ["tiny"]):
        for call in (load, Checkpoint.open, lambda folder: save(make(), folder)):
            with pytest.raises(RopeError, match=r"(?s)a path must be a non-empty string"):
                call(source)  # type: ignore[operator]
    assert sorted(Path().iterdir()) == before
    assert load(".").config.num_hidden_layers == 3
    for name in ("x" * 5000, "a\0b"):
        with pytest.raises(RopeError, match=r"looked up|no such file"):
            load(name)


@pytest.mark.rejects
@pytest.mark.parametrize("dtype", ["float32", torch.int8, torch.complex64, 32], ids=str)
def test_the_dtype_is_a_floating_one(dtype: Any) -> None:
    """Nothing is read for another."""
    with pytest.raises(RopeError, match="`dtype` must be a floating dtype"):
        load("tiny", dtype=dtype)


def test_shards(folder: Path) -> None:
    """Shards load; a missing file, or a tensor that its shard lacks, is named."""
    expected = logits(load(folder))
    path = in_shards(folder) / "model.safetensors.index.json"
    assert torch.equal(logits(load(folder)), expected)
    shards = json.loads(path.read_text())["weight_map"]
    first, second = sorted(set(shards.values()))
    path.write_text(json.dumps({"weight_map": shards | {"model.more.weight": first}}))
    with pytest.raises(RopeError, match=rf"(?s)missing from its file.*{first}.*model\.more\.weight"):
        load(folder)
    path.write_text(json.dumps({"weight_map": shards}))
    (folder / second).unlink()
    with pytest.raises(RopeError, match=f"(?s)shard in the index.*{second}"):
        load(folder)
