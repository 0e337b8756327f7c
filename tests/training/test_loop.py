"""The loop: the loss falls, the log is true, the learning rate follows its definition."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ropewalk.checkpoints.load import load
from ropewalk.errors import RopeError
from ropewalk.models.generation import generate
from ropewalk.training import Housekeeping, language_model, train
from ropewalk.training.loop import learning_rate
from ropewalk.training.run_folder import RunFolder
from ropewalk.training.settings import TEXT_ENCODINGS
from tests.training.material import EVERY, prose, small


@pytest.fixture
def updates() -> Iterator[list[dict[str, Any]]]:
    """Gradient norm, gradients, rate and decay at each optimizer step of the test."""
    seen: list[dict[str, Any]] = []

    def look(optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
        grads = [p.grad.clone() for group in optimizer.param_groups for p in group["params"]]
        shapes = [[p.ndim for p in group["params"]] for group in optimizer.param_groups]
        norm = torch.stack([g.norm() for g in grads]).norm().item()
        decay = [group["weight_decay"] for group in optimizer.param_groups]
        seen.append(
            {"norm": norm, "grads": grads, "lr": optimizer.param_groups[0]["lr"], "decay": decay, "ndim": shapes}
        )

    handle = register_optimizer_step_pre_hook(look)
    yield seen
    handle.remove()


def log(out: Path) -> list[dict[str, Any]]:
    """The lines of a run's log."""
    return [json.loads(line) for line in (out / "training-log.jsonl").read_text().splitlines()]


