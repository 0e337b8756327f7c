"""`ropewalk extend search` from end to end, on a small random model with a tokenizer of bytes."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import ropewalk as rw
from ropewalk.checkpoints.load import save
from ropewalk.checkpoints.tokenizer import TextTokenizer
from ropewalk.cli.app import main
from ropewalk.extend import search_run
from ropewalk.rope.frequencies import attention_factor_of, columns_of
from ropewalk.rope.scaling import LongRoPE, YaRN
from tests.diagnosis.models import ROPE, tiny_decoder

pytest.importorskip("cma")
pytest.importorskip("typer")
pytestmark = pytest.mark.usefixtures("quiet")
SEEN = "It was the best of times, it was the worst of times. " * 12
UNSEEN = "Call me Ishmael. Some years ago, never mind how long precisely. " * 12


@pytest.fixture
def given(tmp_path: Path) -> list[str]:
    """The command: a model trained at 32 tokens, wanted at 64, and two texts."""
    rope = dataclasses.replace(ROPE, max_position_embeddings=32)
    save(tiny_decoder(rope, vocab_size=256), tmp_path / "model", tokenizer=TextTokenizer.bytes())
    (tmp_path / "seen.txt").write_text(SEEN)
    (tmp_path / "unseen.txt").write_text(UNSEEN)
    return [
        "extend", "search", str(tmp_path / "model"), "--target", "64", "--text", str(tmp_path / "seen.txt"),
        "--validation", str(tmp_path / "unseen.txt"), "--windows", "3", "--search-windows", "2",
        "--over", "factors", "--within", "inf",
    ]  # fmt: skip


def call(*arguments: Any) -> int:
    """Run the command; the exit status."""
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return int(ended.value.code or 0)


def test_search_record_and_export(given: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The answer on the terminal, the record and figure, and a folder that carries the searched factors exactly."""
    record, out = tmp_path / "found" / "search.json", tmp_path / "out"
    record.parent.mkdir()
    assert call(*given, "--budget", 20, "--record", record, "--out", out) == 0
    printed = capsys.readouterr()
    assert "20 evaluations; on the search text" in printed.out
    assert "extend: 20/20 candidate 20, best" in printed.err
    found = json.loads(record.read_text(), parse_constant=lambda name: pytest.fail(f"{name} in JSON"))
    assert (found["evaluations"], found["ended_by"], found["windows"]) == (20, "budget", 2)
    assert (found["held_out"]["text"], found["held_out"]["windows"]) == ("unseen", 3)
    assert found["best"]["loss"] == min(found["losses"])
    for sentence in found["held_out"]["sentences"]:
        assert sentence in printed.out
    assert {path.name for path in record.parent.iterdir()} == {"search.json", "search.png", "search.svg"}
    assert json.loads((out / "search.json").read_text()) == found
    assert (out / "search.png").read_bytes()[:4] == b"\x89PNG"
    card = (out / "README.md").read_text()
    assert "searched, put into config.json" in card
    assert "All settings and every number are in search.json." in card
    assert "which the search never saw" in card
    model = rw.load(out)
    rope = model.config.ropes[0]
    assert rope is not None
    assert isinstance(rope.scaling, LongRoPE)
    assert list(rope.scaling.long_factor) == pytest.approx(found["best"]["divisors"], rel=1e-14)
    plain = columns_of(ROPE)
    for length in (8, 64):
        assert columns_of(rope, length) == pytest.approx(
            [f / d for f, d in zip(plain, found["best"]["divisors"], strict=True)], rel=1e-13
        )
        assert attention_factor_of(rope, length) == pytest.approx(found["best"]["attention_factor"], rel=1e-13)


