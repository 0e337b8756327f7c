"""The doctor's run, look after look: minutes, Ctrl-C, methods that are given up, and the command that follows."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch

from ropewalk.builtin.texts import read_text
from ropewalk.checkpoints.load import load
from ropewalk.diagnosis.prepare import prepare
from ropewalk.diagnosis.rules import Evidence
from ropewalk.diagnosis.run import DoctorRun, RunInterrupted
from ropewalk.diagnosis.verdict import Verdict
from ropewalk.diagnosis.wording import next_step
from ropewalk.errors import RopeError
from ropewalk.measure.estimate import Outlook, Pace, Trial
from ropewalk.models.decoder import Decoder
from tests.cli.doctor_runs import run_command
from tests.diagnosis.models import settings_of

NOVEL = [("novel", read_text(None)[1][:40_000])]


@pytest.fixture(scope="module")
def tiny() -> Decoder:
    model: Decoder = load("tiny", dtype=torch.float32)
    return model


class Clock:
    """Seconds that stand still, but for one at each reading that is begun."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Ticking:
    """A progress that keeps what is said; each reading that begins takes a second, and one may raise."""

    def __init__(self, clock: Clock | None = None, *, stop_at: int | None = None) -> None:
        self.clock, self.stop_at, self.count = clock or Clock(), stop_at, 0
        self.said: list[str] = []

    def begin(self, description: str, tokens: int) -> None:
        if "window" in description:
            self.count += 1
            self.clock.now += 1.0
            if self.count == self.stop_at:
                raise KeyboardInterrupt

    def advance(self, tokens: int) -> None:
        pass

    def say(self, line: str) -> None:
        self.said.append(line)


def prepared(model: object, state: Path, clock: Clock, **given: Any) -> DoctorRun:
    """A run of plain, crop and yarn on 512 tokens, one reading at a time."""
    chosen = {"target": 512, "text": NOVEL, "methods": "yarn", "measure": "loss", "workers": 1, "state": state, **given}
    return prepare(model, settings_of(**chosen), False, clock=clock)


@pytest.fixture
def paced(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second for each 1,000 tokens, without a trial."""
    monkeypatch.setattr(Outlook, "try_out", lambda *given, **more: Trial(Pace(0.0, 1e-3, 0.0, 0.0), 0))


@pytest.mark.usefixtures("paced")
def test_few_minutes_shorten_the_target_and_say_so(tiny: Decoder, tmp_path: Path) -> None:
    """To what fits; none that fits is refused with the times."""
    whole = prepared(tiny, tmp_path / "a", Clock(), target=1024, minutes=1.0)
    assert (whole.plan.protocol.target, whole.notes) == (1024, ())
    short = prepared(tiny, tmp_path / "b", Clock(), target=1024, minutes=0.05)
    assert 256 < short.plan.protocol.target < 1024
    [note] = short.notes
    assert note.startswith("With 1,024 tokens, the first answer takes about")
    assert f"the target is {short.plan.protocol.target:,} tokens instead" in note
    with pytest.raises(RopeError, match="even a short target cannot"):
        prepared(tiny, tmp_path / "c", Clock(), target=1024, minutes=0.001)


@pytest.mark.usefixtures("paced")
def test_a_run_that_reaches_its_minutes_reports_the_last_look(tiny: Decoder, tmp_path: Path) -> None:
    """Six seconds for three readings of two windows each, and no time for the next two windows."""
    clock = Clock()
    progress = Ticking(clock)
    run = prepared(tiny, tmp_path, clock, windows=8, minutes=6.5 / 60, keep_going=True)
    found = run.measure(progress)
    assert found.verdict.stopped == "minutes"
    assert found.measurement.windows == found.verdict.windows == 2
    assert [look["windows"] for look in found.looks] == [1, 2]
    if found.verdict.next is not None and found.verdict.next.command is not None:
        assert "--minutes" in found.verdict.next.command or "minutes=" in found.verdict.next.command


def test_ctrl_c_gives_the_last_look_and_resume_the_same_verdict(tiny: Decoder, tmp_path: Path) -> None:
    """Before the first look there is no diagnosis."""
    given: dict[str, Any] = {"windows": 2, "keep_going": True, "minutes": 60.0}
    with pytest.raises(RunInterrupted) as early:
        prepared(tiny, tmp_path / "part", Clock(), **given).measure(Ticking(stop_at=2))
    assert (early.value.diagnosis, early.value.kept) == (None, 1)
    resumed = prepared(tiny, tmp_path / "part", Clock(), resume=True, **given)
    with pytest.raises(RunInterrupted) as late:
        resumed.measure(Ticking(stop_at=4))
    assert late.value.diagnosis is not None
    assert (late.value.diagnosis.verdict.stopped, late.value.diagnosis.verdict.windows) == ("Ctrl-C", 1)
    rest = prepared(tiny, tmp_path / "part", Clock(), resume=True, **given).measure(False)
    whole = prepared(tiny, tmp_path / "whole", Clock(), **given).measure(False)
    assert dataclasses.replace(rest.verdict, next=None).headline == whole.verdict.headline
    assert (rest.verdict.action, rest.verdict.length) == (whole.verdict.action, whole.verdict.length)
    for one, other in zip(rest.verdict.evidence, whole.verdict.evidence, strict=True):
        assert one.difference == pytest.approx(other.difference, abs=1e-5)


def test_a_refuted_method_is_not_read_further(tiny: Decoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain and crop are read on, and the run does not say that its minutes are over."""
    monkeypatch.setattr(Evidence, "refuted", lambda self, method: method == "yarn")
    found = prepared(tiny, tmp_path, Clock(), windows=4, minutes=60.0).measure(False)
    assert (len(found.measurement.results["yarn"]), found.measurement.windows) == (1, 4)
    assert found.verdict.stopped is None


def test_the_copy_in_float32_is_said(tiny: Decoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the environment and in what is printed."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": False})
    slow = load("tiny", dtype=torch.bfloat16)
    found = prepared(slow, tmp_path, Clock(), windows=1).measure(False)
    said = "Measured in a float32 copy: bfloat16 products are slow on this CPU."
    assert found.environment["dtype_choice"] == said
    assert said in found.left_out
    assert said in str(found)
    assert slow.embed_tokens.weight.dtype == torch.bfloat16


EXTEND = Verdict(action="extend", method="yarn", config={"rope_parameters": {}}, length=768)


@pytest.mark.parametrize("engine", [None, "vllm", "sglang", "llama.cpp", "ollama", "transformers", "python"])
def test_the_next_command_runs(
    engine: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As it is printed, for each engine; Python's lines give the model under the method."""
    monkeypatch.chdir(tmp_path)
    command = next_step(dataclasses.replace(EXTEND, engine=engine), "tiny", 1024)
    assert command is not None
    if engine == "python":
        scope: dict[str, Any] = {}
        exec(command, scope)
        assert scope["model"] is not None
        return
    words = shlex.split(command)
    assert words[0] == "ropewalk"
    assert run_command(*words[1:]) == 0, capsys.readouterr().err
