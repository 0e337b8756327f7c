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
from ropewalk.diagnosis.verdict import NextRun, Verdict
from ropewalk.measure.copy_test import Control, UseMeasurement, UseRow
from ropewalk.methods import METHODS
from tests.diagnosis.test_diagnosis import diagnose

CONFIG = {"rope_parameters": {"rope_type": "yarn"}, "max_position_embeddings": 64}
EXTEND = Verdict(
    action="extend",
    method="yarn",
    config=CONFIG,
    reach_loss=48,
    headline="Extend with yarn.",
    reasons=("It gains 2.0.",),
)
MORE = NextRun(windows=9, seconds=60.0, command="ropewalk doctor m --windows 9", sentence="Measure more.")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Diagnosis:
    """A measurement of losses, with a verdict and a measurement of use to order."""
    measured = diagnose(tmp_path_factory.mktemp("state"), measure="loss", methods="pi,ntk,dynamic,yarn,crop")
    return dataclasses.replace(measured, verdict=EXTEND, use=used(), findings=())


def used() -> UseMeasurement:
    """Copies at 16 and 48 tokens: yarn uses both, plain the nearer alone, crop none."""
    gains = {"plain": (6.0, 0.0), "yarn": (6.0, 5.0), "crop": (0.0, 0.0)}
    rows = [
        UseRow(method=method, test="copy", distance=distance, gain=gain, interval=(gain - 0.5, gain + 0.5), window=64,
               control=False, windows=2, tokens=90)
        for method, both in gains.items() for distance, gain in zip((16, 48), both, strict=True)
    ]  # fmt: skip
    controls = {"copy": Control(6.0, (5.5, 6.5))}
    return UseMeasurement(trained_length=32, target=64, rows=tuple(rows), controls=controls)


def printed(found: Diagnosis, *, width: int = 80, **options: Any) -> str:
    """What the command prints of it, without colours."""
    text = io.StringIO()
    print_diagnosis(Console(file=text, width=width), found, **{"model": "folder/model.gguf", **options})
    return text.getvalue()


def test_the_order_and_one_table(found: Diagnosis) -> None:
    """The verdict's sentence, the lengths, a table of 80 columns, every method in a few words, the next command."""
    text = printed(found)
    words = " ".join(text.split())
    in_order = [
        "decoder: Extend with yarn. It gains 2.0.",
        "Wanted: 64 tokens, trained to: 32, loss holds: to 48, far tokens used: to 48.",
        "method within beyond beyond - plain beyond - crop far use",
        "2 windows of 64 tokens of story, seed 0. ±: 95 % intervals between windows.",
        f"pi {METHODS['pi'].changes}",
        f"yarn {METHODS['yarn'].changes}",
        "dynamic has the same frequencies as ntk",
        "Next: ropewalk extend apply folder/model.gguf --method yarn --target 64 --out folder/model-64",
        'or, in config.json: {"rope_parameters"',
    ]
    assert list(map(words.index, in_order)) == sorted(map(words.index, in_order))
    lines = text.splitlines()
    assert sum("─" * 20 in line for line in lines) == 1
    assert max(map(len, lines[: lines.index("Next:")])) <= 80
    rows = {line.split()[0]: line for line in lines if "±" in line or line.startswith("  plain  ")}
    assert rows["yarn"].rstrip().endswith("to 48")
    assert next(line for line in lines if "ntk = dynamic" in line).count("±") == 2
    assert next(line for line in lines if line.startswith("  crop")).rstrip().endswith("no")


def test_the_next_command(found: Diagnosis) -> None:
    """From the record where one was written; the length where it had to be given; native where no config can say it."""
    text = printed(found, record=Path("out/result.json"), trained_length=32)
    assert "extend apply folder/model.gguf --from out/result.json --out folder/model-64" in text
    assert "--method yarn --target 64 --trained-length 32 --out" in printed(found, trained_length=32)
    in_attention = dataclasses.replace(EXTEND, method="dca", config=None)
    text = printed(dataclasses.replace(found, verdict=in_attention))
    assert "--method dca --target 64 --native --out" in text
    assert "config.json" not in text


@pytest.mark.parametrize(
    ("verdict", "following"),
    [
        (Verdict(action="keep", headline="Keep the model as it is."), None),
        (Verdict(action="cut", headline="Give the model only the last 32 tokens (crop)."), None),
        (Verdict(action="unfit", headline="Nothing can be concluded."), "ropewalk doctor folder/model.gguf --text"),
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
    assert ("loss holds" in text) == (verdict.action != "unfit")


def test_what_was_left_out_is_said(found: Diagnosis) -> None:
    """In the command, as text, in a notebook, in the JSON and on the page."""
    line = "Left out to fit the time: 3 of 4 windows."
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
    for part in ("yarn uses tokens more than 32 back", "ntk = dynamic"):
        assert part in shown
        assert part in page
    assert page.count("<td>to 48</td>") == 1
