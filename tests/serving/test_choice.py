"""A doctor's record for `extend apply --from` and `serve-config --from`: its choice, of the model that it measured."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch

import ropewalk as rw
from ropewalk import RopeConfig
from ropewalk.atomic_io import finite
from ropewalk.audit.audit import audit
from ropewalk.checkpoints.load import load
from ropewalk.errors import RopeError
from ropewalk.records import FORMAT
from ropewalk.serving import apply, serve_config
from ropewalk.serving.engines import ENGINES
from ropewalk.serving.serve import setting_command
from tests.cli.doctor_runs import run_command
from tests.serving.material import TARGET, TRAINED, checkpoint

TINY, LONG, SHORTER = 256, 1024, 768


def record_of(
    *,
    name: str = "m",
    trained: int = 16,
    target: int = 64,
    audits: list[dict[str, Any]] | None = None,
    **verdict: Any,
) -> dict[str, Any]:
    """A record that recommends yarn; `verdict` replaces fields of the answer."""
    answer = {"action": "extend", "headline": "Extend with yarn.", "method": "yarn", "length": None, "next": None}
    return {
        "format": FORMAT,
        "name": name,
        "trained_length": trained,
        "target": target,
        "verdict": {**answer, **verdict},
        "inspection": {"audits": audits or [{}]},
    }


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


def of_tiny(**verdict: Any) -> dict[str, Any]:
    """A record of the packaged model, with a verdict for an engine."""
    return record_of(name="tiny", trained=TINY, target=LONG, **verdict)


def test_the_doctors_choice_is_applied(source: Path, found: dict[str, Any], tmp_path: Path) -> None:
    """Method and both lengths, from a file or from Python, as if they had been typed."""
    (tmp_path / "found.json").write_text(json.dumps(found))
    run = ("extend", "apply", source)
    assert run_command(*run, "--from", tmp_path / "found.json", "--out", tmp_path / "one") == 0
    typed = ("--method", "ntk", "--target", 48, "--trained-length", TRAINED)
    assert run_command(*run, *typed, "--out", tmp_path / "two") == 0
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    assert apply(source, tmp_path / "three", record=found)["max_position_embeddings"] == 48


def test_the_choice_is_served(source: Path) -> None:
    """The record's method and target; the answer for engines, if there are two."""
    served = serve_config(source, "vllm", record=record_of(target=32))
    assert (served.method, served.length) == ("yarn", 32)
    engines = {"action": "extend", "headline": "Extend with ntk.", "method": "ntk", "length": None, "next": None}
    two = record_of(method="dca", engine="python", beside=engines)
    assert serve_config(source, "vllm", record=two).method == "ntk"


def test_the_length_of_a_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The frequencies are those of the target; the stated length is the verdict's."""
    record = tmp_path / "a record.json"
    record.write_text(json.dumps(of_tiny(length=SHORTER)))
    for engine in (one for one in ENGINES if one != "onnx"):  # which has no yarn
        command = shlex.split(setting_command(engine, "tiny", "yarn", target=LONG, length=SHORTER, record=record))
        assert command[-3 if engine == "transformers" else -1] == str(record)
        assert run_command("serve-config", "tiny", "--engine", engine, "--from", record) == 0
        out = capsys.readouterr().out
        assert str(SHORTER) in out
        assert ('"factor": 4.0' in out) == (engine in ("vllm", "sglang"))
    config = apply("tiny", tmp_path / "out", record=record)
    assert (config["rope_parameters"]["factor"], config["max_position_embeddings"]) == (4.0, SHORTER)
    assert serve_config("tiny", "vllm", record=of_tiny()).length == LONG
    shorter = serve_config("tiny", "ollama", record=of_tiny() | {"trained_length": 128})
    assert shorter.block["factor"] == 8.0
    assert "--trained-length 128" in " ".join(shorter.steps)
    assert "--trained-length" not in serve_config("tiny", "ollama", record=of_tiny()).steps[0]
    assert serve_config("tiny", "vllm", method="pi", record=of_tiny(length=SHORTER)).length == LONG


