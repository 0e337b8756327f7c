"""The run from end to end: on `tiny`, which has an answer within seconds, and on random weights."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import re
import shutil
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

import ropewalk as rw
from ropewalk.attachment import attachment_of
from ropewalk.checkpoints.opening import as_transformers
from ropewalk.checkpoints.sources import find
from ropewalk.checkpoints.texts import default_texts, novel, read_text
from ropewalk.cli.doctor import print_diagnosis
from ropewalk.diagnosis import prepare as prepare_module
from ropewalk.diagnosis import run as run_module
from ropewalk.diagnosis.evidence import choice
from ropewalk.diagnosis.facts import Found, Teller
from ropewalk.diagnosis.page import page_of
from ropewalk.diagnosis.prepare import CPU_MINUTES, open_model
from ropewalk.diagnosis.record import Diagnosis, restored
from ropewalk.diagnosis.rules import Decision
from ropewalk.diagnosis.run import DoctorRun, RunInterrupted, prepare
from ropewalk.diagnosis.schedule import CROP, PLAIN, Job, Pace, WindowReading, at_once, read_job
from ropewalk.diagnosis.settings import DoctorSettings
from ropewalk.errors import RopeError
from ropewalk.progress import SilentProgress
from tests.cli.doctor_runs import write_checkpoint
from tests.diagnosis.models import ROPE, SAVED
from tests.diagnosis.test_rules import found
from tests.figures.pages import Page
from tests.models.material import gguf_of

TEXT = [("whale", novel(40_000, 60_000))]
SHORT = [("whale", novel(40_000, 4_500))]
ANSWERED = {"text": TEXT, "target": 512, "methods": "dca", "engine": "python"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> DoctorRun:
    """A run of the doctor on `tiny` and a stretch of Moby-Dick, of which it has seen nothing."""
    return prepare("tiny", DoctorSettings(**ANSWERED, state=tmp_path_factory.mktemp("state")), False)


@pytest.fixture(scope="module")
def answer(run: DoctorRun) -> Diagnosis:
    """What the doctor says."""
    return run.measure(False)


@pytest.fixture
def opened_once(run: DoctorRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model and the text of `run`, for tests of what is planned."""

    def opened(_: object, settings: DoctorSettings, __: object, clock: Any) -> Any:
        minutes = settings.minutes or CPU_MINUTES
        return dataclasses.replace(run.opened, settings=settings, minutes=minutes, clock=clock, began=clock())

    monkeypatch.setattr(run_module, "open_model", opened)


def test_the_saved_answer_about_tiny_is_reproduced(tmp_path: Path) -> None:
    """Its windows are drawn again, and its readings give its evidence and words. The text is the novel that `tiny`,
    recognized by its weights, has not read."""
    shutil.copytree(find("tiny"), tmp_path / "tiny")
    run = prepare(tmp_path / "tiny", DoctorSettings(minutes=math.inf, state=tmp_path / "state"), False)
    run = dataclasses.replace(run, opened=dataclasses.replace(run.opened, model="tiny"))
    assert [(text.name, text.contents) for text in run.opened.texts] == [read_text(None)]
    assert run.opened.targets == [1024, 768, 512, 384]  # 1.25 times 256 has no room for facts
    saved = Diagnosis.read(SAVED)
    for job in run.due(len(saved.windows), run.schedule.distinct):
        one = saved.readings[job.method][job.window]
        run.ledger.add(job.key, dataclasses.asdict(one))
        if job.method in (PLAIN, CROP) and job.window == 2:  # the model, too, computes the same
            again = read_job(run.opened.reader, run.schedule, job, {}, lambda tokens: None)
            np.testing.assert_allclose(*(np.array(loss, dtype=float) for loss in (again["loss"], one.loss)), atol=1e-3)
            assert [*map(choice, again["answers"])] == [*map(choice, one.answers)]
            assert again["control"].keys() == one.control.keys()
    assert to_nine_digits(run.measure(False)) == to_nine_digits(saved)
    assert saved.table().splitlines()[1:3] == [
        "dca     chosen          51 of 64      16 of 32  -0.02 ±0.08  0.00   Python",
        "llama3  finds less      40 of 64      10 of 32  +0.02 ±0.10  -0.03  engines",
    ]
    assert "\nIn engines: Not decided. The unchanged model finds 23 of 64" in str(saved)


