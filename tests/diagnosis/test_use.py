"""The doctor measures the use of far tokens beside the loss: for which methods, on what, and how it goes on."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import ropewalk as rw
from ropewalk.checkpoints.tokenizer import TextTokenizer
from ropewalk.diagnosis.document import Diagnosis
from ropewalk.diagnosis.prepare import prepare
from ropewalk.diagnosis.run import RunInterrupted, examined_methods
from ropewalk.diagnosis.settings import DoctorSettings
from ropewalk.errors import RopeError
from ropewalk.measure.estimate import Outlook, Pace, Trial, seconds_at_once
from ropewalk.measure.losses import Measurement, WindowResult
from ropewalk.measure.plan import LossProtocol
from ropewalk.models.config import Positions
from ropewalk.models.decoder import Decoder
from ropewalk.readers.decoder import DecoderReader
from tests.diagnosis.models import ROPE, settings_of, tiny_decoder, with_protocol
from tests.measure.copy_readers import text_of

TEXT = [("words", text_of(700))]
TRAINED, TARGET = 128, 256


def model(seed: int = 1, trained: int = TRAINED) -> Decoder:
    """A small random model over bytes."""
    decoder = tiny_decoder(dataclasses.replace(ROPE, max_position_embeddings=trained), vocab_size=257)
    if seed != 1:
        with torch.no_grad():
            decoder.embed_tokens.weight.mul_(1.5)
    decoder.tokenizer = TextTokenizer.bytes()
    return decoder


def diagnose(state: Path, **changes: Any) -> Diagnosis:
    """A short run."""
    given = {"target": TARGET, "text": TEXT, "methods": "pi,yarn,crop", "windows": 2, "state": state, "workers": 1}
    return rw.doctor(model(), **with_protocol({**given, **changes}))


def test_use_is_measured_beside_the_loss(tmp_path: Path) -> None:
    """By default; for plain, the best method and crop; the control for plain; in JSON, sentences and the text."""
    found = diagnose(tmp_path)
    assert found.use is not None
    best = min(("pi", "yarn"), key=lambda name: sum(found.measurement.beyond(name) or []))
    examined = [name for name in found.measurement.results if name in ("plain", best, "crop")]
    assert list(found.use.methods) == list(examined_methods(found.measurement))
    assert set(found.use.methods) <= set(examined)
    document = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert {row["test"] for row in document["use"]} == {"copy"}
    assert {row["method"] for row in document["use"] if row["control"]} == {"plain"}
    assert {row["windows"] for row in document["use"]} == {2}
    assert set(found.use.sentences()) <= set(found.sentences())
    assert document["use_details"]["summary"] == found.use.sentences()
    assert found.use.sentences()[0] in str(found)


def test_it_can_be_left_out(tmp_path: Path) -> None:
    """measure="loss": no key in JSON, and no reading."""
    found = diagnose(tmp_path, measure="loss")
    assert found.use is None
    assert not {"use", "use_details"} & set(found.to_json())
    assert not (tmp_path / "use").exists()


def test_the_losses_of_the_same_windows_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both measure on the same windows of the text, and a method reads none of them twice."""
    read: list[tuple[Positions, tuple[int, ...]]] = []
    whole = DecoderReader.window_losses

    def recorded(self: DecoderReader, input_ids: torch.Tensor, **more: Any) -> Any:
        read.append((self.positions, tuple(input_ids.tolist())))
        return whole(self, input_ids, **more)

    monkeypatch.setattr(DecoderReader, "window_losses", recorded)
    run = prepare(model(), settings_of(target=TARGET, text=TEXT, methods="pi,yarn", windows=2, state=tmp_path))
    run.measure(progress=False)
    windows = [tuple(ids.tolist()) for ids in run.windows]
    of_windows = [one for one in read if one[1] in windows]
    assert len(of_windows) == len(set(of_windows)) == 2 * 3
    assert run.use is not None
    assert [text.starts for text in run.use.inputs.texts] == [
        run.plan.protocol.starts(len(run.use.inputs.texts[0].tokens))
    ]


def test_a_run_is_resumed(tmp_path: Path) -> None:
    """Resumed, nothing is read again, and the numbers are the same."""

    class Counting:
        begun = 0

        def begin(self, description: str, tokens: int) -> None:
            self.begun += 1

        def advance(self, tokens: int) -> None:
            pass

    first = diagnose(tmp_path)
    counting = Counting()
    again = diagnose(tmp_path, resume=True, progress=counting)
    assert counting.begun == 0
    assert first.use is not None
    assert again.use is not None
    assert again.use.rows == first.use.rows


