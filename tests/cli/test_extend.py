"""`ropewalk extend apply` and `tune`: files, output, refusals before the work, and real processes that are stopped."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ropewalk import load
from ropewalk.builtin.texts import read_text
from ropewalk.cli import app
from ropewalk.cli.training_progress import TrainingProgress
from ropewalk.extend.card import plain_text
from ropewalk.ledger import Ledger
from ropewalk.methods import METHODS, Reach
from ropewalk.rope.scaling import LongRoPE
from ropewalk.training import Event
from tests.extend.material import TARGET, TRAINED, checkpoint, furthest
from tests.training.material import prose

TUNED = ["--steps=6", "--lr=3e-3"]


Filed = Callable[..., list[str]]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A small checkpoint."""
    return checkpoint(tmp_path / "source")


@pytest.fixture
def texts(tmp_path: Path) -> list[str]:
    """Two texts to tune on and one to measure on."""
    paths = [tmp_path / "one.txt", tmp_path / "two.txt", tmp_path / "held out.txt"]
    for seed, path in enumerate(paths):
        path.write_text(prose(600, seed))
    return [str(path) for path in paths]


@pytest.fixture
def filed(tmp_path: Path) -> Filed:
    """Return a function that writes settings into a TOML file and returns the option that names it."""

    def write(**values: Any) -> list[str]:
        lines = [
            f"{name} = {json.dumps(value)}"
            for name, value in {"precision": "float32", "device": "cpu", **values}.items()
        ]
        path = tmp_path / "settings.toml"
        path.write_text("\n".join(lines))
        return ["--settings", str(path)]

    return write


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


def test_first_tokens_unscaled(source: Path, texts: list[str], tmp_path: Path, filed: Filed) -> None:
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
    assert record["tuning"] is None
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
        (["tune", "--steps", "3"], "--text"),
        (["tune", "--text", "nowhere.txt", "--steps", "3"], "cannot be read"),
        (["tune", "--text", "nowhere.txt", "--steps", "3", "--train", "everything"], "must be parts of the model"),
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


def stopped(source: Path, text: str, out: Path, monkeypatch: pytest.MonkeyPatch, filed: Filed) -> list[str]:
    """A tuning stopped by Ctrl-C after its third step; the command."""
    in_file = filed(batch_size=2, measure=False, checkpoint_every=1, log_every=1)
    words = ["--steps=6", *in_file, "--text", text]

    def stop(_: TrainingProgress, event: Event) -> None:
        if event.step >= 3:
            raise KeyboardInterrupt("stopped")

    with monkeypatch.context() as patch:
        patch.setattr("ropewalk.cli.training_progress.TrainingProgress.__call__", stop)
        assert run("tune", source, "--out", out, *words) == 130
    assert (out.with_name(f"{out.name}.tuning") / "trainer" / "run" / "checkpoint-2").is_dir()
    return words


def test_another_command_leaves_a_stopped_tuning(
    source: Path,
    texts: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    filed: Filed,
) -> None:
    """Applying the method does not touch it; measuring and another tuning are refused; its own command goes on."""
    out, folder = tmp_path / "out", tmp_path / "out.tuning"
    words = stopped(source, texts[0], out, monkeypatch, filed)
    kept = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert run("apply", source, "--out", out, "--method", "pi") == 0
    (tmp_path / "s.toml").write_text("windows = 2")
    measuring = ["--overwrite", "--measure", "--validation", texts[2], "--settings", tmp_path / "s.toml"]
    capsys.readouterr()
    assert run("apply", source, "--out", out, *measuring) == 2
    assert "a stopped tuning of a different command" in capsys.readouterr().err
    assert run("tune", source, "--out", out, *words, "--overwrite", "--lr=1e-3") == 2
    assert "a stopped tuning with other settings" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == kept
    assert run("tune", source, "--out", out, *words, "--overwrite") == 0
    assert not folder.exists()
    stopped(source, texts[0], tmp_path / "two", monkeypatch, filed)
    assert run("apply", source, "--out", tmp_path / "two", *measuring, "--restart") == 0
    assert not (tmp_path / "two.tuning").exists()


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
    filed: Filed,
    name: str,
    content: str,
) -> None:
    """Somebody's folder of that name: not touched by commands that do not need it, refused by those that do."""
    out, folder = tmp_path / "out", tmp_path / "out.tuning"
    (folder / name).parent.mkdir(parents=True)
    (folder / name).write_text(content)
    assert run("apply", source, "--out", out) == 0
    measuring = ["apply", "--measure", "--validation", texts[2]]
    tuning = ["tune", *TUNED, *filed(measure=False), "--text", texts[0]]
    for command, *work in (measuring, tuning):
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


