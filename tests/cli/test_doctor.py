"""`ropewalk doctor` from end to end, on a small random model with a tokenizer of bytes."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

import pytest
import torch

from ropewalk.progress import LinesProgress
from ropewalk.rope.config import RopeConfig
from tests.cli.doctor_runs import doctor, finite_or_null, write_checkpoint
from tests.diagnosis.models import ROPE

pytestmark = pytest.mark.usefixtures("quiet")

FIRST_VERSION: dict[str, set[str]] = {  # what records of the first version hold, and their readers may ask for
    "model": set(), "trained_length": set(), "target": set(), "lint": set(), "blocks": set(), "recommended": set(),
    "audit": {
        "attention_factor", "float32_cos_error", "head_dim", "inv_freq", "inv_freq_unscaled", "layer_type", "pairs",
        "pairs_never_turning", "reach", "reach_searched", "reach_unscaled", "rope_parameters", "rotary_dim", "target",
        "theta", "trained_length", "wavelengths", "wavelengths_unscaled",
    },
    "protocol": {
        "trained_length", "target", "block", "windows", "stride", "texts", "start_char", "seed",
        "confidence", "sentence",
    },
    "methods": {
        "name", "rope_parameters", "max_position_embeddings", "extension", "at_run_time", "inv_freq",
        "inv_freq_unscaled", "attention_factor", "loss_by_block", "ci_by_block", "loss_within", "loss_beyond",
        "difference_within", "difference_within_ci", "difference_beyond", "difference_beyond_ci", "affordable",
        "loss_by_window_and_block", "seconds", "peak_rss_bytes", "same_as",
    },
    "environment": {"ropewalk", "torch", "python", "machine", "device", "threads", "parameters", "dtype", "chunk",
                    "command"},
}  # fmt: skip
KEEP_GOING = ("--protocol", '{"keep_going": true}')  # though random weights are unfit at the first look
METHODS = {"plain", "pi", "ntk", "dynamic", "yarn", "llama3", "abf", "resonance", "dca", "crop"}


def test_the_whole_answer(checkpoint: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Terminal, JSON with the promised keys, report with figures and the block to paste."""
    out, report = tmp_path / "out.json", tmp_path / "report"
    words = (checkpoint, "--text", text, "--windows", 3, "--protocol", '{"keep_going": true}')
    assert doctor(*words, "--json", out, "--report", report) == 0
    printed = capsys.readouterr()
    assert printed.err == ""  # nobody looks at a bar here
    found = json.loads(out.read_text(), parse_constant=lambda name: pytest.fail(f"{name} in JSON"))
    words = " ".join(printed.out.split())
    assert words.startswith(f"model: {found['verdict']['sentence']}")
    in_order = ["Loss within and beyond 32 tokens", "ntk = dynamic", "3 windows of 128 tokens of",
                "yarn Divides slow pairs", "Report: "]  # fmt: skip
    assert sorted(map(words.index, in_order)) == list(map(words.index, in_order))
    assert printed.out.count("─────") < 80  # one table: one rule
    assert set(FIRST_VERSION) <= set(found)
    for key, names in FIRST_VERSION.items():
        inner = found[key][0] if key == "methods" else found[key]
        assert names <= (set(inner) if names else names), key
    assert (found["trained_length"], found["target"]) == (32, 128)
    assert {"pairs", "pairs_never_turning", "reach"} <= set(found["audit"])
    assert found["blocks"] == [[start, start + 4] for start in range(0, 128, 4)]
    assert {method["name"] for method in found["methods"]} == METHODS
    assert [method["name"] for method in found["methods"]][:2] == ["plain", "crop"]
    for method in found["methods"]:
        assert len(method["loss_by_block"]) == len(method["ci_by_block"]) == 32
        assert all(
            low <= mean <= high
            for mean, (low, high) in zip(method["loss_by_block"], method["ci_by_block"], strict=True)
        )
        assert method["seconds"] >= 0
        again = RopeConfig.from_hf(
            {
                "model_type": "llama",
                "head_dim": 8,
                "rope_parameters": method["rope_parameters"],
                "max_position_embeddings": method["max_position_embeddings"],
            }
        )
        assert again.pairs == 4
    assert found["recommended"] == found["verdict"]["method"]
    assert finite_or_null(found)
    assert sorted(path.name for path in report.iterdir()) == sorted(
        [
            "index.html",
            "report.json",
            *(f"{n}.{k}" for n in ("loss", "looks", "wavelengths", "frequencies") for k in ("png", "svg")),
        ]
    )
    page = (report / "index.html").read_text()
    assert escape(found["verdict"]["sentence"].partition(":")[0]) in page
    assert found["environment"]["command"].startswith("ropewalk doctor model --text text.txt --windows 3")
    assert json.loads((report / "report.json").read_text()) == found


