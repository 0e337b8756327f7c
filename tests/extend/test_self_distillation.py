"""Self-distillation under perturbed positions against transformers in float64, and as a setting of tuning."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from ropewalk.attention.extensions import ReRoPE
from ropewalk.errors import RopeError
from ropewalk.extend.decoder_tuning import TunableDecoder
from ropewalk.extend.settings import TuneSettings
from ropewalk.extend.tuning import TuningRecipe, TuningTask, check_tunable, tune_reader
from ropewalk.models.decoder import Decoder
from ropewalk.training import Event, Housekeeping
from ropewalk.training import objective as objective_module
from ropewalk.training.data import Batch
from ropewalk.training.objective import head_divergence, next_token_loss
from tests.extend.material import REACH, TARGET, checkpoint, reader_under
from tests.training.material import own_positions, prose, small

WINDOWS, SEQ = 3, 20
CUTS, MOVES = (1, 7, 19), (20, 3, 11)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small checkpoint of transformers."""
    return checkpoint(tmp_path_factory.mktemp("source"))


@pytest.fixture
def source(folder: Path) -> TunableDecoder:
    """The checkpoint under YaRN."""
    return reader_under(folder, "yarn")


def batch_of(strength: float, *, moves: tuple[int, ...] = MOVES, skip: int = 0) -> Batch:
    """Random tokens; row r moves by `moves[r]` from token `CUTS[r]` on. Own positions skip by `skip` at token 10."""
    ids = torch.randint(0, 300, (WINDOWS, SEQ + 1), generator=torch.Generator().manual_seed(4))
    tokens = torch.arange(SEQ)
    positions = (tokens + skip * (tokens >= 10)).repeat(WINDOWS, 1)
    moved = tokens >= torch.tensor(CUTS)[:, None]
    weights = moved * strength * SEQ / (SEQ - torch.tensor(CUTS, dtype=torch.float32))[:, None]
    later = positions + moved * torch.tensor(moves)[:, None]
    return Batch(ids[:, :-1], ids[:, 1:], None, positions, perturbed_ids=later, distillation_weights=weights)


def expected(folder: Path, batch: Batch, strength: float) -> tuple[float, dict[str, Tensor]]:
    """The loss and its gradients by transformers and autograd, float64: rows one by one, the paper's sums as they are
    written. The teacher is another copy of the model, so that nothing flows through it."""
    assert batch.position_ids is not None
    assert batch.perturbed_ids is not None
    student, teacher = (
        transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval() for _ in range(2)
    )
    total = torch.zeros((), dtype=torch.float64)
    for row, cut in enumerate(CUTS):
        ids, own, other = (x[row : row + 1] for x in (batch.inputs, batch.position_ids, batch.perturbed_ids))
        predicted = student(ids, position_ids=own).logits[0].softmax(-1)
        total = total - sum(predicted[i, batch.targets[row, i]].log() for i in range(SEQ)) / SEQ
        p = student(ids, position_ids=other).logits[0].softmax(-1)
        q = teacher(ids, position_ids=own).logits[0].softmax(-1).detach()
        each = [(p[i] * (p[i] / q[i]).log()).sum() for i in range(cut, SEQ)]
        total = total + strength * sum(each) / (SEQ - cut)
    mean = total / WINDOWS
    mean.backward()  # type: ignore[no-untyped-call]
    return float(mean.detach()), {
        name.removeprefix("model."): weight.grad
        for name, weight in student.named_parameters()
        if weight.grad is not None
    }


