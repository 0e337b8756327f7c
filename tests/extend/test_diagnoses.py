"""The doctor in `extend`: one method, resumable, never on a shorter target; and its model card and record."""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import ropewalk as rw
from ropewalk.builtin.texts import read_text
from ropewalk.checkpoints.load import load
from ropewalk.diagnosis import Protocol
from ropewalk.diagnosis.document import Diagnosis
from ropewalk.diagnosis.prepare import prepare
from ropewalk.diagnosis.run import DoctorRun
from ropewalk.errors import RopeError
from ropewalk.extend.card import card, record
from ropewalk.extend.diagnoses import APPLIED, diagnose
from ropewalk.measure.estimate import Outlook
from ropewalk.methods import Reach
from ropewalk.readers.decoder import DecoderReader
from ropewalk.report.record import read_record

REACH = Reach(32, 128)


@cache
def tiny() -> DecoderReader:
    """tiny."""
    return DecoderReader(load("tiny", dtype=torch.float32), "tiny")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """The first pages of Moby-Dick."""
    path = tmp_path / "held out.txt"
    path.write_text(read_text(None)[1][:6000], encoding="utf-8")
    return path


def losses_of(found: Diagnosis) -> dict[str, Any]:
    """Every number of the losses and copies, without times."""
    return {
        name: [(one.block_sums, one.asked) for one in results] for name, results in found.measurement.results.items()
    }


def test_it_is_the_doctors(text: Path, tmp_path: Path) -> None:
    """The same numbers and verdict as the doctor's own run of this method on this text; no next command."""
    found = diagnose(tiny(), method="pi", reach=REACH, text=text, windows=2, state=tmp_path / "state")
    own = rw.doctor(
        tiny(), methods="pi", target=128, trained_length=32, text=text, minutes=math.inf, protocol=Protocol(windows=2)
    )
    assert losses_of(found) == losses_of(own)
    assert (found.verdict.action, found.verdict.evidence) == (own.verdict.action, own.verdict.evidence)
    assert found.copies is not None
    assert found.next_command() is None


