"""`rw.doctor` as a library call: its settings, its results, and several processes on one folder."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ropewalk
import ropewalk as rw
from ropewalk.checkpoints.tokenizer import TextTokenizer
from ropewalk.diagnosis.document import Diagnosis
from ropewalk.diagnosis.prepare import _open as open_model
from ropewalk.diagnosis.prepare import prepare
from ropewalk.diagnosis.run import RunInterrupted
from ropewalk.diagnosis.settings import DoctorSettings, Protocol, read_protocol
from ropewalk.errors import RopeError
from ropewalk.models.decoder import Decoder
from tests.diagnosis.models import ROPE, settings_of, tiny_decoder, with_protocol

TEXT = [("story", "It was the best of times, it was the worst of times. " * 12)]


def model(trained_length: int = 32) -> Decoder:
    """A small random model over bytes."""
    decoder = tiny_decoder(dataclasses.replace(ROPE, max_position_embeddings=trained_length), vocab_size=257)
    decoder.tokenizer = TextTokenizer.bytes()
    return decoder


def diagnose(state: Path, **changes: Any) -> Diagnosis:
    """A short run; random weights are unfit, so it goes on although it is decided."""
    given = {"keep_going": True, "target": 64, "text": TEXT, "methods": "pi,yarn,crop", "windows": 2, "state": state}
    return rw.doctor(model(), **with_protocol({**given, **changes}))


def test_the_arguments_are_the_settings() -> None:
    """One name, one default, and help for each field; no argument but the model's that the record does not know."""
    arguments = inspect.signature(rw.doctor).parameters
    fields = {field.name: field for field in dataclasses.fields(DoctorSettings)}
    assert set(arguments) - {"model", "tokenizer", "progress"} == set(fields)
    assert len(arguments) <= 15
    for name in set(fields) - {"protocol"}:
        assert arguments[name].default == fields[name].default
    for name, field in {**fields, **{field.name: field for field in dataclasses.fields(Protocol)}}.items():
        assert name == "protocol" or field.metadata["help"].endswith((".", "]", "..."))
        assert f"`{name}`" in rw.doctor.__doc__


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ('{"windows": 2', "cannot be read"),
        ("absent.toml", "no such file"),
        ('{"window": 2}', "contains unknown fields"),
    ],
)
def test_a_protocol_that_cannot_be_read_is_refused(source: str, message: str) -> None:
    """From a file or from text, with the names that there are."""
    with pytest.raises(RopeError, match=message):
        read_protocol(source)


def test_a_protocol_is_read_from_a_file(tmp_path: Path) -> None:
    """TOML and JSON hold the same; a value of the wrong type is refused by its name."""
    (tmp_path / "p.toml").write_text("seed = 3\nblock = 64\n")
    (tmp_path / "p.json").write_text('{"seed": 3, "block": 64}')
    both = [Protocol(**read_protocol(str(tmp_path / name))) for name in ("p.toml", "p.json")]
    assert both[0] == both[1] == Protocol(seed=3, block=64)
    for wrong in ({"seed": "3"}, {"seed": True}, {"block": ["64"]}, {"keep_going": 1}):
        with pytest.raises(RopeError, match="has the wrong type"):
            Protocol(**wrong)


def test_the_result_is_data_and_text(tmp_path: Path) -> None:
    """Rows, sentences, the document, the page, and a notebook's view, without a file."""
    found = diagnose(tmp_path)
    assert list(found.measurement.results) == ["plain", "crop", "yarn", "pi"]
    lines = found.table().splitlines()
    assert [line.split()[0] for line in lines] == ["method", "plain", "crop", "yarn", "pi"]
    document = found.to_json()
    assert (document["verdict"], document["recommended"]) == (found.verdict.to_json(), found.verdict.method)
    assert document["environment"]["dtype"] == "float32"
    json.dumps(document, allow_nan=False)
    assert found.to_json(tmp_path / "new" / "found.json") == document
    assert json.loads((tmp_path / "new" / "found.json").read_text()) == json.loads(json.dumps(document))
    page = found.to_html(tmp_path / "found.html")
    assert page.startswith("<!")
    assert (tmp_path / "found.html").read_text() == page
    assert "<td>yarn</td>" in found._repr_html_()
    assert found.verdict.sentence in str(found)


def test_figures_by_name(tmp_path: Path) -> None:
    """Each is matplotlib's; a name that does not exist and numbers that are not there are told apart."""
    found = diagnose(tmp_path)
    assert found.figure().axes[0].get_title(loc="left") == "decoder: loss compared with crop"
    assert {line.get_label() for line in found.figure("loss").axes[0].get_lines()} >= {"pi", "yarn", "crop (zero)"}
    assert found.figure("wavelengths").axes[0].get_title(loc="left") == "decoder: wavelength of each pair"
    with pytest.raises(RopeError, match="no figure of this name"):
        found.figure("spectrum")
    with pytest.raises(RopeError, match="were not measured"):
        found.figure("copies")


