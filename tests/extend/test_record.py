"""The committed record of tiny's extension holds what the issue asks for, and the page quotes it rightly."""

from __future__ import annotations

import json
from pathlib import Path

ROOT = Path(__file__).parents[2]
RECORD = json.loads((ROOT / "benchmarks/results/extend-tiny.json").read_text())


def test_tuned_loss_is_not_above_crops() -> None:
    """Four times the trained length; beyond it, on the same tokens, the tuned model is at or below crop."""
    protocol = RECORD["protocol"]
    assert protocol["target"] == 4 * protocol["trained_length"] == RECORD["config"]["max_position_embeddings"]
    found = RECORD["verdict"]["tuned_minus_crop_beyond"]
    assert found["nats"] <= 0
    assert found["ci"][1] <= 0  # not by chance either


def test_the_page_quotes_the_record() -> None:
    """The two differences that its text speaks of, rounded; the table is drawn from the record."""
    page = " ".join((ROOT / "docs" / "extending.md").read_text().split())
    for key in ("tuned_minus_crop_beyond", "tuned_minus_its_crop_beyond"):
        found = RECORD["verdict"][key]
        assert f"{found['nats']:+.3f} [{found['ci'][0]:+.3f}, {found['ci'][1]:+.3f}]" in page
