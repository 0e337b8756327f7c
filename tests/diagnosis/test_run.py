"""The run from end to end: on `tiny`, which has an answer within seconds, and on random weights."""

from __future__ import annotations

import dataclasses
import json
import math
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import ropewalk as rw
from ropewalk.checkpoints.sources import find
from ropewalk.checkpoints.texts import default_texts, novel, read_text
from ropewalk.diagnosis import prepare as prepare_module
from ropewalk.diagnosis.plan import CROP, PLAIN, Job, Work
from ropewalk.diagnosis.prepare import prepare
from ropewalk.diagnosis.reading import at_once
from ropewalk.diagnosis.record import Diagnosis
from ropewalk.diagnosis.run import RunInterrupted, doctor_command
from ropewalk.diagnosis.settings import DoctorSettings
from ropewalk.errors import RopeError
from tests.diagnosis.models import ROPE, tiny_decoder

TEXT = [("whale", novel(40_000, 60_000))]
SHORT = [("whale", novel(40_000, 4_500))]
ANSWERED = {"text": TEXT, "target": 512, "methods": "dca", "engine": "python"}


@pytest.fixture(scope="module")
def answer(tmp_path_factory: pytest.TempPathFactory) -> Diagnosis:
    """What the doctor says about `tiny` on a stretch of Moby-Dick, of which it has seen nothing."""
    state = tmp_path_factory.mktemp("state")
    return rw.doctor("tiny", **ANSWERED, state=state, progress=False)


def test_the_answer(answer: Diagnosis) -> None:
    assert (answer.verdict.action, answer.verdict.method) == ("extend", "dca")
    assert answer.verdict.length > 256
    found = answer.evidence.standings["dca"].beyond
    assert found.share > 0.4
    assert f"It finds {found.found} of {found.asked} facts told more than 256 tokens earlier" in str(answer)
    assert answer.looks[-1].windows == len(answer.windows) == answer.evidence.windows
    assert [look.windows for look in answer.looks] == [1, 2, 4, 8][: len(answer.looks)]
    assert answer.environment["library"].startswith("transformers")
    assert "whale" in answer.verdict.sentence
    assert answer.next_command().splitlines()[-1] == "rw.attach(model, 'dca', target=512)"


@pytest.mark.parametrize("model", ["tiny", "some-folder", object()])
def test_the_texts_without_text(model: object) -> None:
    """Passages of five texts; for `tiny`, which has read some of them, the novel that it has not."""
    reader = SimpleNamespace(tokenizer=SimpleNamespace(encode=len), trained_length=256)
    texts = [(text.name, text.contents) for text in prepare_module._texts(model, DoctorSettings(), reader)]
    assert texts == ([read_text(None)] if model == "tiny" else list(default_texts()))


def test_the_record_is_read_back(answer: Diagnosis, tmp_path: Path) -> None:
    written = answer.to_json(tmp_path / "record.json")
    again = Diagnosis.read(tmp_path / "record.json")
    assert again.to_json() == written
    assert str(again) == str(answer)
    assert again.evidence == answer.evidence
    assert str(tmp_path) not in (tmp_path / "record.json").read_text()


@pytest.mark.parametrize(
    "change",
    [lambda c: c.update(format=2), lambda c: c.pop("verdict"), lambda c: c["evidence"].pop("control"),
     lambda c: c.update(windows=[{}]), lambda c: c["methods"].update(yarn=3)],
)  # fmt: skip
def test_a_changed_record_is_refused(answer: Diagnosis, change: Any) -> None:
    content = json.loads(json.dumps(answer.to_json()))
    change(content)
    with pytest.raises(RopeError, match=r"^record: "):
        Diagnosis.from_json(content)