@pytest.mark.parametrize("further", [None, "ropewalk doctor m --windows 9"])
def test_where_the_doctor_extends_nothing(
    source: Path, found: dict[str, Any], tmp_path: Path, further: str | None
) -> None:
    """Refused with the verdict and what to do instead, also where only Python extends; nothing is written."""
    headline = "Not decided: one window."
    changes = {**found["verdict"], "action": "undecided", "method": None, "headline": headline, "next": further}
    for verdict, end in ((changes, ""), ({**changes, "engine": "python", "beside": changes}, " for engines")):
        for call in (apply, serve_config):
            with pytest.raises(RopeError, match=f"does not recommend extending this model{end}\\.") as caught:
                call(source, tmp_path / "out" if call is apply else "vllm", record={**found, "verdict": verdict})
            assert (caught.value.facts["verdict"], "in Python" in caught.value.facts) == (headline, bool(end))
            assert (further or "leave out --from") in caught.value.cure
    assert not (tmp_path / "out").exists()


def test_another_model_is_refused(source: Path, found: dict[str, Any], tmp_path: Path) -> None:
    """Its ropes differ from those of the record; the weights are not opened. A record without audits passes."""
    (own,) = found["inspection"]["audits"]
    for change in ({"theta": 5e5}, {"head_dim": own["head_dim"] + 2}, {"pairs": own["pairs"] + 1}):
        other = {**found, "inspection": {"audits": [{**own, **change}]}}
        with pytest.raises(RopeError, match="belongs to a different model"):
            apply(source, tmp_path / "out", record=other)
        with pytest.raises(RopeError, match="belongs to a different model"):
            serve_config(source, "vllm", record=other)
    assert not (tmp_path / "out").exists()
    assert serve_config(source, "vllm", record=record_of()).method == "yarn"


ODD: list[dict[str, Any]] = [
    *({"verdict": verdict} for verdict in ([], "extend", None, {"action": "extend", "method": None},
                                           {"action": "extend", "method": "none such"},
                                           {"action": "extend", "method": ["yarn"]})),
    *({"verdict": of_tiny(length=length)["verdict"]} for length in (TINY, LONG + 1, -1, "x", [], 1e400)),
    {"target": "far"}, {"target": float("inf")}, {"target": None}, {"trained_length": 0}, {"trained_length": "x"},
    {"inspection": [None]}, {"format": 2}, {"verdict": None},
]  # fmt: skip


@pytest.mark.parametrize("change", ODD)
def test_odd_records(change: dict[str, Any], tmp_path: Path) -> None:
    """Refused in our words by both; a length outside of the extension is none."""
    with pytest.raises(RopeError):
        serve_config("tiny", "vllm", record=of_tiny() | change)
    with pytest.raises(RopeError):
        apply("tiny", tmp_path / "x", record=of_tiny() | change)


def test_what_is_no_choice(
    source: Path, found: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another file, and options that the record holds as well."""
    (tmp_path / "found.json").write_text("[]")
    with pytest.raises(RopeError, match="content cannot be read"):
        apply(source, tmp_path / "out", record=tmp_path / "found.json")
    with pytest.raises(RopeError, match="contains the method and the lengths"):
        apply(source, tmp_path / "out", target=TARGET, record=found)
    (tmp_path / "found.json").write_text(json.dumps(found))
    both = ("--from", tmp_path / "found.json", "--method", "yarn")
    assert run_command("extend", "apply", source, *both, "--out", tmp_path / "out") == 2
    assert "--method" in capsys.readouterr().err
    with pytest.raises(RopeError, match="cannot be written"):
        apply(source, tmp_path / "out", record={**found, "verdict": {**found["verdict"], "method": "dca"}})
    assert not (tmp_path / "out").exists()
