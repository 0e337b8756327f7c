"""Tuning: which weights move, the same gradients with less memory, merged adapters, settings, and resuming."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ropewalk.errors import RopeError
from ropewalk.extend.settings import ApplySettings, TuneSettings, parts_of
from ropewalk.extend.tunable import TunableDecoder, tunable
from ropewalk.extend.tuning import TuningRecipe, TuningTask, tune_reader, tuning_positions
from ropewalk.methods import Reach
from ropewalk.training import Event, Housekeeping
from ropewalk.training.data import Batch
from ropewalk.training.objective import next_token_loss, token_losses
from tests.extend.material import REACH, TARGET, TRAINED, reader_under, token_ids
from tests.training.material import prose


def small(path: str, source: TunableDecoder, **changes: Any) -> TuningRecipe:
    """A run of a tenth of a second."""
    settings: dict[str, Any] = {
        "text": (path,),
        "source": source.digest(),
        "method": "yarn",
        "reach": REACH,
        "steps": 8,
        "lr": 3e-3,
        "batch_size": 2,
        "tokens_per_step": 200,
        "precision": "float32",
        "device": "cpu",
    }
    return TuningRecipe(**(settings | changes))


def batch() -> Batch:
    """Two windows of random tokens."""
    ids = torch.cat([token_ids(TARGET + 1), token_ids(TARGET + 1).flip(1)])
    return Batch(ids[:, :-1], ids[:, 1:], None)


@pytest.mark.parametrize("train", ["all", "lora+norms"])
def test_recomputed_layers_have_the_same_gradients(source: TunableDecoder, train: str) -> None:
    """Bit for bit, dropout included; and afterwards the layers are as they were."""
    gradients = []
    for on in (False, True):
        torch.manual_seed(5)
        copy = source.trainable_copy(train, rank=4)
        model = copy.module.train()
        with copy.activation_checkpointing(on):
            torch.manual_seed(7)
            next_token_loss(model, batch()).backward()
        gradients.append({name: p.grad for name, p in model.named_parameters() if p.requires_grad})
        assert all("forward" not in vars(layer) for layer in model.layers)
    assert gradients[0].keys() == gradients[1].keys()
    assert all(torch.equal(gradients[0][name], gradients[1][name]) for name in gradients[0])


def test_recomputing_keeps_less_for_the_backward_pass(source: TunableDecoder) -> None:
    """Bytes that autograd saves while the loss is formed: less than half."""

    def saved(on: bool) -> int:
        kept: dict[int, int] = {}

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        copy = source.trainable_copy("all", rank=1)
        model = copy.module.train()
        with copy.activation_checkpointing(on), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            next_token_loss(model, batch())
        return sum(kept.values())

    assert saved(True) < saved(False) / 2


@pytest.mark.parametrize(
    ("train", "moved"),
    [
        ("all", lambda name: True),
        ("attention", lambda name: ".self_attn." in name),
        ("norms+embeddings", lambda name: "norm" in name or name.startswith(("embed_tokens", "lm_head"))),
        ("lora", lambda name: ".self_attn." in name),
    ],
)
def test_only_what_is_asked_for_moves(
    text: str, source: TunableDecoder, tmp_path: Path, train: str, moved: Any
) -> None:
    """Every other weight keeps its bits, and so does the model that was passed."""
    before = {name: weight.clone() for name, weight in source.module.state_dict().items()}
    rank = 2 if train == "lora" else None
    reader = tune_reader(source, small(text, source, train=train, rank=rank), tmp_path / "run")
    assert isinstance(reader, TunableDecoder)
    tuned = reader.module
    after = tuned.state_dict()
    assert after.keys() == before.keys()
    assert {name for name in before if not torch.equal(before[name], after[name])} == set(filter(moved, before))
    assert all(torch.equal(weight, before[name]) for name, weight in source.module.state_dict().items())
    assert source.module.embed_tokens.weight.requires_grad  # nor is it frozen
    assert tuned.config == source.module.config
    assert not tuned.training


def test_merged_adapters_compute_what_they_did_beside(source: TunableDecoder) -> None:
    """The product added to the weight: logits within rounding, no adapter left, the count as stated."""
    copy = source.trainable_copy("lora", rank=3)
    model = copy.module
    counted = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert counted == source.trained_count("lora", rank=3)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.3)
        beside = model.eval()(token_ids(TARGET))
        merged = copy.merged().module
        assert merged.state_dict().keys() == source.module.state_dict().keys()
        assert (merged(token_ids(TARGET)) - beside).abs().max() < 1e-4 * beside.abs().max()
        assert (beside - source.module(token_ids(TARGET))).abs().max() > 0.1  # they did something


def test_adapters_begin_at_what_the_model_computes(source: TunableDecoder) -> None:
    """Before the first update nothing has changed."""
    with torch.no_grad():
        assert torch.equal(
            source.trainable_copy("lora", rank=3).module.eval()(token_ids(9)), source.module(token_ids(9))
        )


@pytest.mark.parametrize("method", [pytest.param("yarn", marks=pytest.mark.thorough), "dynamic", "drope"])
def test_tuning_lowers_the_loss(text: str, source: TunableDecoder, tmp_path: Path, method: str) -> None:
    """On the text's own words, at the target length: also where frequencies need the length, and without a rope."""
    adapted = reader_under(source.module, method)
    reader = adapted.under(tuning_positions(adapted.positions, method))
    recipe = small(text, reader, method=method, steps=10, lr=2e-2)
    tuned, model = tune_reader(reader, recipe, tmp_path / "run").module, reader.module
    ids = torch.tensor(model.tokenizer.encode(prose(900, seed=1))[: 4 * (TARGET + 1)]).view(4, -1)
    held_out = Batch(ids[:, :-1], ids[:, 1:], None)
    before, after = (float(token_losses(one.eval(), held_out).mean()) for one in (model, tuned))
    assert after < before - 1.0