def test_numbers_do_not_depend_on_workers_or_stops(answer: Diagnosis, tmp_path: Path) -> None:
    """Ctrl-C in the second window: the answer so far; the same command goes on, to the same numbers."""
    settings = DoctorSettings(**ANSWERED, state=tmp_path)

    class Stop:
        def __init__(self) -> None:
            self.begun = 0

        def begin(self, description: str, tokens: int) -> None:
            self.begun += 1
            if self.begun == 5:
                raise KeyboardInterrupt

        def advance(self, tokens: int) -> None:
            pass

    torch.set_num_threads(1)
    with pytest.raises(RunInterrupted) as stopped:
        prepare("tiny", settings, False).measure(Stop())
    assert stopped.value.diagnosis is not None
    assert stopped.value.diagnosis.verdict.stopped == "Ctrl-C"
    assert stopped.value.kept >= 4
    resumed = prepare("tiny", dataclasses.replace(settings, resume=True), False)
    assert resumed.resumed == stopped.value.kept
    again = resumed.measure(False)
    for name, of in answer.readings.items():
        for one, other in zip(of, again.readings[name], strict=True):
            assert dataclasses.replace(one, seconds=0.0) == dataclasses.replace(other, seconds=0.0)
    assert again.evidence == answer.evidence


def test_plain_holds_within_its_real_length(tmp_path: Path) -> None:
    """Told a trained length of half its own, the model is kept."""
    found = rw.doctor("tiny", trained_length=128, target=256, text=TEXT, methods="ntk", state=tmp_path, progress=False)
    assert (found.verdict.action, found.verdict.length) == ("keep", 256)


def test_random_weights_are_unfit(tmp_path: Path) -> None:
    model = tiny_decoder(dataclasses.replace(ROPE, max_position_embeddings=512), vocab_size=256, initializer_range=0.02)
    from ropewalk.layers.tokenizer import TextTokenizer

    model.tokenizer = TextTokenizer.bytes()
    found = rw.doctor(model, target=1024, text=SHORT, methods="yarn", state=tmp_path, progress=False)
    assert found.verdict.action == "unfit"
    assert "untrained or damaged" in found.verdict.headline
    assert found.looks[-1].windows == 1
    assert found.next_command() is None


def test_within_the_trained_length(tmp_path: Path) -> None:
    found = rw.doctor("tiny", target=256, text=TEXT, state=tmp_path, progress=False)
    assert found.verdict.action in ("keep", "undecided")
    assert list(found.readings) == [PLAIN]
    assert "finds beyond" not in found.table()


def test_the_built_in_model_is_measured_under_its_own_two_methods(tmp_path: Path) -> None:
    run = prepare("tiny", DoctorSettings(text=TEXT, target=512, engine="vllm", state=tmp_path), False)
    assert run.first == (PLAIN, "yarn", "dca", CROP)