def gradients(model: Decoder, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss and its gradients, by name."""
    model.zero_grad()
    loss = next_token_loss(model, batch)
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.detach(), {name: w.grad.clone() for name, w in model.named_parameters() if w.grad is not None}


@pytest.mark.parametrize("tied", [False, True])
def test_loss_and_gradients_are_those_of_the_paper(tied: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against transformers in float64, at positions that skip; in chunks of 7 tokens and slices of 3."""
    monkeypatch.setattr(objective_module, "CHUNK", 7)
    monkeypatch.setattr(objective_module, "CACHED", 900)
    path = checkpoint(tmp_path / "model", tie_word_embeddings=tied)
    batch = batch_of(0.7, skip=9)
    loss, exact = expected(path, batch, 0.7)
    found, grads = gradients(reader_under(path, "plain").module, batch)
    assert found.item() == pytest.approx(loss, rel=1e-5)
    assert found.item() > next_token_loss(reader_under(path, "plain").module, batch_of(0.0)).item() + 0.05
    assert grads.keys() == exact.keys()
    for name, grad in grads.items():
        torch.testing.assert_close(grad.double(), exact[name], rtol=1e-3, atol=1e-6, msg=name)


def test_nothing_perturbed_is_plain_cross_entropy(source: TunableDecoder) -> None:
    """Bit for bit, loss and gradients: the divergence and its gradient are 0."""
    batch = batch_of(1.0, moves=(0, 0, 0))
    plain = replace(batch, perturbed_ids=None, distillation_weights=None)
    (loss, grads), (expected_loss, expected_grads) = (gradients(source.module, one) for one in (batch, plain))
    assert torch.equal(loss, expected_loss)
    assert all(torch.equal(grad, expected_grads[name]) for name, grad in grads.items())


def test_only_distances_count(source: TunableDecoder) -> None:
    """All tokens moved by the same amount: rotations differ and the divergence is 0 but for rounding."""
    batch = batch_of(1.0)
    assert batch.position_ids is not None
    plain, moved, shifted = (
        next_token_loss(source.module, one).item()
        for one in (
            replace(batch, perturbed_ids=None),
            batch,
            replace(batch, perturbed_ids=batch.position_ids + 37, distillation_weights=torch.ones(WINDOWS, SEQ)),
        )
    )
    assert abs(shifted - plain) < 1e-5
    assert moved - plain > 1e-2


def test_the_teacher_takes_no_gradient() -> None:
    """Nor does the head through it: its gradient is that of the student's logits alone, which finite steps give."""
    torch.manual_seed(0)
    student, teacher, weight = torch.randn(5, 4), torch.randn(5, 4, requires_grad=True), torch.randn(7, 4)
    counts = torch.tensor([0.0, 0.5, 2.0, 1.0, 3.0])
    hidden, head = student.clone().requires_grad_(), weight.clone().requires_grad_()
    head_divergence(hidden, head, teacher, counts).backward()  # type: ignore[no-untyped-call]
    assert teacher.grad is None
    q = (teacher @ weight.t()).double().detach().log_softmax(-1)

    def exact(states: Tensor, matrix: Tensor) -> Tensor:
        p = (states.double() @ matrix.double().t()).log_softmax(-1)
        return (counts * (p.exp() * (p - q)).sum(-1)).mean()

    for found, at in ((hidden.grad, 0), (head.grad, 1)):
        assert found is not None
        for index in range(found.numel()):
            ends = []
            for step in (1e-4, -1e-4):
                both = [student.double(), weight.double()]
                both[at].view(-1)[index] += step
                ends.append(exact(*both))
            assert float(found.view(-1)[index]) == pytest.approx(float(ends[0] - ends[1]) / 2e-4, abs=1e-5)


def test_bfloat16_products_round_alone(source: TunableDecoder) -> None:
    """Under autocast the loss is near and float32, and so are the weights' gradients."""
    batch = batch_of(1.0)
    exact, _ = gradients(source.module, batch)
    source.module.zero_grad()
    loss = next_token_loss(source.module, batch, precision="bfloat16")
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.dtype == torch.float32
    assert {w.grad.dtype for w in source.module.parameters() if w.grad is not None} == {torch.float32}
    assert loss.item() == pytest.approx(exact.item(), rel=0.02)


def recipe_of(text: Path, reader: TunableDecoder, **changes: Any) -> TuningRecipe:
    """Eight updates of two windows."""
    settings: dict[str, Any] = {
        "text": (str(text),), "source": reader.digest(), "method": "yarn", "reach": REACH, "steps": 8, "lr": 3e-3,
        "batch_size": 2, "precision": "float32", "device": "cpu", "self_distillation": 1.0,
    }  # fmt: skip
    return TuningRecipe(**(settings | changes))


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """A text file of 900 words."""
    path = tmp_path / "text.txt"
    path.write_text(prose(900), encoding="utf-8")
    return path


def weights_of(reader: Any) -> dict[str, Tensor]:
    """By name."""
    return dict(reader.module.state_dict())


def test_off_is_what_it_was(text: Path, source: TunableDecoder, tmp_path: Path) -> None:
    """With 0 the weights are, bit for bit, those of a reader that knows nothing of it; with more they are others."""

    class Unaware(TunableDecoder):
        def trainable_copy(self, parts: str, *, rank: int) -> Unaware:
            return Unaware(super().trainable_copy(parts, rank=rank).module, self.name)

        def next_token_loss(self, inputs: Tensor, targets: Tensor, document_ids: Any, **options: Any) -> Tensor:
            assert options.keys() == {"precision", "position_ids", "seq_len", "token_weights"}
            return super().next_token_loss(inputs, targets, document_ids, **options)

    off, on = (recipe_of(text, source, steps=2, self_distillation=weight) for weight in (0.0, 1.0))
    assert TuneSettings(text=(str(text),), steps=2).self_distillation == 0.0
    plain = weights_of(tune_reader(Unaware(source.module, source.name), off, tmp_path / "plain"))
    same, other = (weights_of(tune_reader(source, one, tmp_path / name)) for name, one in (("0", off), ("1", on)))
    assert all(torch.equal(weight, plain[name]) for name, weight in same.items())
    assert any(not torch.equal(weight, plain[name]) for name, weight in other.items())


class Stop(Exception):
    """What a test raises to break a run off."""


@pytest.mark.parametrize(
    "changes",
    [
        {"train": "all", "method": "dynamic"},
        {"train": "lora+norms", "rank": 2, "window": 12, "repeat_share": 0.5, "token_weights": "longce",
         "precision": "bfloat16"},
    ],
)  # fmt: skip
def test_a_stopped_run_goes_on_bit_for_bit(text: Path, folder: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    """With dropout, frequencies that depend on length, and with all else that changes positions and losses."""

    def stop(event: Event) -> None:
        if (event.kind, event.step) == ("step", 5):
            raise Stop

    reader = reader_under(folder, changes.get("method", "yarn"))
    recipe, every = recipe_of(text, reader, **changes), Housekeeping(log_every=2, checkpoint_every=3)
    whole = tune_reader(reader, recipe, tmp_path / "whole", housekeeping=every)
    with pytest.raises(Stop):
        tune_reader(reader, recipe, tmp_path / "stopped", housekeeping=every, report=stop)
    resumed = weights_of(tune_reader(reader, recipe, tmp_path / "stopped", housekeeping=every))
    assert all(torch.equal(weight, resumed[name]) for name, weight in weights_of(whole).items())
    assert json.loads((tmp_path / "whole" / "run.json").read_text())["settings"]["self_distillation"] == 1.0
    with pytest.raises(RopeError, match="a run with other settings"):
        tune_reader(reader, replace(recipe, self_distillation=0.5), tmp_path / "whole")


@pytest.mark.parametrize("train", ["attention", "norms", "embeddings", "lora"])
def test_every_part_can_be_trained(text: Path, source: TunableDecoder, tmp_path: Path, train: str) -> None:
    """Two updates change the weights, and otherwise than without."""
    rank = 2 if train == "lora" else None
    recipe = recipe_of(text, source, steps=2, train=train, rank=rank)
    off = replace(recipe, self_distillation=0.0)
    found = [weights_of(tune_reader(source, one, tmp_path / name)) for name, one in (("off", off), ("on", recipe))]
    before = weights_of(source)
    changed = [{name for name in before if not torch.equal(before[name], one[name])} for one in found]
    assert changed[0] == changed[1]
    assert changed[0]
    assert any(not torch.equal(found[0][name], found[1][name]) for name in changed[0])


@pytest.mark.parametrize("window", [None, 12])
def test_what_tuning_computes(text: Path, source: TunableDecoder, tmp_path: Path, window: int | None) -> None:
    """The loss of its batches: the model's own logits at both positions, in whole windows and in those that skip; the
    second view reaches beyond the target."""
    task = TuningTask(source, recipe_of(text, source, window=window, self_distillation=0.4))
    task.read()
    task.build(tmp_path / "task", begun=False)
    part = task.sampler.batch(0, 8)
    assert part.perturbed_ids is not None
    assert (part.position_ids is None) == (window is None)
    own, model, total = own_positions(part), task.model.eval(), 0.0
    with torch.no_grad():
        found = task.batch_loss(part).item()
        logs = [
            model(part.inputs, position_ids=ids, document_ids=part.document_ids).double().log_softmax(-1)
            for ids in (own, part.perturbed_ids)
        ]
    for row in range(8):
        moved = (part.perturbed_ids[row] > own[row]).nonzero()[:, 0].tolist()
        total -= logs[0][row].gather(1, part.targets[row, :, None]).mean().item() / 8
        q, p = (each[row, moved] for each in logs)
        total += 0.4 * (p.exp() * (p - q)).sum(-1).mean().item() / 8
    assert found == pytest.approx(total, rel=1e-5)
    assert TARGET <= int(part.perturbed_ids.max()) < 2 * TARGET


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"self_distillation": -0.5}, "`self_distillation` must be a finite number of at least 0"),
        ({"self_distillation": float("inf")}, "`self_distillation` must be a finite number of at least 0"),
        ({"method": "dca"}, "under --self-distillation, and this method counts each row's tokens itself"),
        ({"method": "drope"}, "under --self-distillation, and this method counts each row's tokens itself"),
        ({"method": "dca", "window": 8}, "under --window and --self-distillation, and"),
    ],
)
def test_settings_that_do_not_fit(text: Path, source: TunableDecoder, changes: dict[str, Any], rule: str) -> None:
    """Refused when the recipe is made."""
    with pytest.raises(RopeError, match=rule):
        recipe_of(text, source, **changes)


def test_models_whose_positions_cannot_move(text: Path, source: TunableDecoder) -> None:
    """Without a rope, and with a rule in attention of the checkpoint's own."""
    recipe = recipe_of(text, source, method="as-is")
    check_tunable(source, recipe)
    bare = TunableDecoder(Decoder(small("unused", encoding="alibi").decoder_config(300)))
    with pytest.raises(RopeError, match="this model has no rope"):
        check_tunable(bare, recipe)
    own = TunableDecoder(source.module.with_positions(extension=ReRoPE(window=8)))
    with pytest.raises(RopeError, match="this model counts each row's tokens itself"):
        check_tunable(own, recipe)
    check_tunable(own, replace(recipe, self_distillation=0.0))
