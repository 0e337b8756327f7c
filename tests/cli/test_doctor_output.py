"""What the doctor prints and shows: the table, the answer, and what to type next, for every engine and action."""

from __future__ import annotations

import dataclasses
import io
import shlex
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ropewalk.attachment.handle import attachment_of
from ropewalk.checkpoints.texts import novel
from ropewalk.cli.doctor import print_diagnosis
from ropewalk.diagnosis.page import page_of
from ropewalk.diagnosis.record import Diagnosis, Verdict
from ropewalk.diagnosis.rules import Decision
from ropewalk.diagnosis.run import DoctorRun, prepare
from ropewalk.diagnosis.settings import DoctorSettings
from tests.cli.doctor_runs import run_command
from tests.diagnosis.models import small_diagnosis

CONFIG = {"rope_parameters": {"rope_type": "yarn"}, "max_position_embeddings": 512}
EXTEND = Verdict(
    action="extend", method="yarn", config=CONFIG, length=512, headline="Extend with yarn.", python="import ropewalk",
    reasons=("It finds 8 of 8.",), command="ropewalk extend apply m --method yarn",
    beside=Verdict(action="extend", method="dca", engine="python", headline="Extend with dca.",
                   command="import ropewalk as rw\nrw.attach(model, 'dca')"),
)  # fmt: skip


@pytest.fixture(scope="module")
def found() -> Diagnosis:
    """A measurement of `tiny`, with a verdict to order."""
    return dataclasses.replace(small_diagnosis(), verdict=EXTEND)


def printed(found: Diagnosis, width: int = 80, encoding: str = "utf-8") -> str:
    """What the command prints of it, without colours."""
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="replace", write_through=True)
    print_diagnosis(Console(file=file, width=width), found)
    return file.buffer.getvalue().decode(encoding)  # type: ignore[attr-defined,no-any-return]


@pytest.mark.parametrize(("width", "encoding"), [(60, "utf-8"), (80, "ascii")])
def test_the_strip_needs_its_room_and_unicode(found: Diagnosis, width: int, encoding: str) -> None:
    assert "not found" in printed(found)
    assert "not found" not in printed(found, width, encoding)


def test_the_order(found: Diagnosis) -> None:
    """The table, its words, the answer, the next command."""
    words = " ".join(printed(found).split())
    in_order = [
        "tokens back; ● found, ◐ some found, ○ not found",
        "method result finds beyond near", "Measured: 1 window of 512 tokens of whale, seed 0.",
        "chance finds one in four",
        "tiny: Extend with yarn. It finds 8 of 8.", "Next: ropewalk extend apply m --method yarn",
        "Or in Python: import ropewalk", "In Python: Extend with dca. Next: import ropewalk as rw rw.attach(",
    ]  # fmt: skip
    assert list(map(words.index, in_order)) == sorted(map(words.index, in_order))
    assert "ntk = dynamic" in words


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> DoctorRun:
    """A run that has measured nothing, with a trained length that is stated."""
    settings = DoctorSettings(text=[("whale", novel(40_000, 9_000))], target=512, methods="yarn", trained_length=256,
                              state=tmp_path_factory.mktemp("state"))  # fmt: skip
    return prepare("tiny", settings, False)


@pytest.mark.parametrize(("engine", "from_record"), [("vllm", True), (None, True), ("vllm", False), (None, False)])
def test_the_command_runs(
    run: DoctorRun, found: Diagnosis, engine: str | None, from_record: bool, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Ready to paste, from the record and without, with the trained length that was stated."""
    monkeypatch.chdir(tmp_path)
    found.to_json(tmp_path / "record.json")
    command = run._command("yarn", 512, engine, tmp_path / "record.json" if from_record else None)
    assert ("--trained-length 256" in command, "--from" in command) == (not from_record, from_record)
    assert run_command(*shlex.split(command)[1:]) == 0


def test_one_command_and_then_python_that_runs(run: DoctorRun, found: Diagnosis) -> None:
    """For a method that a config can express: of the shell, and what attaches the same to a live model."""
    verdict = run._answer(found.evidence, Decision("extend", "yarn", 512, compared=("plain", "yarn")), None, "Python")
    assert verdict.command.startswith("ropewalk extend apply tiny --method yarn")
    names: dict[str, Any] = {}
    exec(verdict.python, names)
    handle = attachment_of(names["model"])
    assert (handle.method.name, handle.target) == ("yarn", 512)
    assert verdict.steps == ["Next:", verdict.command, "\nOr in Python:", verdict.python]


@pytest.mark.parametrize(
    ("verdict", "following"),
    [
        *((Verdict(action=action, headline="It is so."), None) for action in ("keep", "cut", "unfit")),
        (Verdict(action="undecided", headline="Not decided.", next_sentence="Other texts."), None),
        (Verdict(action="undecided", headline="Not decided.", next="ropewalk x --windows 8"), "ropewalk x --windows 8"),
        (Verdict(action="extend", headline="Extend.", command="a", next="b", next_sentence="More:\nb"), "a"),
    ],
)
def test_every_action(found: Diagnosis, verdict: Verdict, following: str | None) -> None:
    """No command where there is nothing to run."""
    text = printed(dataclasses.replace(found, verdict=verdict))
    assert f"tiny: {verdict.sentence}" in text
    assert ("Next:" in text) == (following is not None)
    assert following is None or f"\nNext:\n{following}\n" in text
    assert (verdict.next_sentence or "") in text


def test_a_diagnosis_shows_itself(found: Diagnosis) -> None:
    """As text, in a notebook, in the JSON and on the page; markup in a name is text, and notes are said everywhere."""
    line = "The text holds one window."
    evil = dataclasses.replace(found, name="<b>model", notes=(line,))
    shown, page = str(evil), evil._repr_html_()
    assert repr(evil) == "Diagnosis(<b>model: Extend with yarn.)"
    assert "<b>model: Extend with yarn. It finds 8 of 8." in shown
    assert "&lt;b&gt;model: Extend with yarn." in page
    assert shown.endswith("\n\nIn Python: Extend with dca.\nNext:\nimport ropewalk as rw\nrw.attach(model, 'dca')")
    assert all("ntk = dynamic" in one for one in (shown, page))
    assert all(line in one for one in (printed(evil), shown, page, page_of(evil)))
    assert evil.to_json()["notes"] == [line]