def test_it_resumes(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After Ctrl-C the same call reads only what is missing; another call does not take its results."""
    state, read = tmp_path / "state", list[str]()
    own = DecoderReader.window_losses

    def once(reader: DecoderReader, *arguments: Any, **options: Any) -> Any:
        if len(read) == 1:
            raise KeyboardInterrupt
        read.append("window")
        return own(reader, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(DecoderReader, "window_losses", once)
        with pytest.raises(KeyboardInterrupt, match="1 results are saved"):
            diagnose(tiny(), method="pi", reach=REACH, text=text, windows=1, state=state)

    def jobs(method: str) -> int:
        progress = _Steps()
        diagnose(tiny(), method=method, reach=REACH, text=text, windows=1, state=state, progress=progress)
        return sum("window 1" in step for step in progress.begun)

    assert (jobs("pi"), jobs("pi"), jobs("ntk")) == (2, 0, 3)


class _Steps:
    """A progress that keeps the names of the steps."""

    def __init__(self) -> None:
        self.begun: list[str] = []

    def begin(self, description: str, tokens: int) -> None:
        """Keep the step."""
        self.begun.append(description)

    def advance(self, tokens: int) -> None:
        """Keep nothing."""


def test_a_shorter_target_is_not_measured_instead(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The doctor takes one that the minutes suffice for; here its verdict would be of another model."""
    monkeypatch.setattr(Outlook, "seconds", lambda outlook, jobs, trial: 1e6 * (outlook.plan.protocol.target >= 128))
    own = rw.doctor(tiny(), methods="pi", target=128, trained_length=32, text=text, minutes=1)
    assert own.measurement.protocol.target == 96
    with pytest.raises(RopeError, match="cannot be measured within the time limit"):
        diagnose(tiny(), method="pi", reach=REACH, text=text, minutes=1, state=tmp_path / "state")
    found = diagnose(tiny(), method="pi", reach=REACH, text=text, windows=1, state=tmp_path / "state")
    assert found.measurement.protocol.target == 128


def test_a_method_that_only_python_runs_can_be_recommended(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For the engine "python", that is, for a folder that only ropewalk loads; for no other."""
    runs: list[DoctorRun] = []

    def kept(*arguments: Any) -> DoctorRun:
        runs.append(prepare(*arguments))
        return runs[-1]

    monkeypatch.setattr("ropewalk.extend.diagnoses.prepare", kept)
    for engine in (None, "python"):
        given: dict[str, Any] = {"reach": REACH, "text": text, "windows": 1, "engine": engine}
        found = diagnose(tiny(), method="dca", **given, state=tmp_path / "state")
        assert found.verdict.engine == engine
    assert ["dca" in (run.runs or ()) for run in runs] == [False, True]
    assert [run.minutes for run in runs] == [None, None]  # the doctor's own limit on a CPU is ten


def test_a_next_run_without_a_command(tmp_path: Path) -> None:
    """One window leaves it open; the record and the page of such a verdict are whole, and no command is made up."""
    found = diagnose(tiny(), method="yarn", reach=Reach(256, 512), windows=1, state=tmp_path / "state")
    assert found.verdict.action == "undecided"
    assert found.verdict.next is not None
    assert found.verdict.next.command is None
    assert "<code>None" not in found.to_html()


# The card and the record

BLOCK = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}


def written(diagnoses: dict[str, Diagnosis] | None = None, **changes: Any) -> str:
    """A card."""
    given: dict[str, Any] = {
        "model": "tiny",
        "method": "yarn",
        "config": {"rope_parameters": BLOCK, "max_position_embeddings": 32},
        "environment": {},
        **changes,
    }
    return card(record(**given, diagnoses=diagnoses), diagnoses, numbers="extend.json" if diagnoses else None)


def test_the_card_has_the_verdict_and_the_table(text: Path, tmp_path: Path) -> None:
    """Of each diagnosis: its words, and the cells of its own table."""
    found = diagnose(tiny(), method="pi", reach=REACH, text=text, windows=2, state=tmp_path / "state")
    said = written({APPLIED: found})
    assert said.count(f"**{found.verdict.headline}**".replace("_", r"\_")) == 1
    row = next(line for line in found.table().splitlines() if line.startswith("pi"))
    cells = next(line for line in said.splitlines() if line.startswith("| pi |"))
    assert cells.replace("|", " ").split() == row.split()
    assert "Nothing was measured" not in said


def test_the_record_holds_the_doctors_document(text: Path, tmp_path: Path) -> None:
    """As `ropewalk doctor --json` writes it, without folders; every program that reads those reads it."""
    found = diagnose(tiny(), method="pi", reach=REACH, text=text, windows=2, state=tmp_path / "state")
    document = record(model="m", method="pi", config={}, environment={}, diagnoses={APPLIED: found})
    path = tmp_path / "one.json"
    path.write_text(json.dumps(document["diagnoses"][APPLIED], allow_nan=False))
    again = read_record(path)
    assert again == found.to_json()
    assert str(tmp_path) not in json.dumps(document)


def test_names_are_shown_and_not_obeyed() -> None:
    """A model's name is text, whatever is in it."""
    said = written(model="a](http://x)\n# <b>hi")
    assert "# a\\](http://x) \\# \\<b\\>hi, extended" in said
    assert '"max_position_embeddings": 32' in said
    assert "Nothing was measured" in said


@pytest.mark.parametrize(
    ("rope_type", "said"),
    [
        ("dynamic", "Use --method ntk"),
        ("longrope", "`short_mscale` and `long_mscale`"),
        ("llama3", "top of config.json"),
        ("proportional", "transformers 5 applies"),
    ],
)
def test_readers_are_told_apart(rope_type: str, said: str) -> None:
    """The card names what vLLM or the converter does differently, and only for rules that were checked."""
    block = {"rope_type": rope_type, "rope_theta": 1e4}
    text = written(config={"rope_parameters": block, "max_position_embeddings": 32})
    assert said in text
    assert ("vLLM" in text) == (rope_type != "proportional")


def test_a_yarn_with_keys_of_its_own_is_not_called_the_same() -> None:
    """The converter treats both keys differently, older servers of vLLM the first."""
    for keys, same in (({}, 2), ({"attention_factor": 1.0}, 0), ({"truncate": False}, 1)):
        said = written(config={"rope_parameters": BLOCK | keys, "max_position_embeddings": 32})
        assert said.count("the same frequencies and temperature.") == same
        assert ("Compare outputs" in said) == (same < 2)
