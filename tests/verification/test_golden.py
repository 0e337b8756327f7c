"""Golden predictions: written once, and engines checked from the file alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ropewalk.errors import RopeError
from ropewalk.methods.faulty_rules import FaultyPositions
from ropewalk.verification.golden import Golden, write_golden
from tests.checkpoints.prefixes import OurEngine
from tests.verification.fake_server import serving
from tests.verification.test_faults import Decodes
from tests.verification.test_verify import YARN, under

SCHEMA = Path(__file__).parents[2] / "src/ropewalk/verification/golden.schema.json"


@pytest.fixture(scope="module")
def golden(small, tmp_path_factory, state):
    """The predictions of the small model, read from their file."""
    path = tmp_path_factory.mktemp("golden") / "golden.json"
    write_golden(small, path, state=state)
    assert path.stat().st_size < 200_000
    return Golden.read(path)


def test_the_file_keeps_its_schema(golden):
    """Valid as written; every key is required, and no other is allowed."""
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads(SCHEMA.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(golden.document, schema)
    assert set(schema["required"]) == set(golden.document)
    assert schema["additionalProperties"] is False


@pytest.mark.parametrize("style", ["llama.cpp", "vllm", "sglang"])
def test_a_server_of_each_style(golden, small, style):
    """Ids, ids as text, and texts: as expected, also after generated tokens."""
    with serving(OurEngine(small), style=style) as url:
        found = golden.check(url)
    assert found.verdict.kind == "as expected", found.verdict.sentence
    if style != "sglang":  # the tokens of this model have few texts of their own
        assert found.verdict.decoding
    assert found.hypotheses[0].misfit < 1e-3
    assert found.requests >= 15
    assert found.seconds < 60


@pytest.mark.parametrize(
    ("name", "rope", "style"), [("yarn 4", YARN, "llama.cpp"), ("the other pairing", {"interleaved": True}, "sglang")]
)
def test_another_rope_is_named(golden, small, name, rope, style):
    """As with the model at hand."""
    with serving(under(small, rope=rope), style=style) as url:
        found = golden.check(url)
    assert (found.verdict.kind, found.verdict.applied) == ("other", (name,))


def test_an_expected_scaling_is_in_the_file(small, tmp_path, state):
    """Written for YaRN 4; an engine without it is named. From Python, a file is a model."""
    write_golden(small, tmp_path / "yarn.json", expect="yarn:4", state=state)
    golden = Golden.read(tmp_path / "yarn.json")
    assert golden.check(under(small, rope=YARN)).verdict.kind == "as expected"
    found = golden.check(OurEngine(small))
    assert (found.verdict.kind, found.verdict.applied) == ("other", ("no scaling",))


def test_a_position_that_stops_is_found_from_the_file(golden, small):
    """The file has the answers after each generated token."""
    found = golden.check(Decodes(small, lambda tokens: FaultyPositions("held", tokens + 1)))
    assert found.verdict.applied == ("positions held after the first generated token",), found.verdict.sentence


def cut(document):
    """The document with base64 that ends too early."""
    first = document["questions"][0]
    return {"questions": [first | {"nats": first["nats"][:-4]}]}


@pytest.mark.parametrize(
    "change",
    [
        {"version": 1},
        {"format": "other"},
        {"hypotheses": []},
        {"questions": [{}]},
        {"passages": []},
        {"lengths": ["a"]},
        {"up_to": float("inf")},
        {"left_out": [float("nan")]},
        cut,
    ],
    ids=lambda change: getattr(change, "__name__", str(change)),
)
def test_a_damaged_file_is_refused(golden, change):
    """With its cure, and never with a traceback of a missing key."""
    with pytest.raises(RopeError, match="golden predictions"):
        Golden(golden.document | (change(golden.document) if callable(change) else change))


def test_an_engine_that_starts_needs_the_checkpoint(golden):
    """A golden file has no weights."""
    with pytest.raises(RopeError, match="contains none"):
        golden.check("llama.cpp")
