"""The text classifier: padding, pooling, encodings, and what it is on disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import ropewalk as rw
from ropewalk.encodings import ENCODINGS
from ropewalk.tokenizer import TextTokenizer

NAMES = [name for name in (*ENCODINGS, "rope") if name != "xpos"]
DYNAMIC = rw.RopeConfig(8, interleaved=False, max_position_embeddings=4, scaling=rw.scaling.DynamicNTK(factor=2.0))
SEQ = 13
ROPE = rw.RopeConfig(8, interleaved=True, theta=500.0, rotary_dim=4)
OF_LAYERS = {"rope": (ROPE, None), "sliding_window": (3, None), "attention_bias": True}


def small(**changes) -> rw.models.TextClassifierConfig:
    """A shape that takes a millisecond."""
    shape = {
        "vocab_size": 50, "labels": ("a", "b", "c"), "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_length": 40,
    }  # fmt: skip
    return rw.models.TextClassifierConfig(**shape | changes)


def classifier(**changes: Any) -> rw.TextClassifier:
    """A classifier of that shape."""
    return rw.TextClassifier(small(**changes))


def wide(model: Any) -> Any:
    """In float64, every weight drawn wide, so that positions matter."""
    model = model.double().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not name.endswith("threshold"):  # FIRE tells a shift beyond its threshold: these texts are shorter
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model


@pytest.mark.parametrize("pooling", ["mean", "first"])
@pytest.mark.parametrize("changes", [*({"encoding": name} for name in (*NAMES, DYNAMIC)), OF_LAYERS], ids=str)
def test_padded_and_unpadded_batches_agree(changes: dict[str, Any], pooling: str) -> None:
    """Texts of four lengths in one batch, padded on the right, the left and both sides: the logits of each alone."""
    model = wide(classifier(pooling=pooling, **changes))
    texts = [torch.randint(0, 50, (length,)) for length in (SEQ, 9, 4, 1)]
    alone = torch.cat([model(text[None]) for text in texts])
    for before in (lambda free: 0, lambda free: free, lambda free: free // 2):
        ids, mask = torch.randint(0, 50, (4, SEQ)), torch.zeros(4, SEQ, dtype=torch.long)
        for row, text in enumerate(texts):
            first = before(SEQ - len(text))
            ids[row, first : first + len(text)] = text
            mask[row, first : first + len(text)] = 1
        torch.testing.assert_close(model(ids, attention_mask=mask), alone, atol=1e-11, rtol=0)


def test_without_positions_the_order_of_tokens_does_not_matter() -> None:
    """Mean pooling and encoding="none": any order, the same logits. Every other encoding tells the difference.

    Both are false if attention is causal.
    """
    ids, order = torch.randint(0, 50, (2, SEQ)), torch.randperm(SEQ)
    nothing = wide(classifier(encoding="none"))
    torch.testing.assert_close(nothing(ids[:, order]), nothing(ids), atol=1e-11, rtol=0)
    for name in NAMES:
        if name != "none":
            model = wide(classifier(encoding=name))
            assert (model(ids[:, order]) - model(ids)).abs().max() > 1e-4, name


@pytest.mark.parametrize("changes", [{"encoding": "t5"}, {"encoding": None}, {"encoding": ROPE}, OF_LAYERS], ids=str)
def test_saved_and_loaded_it_is_the_same(tmp_path: Path, changes: dict[str, Any]) -> None:
    """Config, logits and tokenizer; on the disk lie JSON and safetensors."""
    model = wide(classifier(vocab_size=260, pooling="first", labels=["ja", "nein", "Ä / ö"], **changes))
    model.tokenizer = TextTokenizer.bytes()
    rw.save(model, tmp_path / "model")
    again = rw.load(tmp_path / "model")
    assert again.config == model.config
    assert not again.training
    ids = torch.tensor([model.encode("a text"), again.encode("a text")])
    assert ids[0].tolist() == [256, *b"a text"]
    # not to the bit: a memory-mapped weight may be aligned otherwise, and then sums round in another order
    torch.testing.assert_close(again(ids), model(ids), atol=1e-12, rtol=0)
    assert {path.name for path in (tmp_path / "model").iterdir()} == {
        "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
    }  # fmt: skip
    rw.save(model, tmp_path / "model")  # once more, in its place


def test_a_damaged_folder_is_named(tmp_path: Path) -> None:
    """Another kind of model, a missing field, a head of another size; test_checkpoint_damage.py has damaged files."""
    folder = tmp_path / "model"
    rw.save(rw.TextClassifier(small()), folder)
    config = json.loads((folder / "config.json").read_text())
    for change, message in (
        ({"model_type": "ropewalk-checkpoint-classifier"}, "unknown architecture"),
        ({"labels": ["a", "b"]}, "or their shapes differ from its config"),
        ({"labels": None}, "config.json is damaged"),
        ({"pooling": "last"}, "unknown `pooling`"),
        ({"encoder": config["encoder"] | {"hidden_size": "wide"}}, "`hidden_size` must be of type int"),
    ):
        (folder / "config.json").write_text(json.dumps(config | change))
        with pytest.raises(rw.RopeError, match=message):
            rw.load(folder)


def test_without_dropout_training_computes_the_same() -> None:
    model, ids = wide(classifier()), torch.randint(50, (2, SEQ))
    assert torch.equal(model.train()(ids), model.eval()(ids))
    dropped = wide(classifier(dropout=0.5))
    assert not torch.equal(dropped.train()(ids), dropped.eval()(ids))
