"""The built-in model: its size, its readers, and what it is there to show.

Nothing here says which extension method is the best on it.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import pytest
import torch

from ropewalk.checkpoints.load import load
from ropewalk.checkpoints.texts import read_text
from ropewalk.models.decoder import Decoder
from ropewalk.models.training import held_out_windows, loss_by_position

FOLDER = Path(str(files("ropewalk") / "builtin" / "tiny"))
TRAINED = 256


@pytest.fixture(scope="module")
def tiny() -> Decoder:
    """The model, in float32."""
    return load("tiny", dtype=torch.float32)


@pytest.fixture(scope="module")
def moby_dick() -> str:
    """The text that was kept out of training."""
    return read_text(None)[1]


def test_the_folder_is_at_most_8_mb_and_complete() -> None:
    """8,000,000 bytes with log and notes; weights in bfloat16."""
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) <= 8_000_000
    names = {path.name for path in FOLDER.iterdir()}
    assert names >= {"config.json", "model.safetensors", "tokenizer.json", "training-log.jsonl", "README.md"}
    assert {p.dtype for p in load("tiny", dtype=torch.bfloat16).parameters()} == {torch.bfloat16}


def test_transformers_reads_it_with_the_same_logits(tiny: Decoder, moby_dick: str) -> None:
    """LlamaForCausalLM and AutoTokenizer: the same tokens; logits within 1e-4 over the trained length.

    Past it transformers' float32 angles show (2.1e-4 at 819 tokens, also in its float64 model, against 2.5e-5 of ours).
    """
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(FOLDER)
    assert type(theirs).__name__ == "LlamaForCausalLM"
    text = moby_dick[30_000:32_500]
    ids = tokenizer(text, return_tensors="pt").input_ids
    assert tiny.tokenizer is not None
    assert ids[0].tolist() == tiny.tokenizer.encode(text)
    assert tokenizer.decode(ids[0]) == text
    assert ids.shape[1] > 2 * TRAINED
    with torch.no_grad():
        ours, exact, logits = tiny(ids), load("tiny", dtype=torch.float64)(ids).float(), theirs(ids).logits
    torch.testing.assert_close(ours[:, :TRAINED], logits[:, :TRAINED], rtol=0, atol=1e-4)
    torch.testing.assert_close(ours, logits, rtol=0, atol=1e-3)
    torch.testing.assert_close(ours, exact, rtol=0, atol=1e-4)


def test_loss_rises_past_twice_the_trained_length(tiny: Decoder, moby_dick: str) -> None:
    """Moby-Dick, six windows of four trained lengths: the blocks past twice it lose at least 0.1 nats more."""
    assert tiny.tokenizer is not None
    assert tiny.config.ropes[0] is not None
    assert tiny.config.ropes[0].trained_length == TRAINED
    windows = held_out_windows([tiny.tokenizer.encode(moby_dick[30_000:])], length=4 * TRAINED, limit=6)
    within, _, third, fourth = loss_by_position(tiny, windows).view(4, TRAINED).mean(1).tolist()
    assert within < 4.8
    assert min(third, fourth) >= within + 0.1
