"""A tuning run that was stopped: it goes on bit for bit, and only as the run that it was."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ropewalk.errors import RopeError
from ropewalk.extend.tunable import TunableDecoder
from ropewalk.extend.tuning import tune_reader
from ropewalk.methods import Reach
from ropewalk.training import Event, Housekeeping
from tests.extend.material import TARGET, TRAINED, reader_under
from tests.extend.tuning_runs import small

EVERY = Housekeeping(log_every=2, checkpoint_every=3)


class Stop(Exception):
    """What a test raises to break a run off."""


STOPS = [(train, *stop) for train in ("all", "lora+norms") for stop in [("step", 2), ("step", 4), ("checkpoint", 6),
                                                                        ("step", 8)]]  # fmt: skip
EVERY_TIME = (("all", "checkpoint", 6), ("lora+norms", "step", 4))


@pytest.mark.parametrize(
    ("train", "kind", "step"),
    [pytest.param(*stop, marks=[pytest.mark.thorough] * (stop not in EVERY_TIME)) for stop in STOPS],
)
def test_a_stopped_run_goes_on_bit_for_bit(
    text: str, source: TunableDecoder, tmp_path: Path, train: str, kind: str, step: int
) -> None:
    """Broken off before, between, at and after checkpoints: the tuned weights and the log equal."""

    def stop(event: Event) -> None:
        if (event.kind, event.step) == (kind, step):
            raise Stop

    settings = small(text, source, train=train, rank=2 if "lora" in train else None)
    whole = tune_reader(source, settings, tmp_path / "whole", housekeeping=EVERY)
    with pytest.raises(Stop):
        tune_reader(source, settings, tmp_path / "stopped", housekeeping=EVERY, report=stop)
    resumed = tune_reader(source, settings, tmp_path / "stopped", housekeeping=EVERY)
    weights = [one.module.state_dict() for one in (whole, resumed)]
    assert all(torch.equal(weight, weights[0][name]) for name, weight in weights[1].items())
    logs = [
        [
            {key: value for key, value in json.loads(line).items() if key not in ("seconds", "tokens_per_second")}
            for line in (tmp_path / name / "training-log.jsonl").read_text().splitlines()
        ]
        for name in ("whole", "stopped")
    ]
    assert logs[0] == logs[1]


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

    class Stop(Exception):
        pass

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