def test_other_models_have_passages_of_five_texts(tmp_path: Path) -> None:
    """Or the novel, if four times the trained length exceeds them. On a CPU they have ten minutes."""
    model = write_checkpoint(tmp_path / "model", dataclasses.replace(ROPE, max_position_embeddings=1024))
    for trained, texts in ((None, default_texts()), (20_000, [read_text(None)])):
        opened = open_model(model, DoctorSettings(trained_length=trained))
        assert [(text.name, text.contents) for text in opened.texts] == [*texts]
        assert (opened.trained, opened.minutes) == (trained or 1024, 10)


def to_nine_digits(found: Diagnosis) -> Any:
    content = dataclasses.replace(found, environment={}).to_json()
    return json.loads(json.dumps(content), parse_float=lambda number: round(float(number), 9))


def answers(run: DoctorRun, answer: Diagnosis, model: object, engine: str | None = "python") -> Diagnosis:
    """The same measurement, as if it had been one of another model or for another engine."""
    opened = dataclasses.replace(
        run.opened, model=model, settings=dataclasses.replace(run.opened.settings, engine=engine)
    )
    return dataclasses.replace(run, opened=opened).diagnosis(answer.looks, None)


def test_the_answers_of_two_places(run: DoctorRun, answer: Diagnosis) -> None:
    """Without an engine the best that runs anywhere, and beside it that for engines; with one the best of it, and
    what Python could do. dca runs in Python only."""
    anywhere, vllm = (answers(run, answer, "tiny", engine=engine).verdict for engine in (None, "vllm"))
    assert answer.verdict.beside is None  # for Python, which runs every method
    assert (anywhere.action, anywhere.method, anywhere.engine) == ("extend", "dca", "python")
    assert anywhere.headline.endswith(" tokens, in Python.")
    assert answer.verdict.command.splitlines()[-1] == "rw.attach(model, 'dca', target=512)"
    assert answer.environment["library"].startswith("transformers")
    assert (anywhere.beside.action, anywhere.beside.engine) == ("keep", None)
    assert anywhere.beside.length < anywhere.length
    assert (vllm.action, vllm.engine, vllm.length) == ("keep", "vllm", anywhere.beside.length)
    assert (vllm.beside.method, vllm.beside.command) == ("dca", answer.verdict.command)
    opened = dataclasses.replace(
        run.opened, scaling={"sentence": "With its scaling."}
    )  # which `extend` does not measure
    measured = dataclasses.replace(run, opened=opened)
    assert "trained_length=256)" in measured.diagnosis(answer.looks, None).verdict.command
    shown = str(answers(run, answer, "tiny", engine="vllm"))
    assert f"\nIn Python: {vllm.beside.sentence}\nNext:\n{vllm.beside.command}" in shown


@pytest.mark.parametrize(("engine", "place"), [(None, "Python"), ("vllm", "vllm")])
def test_an_open_answer_names_the_place(
    run: DoctorRun, answer: Diagnosis, engine: str | None, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "decide", lambda *_, **__: Decision("undecided", compared=(PLAIN,)))
    said = answers(run, answer, "tiny", engine=engine).verdict.reasons
    assert f"No method that runs in {place} was measured." in said


HOSTILE = "a 'b' \"c\" $(touch gone) `touch gone`\n;touch gone\t&"