def test_the_same_command_goes_on(given: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What was evaluated is not evaluated again; a larger budget prolongs it; --restart begins anew."""
    one, two, whole = (tmp_path / f"{name}.json" for name in ("one", "two", "whole"))
    assert call(*given, "--budget", 10, "--record", one) == 0
    capsys.readouterr()
    assert call(*given, "--budget", 20, "--record", two) == 0
    err = capsys.readouterr().err
    assert "extend: 20/20" in err
    assert "extend: 10/20" not in err
    assert call(*given, "--budget", 20, "--record", whole, "--restart") == 0
    assert "extend: 10/20" in capsys.readouterr().err
    first, second, third = (json.loads(path.read_text()) for path in (one, two, whole))
    assert second["losses"][:10] == first["losses"]
    assert second["losses"] == pytest.approx(third["losses"], abs=1e-6)
    assert second["best"]["divisors"] == pytest.approx(third["best"]["divisors"], rel=1e-9)


def test_search_on_answers(
    given: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Texts with questions instead of windows; held against other texts and the loss of a text; the same goes on."""
    assert search_run.TEXTS_APART == 8
    monkeypatch.setattr(search_run, "TEXTS_APART", 3)  # each is read once for every method
    record = tmp_path / "search.json"
    at = given.index("--target") + 1
    words = [*given[:at], "400", *given[at + 1 :], "--windows", "1", "--answers", "numbers", "--search-windows", "2"]
    assert call(*words, "--budget", 10, "--record", record) == 0
    printed = capsys.readouterr().out
    assert (
        "loss of the answers of numbers that lie further back than 32 tokens; texts with questions of 400 tokens: 2 of "
        "seen, held out 3" in printed
    )
    found = json.loads(record.read_text())
    assert (found["answers"], found["windows"], found["evaluations"]) == (["numbers"], 2, 10)
    assert found["held_out_answers"]["texts"] == 3
    assert found["held_out"]["windows"] == 1
    for sentence in (*found["held_out_answers"]["sentences"], *found["held_out"]["sentences"]):
        assert sentence in printed
    assert call(*words, "--budget", 12) == 0
    assert "10 evaluations" not in capsys.readouterr().out
    assert call(*words, "--answers", "pass,key") == 2
    assert "unknown task" in capsys.readouterr().err
    other = tmp_path / "other.txt"
    other.write_text(SEEN + UNSEEN)  # texts are made of all of it, wherever the windows lie
    assert call(*words, "--validation", other) == 2
    assert "shares passages" in capsys.readouterr().err
    assert call(*words, "--validation", other, "--start-char", len(SEEN), "--budget", 8) == 0
    assert call(*words, "--start-char", -3) == 2
    assert "`start_char` must not be negative" in capsys.readouterr().err


def test_numbers_are_written_as_an_ordinary_block(
    given: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By default YaRN's numbers, within the limit, with halving: a yarn block, and a sentence that says so."""
    record, out, words = tmp_path / "search.json", tmp_path / "out", given[: given.index("--over")]
    assert call(*words, "--within", "0.5", "--budget", 14, "--record", record, "--out", out) == 0
    printed = capsys.readouterr().out
    found = json.loads(record.read_text())
    assert (found["over"], found["halving"], found["within_limit"]) == ("yarn", True, 0.5)
    assert [row["name"] for row in found["starts"]] == ["plain", "pi", "ntk", "yarn", "llama3"]
    assert sum(row["items"] for row in found["points"]) == found["items_read"] < 14 * 2
    assert all(row["cost_within"] <= 0.5 for row in found["points"] if row["items"])
    for sentence in found["held_out"]["sentences"]:
        assert sentence in printed
    block = json.loads((out / "config.json").read_text())["rope_parameters"]
    assert block == found["rope_parameters"]
    best = rw.load(out).config.ropes[0]
    if found["best"]["rule"] == "yarn":
        assert {key: block[key] for key in found["best"]["numbers"]} == found["best"]["numbers"]
        assert isinstance(best.scaling, YaRN)
    assert block["rope_type"] in ("default", "linear", "yarn", "llama3")
    assert call(*words, "--over", "yarn", "--answer-texts", "2") == 2
    assert "belong to --answers" in capsys.readouterr().err
    assert call(*words, "--over", "spiral") == 2
    assert "--over names the numbers" in capsys.readouterr().err
    assert call(*words, "--precision", "float8") == 2
    assert "unknown `precision`" in capsys.readouterr().err


def test_search_with_unscaled_first_tokens(
    given: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every point leaves the first tokens as they are; only ropewalk's own form can hold that."""
    out = tmp_path / "out"
    words = [*given, "--budget", "10", "--unscaled-tokens", "4", "--out", str(out)]
    assert call(*words) == 2
    assert "Pass --native" in capsys.readouterr().err
    assert call(*words, "--native") == 0
    rope = rw.load(out).config.ropes[0]
    assert rope is not None
    assert isinstance(rope.scaling, LongRoPE)
    assert rope.scaling.unscaled_tokens == 4
    found = json.loads((out / "search.json").read_text())
    assert (found["unscaled_tokens"], found["rope_parameters"]) == (4, None)


@pytest.mark.skipif(sys.platform == "win32", reason="SIGINT")
def test_ctrl_c_keeps_what_was_evaluated(given: list[str], tmp_path: Path) -> None:
    """Status 130, a sentence instead of a traceback, and a state that is whole."""
    command = [sys.executable, "-c", "from ropewalk.cli.app import main; main()", *given, "--budget", "100000"]
    with subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        env=os.environ,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # a run in the background ignores it
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("extend: 20/"):
                process.send_signal(signal.SIGINT)
                break
        rest = process.stderr.read()
    assert process.wait() == 130
    assert "The same command continues from there" in rest
    assert "Traceback" not in rest
    (results,) = (tmp_path / "cache" / "ropewalk" / "search").glob("*/results/*.jsonl")
    assert len(results.read_text().splitlines()) >= 19


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["--budget", "3"], "does not cover the analytic methods"),
        (["--minutes", "0"], "the time must be above zero"),
        (["--seed", "-1"], "`seed` must be a whole number from 0 on"),
        (["--target", "32"], "beyond the trained length"),
        (["--search-windows", "100"], "too short for the windows"),
        (["--windows", "100"], "too short for the windows"),
    ],
)
def test_bad_input_is_a_message_and_status_2(
    given: list[str], changes: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The rule and the cure, no traceback."""
    assert call(*given, *changes) == 2
    err = capsys.readouterr().err
    assert message in err
    assert "Traceback" not in err


def test_a_held_out_text_that_shares_passages_is_refused(
    given: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One more newline, a beginning left out, or half of it in another text: the share is among the facts."""
    seen, other = tmp_path / "seen.txt", tmp_path / "other.txt"
    for text, share in (("\n" + SEEN, "1.0"), (SEEN[7:], "1.0"), (UNSEEN[:300] + SEEN[:300], "0.")):
        other.write_text(text)
        assert call(*given, "--validation", other) == 2
        err = capsys.readouterr().err
        assert "shares passages with them" in err
        assert f"32-token runs seen  {share}" in err
    seen.write_text(SEEN + UNSEEN)  # the held-out text as a part of what was searched on
    assert call(*given) == 2
    assert "runs seen  1.0" in capsys.readouterr().err


def test_what_belongs_together(given: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A search needs a text, and another one to be measured on; options of the folder need --out."""
    seen = given[given.index("--text") + 1]
    model = given[2]
    for arguments, message in (
        (["extend", "search", model], "--text"),
        (["extend", "apply", model, "--budget", "9", "--out", str(tmp_path / "o")], "No such option"),
        (["extend", "apply", model], "--out"),
        ([*given, "--validation", seen], "one of those to search on"),
        ([*given, "--method", "pi"], "No such option"),
        ([*given, "--steps", "3"], "No such option"),
        ([*given, "--native"], "belong to a folder that is written"),
        ([*given, "--dtype", "float32"], "belong to a folder that is written"),
        ([*given, "--overwrite"], "belong to a folder that is written"),
        ([*given, "--record", str(tmp_path)], "a folder where the file should be"),
    ):
        assert call(*arguments) == 2
        assert message in capsys.readouterr().err