def test_ctrl_c_says_what_is_kept(tmp_path: Path) -> None:
    """Stopped during the readings, the losses and some readings are there, and the same run goes on."""

    class Stopping:
        readings = 0

        def begin(self, description: str, tokens: int) -> None:
            self.readings += "test" in description
            if self.readings == 4:
                raise KeyboardInterrupt

        def advance(self, tokens: int) -> None:
            pass

    with pytest.raises(RunInterrupted) as stop:
        diagnose(tmp_path, progress=Stopping())
    assert stop.value.kind == "readings"
    assert stop.value.kept == 3
    assert stop.value.due > 0
    whole, other = diagnose(tmp_path, resume=True), diagnose(tmp_path / "other")
    assert whole.use is not None
    assert other.use is not None
    assert whole.use.rows == other.use.rows


@pytest.mark.parametrize("measure", ["use", "loss,speed", "retrieval", ""])
def test_what_cannot_be_measured_is_refused(measure: str) -> None:
    """The loss always is, as the verdict rests on it; unknown words are named."""
    with pytest.raises(RopeError, match="must contain loss"):
        DoctorSettings(measure=measure)


def test_tasks_imply_retrieval_and_retrieval_means_named_numbers() -> None:
    """Either word asks for it."""
    assert settings_of(retrieval="passkey").measured == ("loss", "use", "retrieval")
    asked = settings_of(measure="loss,retrieval", retrieval_samples=3)
    assert (asked.measured, asked.task_names) == (("loss", "retrieval"), ("numbers",))


def test_within_the_trained_length_there_is_little_to_say(tmp_path: Path) -> None:
    """A target that is no extension: the control alone."""
    found = diagnose(tmp_path, target=TRAINED, methods=None)
    assert found.use is not None
    assert found.use.methods == ()
    assert "within the trained length" in found.use.sentences()[-1]


def measured(losses: dict[str, tuple[float, float]]) -> Measurement:
    """Mean losses within and beyond, as one window of two blocks."""
    protocol = LossProtocol.choose(trained_length=4, target=8, block=4, windows=1, text="t")
    none = Positions((), (), ())
    return Measurement(
        protocol=protocol,
        own=none,
        positions=dict.fromkeys(losses, none),
        same_as={},
        results={
            name: (WindowResult((3 * within, 4 * beyond), 3 * within, 1.0),)
            for name, (within, beyond) in losses.items()
        },
    )


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ({"plain": (3.0, 6.0), "pi": (3.0, 4.0), "yarn": (3.0, 3.5), "crop": (3.0, 3.1)}, ("plain", "yarn", "crop")),
        ({"plain": (3.0, 6.0), "pi": (3.0, 4.0), "yarn": (3.06, 3.5), "crop": (3.0, 3.1)}, ("plain", "pi", "crop")),
        ({"plain": (3.0, 6.0), "pi": (3.2, 4.0), "streaming": (3.0, 3.1)}, ("plain",)),
        ({"plain": (3.0, 3.0), "pi": (3.0, 4.0), "crop": (3.0, 3.1)}, ("plain", "crop")),
    ],
)
def test_the_best_method_neither_forgets_nor_costs_much(losses: Any, expected: tuple[str, ...]) -> None:
    """The lowest mean beyond among those; plain may be it."""
    assert examined_methods(measured(losses)) == expected


def test_the_estimate_counts_what_will_be_read(tmp_path: Path) -> None:
    """At a second for each token: the tokens of every reading that is due."""
    run = prepare(model(), settings_of(target=TARGET, text=TEXT, methods="yarn", windows=2, state=tmp_path))
    assert run.use is not None
    outlook, trial = run.outlook, Trial(Pace(0.0, 1.0, 0.0, 0.0), 0)
    due = outlook.others(run.plan.methods)
    whole = outlook.seconds([], run.plan.methods, trial)
    assert sum(job.work.tokens for job in due) > 2 * 2 * TARGET
    assert seconds_at_once([float(job.work.tokens) for job in due], outlook.workers(2)) == whole
    assert outlook.seconds([], run.plan.methods, trial, windows=1) < whole


def test_minutes_leave_room_for_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer windows fit into the same minutes where use is measured as well."""
    monkeypatch.setattr(Outlook, "try_out", lambda *given, **more: Trial(Pace(0.0, 1e-2, 0.0, 0.0), 0))
    counts = {}
    for measure in ("loss", "loss,use"):
        settings = settings_of(
            target=TARGET, text=TEXT, methods="yarn,crop", windows=8, minutes=1.0, measure=measure, workers=1,
            state=tmp_path / measure,
        )  # fmt: skip
        counts[measure] = prepare(model(), settings, clock=lambda: 0.0).plan.protocol.windows
    assert 1 <= counts["loss,use"] < counts["loss"]