def test_short_windows_are_trained_at_positions_that_skip(text: str, source: TunableDecoder, tmp_path: Path) -> None:
    """PoSE: the loss of a batch is the model's at those positions; without a skip the tuned weights are others."""
    recipe = small(text, source, window=TRAINED, repeat_share=0.5, train="attention")
    assert recipe.seq_len == TRAINED
    task = TuningTask(source, recipe)
    task.read()
    task.build(tmp_path / "task", begun=False)
    part = task.sampler.batch(0, 2)
    assert part.position_ids is not None
    task.model.eval()
    with torch.no_grad():
        logits = task.model(part.inputs, position_ids=part.position_ids, document_ids=part.document_ids)
        expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), part.targets.flatten())
        there, near = task.batch_loss(part), task.batch_loss(replace(part, position_ids=None))
    assert there.item() == pytest.approx(expected.item(), abs=1e-5)
    assert abs(near.item() - expected.item()) > 1e-4

    def tuned(folder: str, **changes: Any) -> dict[str, torch.Tensor]:
        done = tune_reader(source, replace(recipe, steps=4, **changes), tmp_path / folder)
        return done.module.state_dict()

    once, control = tuned("once"), tuned("control", skip_target=TRAINED)
    assert any(not torch.equal(once[name], control[name]) for name in once)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"window": 1}, "at least 2 tokens"),
        ({"window": TARGET + 1}, "at most the length that positions skip to"),
        ({"window": 8, "skip_target": 7}, "at most the length that positions skip to"),
        ({"skip_target": 20}, "the length that the positions of short windows skip to"),
        ({"window": 8, "method": "dca"}, "counts the tokens of each row"),
        ({"window": 8, "method": "drope"}, "counts the tokens of each row"),
        ({"repeat_share": 1.5}, "must lie between 0 and 1"),
    ],
)
def test_windows_that_cannot_skip(text: str, source: TunableDecoder, changes: dict[str, Any], message: str) -> None:
    """Lengths that leave no room, and methods that need whole rows."""
    with pytest.raises(RopeError, match=message):
        small(text, source, **changes)


def test_validation_while_tuning(text: str, source: TunableDecoder, tmp_path: Path) -> None:
    """The log has the held-out loss by position, up to the target."""
    settings = small(text, source, validation=(text,))
    tune_reader(source, settings, tmp_path / "run", housekeeping=Housekeeping(validate_every=4))
    lines = [json.loads(line) for line in (tmp_path / "run" / "training-log.jsonl").read_text().splitlines()]
    assert lines[-1]["validation_by_position"][-1][1] == TARGET


