"""The recorded table of SmolLM2-135M, and the model itself where its file is at hand."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
FIRST = RESULTS / "doctor-smollm2-135m-first-window.json"  # measured before windows were drawn from a seed
# transformers 5.23 in float32, measured elsewhere: nats per block of 2,048 tokens.
TRANSFORMERS = {
    "plain": [3.70, 3.79, 3.90, 3.39, 3.34, 4.01, 5.40, 6.80],
    "yarn": [3.73, 3.83, 3.93, 3.44, 3.38, 3.44, 3.41, 3.64],
}


def test_the_recorded_rows_are_those_of_transformers() -> None:
    """Within 0.05 nats in every block, under the protocol that was asked for."""
    found = json.loads(FIRST.read_text())
    assert (found["trained_length"], found["target"], found["protocol"]["start_char"]) == (8192, 16384, 30_000)
    assert found["blocks"] == [[start, start + 2048] for start in range(0, 16384, 2048)]
    rows = {method["name"]: method["loss_by_block"] for method in found["methods"]}
    assert set(rows) == {"plain", "pi", "ntk", "dynamic", "yarn", "llama3", "crop"}
    for name, expected in TRANSFORMERS.items():
        np.testing.assert_allclose(rows[name], expected, rtol=0, atol=0.05)
    assert max(method["peak_rss_bytes"] for method in found["methods"]) < 3e9


def test_the_recorded_books_hold_what_was_asked_for() -> None:
    """Five methods and more on three windows of each of three novels, attention's among them, and crop."""
    found = json.loads((RESULTS / "doctor-smollm2-135m.json").read_text())
    assert (found["trained_length"], found["target"]) == (8192, 16384)
    assert len(found["protocol"]["texts"]) == 3
    rows = {method["name"]: method for method in found["methods"]}
    assert {"plain", "ntk", "yarn", "self-extend", "dca", "crop"} <= set(rows)
    for method in rows.values():
        assert len(method["loss_by_window_and_block"]) == 9
    assert rows["dca"]["loss_within"] == pytest.approx(rows["plain"]["loss_within"], abs=1e-3)
    assert rows["dca"]["loss_beyond"] < rows["yarn"]["loss_beyond"] < rows["plain"]["loss_beyond"]


@pytest.mark.slow
def test_the_model_still_gives_the_recorded_loss() -> None:
    """The first block of plain, from the weights."""
    file = os.environ.get("ROPEWALK_SMOLLM2")
    if not file:
        pytest.skip("ROPEWALK_SMOLLM2 does not name SmolLM2-135M-Instruct.Q4_1.gguf")
    from ropewalk.builtin.texts import read_text
    from ropewalk.checkpoints.load import load
    from ropewalk.readers.losses import window_losses

    torch.set_num_threads(os.cpu_count() or 1)
    model = load(file)
    assert model.tokenizer is not None
    ids = torch.tensor(model.tokenizer.encode(read_text(None)[1][30_000:60_000])[:2048])
    recorded = json.loads(FIRST.read_text())["methods"][0]["loss_by_block"][0]
    assert window_losses(model, ids).mean() == pytest.approx(recorded, abs=1e-4)
