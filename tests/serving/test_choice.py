"""`extend apply --from`: the doctor's choice, of the model that it measured, and nothing where it chose nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import ropewalk as rw
from ropewalk import RopeConfig
from ropewalk.atomic_io import finite
from ropewalk.audit.audit import audit
from ropewalk.checkpoints.load import load
from ropewalk.cli.app import main
from ropewalk.errors import RopeError
from ropewalk.serving import ApplySettings, apply
from tests.serving.material import TARGET, TRAINED, checkpoint
from tests.serving.records import record_of


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small checkpoint in bfloat16."""
    place = tmp_path_factory.mktemp("choice")
    rw.save(load(checkpoint(place / "source"), dtype=torch.bfloat16), place / "small")
    return place / "small"


@pytest.fixture(scope="module")
def found(source: Path) -> dict[str, Any]:
    """A record of it that recommends ntk."""
    own = finite(audit(RopeConfig.from_hf(source), target=48))
    return record_of(name="small", trained=TRAINED, target=48, audits=[own], method="ntk")


def run(*arguments: str | Path) -> int:
    """`ropewalk extend apply` in this process; its exit status."""
    with pytest.raises(SystemExit) as end:
        main(["extend", "apply", *map(str, arguments)])
    return int(end.value.code or 0)


def test_the_doctors_choice_is_applied(
    source: Path, found: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Method and both lengths, from a file or from Python, as if they had been typed."""
    (tmp_path / "found.json").write_text(json.dumps(found))
    assert run(source, "--from", tmp_path / "found.json", "--out", tmp_path / "one") == 0
    assert "wrote" in capsys.readouterr().out
    assert run(source, "--method", "ntk", "--target", 48, "--trained-length", TRAINED, "--out", tmp_path / "two") == 0
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    assert apply(source, tmp_path / "three", record=found).config["max_position_embeddings"] == 48


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"action": "keep", "method": None}, "Use the model unchanged"),
        ({"action": "cut", "method": None}, "only the last tokens"),
        ({"action": "unfit", "method": None}, "a text that the model can predict"),
        ({"action": "undecided", "method": None, "next": "ropewalk doctor m --windows 9"}, "--windows 9"),
        ({"action": "undecided", "method": None, "headline": "Not decided: one window."}, "Not decided: one window."),
    ],
)
def test_where_the_doctor_extends_nothing(
    source: Path, found: dict[str, Any], tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    """Refused with the reason and what to do instead; nothing is written."""
    with pytest.raises(RopeError, match="does not recommend extending") as caught:
        apply(source, tmp_path / "out", record={**found, "verdict": {**found["verdict"], **changes}})
    assert said in str(caught.value)
    both = {"engine": "python", "beside": {**found["verdict"], **changes}}
    with pytest.raises(RopeError, match="for engines") as caught:
        apply(source, tmp_path / "out", record={**found, "verdict": {**found["verdict"], **both}})
    assert {"verdict", "in Python"} <= {*caught.value.facts}
    assert not (tmp_path / "out").exists()


def test_another_model_is_refused(source: Path, found: dict[str, Any], tmp_path: Path) -> None:
    """Its ropes differ from those of the record; the weights are not opened."""
    other = {**found, "inspection": {"audits": [{**found["inspection"]["audits"][0], "theta": 5e5}]}}
    with pytest.raises(RopeError, match="belongs to a different model"):
        apply(source, tmp_path / "out", record=other)
    assert not (tmp_path / "out").exists()


def test_what_is_no_choice(
    source: Path, found: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another file, and options that the record holds as well; test_engines.py has garbled records."""
    (tmp_path / "found.json").write_text("[]")
    with pytest.raises(RopeError, match="content cannot be read"):
        apply(source, tmp_path / "out", record=tmp_path / "found.json")
    with pytest.raises(RopeError, match="contains the method and the lengths"):
        apply(source, tmp_path / "out", ApplySettings(target=TARGET), record=found)
    (tmp_path / "found.json").write_text(json.dumps(found))
    assert run(source, "--from", tmp_path / "found.json", "--method", "yarn", "--out", tmp_path / "out") == 2
    assert "--method" in capsys.readouterr().err
    with pytest.raises(RopeError, match="cannot be written"):
        apply(source, tmp_path / "out", record={**found, "verdict": {**found["verdict"], "method": "dca"}})
    assert not (tmp_path / "out").exists()