def test_a_file_that_cannot_be_written_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole or not at all: what stood there before stays."""
    found = diagnose(tmp_path / "state")
    path = tmp_path / "found.json"
    path.write_text('{"generator": "ropewalk"}')

    def full(*_: Any) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(os, "replace", full)
    for write in (found.to_json, found.to_html):
        with pytest.raises(RopeError, match="No space"):
            write(path)
    assert [file.name for file in tmp_path.iterdir() if file.is_file()] == ["found.json"]
    assert path.read_text() == '{"generator": "ropewalk"}'


def test_random_weights_are_unfit(tmp_path: Path) -> None:
    """They know less of a text than its token frequencies do; nothing is recommended, and nothing pasted."""
    found = diagnose(tmp_path).verdict
    assert (found.action, found.method, found.config, found.reach_loss) == ("unfit", None, None, None)
    assert "so the weights are untrained or damaged." in found.sentence
    assert "does not predict this text better than token frequencies do" in found.sentence


@pytest.mark.parametrize("able", [True, False])
def test_a_slow_dtype_of_a_live_model_is_reported(able: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model in bfloat16 is measured in a float32 copy if that is faster, with a note for the reader."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": able, "cpu_name": "AMD"})
    given = {"target": 64, "text": TEXT, "methods": "plain", "measure": "loss", "windows": 1, "state": tmp_path}
    own = model().bfloat16()
    run = prepare(own, settings_of(**given))
    assert run.measure(False).environment["dtype"] == ("bfloat16" if able else "float32")
    note = open_model(own, settings_of(**given))[0].dtype_note
    assert note == (None if able else "Measured in a float32 copy: bfloat16 products are slow on this CPU.")
    assert own.embed_tokens.weight.dtype == torch.bfloat16


def test_a_run_begins_again_unless_it_resumes(tmp_path: Path) -> None:
    """Resumed, nothing is measured; begun again, everything is; the numbers are the same."""
    first = diagnose(tmp_path)
    settings = settings_of(
        target=64, text=TEXT, methods="pi,yarn,crop", windows=2, state=tmp_path, resume=True, keep_going=True
    )
    resumed = prepare(model(), settings)
    methods = resumed.plan.methods
    assert (resumed.resumed, len(resumed.due(2, methods))) == (8, 0)
    again = resumed.measure()
    assert (again.verdict.sentence, again.to_json()["methods"]) == (first.verdict.sentence, first.to_json()["methods"])
    anew = prepare(model(), dataclasses.replace(settings, resume=False))
    assert (anew.resumed, len(anew.due(2, methods))) == (0, 8)


def test_ctrl_c_says_what_is_kept(tmp_path: Path) -> None:
    """A KeyboardInterrupt with the counts; resumed it ends with the numbers of a run that was never stopped."""
    whole = diagnose(tmp_path / "whole")

    class Stopping:
        count = 0

        def begin(self, description: str, tokens: int) -> None:
            self.count += 1
            if self.count == 4:
                raise KeyboardInterrupt

        def advance(self, tokens: int) -> None:
            pass

    with pytest.raises(RunInterrupted) as stopped:
        diagnose(tmp_path / "part", workers=1, progress=Stopping())
    assert (stopped.value.kind, stopped.value.kept, stopped.value.due) == ("results", 3, 5)
    assert stopped.value.diagnosis is None
    rest = diagnose(tmp_path / "part", resume=True)
    for name in whole.measurement.results:
        one, other = (np.array(found.measurement.block_means(name)) for found in (rest, whole))
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"methods": "alibi"}, "unknown method"),
        ({"methods": "plain", "target": 32, "stride": 4}, "apply only to crop"),
        ({"dtype": "int8"}, "unknown dtype"),
        ({"dtype": "bfloat16"}, "do not apply to a model that is passed as an object"),
        ({"state": __file__}, "`state` must be a folder"),
    ],
)
def test_what_cannot_be_asked_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    """Before any work."""
    with pytest.raises(RopeError, match=message):
        diagnose(**{"state": tmp_path, **changes})


def test_a_run_at_work_is_not_begun_again(tmp_path: Path) -> None:
    """A second run on the same results is refused, also one that resumes."""
    settings = settings_of(target=64, text=TEXT, methods="pi", windows=1, state=tmp_path)
    run = prepare(model(), settings)
    with run.ledger.at_work():
        with pytest.raises(RopeError, match="another run is computing these results"):
            prepare(model(), settings)
        with pytest.raises(RopeError, match="another run is computing these results"):
            prepare(model(), dataclasses.replace(settings, resume=True)).measure(False)
    prepare(model(), settings)


def names_in(tree: ast.AST) -> set[str]:
    """Every name, attribute and imported name or module of a file."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.ImportFrom):
            found |= {str(node.module), *(alias.name for alias in node.names)}
    return found


def test_diagnosis_and_measure_know_only_readers() -> None:
    """No file of these subpackages names our decoder or its adapter."""
    forbidden = {
        "Decoder", "DecoderConfig", "load_decoder", "ropewalk.models.decoder", "ropewalk.models.generation",
    }  # fmt: skip
    package = Path(ropewalk.__file__).parent
    files = [path for name in ("diagnosis", "measure") for path in (package / name).glob("*.py")]
    assert len(files) > 15
    for path in files:
        assert not names_in(ast.parse(path.read_text())) & forbidden, path
    assert names_in(ast.parse("from ropewalk.models.decoder import Decoder")) & forbidden
