"""`ropewalk extend apply`: files, output, refusals before the work, and an interruption."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from ropewalk import load
from ropewalk.cli import app
from ropewalk.extend.card import plain_text
from ropewalk.ledger import Ledger
from ropewalk.methods import METHODS, Reach
from ropewalk.rope.scaling import LongRoPE
from tests.extend.material import TARGET, TRAINED, checkpoint, furthest
from tests.training.material import prose


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A small checkpoint."""
    return checkpoint(tmp_path / "source")


@pytest.fixture
def texts(tmp_path: Path) -> list[str]:
    """Three texts; the last is measured on."""
    paths = [tmp_path / "one.txt", tmp_path / "two.txt", tmp_path / "held out.txt"]
    for seed, path in enumerate(paths):
        path.write_text(prose(600, seed))
    return [str(path) for path in paths]


def run(command: str, *arguments: str | Path) -> int:
    """`ropewalk extend COMMAND` in this process; its exit status."""
    with pytest.raises(SystemExit) as end:
        app.main(["extend", command, *map(str, arguments)])
    return int(end.value.code or 0)


def test_a_method_as_it_is(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No text, no steps: a folder with a card, in the source's dtype, with the same function."""
    out = tmp_path / "out"
    assert run("apply", source, "--out", out, "--target", TARGET, "--method", "ntk") == 0
    assert f"extend: wrote {out}" in capsys.readouterr().out
    model = load(source, dtype=torch.float32)
    rope = METHODS["ntk"].rope(model.config.ropes[0], Reach(TRAINED, TARGET))
    model = model.with_positions(rope=rope)
    assert furthest(out, model) < 1e-3
    written = (out / "README.md").read_text()
    assert "source, extended" in written
    assert "Nothing was measured" in written
    assert not (out / "extend.json").exists()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("out")] == ["out"]


def test_first_tokens_unscaled(source: Path, texts: list[str], tmp_path: Path) -> None:
    """Named in the protocol and on the card; the rope that is written has them."""
    out = tmp_path / "out"
    (tmp_path / "s.toml").write_text("unscaled_tokens = 4\nwindows = 2")
    words = [source, "--out", out, "--native", "--validation", texts[2], "--settings", tmp_path / "s.toml"]
    assert run("apply", *words) == 0
    rope = load(out).config.ropes[0]
    assert rope is not None
    assert isinstance(rope.scaling, LongRoPE)
    assert rope.scaling.unscaled_tokens == 4
    record = json.loads((out / "extend.json").read_text())
    protocol = record["diagnoses"]["applied"]["protocol"]
    assert (record["unscaled_tokens"], protocol["unscaled_tokens"]) == (4, 4)
    assert "yarn (the first 4 tokens unscaled)" in (out / "README.md").read_text()


