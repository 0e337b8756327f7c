"""The built-in model: its size and its readers."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import pytest
import torch

from ropewalk.checkpoints.load import load
from ropewalk.checkpoints.texts import read_text

FOLDER = Path(str(files("ropewalk") / "builtin" / "tiny"))
TRAINED = 256


def test_the_folder_is_at_most_8_mb_and_complete() -> None:
    """8,000,000 bytes with log and notes; weights in bfloat16."""
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) <= 8_000_000
    names = {path.name for path in FOLDER.iterdir()}
    assert names >= {"config.json", "model.safetensors", "tokenizer.json", "training-log.jsonl", "README.md"}
    assert {p.dtype for p in load("tiny", dtype=torch.bfloat16).parameters()} == {torch.bfloat16}


def test_transformers_reads_it_with_the_same_logits() -> None:
    """Its own tokens and, over the trained length, logits within 1e-4; past it transformers' float32 angles show."""
    transformers, tiny = pytest.importorskip("transformers"), load("tiny", dtype=torch.float32)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).eval()
    text = read_text(None)[1][30_000:32_500]
    ids = transformers.AutoTokenizer.from_pretrained(FOLDER)(text, return_tensors="pt").input_ids
    assert ids[0].tolist() == tiny.tokenizer.encode(text)
    assert ids.shape[1] > 2 * TRAINED
    with torch.no_grad():
        ours, exact, logits = tiny(ids), load("tiny", dtype=torch.float64)(ids).float(), theirs(ids).logits
    torch.testing.assert_close(ours[:, :TRAINED], logits[:, :TRAINED], rtol=0, atol=1e-4)
    torch.testing.assert_close(ours, exact, rtol=0, atol=1e-4)
