"""What cannot be exported: methods and ropes that no config expresses, and folders that hold something."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from ropewalk import RopeConfig, load
from ropewalk.checkpoints.export import hub_rope
from ropewalk.errors import RopeError
from ropewalk.extend.output import check_out
from ropewalk.models.config import DecoderConfig
from ropewalk.models.decoder import Decoder
from ropewalk.rope.scaling import Linear, LongRoPE
from tests.extend.exports import EXPORTABLE, HOW, INEXPRESSIBLE, export, extended, under
from tests.extend.material import (
    TARGET,
    TRAINED,
    checkpoint,
    token_ids,
)


@pytest.mark.parametrize("method", sorted(INEXPRESSIBLE))
def test_what_no_config_can_say_is_refused(method: str) -> None:
    """The reason, the nearest that can be exported, and the way out."""
    rope = RopeConfig(8, interleaved=False, max_position_embeddings=TRAINED)
    with pytest.raises(RopeError, match=f"`{method}` cannot be exported: .*") as caught:
        hub_rope((rope, rope), method, **HOW)
    assert caught.value.facts["nearest that can be"] in EXPORTABLE
    assert "--native" in str(caught.value)


def test_ropes_that_no_block_says_are_refused() -> None:
    """Unscaled first tokens, layers that differ, a factor that follows the length, an extension in attention."""
    plain = RopeConfig(8, interleaved=False, max_position_embeddings=TRAINED)
    ones = (1.0, 1.0, 1.0, 1.0)
    first = dataclasses.replace(plain, scaling=LongRoPE(ones, ones, TRAINED, unscaled_tokens=4))
    with pytest.raises(RopeError, match="unscaled first tokens") as caught:
        hub_rope((first,), "longrope", **HOW)
    assert caught.value.facts["nearest that can be"] == "the same factors with unscaled_tokens=0"
    with pytest.raises(RopeError, match="one rope for all layers"):
        hub_rope((plain, dataclasses.replace(plain, theta=5e5)), "mixed", **HOW)
    follows = dataclasses.replace(plain, scaling=LongRoPE(ones, ones, TRAINED, short_mscale=1.0, long_mscale=1.2))
    with pytest.raises(RopeError, match="follow the length"):
        hub_rope((follows,), "phimoe", **HOW)
    with pytest.raises(RopeError, match="no layer has a rope"):
        hub_rope((None, None), "none", **HOW)


def test_a_block_that_reads_back_otherwise_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were `to_hf` wrong about a rule, its frequencies would tell: divisors are written in its place."""
    rope = RopeConfig(8, interleaved=False, scaling=Linear(4.0), max_position_embeddings=TRAINED)
    monkeypatch.setattr(RopeConfig, "to_hf", lambda self: {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.001})
    found = hub_rope((rope,), "pi", **HOW)
    assert found.parameters["rope_type"] == "longrope"
    assert found.parameters["long_factor"] == pytest.approx([4.0] * 4)


def test_an_extension_in_attention_is_refused_and_kept_natively(tmp_path: Path) -> None:
    """Under any name; --native writes it, ropewalk reads it back, transformers does not."""
    source = checkpoint(tmp_path / "source")
    model = extended(source, "rerope")
    with pytest.raises(RopeError, match="extension in attention"):
        export(model, tmp_path / "out", method="mine", source=source, **HOW)
    assert not (tmp_path / "out").exists()
    found = export(model, tmp_path / "out", method="rerope", source=source, native=True, **HOW)
    assert found.rope is None
    ids = token_ids(TARGET)
    again = load(found.folder)
    with torch.no_grad():
        assert torch.equal(again(ids), model(ids))
    assert again.tokenizer is not None


def test_a_model_of_no_family_is_refused(tmp_path: Path) -> None:
    """LayerNorm and ReLU: no config of transformers here says it."""
    rope = RopeConfig(8, interleaved=False, max_position_embeddings=TRAINED)
    config = DecoderConfig(vocab_size=300, hidden_size=32, intermediate_size=48, num_hidden_layers=1,
                           num_attention_heads=4, rope=rope, norm="layernorm", hidden_act="relu")  # fmt: skip
    model = under(Decoder(config), "pi")
    with pytest.raises(RopeError, match="none of the families"):
        export(model, tmp_path / "out", method="pi", **HOW)


def test_folders_that_hold_something_are_left_alone(tmp_path: Path) -> None:
    """Refused when not empty, when foreign, when it is the source; with overwrite an earlier export is replaced."""
    source = checkpoint(tmp_path / "source")
    model = extended(source, "pi")
    export(model, tmp_path / "out", method="pi", source=source, **HOW)
    with pytest.raises(RopeError, match="not empty"):
        export(model, tmp_path / "out", method="pi", source=source, **HOW)
    found = export(extended(source, "yarn"), tmp_path / "out", method="yarn", source=source, overwrite=True, **HOW)
    assert json.loads((found.folder / "config.json").read_text())["rope_parameters"]["rope_type"] == "yarn"
    (tmp_path / "out" / "thesis.tex").touch()
    with pytest.raises(RopeError, match="files that no export writes"):
        check_out(tmp_path / "out", overwrite=True)
    with pytest.raises(RopeError, match="read from"):
        check_out(source, source=source, overwrite=True)
    with pytest.raises(RopeError, match="names the folder"):
        check_out(source / "config.json", overwrite=True)


def test_a_failure_on_the_way_leaves_nothing(tmp_path: Path) -> None:
    """Ctrl-C while files are written: neither the folder nor its temporary one stays."""
    source = checkpoint(tmp_path / "source")

    def stop(found: object) -> dict[str, str]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export(extended(source, "pi"), tmp_path / "out", method="pi", source=source, more_files=stop, **HOW)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]