def test_a_held_out_text_that_was_tuned_on_is_refused(
    source: Path, texts: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], filed: Filed
) -> None:
    """The same file, one that contains it, and the packaged Moby-Dick that is measured on by default."""
    both = tmp_path / "both.txt"
    both.write_text("Loomings.\n" + Path(texts[1]).read_text())
    whale = tmp_path / "whale.txt"
    whale.write_text("\n" + read_text(None)[1])
    for text, more, in_file in (
        (texts[0], ["--validation", texts[0]], {}),
        (texts[1], ["--validation", str(both)], {"measure": False}),
        (str(whale), [], {}),
    ):
        words = [*TUNED, "--text", text, *more, *filed(**in_file)]
        assert run("tune", source, "--out", tmp_path / "out", *words) == 2
        err = capsys.readouterr().err
        assert "passages with the texts to tune on" in err
        assert "32-token runs in them  " in err
    assert not list(tmp_path.glob("out*"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["apply", "--rank=4"], "No such option"),
        (["apply", "--train=norms"], "No such option"),
        (["apply", "--train=all"], "No such option"),
        (["apply", "--lr=1e-3"], "No such option"),
        (["apply", "--checkpoint-every=3"], "No such option"),
        (["apply", "--restart"], "applies only to work that can be resumed"),
        (["apply", "--validation=TEXT", "--no-measure"], "apply only to measuring"),
        (["tune", "--steps=3", "--text=TEXT", "--lr=0"], "`lr` must be a finite number above 0"),
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


def test_ctrl_c_and_the_same_command_continues(
    source: Path,
    texts: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    filed: Filed,
) -> None:
    """Ctrl-C while it tunes: status 130, no output folder; the same command ends as one that was never stopped."""
    words = [str(source), *TUNED[1:], "--steps", "20", "--text", texts[0], "--validation", texts[2]]
    words += filed(batch_size=2, windows=3, checkpoint_every=8, log_every=8)

    def stop(_: TrainingProgress, event: Event) -> None:
        if event.kind == "step" and event.step == 11:
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(TrainingProgress, "__call__", stop)
        assert run("tune", *words, "--out", tmp_path / "stopped") == 130
    assert "To resume, rerun the command" in capsys.readouterr().err
    assert not (tmp_path / "stopped").exists()
    assert run("tune", *words, "--out", tmp_path / "stopped") == 0
    assert "continues after step" in capsys.readouterr().err
    assert run("tune", *words, "--out", tmp_path / "whole") == 0
    weights = [load(tmp_path / name).state_dict() for name in ("stopped", "whole")]
    assert all(torch.equal(weight, weights[1][name]) for name, weight in weights[0].items())
    losses = [
        [
            method["loss_by_window_and_block"]
            for found in json.loads((tmp_path / name / "extend.json").read_text())["diagnoses"].values()
            for method in found["methods"]
        ]
        for name in ("stopped", "whole")
    ]
    assert losses[0] == losses[1]
    assert len(losses[0]) == 6
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["source", "stopped", "whole"]


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


@pytest.mark.parametrize("command", ["extend apply", "extend tune", "serve-config", "verify"])
def test_the_help_lists_at_most_fifteen_options_in_groups(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Headings for groups; --help itself is not counted."""
    with pytest.raises(SystemExit):
        app.main([*command.split(), "--help"])
    lines = capsys.readouterr().out.splitlines()
    assert len([line for line in lines if line.startswith("  --")]) <= 15
    assert "Output:" in lines


def test_a_missing_extra_is_said_before_any_work(tmp_path, monkeypatch, capsys):
    """Not after the checkpoint was read and measured; and nothing is left behind."""
    arguments = ("tune", "--out", "never", "--steps", "1", "--train", "lora")
    monkeypatch.setitem(sys.modules, "peft", None)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("words " * 50)
    with pytest.raises(SystemExit) as ended:
        app.main(["extend", *arguments, str(tmp_path / "no-such-model"), "--text", "text.txt"])
    assert ended.value.code == 2
    assert "`peft` is needed" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["text.txt"]
