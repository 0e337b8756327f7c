"""examples/language_model.py: a short run, its folder and its record."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import ropewalk as rw
from tests.examples.loading import example
from tests.prose import prose

WORDS = [
    "--layers",
    "1",
    "--hidden",
    "16",
    "--heads",
    "2",
    "--length",
    "16",
    "--batch-size",
    "4",
    "--vocab-size",
    "270",
]


@pytest.mark.parametrize("encoding", ["rope", "learned", "alibi"])
def test_it_learns_and_writes_a_folder(encoding: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The loss falls, the folder loads with the encoding and the same loss, and a second run is refused at once."""
    text, out = tmp_path / "text.txt", tmp_path / "model"
    text.write_text(prose(2400))
    words = [*WORDS, "--steps", "20", "--text", str(text), "--encoding", encoding, "--prompt", "the", "--out", str(out)]
    record = example("language_model").main(words)
    assert json.loads(json.dumps(record)) == json.loads((out / "training.json").read_text())
    assert len(record["loss"]) == 20
    assert record["loss"][-1] < record["loss"][0] - 0.5
    assert [step for step, _ in record["held_out"]] == list(range(2, 21, 2))
    model = rw.load(out)
    assert record["parameters"] == model.num_parameters()
    if encoding == "rope":
        assert model.config.ropes[0].max_position_embeddings == 16
    else:
        assert model.config.encoding.name == encoding
    assert record["sample"].startswith("the")
    assert record["sample"] in capsys.readouterr().out
    with pytest.raises(SystemExit):
        example("language_model").main(words)


def test_transformers_loads_the_folder(tmp_path: Path) -> None:
    """As a Llama, with the same logits and tokens."""
    transformers = pytest.importorskip("transformers")
    text, out = tmp_path / "text.txt", tmp_path / "model"
    text.write_text(prose(2400))
    example("language_model").main([*WORDS, "--steps", "2", "--text", str(text), "--out", str(out)])
    ours, theirs = rw.load(out), transformers.AutoModelForCausalLM.from_pretrained(out).eval()
    ids = transformers.AutoTokenizer.from_pretrained(out)("the rope was laid “so”: 1913", return_tensors="pt").input_ids
    assert ids[0].tolist() == ours.tokenizer.encode("the rope was laid “so”: 1913")
    with torch.no_grad():
        torch.testing.assert_close(ours(ids), theirs(ids).logits, rtol=0, atol=1e-5)