def test_the_digest_tells_models_apart(source: TunableDecoder) -> None:
    """Another weight or another rope is another model."""
    assert source.digest() == source.digest()
    assert source.digest() != reader_under(source.module, "pi").digest()
    other = source.trainable_copy("norms", rank=1)
    with torch.no_grad():
        other.module.norm.weight += 0.25
    assert other.digest() != source.digest()
    before = other.digest()
    with torch.no_grad():
        other.module.embed_tokens.weight[7, 3] += 1e-3  # one number of many, in place
    assert other.digest() != before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"text": ()}, "no text to tune on"),
        ({"steps": 0}, "`steps` must be at least 1"),
        ({"tokens_per_step": 0}, "`tokens_per_step` must be at least 1"),
        ({"lr": float("nan")}, "`lr` must be a finite number"),
        ({"clip": 0.0}, "`clip` must be a finite number"),
        ({"precision": "int8"}, "unknown `precision`"),
        ({"train": "heads"}, "names parts of the model"),
        ({"train": "all+lora"}, "names parts of the model"),
        ({"train": "lora", "rank": 0}, "`rank` must be at least 1"),
        ({"rank": 4}, "rank of lora's adapters"),
        ({"reach": Reach(1, 1)}, "`target` must be at least 2"),
    ],
)
def test_settings_that_do_not_fit(source: TunableDecoder, changes: dict[str, Any], message: str) -> None:
    """Refused before anything is done."""
    with pytest.raises(RopeError, match=message):
        small("text.txt", source, **changes)


def test_defaults_follow_what_is_trained(source: TunableDecoder) -> None:
    """YaRN's recipe for whole matrices, ten times it for adapters; tokens of a step in whole batches."""
    assert small("t", source, lr=None).lr == 2e-5
    assert small("t", source, lr=None, train="lora+norms+embeddings").lr == 2e-4
    assert small("t", source, tokens_per_step=None).accumulation == 1
    assert small("t", source, tokens_per_step=129).accumulation == 2
    assert parts_of("lora+lora") == ("lora",)
    assert [small("t", source, train=train).rank for train in ("lora", "norms")] == [16, None]
    assert (small("t", source).seq_len, small("t", source, method="drope").seq_len) == (TARGET, TRAINED)


def test_without_a_tokenizer(text: str, source: TunableDecoder, tmp_path: Path) -> None:
    """No text can be read; nothing is left behind."""
    bare = source.trainable_copy("all", rank=1)
    bare.module.tokenizer = None
    with pytest.raises(RopeError, match="has no tokenizer"):
        tune_reader(bare, small(text, source), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_another_dtype_or_device_is_a_copy(source: TunableDecoder) -> None:
    """The model that was passed keeps its weights; what is the same already is not copied."""
    assert source.to(device="cpu", dtype=torch.float32) is source
    half = source.to(dtype=torch.bfloat16)
    assert (half.dtype, source.dtype) == (torch.bfloat16, torch.float32)
    assert half.tokenizer is source.tokenizer
    assert half.positions == source.positions
    assert not half.module.embed_tokens.weight.requires_grad
    assert source.module.embed_tokens.weight.requires_grad


def test_the_loss_of_a_batch_is_that_of_training(source: TunableDecoder) -> None:
    """The protocol's loss, for another library's loop."""
    model = source.module.eval()
    one = batch()
    loss = source.next_token_loss(one.inputs, one.targets, None, precision="float32")
    assert loss.item() == pytest.approx(token_losses(model, one).mean().item(), abs=1e-5)


def test_what_can_only_be_read_is_not_written() -> None:
    """A reader without weights to train or write is refused."""
    with pytest.raises(RopeError, match="can be measured, but not written"):
        tunable(object())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"windows": 4}, "belong to measuring"),
        ({"seed": 4}, "belong to measuring"),
        ({"validation": Path("a.txt"), "measure": False}, "belong to measuring"),
        ({"unscaled_tokens": 4}, "config.json cannot express"),
        ({"unscaled_tokens": 4, "method": "plain", "native": True}, "works only with methods that scale frequencies"),
        ({"method": "nonsense"}, "unknown method"),
        ({"dtype": "int4"}, "unknown dtype"),
    ],
)
def test_settings_that_would_be_ignored(settings: dict[str, Any], message: str) -> None:
    """Refused when the settings are made, by `apply` and, but for what tuning needs itself, by `tune`."""
    with pytest.raises(RopeError, match=message):
        ApplySettings(**settings)
    if "seed" not in settings and "validation" not in settings:
        with pytest.raises(RopeError, match=message):
            TuneSettings(text=("a.txt",), steps=3, **{"measure": False, **settings})


class Foreign(TunableDecoder):
    """As a model that another library computes."""

    library = "other"


EVERY = Housekeeping(log_every=2, checkpoint_every=3)


class Stop(Exception):
    """What a test raises to stop a run."""


