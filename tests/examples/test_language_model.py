"""examples/language_model.py: a short run, its folder and its record."""

from __future__ import annotations

import csv
import json
import random
from pathlib import Path

import pytest
import torch

import ropewalk as rw
from ropewalk.models.training import held_out_windows, loss_by_position
from tests.examples.loading import example, prose

WORDS = [
    "--layers", "1", "--hidden", "16", "--heads", "2", "--length", "16", "--batch-size", "4", "--vocab-size", "270",
]  # fmt: skip


@pytest.mark.parametrize("encoding", ["rope", "alibi"])
def test_it_learns_and_writes_a_folder(encoding: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The loss falls, the folder loads (with a rope in transformers, too), and a second run is refused at once."""
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
        transformers = pytest.importorskip("transformers")
        read, said = transformers.AutoTokenizer.from_pretrained(out), "the rope was laid “so”: 1913"
        ids = read(said, return_tensors="pt").input_ids
        assert ids[0].tolist() == model.tokenizer.encode(said)
        with torch.no_grad():
            theirs = transformers.AutoModelForCausalLM.from_pretrained(out).eval()(ids).logits
            torch.testing.assert_close(model(ids), theirs, rtol=0, atol=1e-5)
    else:
        assert model.config.encoding.name == encoding
    assert record["sample"].startswith("the")
    assert record["sample"] in capsys.readouterr().out
    with pytest.raises(SystemExit):
        example("language_model").main(words)


def write_rows(path: Path, count: int, seed: int) -> str:
    """Write pairs of texts of five words with "rise" and "fall" exchanged; the label is the last of both."""
    draw = random.Random(seed)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        for _ in range(count // 2):
            words = draw.sample(["Rise", "Fall", *draw.choices(["sea", "rope", "mast"], k=3)], 5)
            for one, other in (("Rise", "Fall"), ("Fall", "Rise")):
                text = " ".join({"Rise": one, "Fall": other}.get(word, word) for word in words)
                writer.writerow([text, "rise" if text.find("Rise") > text.find("Fall") else "fall"])
    return str(path)


@pytest.mark.thorough
def test_order_is_learned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Scores with intervals, in the record and on screen; the folder loads and labels a text."""
    out = tmp_path / "model"
    record = example("classifier").main([
        "--data", write_rows(tmp_path / "train.csv", 800, 0), "--test", write_rows(tmp_path / "test.csv", 200, 1),
        "--hidden", "32", "--heads", "2", "--vocab-size", "270", "--epochs", "4", "--batch-size", "16",
        "--dropout", "0", "--token-dropout", "0", "--lr", "5e-3", "--out", str(out),
    ])  # fmt: skip
    assert json.loads(json.dumps(record)) == json.loads((out / "scores.json").read_text())
    assert record["classifier"]["accuracy"] > 0.95
    assert record["linear"]["accuracy"] == 0.5
    gain = record["classifier"]["accuracy"] - record["linear"]["accuracy"]
    assert record["difference"]["accuracy"] == pytest.approx(gain)
    assert record["difference"]["interval"][0] < gain < record["difference"]["interval"][1]
    assert (record["classes"], record["train_rows"], record["test_rows"]) == (2, 800, 200)
    assert f"classifier {record['classifier']['accuracy']:.3f}" in capsys.readouterr().out
    model = rw.load(out)
    for text, label in (("sea rise rope fall mast", "fall"), ("fall sea rise rope mast", "rise")):
        assert model.config.labels[model(torch.tensor([model.encode(text)])).argmax()] == label


def test_the_best_epoch_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights of the epoch with the highest accuracy on held-out rows, not the last."""
    script = example("classifier")
    model = script.LinearModel(9, 2)
    labels, held_out = torch.tensor([0, 1] * 20), torch.arange(40) < 10
    accuracies, seen = iter([0.5, 0.9, 0.7]), []

    def predicted(one: torch.nn.Module, texts: object) -> torch.Tensor:
        seen.append(one.weights.weight.detach().clone())
        right = labels[held_out].clone()
        right[: round(10 * (1 - next(accuracies)))] -= 1
        return right

    monkeypatch.setattr(script, "predicted", predicted)
    given = type("Given", (), {"batch_size": 8, "epochs": 3, "lr": 0.1, "seed": 0, "token_dropout": 0.1})
    curve = script.train(model, [[1 + label, 3, 4] for label in labels.tolist()], labels, held_out, given)
    assert curve == pytest.approx([0.5, 0.9, 0.7])
    assert torch.equal(model.weights.weight, seen[1])
    assert not torch.equal(model.weights.weight, seen[2])


WORDS_COMPARE_ENCODINGS = [
    "--length", "16", "--steps", "4", "--batch-size", "2", "--vocab-size", "300", "--tokens", "512", "--seeds", "0",
]  # fmt: skip


def test_losses_are_recorded_and_runs_are_not_repeated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A line for each length and scaling; a second call trains only what is missing; other settings are refused."""
    text, out = tmp_path / "a.txt", tmp_path / "record.jsonl"
    text.write_text("the rope was laid along a walk of three hundred yards\n" * 300)
    words = [*WORDS_COMPARE_ENCODINGS, "--text", str(text), "--out", str(out), "--encodings", "rope", "learned"]
    run = example("compare_encodings").main
    first, *lines = run(words)
    assert first["settings"]["seq_len"] == 16
    found = {
        (line["encoding"], line["scaling"], line["length"]): line["loss"] for line in lines if line["kind"] == "loss"
    }
    lengths = (16, 32, 64, 128, 256)
    assert set(found) == {
        *(("rope", None, length) for length in lengths), *(("learned", None, length) for length in lengths),
        *(("rope", name, length) for name in ("pi", "ntk", "yarn") for length in lengths[1:]),
    }  # fmt: skip
    assert [found["learned", None, length] is None for length in lengths] == [False, True, True, True, True]
    assert all(3 < loss < 7 for loss in found.values() if loss is not None)
    assert [len(line["curve"]) for line in lines if line["kind"] == "run"] == [4, 4]
    table = capsys.readouterr().out.splitlines()[-6:]
    assert table[0].split() == ["nats", "per", "token", "16", "32", "64", "128", "256"]
    assert table[5].split() == ["learned", f"{found['learned', None, 16]:.2f}", "none", "none", "none", "none"]

    rest = [json.loads(line) for line in out.read_text().splitlines() if '"learned", "seed"' not in line]
    out.write_text("".join(json.dumps(line) + "\n" for line in rest))
    again = run(words)
    assert [line for line in again[1:] if line.get("curve") is None] == [line for line in lines if "curve" not in line]
    with pytest.raises(SystemExit, match="other settings"):
        run([*words, "--steps", "5"])


def test_every_length_has_the_same_targets() -> None:
    """The loss at each multiple, of windows cut from the longest, also under a scaling of the same trained length."""
    script = example("compare_encodings")
    torch.manual_seed(0)
    model = script.decoder("rope", 50, 4)
    ids = torch.randint(0, 50, (2 * 64 + 1,))
    windows = held_out_windows([ids.tolist()], length=64, limit=2)
    found = {(line["scaling"], line["length"]): line["loss"] for line in script.measure(model, windows, 4)}
    for length in (4, 16, 64):
        cut = ids[: 2 * 64 + 1].unfold(0, length + 1, length)
        assert found[None, length] == pytest.approx(float(loss_by_position(model, cut).mean()), rel=1e-6)
    rope = rw.RopeConfig(32, interleaved=False, max_position_embeddings=4, scaling=rw.scaling.YaRN(4.0, 4))
    scaled = loss_by_position(model.with_positions(rope=rope), ids[:129].unfold(0, 17, 16))
    assert found["yarn", 16] == pytest.approx(float(scaled.mean()), rel=1e-6)