@pytest.mark.parametrize("kind", ["folder", "file", "built-in", "live", "decoder"])
@pytest.mark.filterwarnings("ignore:.*model_type.*")
def test_the_printed_python_runs(
    kind: str, run: DoctorRun, answer: Diagnosis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it stands in the terminal, on the page and in the record, with the user's own path; the model is attached."""
    monkeypatch.chdir(tmp_path)
    model: Any = {"built-in": "tiny", "decoder": rw.load("tiny", dtype=torch.float32)}.get(kind, f"models/{HOSTILE}")
    scope: dict[str, Any] = {}
    (tmp_path / "models").mkdir()
    if kind == "folder":
        shutil.copytree(find("tiny"), model)
    elif kind == "file":
        model = str(gguf_of("tiny", Path(f"{model}.gguf")))
    elif kind in ("live", "decoder"):
        decoder = rw.load("tiny", dtype=torch.float32)
        scope["model"] = model = as_transformers(decoder)[0] if kind == "live" else decoder
    found = answers(run, answer, model)
    lines, console = found.verdict.command, Console(file=io.StringIO(), width=80)
    assert lines is not None
    print_diagnosis(console, found)
    assert console.file.getvalue().endswith(f"\nNext:\n{lines}\n")
    assert lines in Page(page_of(found)).of("code")
    assert Diagnosis.from_json(json.loads(json.dumps(found.to_json()))).verdict.command == lines
    exec(compile(lines, "lines", "exec"), scope)
    handle = attachment_of(scope["model"])
    assert (handle.method.name, handle.target) == ("dca", 512)


def test_the_record_is_read_back(answer: Diagnosis, tmp_path: Path) -> None:
    written = answer.to_json(tmp_path / "record.json")
    again = Diagnosis.read(tmp_path / "record.json")
    assert again.to_json() == written
    assert str(again) == str(answer)
    assert again.evidence == answer.evidence
    assert str(tmp_path) not in (tmp_path / "record.json").read_text()
    written["inspection"]["audit"]["reach"] = 725  # of an older record
    assert Diagnosis.from_json(written).audit == answer.audit


@pytest.mark.parametrize(
    "change",
    [lambda c: c.update(format=2), lambda c: c.pop("verdict"), lambda c: c["evidence"].pop("control"),
     lambda c: c.update(windows=[{}]), lambda c: c["methods"].update(yarn=3), lambda c: c.update(readings={}),
     lambda c: c["windows"][0].update(facts=[]), lambda c: c["evidence"].update(standings={}),
     lambda c: c["inspection"].pop("lint")],
)  # fmt: skip
def test_a_changed_record_is_refused(answer: Diagnosis, change: Any) -> None:
    content = json.loads(json.dumps(answer.to_json()))
    change(content)
    with pytest.raises(RopeError, match=r"^record: "):
        Diagnosis.from_json(content)


def test_numbers_do_not_depend_on_workers_or_stops(answer: Diagnosis, tmp_path: Path) -> None:
    """Ctrl-C in the second window: the answer so far; the same command goes on, to the same numbers."""
    settings = DoctorSettings(**ANSWERED, windows=2, minutes=math.inf, state=tmp_path)

    class Stop(SilentProgress):
        begun = 0

        def begin(self, description: str, tokens: int) -> None:
            self.begun += 1
            if self.begun == 5:
                assert description == "[2/3] dca, window 2"
                raise KeyboardInterrupt

    torch.set_num_threads(1)
    with pytest.raises(RunInterrupted) as stopped:
        prepare("tiny", settings, False).measure(Stop())
    assert stopped.value.diagnosis is not None
    assert stopped.value.diagnosis.verdict.stopped == "Ctrl-C"
    assert "inf" not in stopped.value.diagnosis.verdict.next_sentence
    assert stopped.value.kept >= 4
    resumed = prepare("tiny", dataclasses.replace(settings, resume=True), False)
    assert len(resumed.ledger) == stopped.value.kept
    again = resumed.measure(False)
    for name, of in again.readings.items():
        assert len(of) == 2
        for one, other in zip(of, answer.readings[name], strict=False):
            assert dataclasses.replace(one, seconds=0.0) == dataclasses.replace(other, seconds=0.0)


def test_plain_holds_within_its_real_length(tmp_path: Path) -> None:
    """The model is kept, also if it is told a trained length of half its own."""
    settings: dict[str, Any] = {"target": 256, "text": TEXT, "state": tmp_path, "progress": False}
    found = rw.doctor("tiny", trained_length=128, methods="ntk", **settings)
    assert found.verdict.action == "keep"
    assert 224 <= found.verdict.length <= 256
    found = rw.doctor("tiny", **settings)
    assert (found.verdict.action in ("keep", "undecided"), list(found.readings)) == (True, [PLAIN])
    assert "finds beyond" not in found.table()


@pytest.mark.usefixtures("opened_once")
@pytest.mark.parametrize(
    ("engine", "minutes", "methods"), [("vllm", None, ("yarn", "llama3", "ntk")), (None, 1.25, ("yarn", "llama3"))]
)
def test_three_methods_are_compared(
    engine: str | None, minutes: float | None, methods: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first three that the engine runs, or fewer, with a note, if the first answer would take too long."""
    monkeypatch.setattr(Pace, "seconds", lambda _, jobs: 17.0 * len(jobs))
    settings = DoctorSettings(text=TEXT, target=512, engine=engine, minutes=minutes, state=tmp_path)
    run = prepare("tiny", settings, False, clock=lambda: 0.0)
    assert run.schedule.distinct == (PLAIN, *methods, CROP)
    assert bool(run.notes) == (minutes is not None)


def test_the_best_of_many_is_measured_once_more(tmp_path: Path) -> None:
    """In the next window, which the choice does not know: of four methods or more, and only for the chosen one."""
    settings = DoctorSettings(text=TEXT, target=1024, methods="dca,rerope,self-extend,lampe", windows=2,
                              engine="python", state=tmp_path)  # fmt: skip
    run = prepare("tiny", settings, False)
    found = run.measure(False)
    best, many = found.verdict.method, found.evidence.windows
    assert best is not None
    read, facts = restored(WindowReading, run.ledger[run.schedule.key(best, many)]), run.schedule.windows[many].facts
    right = sum(choice(row) == fact.right for row, fact in zip(read.answers, facts, strict=True) if fact.far)
    far = sum(fact.far for fact in facts)
    assert f"In a fresh window, which had no part in the choice, it finds {right} of {far}." in str(found)
    keys = [[run.schedule.key(name, at) for name in run.schedule.distinct] for at in (many, many + 1)]
    assert [sum(key in run.ledger for key in of) for of in keys] == [1, 0]
    assert len(found.readings[best]) == many
    del run.ledger[run.schedule.key(best, many)]  # a text without a further window
    design, shown = dataclasses.replace(run.schedule.design, windows=many), Lines()
    schedule = dataclasses.replace(run.schedule, design=design, filled=run.schedule.filled[:many])
    assert "In a fresh window" not in str(dataclasses.replace(run, schedule=schedule).measure(shown))


class Lines(SilentProgress):
    """A display that keeps the lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.line, self.expect = self.lines.append, self.advance


@pytest.mark.usefixtures("opened_once")
def test_the_minutes(tmp_path: Path) -> None:
    """What does not fit is refused before any work, with the command that fits."""
    ticks = iter(range(0, 10**9, 70))
    settings = DoctorSettings(text=TEXT, methods="yarn", target=1024, minutes=1.0, state=tmp_path)
    with pytest.raises(RopeError, match="longer than --minutes") as refused:
        prepare("tiny", settings, False, clock=lambda: float(next(ticks)))
    command = refused.value.cure
    assert command.startswith("Run: rw.doctor('tiny', ")
    assert "minutes=" in command
    assert not list(tmp_path.glob("**/*.jsonl"))
    for minutes in (np.array([1.0, 2.0]), np.float32(math.inf)):
        with pytest.raises(RopeError, match="a finite number above 0"):
            DoctorSettings(minutes=minutes)


@pytest.mark.usefixtures("opened_once")
def test_what_is_left_after_the_last_look(tmp_path: Path) -> None:
    """No command asks for methods that were measured; more windows, if the text has some, else more text."""

    def planned(methods: str, windows: int | None = None) -> DoctorRun:
        settings = DoctorSettings(text=TEXT, methods=methods, windows=windows, target=512, state=tmp_path)
        return prepare("tiny", settings, False)

    assert planned("yarn")._next(8, None) == (None, "Other --methods may work.")
    run = planned("all")
    assert run._next(8, None) == (None, "Every method was measured; other texts may decide.")
    design = dataclasses.replace(run.schedule.design, windows=4)
    run = dataclasses.replace(run, schedule=dataclasses.replace(run.schedule, design=design))
    thousands = math.ceil(8 * 512 * 60 / len(run.schedule.texts[0].tokens))
    assert run._next(4, None) == (None, f"More text may decide: about {thousands},000 characters hold 8 windows.")
    command, said = planned("yarn", windows=2)._next(2, None)
    assert said == "More windows of the same text may decide."
    assert planned("yarn", windows=10).looks == (1, 2, 4, 8, 10)
    assert "resume=True" in command
    assert "windows" not in command


@pytest.mark.usefixtures("opened_once")
def test_the_minutes_that_may_decide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to the next look, a minute more than estimated; more than were too few, and no fewer than were given."""
    monkeypatch.setattr(Pace, "seconds", lambda _, jobs: 17.0 * len(jobs))  # three jobs in a window
    for minutes, count, stopped, enough in ((math.inf, 1, "minutes", 3), (5.0, 1, "minutes", 6), (5.0, 1, "Ctrl-C", 5),
                                            (1.5, 4, "Ctrl-C", 8), (1.5, 8, "Ctrl-C", 8)):  # fmt: skip
        settings = DoctorSettings(text=TEXT, target=512, methods="yarn", minutes=minutes, state=tmp_path)
        command, said = prepare("tiny", settings, False, clock=lambda: 0.0)._next(count, stopped)
        assert said == f"About {enough} minutes in all may decide."
        assert f"minutes={enough}.0" in command


@pytest.mark.parametrize(
    ("numbers", "words", "kind"),
    [(23, 32, "numbers"), (22, 32, "numbers"), (12, 32, "words"), (8, 18, "words"), (8, 8, "numbers"),
     (14, 8, "numbers"), (None, 14, "words")],
)  # fmt: skip
def test_the_kind_of_facts(
    numbers: int | None, words: int, kind: str, run: DoctorRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers if seven of ten are found, or if they serve and words are not shown better; None: no room for four."""
    counts = {"numbers": numbers, "words": words}

    def nearby(_: Any, teller: Teller, *__: Any) -> Found:
        count = counts[teller.kind.name]
        return found(count or 0, 0 if count is None else 32)

    monkeypatch.setattr(prepare_module, "_found_nearby", nearby)
    opened = run.opened
    made = prepare_module._teller(opened.reader, opened.reader.tokenizer, opened.texts, 256, opened.settings)
    assert made.kind.name == kind


def test_a_text_that_is_too_short_names_what_would_do(tmp_path: Path) -> None:
    """In tokens and characters; a text of so many tokens is enough."""
    for words, target in ((SHORT[0][1], 4096), ("It was the best of times.", None), (novel(40_000, 900), None)):
        with pytest.raises(RopeError, match="the text is too short") as refused:
            rw.doctor("tiny", target=target, text=[("a", words)], state=tmp_path, progress=False)
        least, characters = re.search(r"at least ([\d,]+) tokens, about ([\d,]+) char", refused.value.cure).groups()
        assert target is None or least == "4,096"
        assert characters.endswith(",000")
    encoding = rw.load("tiny").tokenizer
    words = encoding.decode(encoding.encode(novel(40_000, 9_000))[: int(least) + 2])
    run = prepare("tiny", DoctorSettings(text=[("a", words)], state=tmp_path), False)
    assert 256 < int(least) <= run.schedule.design.target < int(least) + 9
    run = prepare("tiny", DoctorSettings(text=SHORT, target=1024, methods="dca", state=tmp_path), False)
    assert re.fullmatch(
        r"The text holds 1 window with 16 far facts, too few for most answers; 2 windows need about \d,000 characters.",
        run.notes[-1],
    )


def test_the_command_of_another_run() -> None:
    settings = DoctorSettings(text="my text.txt", methods="yarn,ntk", minutes=5.0, windows=2, state="kept")
    command = settings.command("m.gguf", kept=["--json", "a.json"], minutes=20.0, resume=True)
    assert command == (
        "ropewalk doctor m.gguf --text 'my text.txt' --methods yarn,ntk --minutes 20 --windows 2 --resume --state kept "
        "--json a.json"
    )
    spoken = DoctorSettings(text=[("a", "b")]).command(object(), minutes=math.inf)
    assert spoken == "rw.doctor(model, text=text, minutes=inf)"


def test_more_windows_keep_the_results_of_few(tmp_path: Path) -> None:
    """The command that an undecided run prints reuses its windows: their places do not depend on `windows`."""
    settings = DoctorSettings(text=TEXT, target=512, methods="dca", engine="python", windows=1, state=tmp_path)
    first = prepare("tiny", settings, False)
    assert first.looks == (1,)
    measured = first.measure(False)
    assert measured.verdict.next is None or "resume=True" in measured.verdict.next
    following = prepare("tiny", dataclasses.replace(settings, windows=None, resume=True), False)
    assert len(following.ledger) == 3
    assert following.looks == (1, 2, 4, 8)
    assert following.schedule.windows[:1] == measured.windows


def test_the_first_answer_comes_in_spite_of_the_minutes(tmp_path: Path) -> None:
    """The limit was checked by an estimate before; what the first answer needs is not cut off by it. The last line is
    the answer: no more windows follow."""
    settings = DoctorSettings(text=TEXT, target=512, methods="dca", engine="python", minutes=5.0, state=tmp_path)
    run = prepare("tiny", settings, False)
    late = dataclasses.replace(run, opened=dataclasses.replace(run.opened, clock=lambda: run.opened.began + 301.0))
    shown = Lines()
    found = late.measure(shown)
    assert found.evidence.windows == 1
    assert found.verdict.stopped == "minutes"
    assert shown.lines[0].endswith("one window of 512 tokens under plain, dca, crop. The run ends when the answer is "
                                   "settled, after at most 8 windows.")  # fmt: skip
    assert shown.lines[-1] == f"After 1 window: {found.verdict.headline}"
    clock = iter([0.0] * 3 + [1e6] * 1000)  # the time is over while the second window is read
    shown.lines.clear()
    opened = dataclasses.replace(run.opened, clock=lambda: run.opened.began + next(clock))
    found = dataclasses.replace(run, opened=opened).measure(shown)
    assert found.verdict.stopped == "minutes"
    assert shown.lines[-2:] == [
        f"After 1 window: {found.verdict.headline} More windows follow.",
        f"Out of time after 1 window: {found.verdict.headline}",
    ]
    # the second window takes ten times as long as estimated, so two more would take 400 seconds of the 100 left
    pace = Pace(20 / Pace(1.0, 0.0).seconds(run.schedule.due(1, run.schedule.distinct)), 0.0)
    for key in [key for key in run.ledger if key.endswith("/1")]:
        del run.ledger[key]
    opened = dataclasses.replace(run.opened, pace=pace, clock=lambda: run.opened.began + 200.0 * (len(run.ledger) == 6))
    found = dataclasses.replace(run, opened=opened).measure(False)
    assert (found.evidence.windows, found.verdict.stopped) == (2, "minutes")


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

    reader: Any = SimpleNamespace(device=torch.device("cpu"), cache_bytes=lambda target: target)
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        at_once(reader, [Job.of("plain", 0, key, 1) for key in threads], measure, target=1)
        assert torch.get_num_threads() == 4
    finally:
        torch.set_num_threads(before)
    assert threads == {"short": [2], "long": [2, 4]}
