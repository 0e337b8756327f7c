"""What the doctor prints and shows: the verdict first, one table, what each method is, and what to type next."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ropewalk.cli.doctor import print_diagnosis
from ropewalk.diagnosis.document import Diagnosis
from ropewalk.diagnosis.verdict import Beside, NextRun, Verdict
from ropewalk.methods import METHODS
from tests.diagnosis.test_diagnosis import diagnose

CONFIG = {"rope_parameters": {"rope_type": "yarn"}, "max_position_embeddings": 64}
EXTEND = Verdict(
    action="extend",
    method="yarn",
    config=CONFIG,
    length=64,
    headline="Extend with yarn.",
    reasons=("It gains 2.0.",),
    beside=Beside(method="dca", length=64, sentence="dca reads better (Python only).", call="rw.attach(model, 'dca')"),
)
MORE = NextRun(windows=9, seconds=60.0, command="ropewalk doctor m --windows 9", sentence="Measure more.")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Diagnosis:
    """A measurement of losses, with a verdict to order."""
    measured = diagnose(tmp_path_factory.mktemp("state"), measure="loss", methods="pi,ntk,dynamic,yarn,crop")
    return dataclasses.replace(measured, verdict=EXTEND, findings=())


def printed(found: Diagnosis, *, width: int = 80, **options: Any) -> str:
    """What the command prints of it, without colours."""
    text = io.StringIO()
    print_diagnosis(Console(file=text, width=width), found, **{"model": "folder/model.gguf", **options})
    return text.getvalue()


def test_the_order_and_one_table(found: Diagnosis) -> None:
    """The verdict, the table of 80 columns, every method in a few words, the next command."""
    text = printed(found)
    words = " ".join(text.split())
    in_order = [
        "decoder: Extend with yarn. It gains 2.0.",
        "Alternative: dca reads better (Python only). rw.attach(model, 'dca')",
        "method loss within loss beyond less crop's",
        "2 windows of 64 tokens of story, seed 0. plain: the unchanged model.",
        f"pi {METHODS['pi'].changes}",
        "dynamic has the same frequencies as ntk",
        "Next: ropewalk extend apply folder/model.gguf --method yarn --target 64 --out model-64",
        'or, in config.json: {"rope_parameters"',
    ]
    assert list(map(words.index, in_order)) == sorted(map(words.index, in_order))
    lines = text.splitlines()
    assert sum("─" * 20 in line for line in lines) == 1
    assert max(map(len, lines[: lines.index("Next:")])) <= 80
    assert next(line for line in lines if "ntk = dynamic" in line).count("±") == 1


def test_the_next_command(found: Diagnosis) -> None:
    """From the record where one was written; the length where it had to be given."""
    record = Path("out/result.json")
    assert f"--from {record.absolute()} --out model-64" in printed(found, record=record, trained_length=32)
    assert "--method yarn --target 64 --trained-length 32 --out" in printed(found, trained_length=32)
    vllm = dataclasses.replace(found, verdict=dataclasses.replace(EXTEND, engine="vllm"))
    assert "ropewalk serve-config folder/model.gguf --engine vllm --method yarn --target 64" in printed(vllm)
    in_attention = dataclasses.replace(EXTEND, method="dca", config=None, engine="python")
    text = printed(dataclasses.replace(found, verdict=in_attention), model="owner/name")
    assert "rw.attach(model, 'dca', target=64)" in text
    assert "config.json" not in text


@pytest.mark.parametrize(
    ("verdict", "following"),
    [
        (Verdict(action="keep", headline="Keep the model as it is."), None),
        (Verdict(action="keep", headline="Keep the model as it is.", next=MORE), MORE.command),
        (Verdict(action="cut", headline="Give the model only the last 32 tokens (crop)."), None),
        (Verdict(action="unfit", headline="Nothing can be concluded."), None),
        (Verdict(action="undecided", headline="Not decided."), None),
        (Verdict(action="undecided", headline="Not decided.", reasons=("Measure more.",), next=MORE), MORE.command),
    ],
)
def test_every_action(found: Diagnosis, verdict: Verdict, following: str | None) -> None:
    """The sentence comes first, and no command where there is nothing to run."""
    text = printed(dataclasses.replace(found, verdict=verdict))
    assert text.startswith(f"decoder: {verdict.sentence}")
    assert ("Next:" in text) == (following is not None)
    assert following is None or f"  {following}" in text
    assert "Alternative" not in text


def test_what_was_left_out_is_said(found: Diagnosis) -> None:
    """In the command, as text, in a notebook, in the JSON and on the page."""
    line = "Not measured within the time limit: yarn."
    short = dataclasses.replace(found, left_out=(line,))
    assert line in printed(short)
    assert line in str(short)
    assert line in short._repr_html_()
    assert short.to_json()["left_out"] == [line]
    assert line in short.to_html()


def test_a_diagnosis_shows_itself(found: Diagnosis) -> None:
    """As text and in a notebook: the verdict, the table, and what to type; markup in a name is text."""
    evil = dataclasses.replace(found, name="<b>model")
    shown, page = str(evil), evil._repr_html_()
    assert shown == repr(evil)
    assert shown.startswith("<b>model: Extend with yarn. It gains 2.0.\n\nmethod ")
    assert page.startswith("<p><b>&lt;b&gt;model: Extend with yarn.</b> It gains 2.0.</p><table>")
    assert shown.endswith("Next: ropewalk extend apply '<b>model' --method yarn --target 64 --out '<b>model-64'")
    assert "ntk = dynamic" in shown
    assert "ntk = dynamic" in page
