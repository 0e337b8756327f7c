"""Pairs by both conventions, and what the wrong one costs the built-in model."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from ropewalk.figures.material import rotary_model, windows
from ropewalk.figures.model_numbers import losses, pairing, pairs_of, shown_name


def test_pairs_are_those_that_rotation_mixes() -> None:
    """Turning one feature reaches its partner and no other, in each convention."""
    import ropewalk as rw

    for interleaved in (True, False):
        cos, sin = rw.RotaryEmbedding(rw.RopeConfig(8, interleaved=interleaved)).cos_sin(torch.tensor([1]))
        for first, second in pairs_of(8, interleaved):
            one = torch.zeros(1, 1, 1, 8)
            one[..., first] = 1
            turned = rw.rotate(one, cos, sin, interleaved=interleaved)[0, 0, 0]
            assert turned.nonzero().flatten().tolist() == [first, second]


def test_the_wrong_pairing_costs_and_conversion_mends_it() -> None:
    """Losses by one plain forward; the converted model's are the model's own up to rounding."""
    model = rotary_model("tiny")
    found = losses(model, 3, 32)
    own, wrong, mended = (found["bars"][name] for name in ("its own pairing", "the wrong pairing", "converted"))
    ids = windows(model, 3, 32)
    with torch.inference_mode():
        logits = model(ids)
    by_hand = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    assert own[0] == pytest.approx(float(by_hand), abs=1e-4)
    assert own == (own[0],) * 3
    assert mended[0] == pytest.approx(own[0], abs=1e-4)
    assert wrong[0] > own[0] + 0.1
    assert wrong[1] < wrong[0] < wrong[2]
    assert found["uniform"] == math.log(4096)


def test_smollm2_is_measured_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only tiny without it; a path is shown by its name."""
    monkeypatch.delenv("ROPEWALK_SMOLLM2", raising=False)
    assert list(pairing(texts=2, tokens=16)["losses"]) == ["tiny"]
    monkeypatch.setattr("ropewalk.figures.model_numbers.rotary_model", lambda name: name)
    monkeypatch.setattr("ropewalk.figures.model_numbers.losses", lambda model, *_: model)
    monkeypatch.setenv("ROPEWALK_SMOLLM2", "some/SmolLM2.Q4_1.gguf")
    assert pairing()["losses"] == {"tiny": "tiny", "SmolLM2.Q4_1": "some/SmolLM2.Q4_1.gguf"}
    assert shown_name("folder/model") == "model"


def test_windows_are_spread_over_the_book() -> None:
    """Of equal length, all different."""
    ids = windows(rotary_model("tiny"), 4, 16)
    assert ids.shape == (4, 16)
    assert len(np.unique(ids.numpy(), axis=0)) == 4
