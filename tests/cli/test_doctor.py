"""`ropewalk doctor` from end to end, on a small random model with a tokenizer of bytes, and on `tiny`."""

from __future__ import annotations

import dataclasses
import gzip
import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ropewalk.checkpoints.texts import novel
from ropewalk.progress import LinesProgress
from ropewalk.rope.scaling import Llama3
from tests.cli.doctor_runs import doctor, finite_or_null, write_checkpoint
from tests.diagnosis.models import ROPE

pytestmark = pytest.mark.usefixtures("quiet")


def test_the_whole_answer(checkpoint: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Terminal, JSON, and report: random weights are unfit after one window."""
    out, report = tmp_path / "out.json", tmp_path / "report"
    words = (checkpoint, "--text", text, "--target", 512, "--methods", "pi,ntk,dynamic")
    assert doctor(*words, "--json", out, "--report", report) == 0
    printed = capsys.readouterr()
    found = json.loads(out.read_text(), parse_constant=lambda name: pytest.fail(f"{name} in JSON"))
    said = " ".join(printed.out.split())
    assert said.index(f"model: {found['verdict']['headline']}") < said.index("Report: ")
    assert (found["trained_length"], found["target"], found["verdict"]["action"]) == (256, 512, "unfit")
    assert "untrained or damaged" in said
    assert found["verdict"]["next"] is found["verdict"]["command"] is None
    assert len(found["looks"]) == 1
    assert list(found["readings"]) == ["plain", "pi", "ntk", "crop"]
    assert found["methods"]["dynamic"]["same_as"] == "ntk"
    assert finite_or_null(found)
    assert {path.name for path in report.iterdir()} >= {"index.html", "report.json", "facts.svg", "facts.png"}
    assert found["environment"]["command"].startswith("ropewalk doctor model --target 512 --text text.txt")
    assert json.loads((report / "report.json").read_text()) == found


def test_files_are_written_before_anything_is_printed(
    checkpoint: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever reads the first lines alone (`| head -3`) has them all the same."""

    def gone(*_: Any, **__: Any) -> None:
        raise BrokenPipeError

    monkeypatch.setattr("ropewalk.cli.doctor.print_diagnosis", gone)
    options = ("--text", text, "--target", 256)
    assert doctor(checkpoint, *options, "--json", tmp_path / "out.json", "--report", tmp_path / "report") == 141
    assert (tmp_path / "report" / "report.json").read_text() == (tmp_path / "out.json").read_text()
    assert (tmp_path / "report" / "index.html").exists()


def test_auto_says_which_dtype_it_chose_and_why(
    checkpoint: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Printed and in the environment; tests/models/test_precision.py has the choices."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True, "cpu_name": "AMD"})
    out = tmp_path / "out.json"
    assert doctor(checkpoint, "--text", text, "--target", 256, "--dtype", "auto", "--json", out) == 0
    assert "Computed in bfloat16: cpu multiplies it with AVX512-BF16." in " ".join(capsys.readouterr().out.split())
    environment = json.loads(out.read_text())["environment"]
    assert environment["dtype"] == "bfloat16"
    assert "dtype_choice" in environment


def test_a_config_with_a_scaling_is_measured_as_is(tmp_path: Path, text: Path) -> None:
    """The length before scaling is the trained one."""
    rope = dataclasses.replace(ROPE, scaling=Llama3(4.0, 1.0, 4.0, 256), max_position_embeddings=1024)
    out = tmp_path / "out.json"
    model = write_checkpoint(tmp_path / "m", rope)
    assert doctor(model, "--text", text, "--target", 512, "--trained-length", 256, "--json", out) == 0
    found = json.loads(out.read_text())
    assert (found["trained_length"], found["target"]) == (256, 512)
    assert found["methods"]["as-is"]["config"]["rope_parameters"]["rope_type"] == "llama3"
    assert found["methods"]["plain"]["config"]["rope_parameters"]["rope_type"] == "default"


def test_ctrl_c_keeps_what_is_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Status 130, a hint, and the answer so far; tests of the diagnosis resume it."""
    (tmp_path / "whale.txt").write_text(novel(40_000, 9_000))
    begin: Callable[..., Any] = LinesProgress.begin
    count = [0]

    def stopping(self: LinesProgress, description: str, tokens: int) -> Any:
        count[0] += ", window" in description
        if count[0] == 5:
            raise KeyboardInterrupt
        return begin(self, description, tokens)

    monkeypatch.setattr(LinesProgress, "begin", stopping)
    words = ("tiny", "--text", tmp_path / "whale.txt", "--target", 512, "--methods", "dca", "--windows", 2)
    assert doctor(*words) == 130
    printed = capsys.readouterr()
    assert re.search(r"Stopped: \d results saved, \d missing\.", printed.err)
    assert "rerun the command with --resume" in printed.err
    assert "tiny: " in printed.out


def test_no_number_is_lost_in_a_narrow_terminal(
    checkpoint: Path, text: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables that do not fit are stacked: whole while a number fits beside a name, folded in the narrowest."""
    printed = {}
    for columns in (200, 80, 40, 24, 12):
        monkeypatch.setenv("COLUMNS", str(columns))
        again = ["--resume"] if printed else []
        assert doctor(checkpoint, "--text", text, "--target", 512, "--method", "pi,yarn", *again) == 0
        out = capsys.readouterr().out
        printed[columns] = re.split(r"\nMeasured:", out[out.index("─") :])[0]
        assert max(len(line.rstrip()) for line in printed[columns].splitlines()) <= columns, printed[columns]
        assert columns != 80 or sum("─" * 20 in line for line in out.splitlines()) == 1  # one table, not stacked
    tables = printed[200]
    assert len(re.findall(r"\d of \d", tables)) == 6
    for columns, narrow in printed.items():
        assert Counter(filter(str.isdigit, narrow)) == Counter(filter(str.isdigit, tables)), columns


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--method", "alibi"], "unknown method"),
        (["--target", "200", "--method", "yarn"], "needs a target beyond the trained length"),
        (["--target", "200", "--method", "crop"], "crop differs from plain only if"),
        (["--target", "260"], "too few tokens for facts"),
        (["--text", "absent.txt"], "text cannot be read"),
        (["--trained-length", "16"], "the trained length is too short for four facts"),
        (["--state", __file__], "`state` must be a folder, but it is a file"),
    ],
)
def test_bad_input_is_a_message_and_status_2(
    checkpoint: Path, text: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    """On standard error, without a traceback."""
    chosen = arguments if "--text" in arguments else [*arguments, "--text", str(text)]
    assert doctor(checkpoint, *chosen) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


def test_models_that_cannot_be_measured(tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No rope, no tokenizer, no such model."""
    rope = dataclasses.replace(ROPE, max_position_embeddings=256)
    for model, message in (
        (write_checkpoint(tmp_path / "nope", None), "no rotary embedding"),
        (write_checkpoint(tmp_path / "mute", rope, tokenizer=False), "no tokenizer"),
        (tmp_path / "absent", "no such file or folder"),
    ):
        assert doctor(model, "--text", text) == 2
        assert message in capsys.readouterr().err


def test_a_folder_of_texts_and_a_short_one(
    checkpoint: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Windows come from each file; a text of 900 tokens shortens the target to three times the trained length."""
    folder = tmp_path / "texts"
    folder.mkdir()
    for name in ("a.txt", "b.txt"):
        (folder / name).write_text(text.read_text())
    assert doctor(checkpoint, "--text", folder, "--methods", "pi") == 0
    assert "1 window of 1,024 tokens of a.txt, seed 0" in " ".join(capsys.readouterr().out.split())
    (tmp_path / "short.txt").write_text(text.read_text()[:900])
    assert doctor(checkpoint, "--text", tmp_path / "short.txt", "--methods", "pi") == 0
    assert "1 window of 768 tokens of short.txt" in " ".join(capsys.readouterr().out.split())


def test_a_long_text_is_read_up_to_a_limit_that_is_stated(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """16 bytes for each token of the windows, if that is more than the least: /dev/zero and a bomb of gzip end."""
    monkeypatch.setattr("ropewalk.diagnosis.prepare.LEAST_BYTES", 1000)
    (tmp_path / "long.txt").write_text("It was the best of times. " * 4_000)
    assert doctor(checkpoint, "--text", tmp_path / "long.txt", "--target", 512, "--methods", "pi") == 0
    assert "of long.txt (first 0 MB), seed 0" in " ".join(capsys.readouterr().out.split())
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(b"\n" * 50_000_000))
    for path in ("/dev/zero", tmp_path / "bomb.gz"):
        assert doctor(checkpoint, "--text", path) == 2
        assert "text" in capsys.readouterr().err
