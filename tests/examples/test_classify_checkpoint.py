"""examples/classify_checkpoint.py on a tiny random Llama: features, head, adapters and what is saved."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import torch

from tests.examples.loading import example

pytest.importorskip("sklearn")
transformers = pytest.importorskip("transformers")

WORDS = {"good": ["fine", "bright", "sweet"], "bad": ["grim", "sour", "dull"]}


def write_rows(path: Path, count: int) -> str:
    """Write texts whose middle word gives the class away."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        for i in range(count):
            label = ("good", "bad")[i % 2]
            writer.writerow([f"the rope {WORDS[label][i % 3]} number {i}", label])
    return str(path)


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    """A folder with a random Llama of two layers and a tokenizer of words."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    words = ["<unk>", "<eos>", "the", "rope", "number", *WORDS["good"], *WORDS["bad"]]
    tokens = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    tokens.pre_tokenizer = Whitespace()
    folder = str(tmp_path / "checkpoint")
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokens, unk_token="<unk>", eos_token="<eos>").save_pretrained(
        folder
    )
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2}
    transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=len(words), **sizes)).save_pretrained(folder)
    return folder


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # peft asks for it
def test_the_head_finds_the_word_and_tuning_keeps_the_best(
    checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Frozen features tell the classes apart; --tune adds adapters and ends no worse; the files hold no pickle."""
    files = ["--data", write_rows(tmp_path / "train.csv", 48), "--test", write_rows(tmp_path / "test.csv", 20)]
    run = example("classify_checkpoint").main
    frozen = run(["--model", checkpoint, *files, "--device", "cpu"])
    assert frozen["accuracy"] == 1.0
    assert frozen["classes"] == ["bad", "good"]
    pytest.importorskip("peft")
    out = tmp_path / "out"
    tuned = run(["--model", checkpoint, *files, "--device", "cpu", "--tune", "--epochs", "1", "--out", str(out)])
    assert tuned["accuracy"] == 1.0
    assert "epoch 1: validation accuracy 1.000" in capsys.readouterr().out
    assert json.loads((out / "result.json").read_text()) == tuned
    names = {path.name for path in out.rglob("*") if path.is_file()}
    assert {"head.safetensors", "result.json", "adapter_model.safetensors", "adapter_config.json"} <= names


def test_the_head_is_the_regression(checkpoint: str) -> None:
    """The torch module gives scikit-learn's probabilities, for two classes and for three."""
    example_ = example("classify_checkpoint")
    features = torch.randn(30, 4).numpy()
    for count in (2, 3):
        _, fitted = example_.fit_head(features[None], [str(i % count) for i in range(30)])
        found = example_.Head(fitted)(torch.from_numpy(features)).softmax(-1).detach()
        torch.testing.assert_close(found, torch.from_numpy(fitted.predict_proba(features)).float())