def test_the_next_method_follows_if_one_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without named methods, those that the engine runs are tried one after the other: llama3 follows yarn."""
    monkeypatch.setattr("ropewalk.diagnosis.run.fails", lambda standing: standing.method == "yarn")
    settings = DoctorSettings(text=TEXT, target=512, engine="vllm", windows=1, state=tmp_path)
    run = prepare(str(find("tiny")), settings, False)
    assert run.plan.distinct == (PLAIN, "yarn", "llama3", "ntk", CROP)
    assert list(run.measure(False).readings) == [PLAIN, "yarn", "llama3", CROP]


def test_the_minutes(tmp_path: Path) -> None:
    """What does not fit is refused before any work, with the command that fits."""
    ticks = iter(range(0, 10**9, 40))
    settings = DoctorSettings(text=TEXT, methods="yarn", target=1024, minutes=1.0, state=tmp_path)
    with pytest.raises(RopeError, match="longer than --minutes") as refused:
        prepare("tiny", settings, False, clock=lambda: float(next(ticks)))
    command = refused.value.cure
    assert command.startswith("Run: rw.doctor('tiny', ")
    assert "minutes=" in command
    assert not list(tmp_path.glob("**/*.jsonl"))


@pytest.mark.parametrize(
    ("methods", "sentence"), [("yarn", "Other --methods may work."), ("all", "Every method was measured")]
)
def test_what_is_left_after_the_last_look(methods: str, sentence: str, tmp_path: Path) -> None:
    """No command asks for methods that were measured."""
    planned = prepare("tiny", DoctorSettings(text=TEXT, methods=methods, target=512, state=tmp_path), False)
    command, said = planned._next(8, None)
    assert command is None
    assert said is not None
    assert said.startswith(sentence)


def test_a_text_that_is_too_short_names_what_would_do(tmp_path: Path) -> None:
    with pytest.raises(RopeError, match="too short for one window") as refused:
        rw.doctor("tiny", target=4096, text=SHORT, state=tmp_path, progress=False)
    assert "characters" in refused.value.cure
    run = prepare("tiny", DoctorSettings(text=SHORT, target=1024, methods="dca", state=tmp_path), False)
    assert any("characters" in note for note in run.notes)


def test_the_command_of_another_run() -> None:
    settings = DoctorSettings(text="my text.txt", methods="yarn,ntk", minutes=5.0, windows=2, state="kept")
    assert doctor_command("m.gguf", settings, kept=["--json", "a.json"]) is None
    command = doctor_command("m.gguf", settings, kept=["--json", "a.json"], minutes=20.0, resume=True)
    assert command == (
        "ropewalk doctor m.gguf --text 'my text.txt' --methods yarn,ntk --minutes 20 --windows 2 --resume --state kept "
        "--json a.json"
    )
    spoken = doctor_command(object(), DoctorSettings(text=[("a", "b")]), minutes=math.inf)
    assert spoken == "rw.doctor(model, text=text, minutes=inf)"


def test_more_windows_keep_the_results_of_few(tmp_path: Path) -> None:
    """The command that an undecided run prints reuses its windows: their places do not depend on `windows`."""
    settings = DoctorSettings(text=TEXT, target=512, methods="dca", engine="python", windows=1, state=tmp_path)
    first = prepare("tiny", settings, False)
    assert first.looks == (1,)
    measured = first.measure(False)
    following = prepare("tiny", dataclasses.replace(settings, windows=None, resume=True), False)
    assert following.resumed == 3
    assert following.looks == (1, 2, 4, 8)
    assert following.windows[:1] == measured.windows
    assert (
        measured.verdict.next is None or "--resume" in measured.verdict.next or "resume=True" in measured.verdict.next
    )


def test_the_first_answer_comes_in_spite_of_the_minutes(tmp_path: Path) -> None:
    """The limit was checked by an estimate before; what the first answer needs is not cut off by it."""
    settings = DoctorSettings(text=TEXT, target=512, methods="dca", engine="python", minutes=5.0, state=tmp_path)
    run = prepare("tiny", settings, False)
    late = dataclasses.replace(run, clock=lambda: run.began + 301.0)
    found = late.measure(False)
    assert found.evidence.windows == 1
    assert found.verdict.stopped == "minutes" or found.verdict.settled


def test_the_last_job_has_every_core() -> None:
    """Two workers on four cores have two each; once one has no job left, the other takes all at its next step."""
    both, one_left = threading.Barrier(2, timeout=20), threading.Event()
    threads: dict[str, list[int]] = {"short": [], "long": []}

    def measure(job: Job, advance: Any) -> None:
        both.wait()
        advance(1)
        threads[job.key].append(torch.get_num_threads())
        both.wait()
        if job.key == "long":
            for _ in range(2000):  # until the other worker has ended its job
                advance(1)
                if torch.get_num_threads() == 4:
                    break
                one_left.wait(0.01)
            threads[job.key].append(torch.get_num_threads())

    before = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        at_once([Job("plain", 0, key, Work.of(1)) for key in threads], measure, workers=2)
        assert torch.get_num_threads() == 4
    finally:
        torch.set_num_threads(before)
    assert threads == {"short": [2], "long": [2, 4]}


def test_one_worker_keeps_every_core() -> None:
    """Jobs one after the other compute with what torch is set to."""
    seen: list[int] = []
    jobs = [Job("plain", number, str(number), Work.of(1)) for number in range(2)]
    at_once(jobs, lambda job, advance: seen.append(torch.get_num_threads()), workers=1)
    assert seen == [torch.get_num_threads()] * 2