STOPS = {"all": (("step", 2), ("step", 4), ("checkpoint", 6), ("step", 8)), "lora+norms": (("step", 4),)}


@pytest.mark.parametrize("train", STOPS)
def test_a_stopped_run_goes_on_bit_for_bit(text: str, source: TunableDecoder, tmp_path: Path, train: str) -> None:
    """Stopped before, between, at and after checkpoints: the tuned weights and the log equal those of a whole run."""
    settings = small(text, source, train=train, rank=2 if "lora" in train else None)
    whole = tune_reader(source, settings, tmp_path / "whole", housekeeping=EVERY).module.state_dict()
    for kind, step in STOPS[train]:

        def stop(event: Event, at: tuple[str, int] = (kind, step)) -> None:
            if (event.kind, event.step) == at:
                raise Stop

        folder = tmp_path / f"{kind} {step}"
        with pytest.raises(Stop):
            tune_reader(source, settings, folder, housekeeping=EVERY, report=stop)
        resumed = tune_reader(source, settings, folder, housekeeping=EVERY).module.state_dict()
        assert all(torch.equal(weight, whole[name]) for name, weight in resumed.items())
        assert log_of(folder) == log_of(tmp_path / "whole")


def log_of(folder: Path) -> list[dict[str, Any]]:
    """Return a run's log without times."""
    return [
        {key: value for key, value in json.loads(line).items() if key not in ("seconds", "tokens_per_second")}
        for line in (folder / "training-log.jsonl").read_text().splitlines()
    ]


def test_a_checkpoint_holds_what_is_trained_alone(text: str, source: TunableDecoder, tmp_path: Path) -> None:
    """Adapters of a few numbers, not the model; a finished run is taken up without another update."""
    tune_reader(source, small(text, source, train="lora", rank=2), tmp_path / "run", housekeeping=EVERY)
    newest = max((tmp_path / "run" / "checkpoints").iterdir())
    assert sorted(path.name for path in newest.iterdir()) == [
        "optimizer.safetensors", "state.json", "trained.safetensors"]  # fmt: skip
    size = (newest / "trained.safetensors").stat().st_size
    assert size < 4 * source.trained_count("lora", rank=2) + 4000
    steps: list[int] = []
    tune_reader(
        source, small(text, source, train="lora", rank=2), tmp_path / "run", report=lambda e: steps.append(e.step)
    )
    assert set(steps) == {8}


def test_other_settings_or_weights_are_refused(text: str, source: TunableDecoder, tmp_path: Path) -> None:
    """A run in the folder is gone on with only if it is this one; `restart` begins again."""
    tune_reader(source, small(text, source), tmp_path / "run")
    with pytest.raises(RopeError, match="a run with other settings"):
        tune_reader(source, small(text, source, lr=1e-3), tmp_path / "run")
    for unscaled_tokens in (0, 4):  # the same name, other frequencies or first tokens
        other = reader_under(source.module, "yarn", Reach(TRAINED, 2 * TARGET, unscaled_tokens))
        with pytest.raises(RopeError, match="a run with other settings"):
            tune_reader(other, small(text, source), tmp_path / "run")
    tune_reader(source, small(text, source, lr=1e-3), tmp_path / "run", restart=True)


def test_another_yarn_factor_on_resume_is_refused(text: str, source: TunableDecoder, tmp_path: Path) -> None:
    """By the run's settings; and by the checkpoint itself, where those were made to agree: its message names both."""

    def stop(event: Event) -> None:
        if event.kind == "checkpoint":
            raise Stop

    rope = source.positions.ropes[0]
    assert rope is not None
    assert rope.scaling is not None
    twice = replace(rope, scaling=replace(rope.scaling, factor=2 * rope.scaling.factor))  # type: ignore[attr-defined]
    other = source.under(source.positions.with_rope(twice))
    keeping, run = Housekeeping(checkpoint_every=4), tmp_path / "run"
    with pytest.raises(Stop):
        tune_reader(source, small(text, source), run, housekeeping=keeping, report=stop)
    with pytest.raises(RopeError, match="with other settings"):
        tune_reader(other, small(text, source), run)
    record = json.loads((run / "run.json").read_text())
    record["settings"]["source"] = other.digest()
    (run / "run.json").write_text(json.dumps(record))
    with pytest.raises(RopeError, match="under another rope") as caught:
        tune_reader(other, small(text, source), run)
    assert (caught.value.facts["in the checkpoint"], caught.value.facts["now"]) == (repr(rope), repr(twice))
    assert caught.value.facts["layer"] == 0
