"""Settings: what is refused, and that every field has its help."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
import torch

from ropewalk.encodings import ENCODINGS
from ropewalk.errors import RopeError
from ropewalk.models.decoder import Decoder
from ropewalk.training import SIZES, Housekeeping, TrainSettings
from ropewalk.training.classification import ClassifySettings
from ropewalk.training.settings import TEXT_ENCODINGS
from tests.training.material import small


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seq_len": 1}, "`seq_len` must be at least 2"),
        ({"batch_size": 0}, "`batch_size` must be at least 1"),
        ({"accumulation": 0}, "`accumulation` must be at least 1"),
        ({"copy_warmup": -1}, "`copy_warmup` must be at least 0"),
        ({"steps": 0}, "`steps` must be at least 1"),
        ({"steps": 3, "epochs": 1.0}, "`steps` and `epochs` are mutually exclusive"),
        ({"lr": 0.0}, "`lr` must be a finite number above 0"),
        ({"lr": float("nan")}, "`lr` must be a finite number above 0"),
        ({"clip": -1.0}, "`clip` must be"),
        ({"dropout": 1.0}, "`dropout` must be at least 0 and less than 1"),
        ({"final_lr": 1.5}, "`final_lr` must be from 0 to 1"),
        ({"size": "huge"}, "(?s)unknown `size`.*nano"),
        ({"precision": "int4"}, "(?s)unknown `precision`.*bfloat16"),
        ({"device": "toaster"}, "(?s)unknown `device`.*cpu"),
    ],
)
def test_impossible_settings_are_refused(change: dict[str, Any], message: str) -> None:
    """Each names the setting, and its value."""
    with pytest.raises(RopeError, match=message):
        small("text", **({"steps": None} if "epochs" in change and "steps" not in change else {}), **change)


def test_no_text_is_refused() -> None:
    """There must be something to train on."""
    with pytest.raises(RopeError, match="`text` is empty"):
        TrainSettings(text=())


@pytest.mark.parametrize("change", [{"heads": 5}, {"hidden_size": 18, "heads": 6}, {"heads": 4, "kv_heads": 3}])
def test_heads_that_do_not_fit_are_refused(change: dict[str, Any]) -> None:
    """Unequal, odd, and ungroupable heads."""
    with pytest.raises(RopeError, match="must be a whole even number"):
        small("text", **change).decoder_config(300)


@pytest.mark.parametrize("size", SIZES)
def test_every_size_makes_a_decoder(size: str) -> None:
    """On meta, so that the large ones cost nothing."""
    with torch.device("meta"):
        decoder = Decoder(TrainSettings(text=("t",), size=size).decoder_config(4096))
    assert 1e6 < decoder.num_parameters() < 1e8


def test_a_size_is_overridden_piece_by_piece() -> None:
    """heads alone sets kv_heads too; hidden_size alone scales the feed-forward."""
    settings = TrainSettings(text=("t",), size="small", heads=12, hidden_size=96)
    config = settings.decoder_config(512)
    assert (config.num_attention_heads, config.kv_heads, config.num_hidden_layers) == (12, 12, 8)
    assert (config.hidden_size, config.intermediate_size) == (96, 256)


def test_auto_is_resolved_on_the_machine() -> None:
    """What is written to run.json says what was used."""
    chosen = TrainSettings(text=("t",)).on_this_machine()
    assert chosen.device in ("cpu", "cuda")
    assert chosen.precision in ("float32", "bfloat16")
    assert TrainSettings(text=("t",), precision="float32").on_this_machine().precision == "float32"


def test_every_encoding_can_be_trained() -> None:
    """The settings name rope and each of its rivals, in their order, without importing them."""
    assert ("rope", *ENCODINGS) == TEXT_ENCODINGS


@pytest.mark.parametrize("settings", [TrainSettings, ClassifySettings, Housekeeping])
def test_every_field_has_its_help(settings: Any) -> None:
    """One sentence as `metadata["help"]`."""
    for each in fields(settings):
        assert each.metadata["help"].endswith("."), each.name
        assert each.metadata["help"].count(". ") == 0, each.name