def test_files_are_written_before_anything_is_printed(
    checkpoint: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever reads the first lines alone (`| head -3`) has them all the same."""

    def gone(*_: Any, **__: Any) -> None:
        raise BrokenPipeError

    monkeypatch.setattr("ropewalk.cli.doctor.print_diagnosis", gone)
    options = ("--text", text, "--windows", 1, "--methods", "plain", "--measure", "loss")
    assert doctor(checkpoint, *options, "--json", tmp_path / "out.json", "--report", tmp_path / "report") == 141
    assert (tmp_path / "report" / "report.json").read_text() == (tmp_path / "out.json").read_text()
    assert (tmp_path / "report" / "index.html").exists()


@pytest.mark.parametrize("able", [True, False])
def test_auto_says_which_dtype_it_chose_and_why(
    able: bool,
    checkpoint: Path,
    text: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Printed and in the environment; the numbers are those of the dtype by its name."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": able, "cpu_name": "AMD"})
    chosen = "bfloat16" if able else "float32"
    found = {}
    for dtype in ("auto", chosen):
        out = tmp_path / f"{dtype}.json"
        options = (
            "--text",
            text,
            "--windows",
            1,
            "--methods",
            "plain",
            "--measure",
            "loss",
            "--state",
            tmp_path / dtype,
        )
        assert doctor(checkpoint, *options, "--dtype", dtype, "--json", out) == 0
        found[dtype] = json.loads(out.read_text())
        says = f"Computed in {chosen}: " + ("cpu multiplies it with AVX512-BF16." if able else "no fast instructions")
        assert (says in capsys.readouterr().out) == (dtype == "auto")
    assert [one["environment"]["dtype"] for one in found.values()] == [chosen] * 2
    assert ["dtype_choice" in one["environment"] for one in found.values()] == [True, False]
    assert found["auto"]["methods"][0]["loss_by_block"] == found[chosen]["methods"][0]["loss_by_block"]


def test_one_window(checkpoint: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An interval of every difference; of a block none; the window begins at the character asked for."""
    out = tmp_path / "out.json"
    assert (
        doctor(
            checkpoint,
            "--text",
            text,
            "--windows",
            1,
            "--protocol",
            '{"start_char": 53}',
            "--json",
            out,
            "--method",
            "yarn",
        )
        == 0
    )
    found = json.loads(out.read_text())
    assert [method["name"] for method in found["methods"]] == ["plain", "crop", "yarn"]
    assert found["verdict"]["action"] in ("undecided", "unfit")
    assert all(method["ci_by_block"] == [None] * 32 for method in found["methods"])
    assert all(one["interval"] is not None for one in found["verdict"]["evidence"] if one["name"] != "copies")
    assert found["protocol"]["start_char"] == 53
    assert "One window of 128 tokens of text.txt, seed 0." in capsys.readouterr().out


def test_a_config_with_a_scaling_is_measured_as_is(tmp_path: Path, text: Path) -> None:
    """The length before scaling is the trained one."""
    from ropewalk.rope.scaling import Llama3

    rope = dataclasses.replace(ROPE, scaling=Llama3(8.0, 1.0, 4.0, 16), max_position_embeddings=128)
    out = tmp_path / "out.json"
    assert doctor(write_checkpoint(tmp_path / "m", rope), "--text", text, "--windows", 2, "--json", out) == 0
    found = json.loads(out.read_text())
    assert (found["trained_length"], found["target"]) == (16, 64)
    by_name = {method["name"]: method for method in found["methods"]}
    assert by_name["as-is"]["rope_parameters"]["rope_type"] == "llama3"
    assert by_name["plain"]["rope_parameters"]["rope_type"] == "default"


def test_ctrl_c_keeps_what_is_done(
    checkpoint: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Status 130 and a hint; --resume ends with the numbers of a run that was never stopped."""
    whole, resumed = tmp_path / "whole.json", tmp_path / "resumed.json"
    asked = '{"keep_going": true, "workers": 1}'
    arguments = (checkpoint, "--text", text, "--windows", 2, "--measure", "loss", "--protocol", asked)
    assert doctor(*arguments, "--json", whole, "--state", tmp_path / "other") == 0
    capsys.readouterr()
    begin: Callable[..., Any] = LinesProgress.begin
    for stop_at, kept in ((4, 3), (8, 10)):  # in the first window, and in the second: then there is a look

        def stopping(
            self: LinesProgress,
            description: str,
            tokens: int,
            *,
            at: int = stop_at,
            count: list[int] = [0],  # noqa: B006
        ) -> Any:
            count[0] += ", window" in description
            if count[0] == at:
                raise KeyboardInterrupt
            return begin(self, description, tokens)

        monkeypatch.setattr(LinesProgress, "begin", stopping)
        assert doctor(*arguments, *(["--resume"] if kept > 3 else []), "--json", resumed) == 130
        printed = capsys.readouterr()
        assert f"Stopped: {kept} results are saved, {18 - kept} are missing" in printed.err
        assert "rerun the command with --resume" in printed.err
        assert printed.out.startswith("model: ") == resumed.exists() == (kept > 3)
    monkeypatch.setattr(LinesProgress, "begin", begin)
    assert doctor(*arguments, "--resume", "--json", resumed) == 0
    one, other = json.loads(whole.read_text()), json.loads(resumed.read_text())
    for left, right in zip(one["methods"], other["methods"], strict=True):
        assert left["loss_by_window_and_block"] == right["loss_by_window_and_block"]


def kept_lines(state: Path) -> list[str]:
    """The results in a run's ledger, a line each."""
    return [line for file in (state / "losses" / "results").glob("*") for line in file.read_text().splitlines()]


@pytest.mark.slow
def test_a_real_interrupt(checkpoint: Path, text: Path, tmp_path: Path) -> None:
    """SIGINT to the process while it measures."""
    command = [
        sys.executable,
        "-c",
        "from ropewalk.cli.app import main; main()",
        "doctor",
        str(checkpoint),
        "--windows",
        "8",
    ]
    with subprocess.Popen(
        [*command, "--state", str(tmp_path / "s")],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        env=os.environ,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # a run in the background ignores it
    ) as process:
        assert process.stderr is not None
        while len(kept_lines(tmp_path / "s")) < 2:
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
    assert process.wait() == 130
    assert "rerun the command with --resume" in rest
    assert "Traceback" not in rest
    assert len(kept_lines(tmp_path / "s")) >= 2


def test_a_target_within_the_trained_length_recommends_nothing(checkpoint: Path, text: Path, tmp_path: Path) -> None:
    """The loss within is measured all the same."""
    out = tmp_path / "out.json"
    assert doctor(checkpoint, "--text", text, "--target", 32, "--json", out, "--report", tmp_path / "r") == 0
    found = json.loads(out.read_text())
    assert found["recommended"] is None
    assert [method["name"] for method in found["methods"]] == ["plain"]
    assert found["methods"][0]["loss_beyond"] is None


def test_no_number_is_lost_in_a_narrow_terminal(
    checkpoint: Path, text: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables that do not fit are stacked: whole while a number fits beside a name, folded in the narrowest."""
    printed = {}
    for columns in (200, 80, 40, 24, 12):
        monkeypatch.setenv("COLUMNS", str(columns))
        again = ["--resume"] if printed else []  # the same seconds
        assert doctor(checkpoint, "--text", text, "--windows", 3, *KEEP_GOING, "--method", "pi,yarn", *again) == 0
        out = capsys.readouterr().out
        printed[columns] = re.split(r"\n3\s+windows", out[out.index("─") :])[0]
        assert max(len(line.rstrip()) for line in printed[columns].splitlines()) <= columns, printed[columns]
    tables = printed[200]
    assert len(re.findall(r"\d\.\d\d", tables)) == 4 * 2 + 3 * 2
    for columns, narrow in printed.items():
        assert Counter(filter(str.isdigit, narrow)) == Counter(filter(str.isdigit, tables)), columns
        if columns >= 24:
            assert Counter(re.findall(r"[-+±]?\d\.\d+", narrow)) == Counter(re.findall(r"[-+±]?\d\.\d+", tables)), (
                columns
            )
