"""What the doctor prints and shows: the table, the answer, and what to type next, for every engine and action."""

from __future__ import annotations

import dataclasses
import io
import shlex
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ropewalk.cli.doctor import print_diagnosis
from ropewalk.diagnosis.record import Diagnosis, Verdict
from ropewalk.serving.engines import ENGINES
from tests.cli.doctor_runs import run_command
from tests.diagnosis.models import small_diagnosis, with_verdict

CONFIG = {"rope_parameters": {"rope_type": "yarn"}, "max_position_embeddings": 512}
EXTEND = Verdict(
    action="extend", method="yarn", config=CONFIG, length=512, headline="Extend with yarn.",
    reasons=("It finds 8 of 8.",), beside="In Python, dca finds 9 of 8: rw.attach(model, 'dca')",
)  # fmt: skip


@pytest.fixture(scope="module")
def found() -> Diagnosis:
    """A measurement of `tiny`, with a verdict to order."""
    return with_verdict(small_diagnosis(), EXTEND)


def printed(found: Diagnosis, *, width: int = 80, **options: Any) -> str:
    """What the command prints of it, without colours."""
    text = io.StringIO()
    print_diagnosis(Console(file=text, width=width), found, **{"model": "folder/model.gguf", **options})
    return text.getvalue()


def test_the_order(found: Diagnosis) -> None:
    """The table, its words, the answer, the next command."""
    words = " ".join(printed(found).split())
    in_order = [
        "method finds beyond near", "Measured: one window of 512 tokens of whale, seed 0.", "chance finds one in four",
        "tiny: Extend with yarn. It finds 8 of 8.", "In Python, dca finds 9 of 8: rw.attach(model, 'dca')",
        "Next: ropewalk extend apply folder/model.gguf --method yarn --target 512 --out model-512",
        'or, in config.json: {"rope_parameters"',
    ]  # fmt: skip
    assert list(map(words.index, in_order)) == sorted(map(words.index, in_order))
    assert "ntk = dynamic" in words


def test_the_next_command(found: Diagnosis) -> None:
    """From the record where one was written; the length where it had to be given."""
    record = Path("out/result.json")
    assert f"--from {record.absolute()} --out model-512" in printed(found, record=record, trained_length=256)
    assert "--method yarn --target 512 --trained-length 256 --out" in printed(found, trained_length=256)
    in_attention = dataclasses.replace(EXTEND, method="dca", config=None, engine="python")
    text = printed(with_verdict(found, in_attention), model="owner/name")
    assert "rw.attach(model, 'dca', target=512)" in text
    assert "config.json" not in text


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("from_record", [True, False])
def test_the_next_command_runs(
    found: Diagnosis, engine: str, from_record: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ready to paste, for every engine, from the record and without."""
    monkeypatch.chdir(tmp_path)
    chosen = with_verdict(found, dataclasses.replace(EXTEND, engine=engine))
    chosen.to_json(tmp_path / "record.json")
    record = tmp_path / "record.json" if from_record else None
    command = chosen.next_command(model="tiny", record=record)
    assert command is not None
    assert run_command(*shlex.split(command)[1:]) == 0


@pytest.mark.parametrize(
    ("verdict", "following"),
    [
        (Verdict(action="keep", headline="Keep the model as it is."), None),
        (Verdict(action="cut", headline="Cut."), None),
        (Verdict(action="unfit", headline="Nothing can be said."), None),
        (Verdict(action="undecided", headline="Not decided."), None),
        (
            Verdict(action="undecided", headline="Not decided.", next="ropewalk doctor m --windows 8"),
            "ropewalk doctor m --windows 8",
        ),
    ],
)
def test_every_action(found: Diagnosis, verdict: Verdict, following: str | None) -> None:
    """No command where there is nothing to run."""
    text = printed(with_verdict(found, verdict))
    assert f"tiny: {verdict.sentence}" in text
    assert ("Next:" in text) == (following is not None)
    assert following is None or f"  {following}" in text


def test_notes_are_said(found: Diagnosis) -> None:
    """In the command, as text, in a notebook, in the JSON and on the page."""
    line = "The text holds one window."
    short = dataclasses.replace(found, notes=(line,))
    assert line in printed(short)
    assert line in str(short)
    assert line in short._repr_html_()
    assert short.to_json()["notes"] == [line]
    assert line in short.to_html()


def test_a_diagnosis_shows_itself(found: Diagnosis) -> None:
    """As text and in a notebook; markup in a name is text."""
    evil = dataclasses.replace(found, name="<b>model")
    shown, page = str(evil), evil._repr_html_()
    assert repr(evil) == "Diagnosis(<b>model: Extend with yarn.)"
    assert "<b>model: Extend with yarn. It finds 8 of 8." in shown
    assert "&lt;b&gt;model: Extend with yarn." in page
    assert shown.endswith("Next: ropewalk extend apply '<b>model' --method yarn --target 512 --out '<b>model-512'")
    assert "ntk = dynamic" in shown
    assert "ntk = dynamic" in page