def test_measured_without_tuning(
    source: Path, texts: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """--measure alone: the doctor's document, verdict, table and figure; the weights as they were."""
    out = tmp_path / "out"
    (tmp_path / "s.toml").write_text("windows = 2")
    words = ["--measure", "--validation", texts[2], "--method", "pi", "--settings", tmp_path / "s.toml"]
    assert run("apply", source, "--out", out, *words) == 0
    record = json.loads((out / "extend.json").read_text())
    document = record["diagnoses"]["applied"]
    assert [method["name"] for method in document["methods"]] == ["plain", "crop", "pi"]
    assert (document["trained_length"], document["target"]) == (TRAINED, TARGET)
    assert document["verdict"]["action"] == "unfit"  # the weights are random
    headline, card = document["verdict"]["headline"], (out / "README.md").read_text()
    assert f"applied: {headline}" in capsys.readouterr().out
    assert plain_text(headline) in card
    assert str(tmp_path) not in (out / "extend.json").read_text() + card
    assert (out / "extend.png").read_bytes()[:4] == b"\x89PNG"
    assert all(torch.equal(weight, load(out).state_dict()[name]) for name, weight in load(source).state_dict().items())
    assert not (tmp_path / "out.tuning").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["apply", "--method", "rerope"], "`rerope` cannot be exported"),
        (["apply", "--method", "crop"], "nearest that can be  'plain'"),
        (["apply", "--method", "nonsense"], "unknown method"),
        (["apply", "--target", "8"], "needs a target beyond the trained length"),
        (["apply", "--dtype", "int4"], "unknown dtype"),
    ],
)
def test_bad_input_is_a_message_and_status_2(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    """Never a traceback, and nothing is written."""
    assert run(arguments[0], source, "--out", tmp_path / "out", *arguments[1:]) == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert "Traceback" not in printed
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_an_output_that_holds_something(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Refused at once; --overwrite replaces an earlier export."""
    assert run("apply", source, "--out", tmp_path / "out", "--method", "pi") == 0
    assert run("apply", source, "--out", tmp_path / "out") == 2
    assert "not empty" in capsys.readouterr().err
    assert run("apply", source, "--out", tmp_path / "out", "--overwrite") == 0
    assert json.loads((tmp_path / "out" / "config.json").read_text())["rope_parameters"]["rope_type"] == "yarn"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("notes.txt", "mine"),
        ("losses-mine.json", "{}"),
        ("tuning.json", "{}"),
        ("tuning.json", '{"kind": "mine", "recipe": null}'),
        ("trainer", "mine"),
        ("trainer/weights.safetensors", "mine"),
        ("losses/mine.json", "{}"),
    ],
)
def test_a_folder_that_is_not_ours_stays(
    source: Path,
    texts: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    content: str,
) -> None:
    """Somebody's folder of that name: not touched by commands that do not need it, refused by those that do."""
    out, folder = tmp_path / "out", tmp_path / "out.tuning"
    (folder / name).parent.mkdir(parents=True)
    (folder / name).write_text(content)
    assert run("apply", source, "--out", out) == 0
    measuring = ["apply", "--measure", "--validation", texts[2]]
    command, *work = measuring
    assert run(command, source, "--out", out, "--overwrite", "--restart", *work) == 2
    assert "contains other files" in capsys.readouterr().err
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert [(str(path.relative_to(folder)), path.read_text()) for path in files] == [(name, content)]


def test_an_empty_folder_and_what_comes_in_stay(source: Path, texts: list[str], tmp_path: Path) -> None:
    """An empty one is used and left empty."""
    folder = tmp_path / "out.tuning"
    folder.mkdir()
    assert run("apply", source, "--out", tmp_path / "out", "--validation", texts[2]) == 0
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["apply", "--restart"], "applies only to work that can be resumed"),
        (["apply", "--validation=TEXT", "--no-measure"], "apply only to measuring"),
    ],
)
def test_an_option_is_not_ignored(
    source: Path, texts: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str],
    message: str,
) -> None:  # fmt: skip
    """Refused before any work; an option of another command does not exist."""
    command, *words = (word.replace("TEXT", texts[0]) for word in arguments)
    assert run(command, source, "--out", tmp_path / "out", *words) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.glob("out*"))


def test_ctrl_c_while_it_is_measured(
    source: Path,
    texts: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Status 130 and no output folder; the same command reads only what is missing, and clears up."""
    words = ["apply", source, "--out", tmp_path / "out", "--measure", "--validation", texts[2]]
    own = Ledger.add

    def stop(ledger: Ledger, job: str, result: Any) -> None:
        own(ledger, job, result)
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it in the background
    try:
        with monkeypatch.context() as patch:
            patch.setattr(Ledger, "add", stop)
            assert run(*words) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert "1 results are saved" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert (tmp_path / "out.tuning" / "tuning.json").is_file()
    assert run(*words) == 0
    again = capsys.readouterr().err
    assert "Resumed: 1 results" in again
    assert "plain, window 1" not in again
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["out", "source"]


@pytest.mark.parametrize("command", ["extend apply", "serve-config", "verify"])
def test_the_help_lists_at_most_fifteen_options_in_groups(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Headings for groups; --help itself is not counted."""
    with pytest.raises(SystemExit):
        app.main([*command.split(), "--help"])
    lines = capsys.readouterr().out.splitlines()
    assert len([line for line in lines if line.startswith("  --")]) <= 15
    assert "Output:" in lines