def test_accumulation_equals_a_larger_batch(text: str, tmp_path: Path, updates: list[dict[str, Any]]) -> None:
    """Three batches of two windows give the gradient of one batch of six, of the same windows."""
    train(small(text, steps=1, dropout=0.0, batch_size=6, clip=1e9), tmp_path / "large")
    train(small(text, steps=1, dropout=0.0, batch_size=2, accumulation=3, clip=1e9), tmp_path / "accumulated")
    for one, other in zip(updates[0]["grads"], updates[1]["grads"], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    assert log(tmp_path / "large")[0]["loss"] == pytest.approx(log(tmp_path / "accumulated")[0]["loss"], rel=1e-6)
    assert log(tmp_path / "large")[0]["tokens"] == log(tmp_path / "accumulated")[0]["tokens"] == 6 * 16


def test_gradients_are_clipped_to_the_norm(text: str, tmp_path: Path, updates: list[dict[str, Any]]) -> None:
    """At most `clip`, reached where the gradient is larger; untouched where it is not."""
    train(small(text, steps=3, clip=1e-3), tmp_path / "clipped")
    train(small(text, steps=3, clip=1e3), tmp_path / "free")
    assert [update["norm"] for update in updates[:3]] == pytest.approx([1e-3] * 3, rel=1e-3)
    assert all(0.01 < update["norm"] < 1e3 for update in updates[3:])


def test_rates_follow_the_schedule_and_decay_is_on_matrices(
    text: str, tmp_path: Path, updates: list[dict[str, Any]]
) -> None:
    """The optimizer is given what the schedule says; norms do not decay."""
    train(small(text, warmup=3), tmp_path / "run")
    assert [update["lr"] for update in updates] == [
        learning_rate(step, peak=3e-3, warmup=3, steps=12) for step in range(12)
    ]
    assert updates[0]["decay"] == [0.1, 0.0]
    assert set(updates[0]["ndim"][0]) == {2}
    assert set(updates[0]["ndim"][1]) == {1}


def test_loss_falls_on_a_repeated_text(tmp_path: Path) -> None:
    """One sentence over and over is learned almost by heart, and by the positions that can know it."""
    path = tmp_path / "text.txt"
    path.write_text("The strands are twisted one way, and the rope the other. " * 120)
    settings = small(str(path), tokenizer="bpe", vocab_size=280, steps=120, lr=1e-2, dropout=0.0, hidden_size=32)
    train(settings, tmp_path / "run", housekeeping=Housekeeping(log_every=20))
    lines = log(tmp_path / "run")
    assert lines[0]["loss"] > 2.0
    assert lines[-1]["loss"] < 0.4
    assert lines[-1]["validation_loss"] < 0.5
    first, *_, last = lines[-1]["validation_by_position"]
    assert last[2] < first[2]


def test_the_loss_that_is_not_finite_stops_the_run(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Step, last checkpoint and cure are named; the weights on disk are those before; the run can go on."""
    true_loss, calls = language_model.next_token_loss, []

    def nan_at_the_eighth(*args: Any, **kwargs: Any) -> torch.Tensor:
        calls.append(1)
        return true_loss(*args, **kwargs) * (float("nan") if len(calls) == 8 else 1.0)

    monkeypatch.setattr(language_model, "next_token_loss", nan_at_the_eighth)
    with pytest.raises(RopeError, match=r"(?s)loss is not finite.*step +8.*step-00000006.*smaller --lr"):
        train(small(text), tmp_path / "run", housekeeping=EVERY)
    checkpoint = RunFolder(tmp_path / "run").checkpoints()[-1]
    assert all(p.isfinite().all() for p in load(checkpoint / "model").parameters())
    monkeypatch.undo()
    train(small(text), tmp_path / "run", housekeeping=EVERY)


def test_a_gradient_that_is_not_finite_stops_the_run(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A finite loss with an infinite gradient does not reach the weights; with no checkpoint yet it says so."""
    true_loss = language_model.next_token_loss
    monkeypatch.setattr(language_model, "next_token_loss", lambda *a, **k: (true_loss(*a, **k) - 1e6).exp().sqrt())
    with pytest.raises(RopeError, match=r"(?s)gradient norm is not finite.*checkpoint +None"):
        train(small(text), tmp_path / "run", housekeeping=EVERY)


def test_log_lines_hold_what_is_promised(text: str, tmp_path: Path) -> None:
    """Every second step a line, every fourth with validation by position beyond the trained length."""
    train(small(text, validation_length=32), tmp_path / "run", housekeeping=EVERY)
    lines = log(tmp_path / "run")
    assert [line["step"] for line in lines] == [2, 4, 6, 8, 10, 12]
    assert [line["tokens"] for line in lines] == [step * 64 for step in (2, 4, 6, 8, 10, 12)]
    assert [line["step"] for line in lines if "validation_loss" in line] == [4, 8, 12]
    blocks = lines[1]["validation_by_position"]
    assert [block[:2] for block in blocks] == [[0, 8], [8, 16], [16, 24], [24, 32]]
    assert lines[1]["validation_loss"] == pytest.approx((blocks[0][2] + blocks[1][2]) / 2, abs=1e-4)
    assert all(line["tokens_per_second"] > 0 for line in lines)


def test_epochs_count_the_text(text: str, tmp_path: Path) -> None:
    """Half an epoch is half the windows; no validation when none is asked for."""
    settings = small(text, steps=None, epochs=0.5, validation_fraction=0.0)
    train(settings, tmp_path / "run")
    tokens = len(Path(text).read_bytes()) + 1
    assert log(tmp_path / "run")[-1]["step"] == -(-0.5 * -(-tokens // 16) // 4)
    assert "validation_loss" not in log(tmp_path / "run")[-1]


def test_the_finished_folder_is_a_hugging_face_model(text: str, tmp_path: Path) -> None:
    """ropewalk and transformers read it, with the same logits and the same tokens."""
    transformers = pytest.importorskip("transformers")
    held_out = tmp_path / "held_out.txt"
    held_out.write_text(prose(100, seed=2))
    settings = small(text, tokenizer="bpe", vocab_size=270, validation=(str(held_out),))
    out = train(settings, tmp_path / "run", dtype="float32")
    ours = load(out)
    theirs = transformers.LlamaForCausalLM.from_pretrained(out).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    ids = tokenizer("the rope was laid “so”: 1913", return_tensors="pt").input_ids
    assert ours.tokenizer is not None
    assert ids[0].tolist() == ours.tokenizer.encode("the rope was laid “so”: 1913")
    torch.testing.assert_close(ours(ids), theirs(ids).logits, rtol=0, atol=1e-5)
    assert ours.config.ropes[0].max_position_embeddings == 16


@pytest.mark.parametrize(("dtype", "stored"), [("bfloat16", torch.bfloat16), ("float16", torch.float16)])
def test_the_finished_weights_have_the_dtype(text: str, tmp_path: Path, dtype: str, stored: torch.dtype) -> None:
    """Rounded once, from the float32 weights of the last checkpoint."""
    out = train(small(text, steps=2), tmp_path / "run", dtype=dtype)
    exact = load(RunFolder(out).checkpoints()[-1] / "model")
    assert torch.equal(load(out).embed_tokens.weight, exact.embed_tokens.weight.to(stored))


def test_the_callers_random_state_is_left_alone(text: str, tmp_path: Path) -> None:
    """A run seeds a generator state of its own."""
    before = torch.get_rng_state()
    train(small(text, steps=2), tmp_path / "run")
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokenizer": "words"}, "unknown tokenizer"),
        ({"seq_len": 1000}, "no validation text is as long"),
        ({"seq_len": 100_000, "validation_fraction": 0.0}, "shorter than one window"),
        ({"tokenizer": "bpe", "vocab_size": 100}, "`vocab_size` must be at least 257"),
        ({"validation": ("nowhere.txt",)}, "cannot be read"),
    ],
)
def test_what_cannot_be_trained_is_refused(text: str, tmp_path: Path, change: dict[str, Any], message: str) -> None:
    """Before anything is written that a corrected command would trip over."""
    with pytest.raises(RopeError, match=message):
        train(small(text, **change), tmp_path / "run")
    train(small(text, steps=1), tmp_path / "run")


def test_a_given_tokenizer_is_used(text: str, tmp_path: Path) -> None:
    """A tokenizer.json of another run, by file or by folder."""
    first = train(small(text, tokenizer="bpe", vocab_size=270, steps=1), tmp_path / "first")
    second = train(small(text, tokenizer=str(first / "tokenizer.json"), steps=1), tmp_path / "second")
    assert (second / "tokenizer.json").read_bytes() == (first / "tokenizer.json").read_bytes()
    assert load(second).config.vocab_size == 270


@pytest.mark.parametrize("encoding", [name for name in TEXT_ENCODINGS if name != "rope"])
def test_every_encoding_is_trained_saved_and_continued(text: str, tmp_path: Path, encoding: str) -> None:
    """The finished folder loads with its encoding, and writes text with a cache as without one."""
    settings = small(text, encoding=encoding, steps=3)
    model = load(train(settings, tmp_path / "run", dtype="float32"))
    assert model.config.encoding == settings.decoder_config(9).encoding
    assert model.config.rope is None
    prompt = [1, 2, 3]
    (new,) = generate(model, prompt, max_new_tokens=6)
    alone = list(prompt)
    with torch.no_grad():
        while len(alone) < 9:
            alone.append(int(model(torch.tensor([alone]))[0, -1].argmax()))
    assert new == alone[3:]


def test_warm_up_is_linear_and_reaches_the_peak() -> None:
    """Update w of a warm-up over w updates is the first at the peak."""
    rates = [learning_rate(step, peak=2.0, warmup=4, steps=20) for step in range(4)]
    assert rates == [0.5, 1.0, 1.5, 2.0]


def test_cosine_halves_in_the_middle_and_ends_at_the_final_rate() -> None:
    """Ten updates of warm-up, a hundred of cosine: half-way it is the mean of peak and final."""
    rates = [learning_rate(step, peak=1.0, warmup=10, steps=110, final=0.2) for step in range(110)]
    assert rates[59] == pytest.approx(0.6)
    assert rates[109] == pytest.approx(0.2)
    assert rates[34] == pytest.approx(0.2 + 0.8 * 0.5 * (1 + math.cos(math.pi / 4)))
    assert rates[9:] == sorted(rates[9:], reverse=True)


def test_no_warm_up_begins_just_below_the_peak() -> None:
    """Without warm-up the first update is the first point of the cosine."""
    assert learning_rate(0, peak=1.0, warmup=0, steps=4, final=0.0) == pytest.approx(0.5 * (1 + math.cos(math.pi / 4)))


def test_a_run_shorter_than_its_warm_up_never_passes_the_peak() -> None:
    """Three updates of a warm-up over ten stay on the line."""
    assert [learning_rate(step, peak=1.0, warmup=10, steps=3) for step in range(3)] == pytest.approx([0.1, 0.2, 0.3])
