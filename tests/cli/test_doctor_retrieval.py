"""`ropewalk doctor --retrieval`: answers beside the losses, of the methods that matter, and what is refused."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from pathlib import Path

import pytest

from tests.cli.doctor_runs import TEXT, doctor, finite_or_null, write_checkpoint
from tests.diagnosis.models import ROPE

pytestmark = pytest.mark.usefixtures("quiet")


def test_retrieval_beside_the_losses(tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same methods once each, crop reading the end alone; in the JSON, on the page, resumed to the same numbers."""
    model = write_checkpoint(tmp_path / "long", dataclasses.replace(ROPE, max_position_embeddings=512))
    text.write_text(TEXT * 4)
    (tmp_path / "other.txt").write_text("Call me Ishmael. " * 90)
    out, report = tmp_path / "out.json", tmp_path / "report"
    arguments = (
        model, "--target", 1024, "--text", text, "--text", tmp_path / "other.txt",
        "--windows", 1, "--methods", "ntk,dynamic,dca,crop",
        "--retrieval", "numbers",
        "--protocol", '{"start_char": 7, "retrieval_lengths": [600, 1024], "retrieval_samples": 2}',
    )  # fmt: skip
    assert doctor(*arguments, "--json", out, "--report", report) == 0
    shown = capsys.readouterr()
    assert "Retrieval: numbers, part found" in shown.out
    assert "Guessing finds 25.0%." in shown.out
    assert "4 answers for each text" in shown.out
    found = json.loads(out.read_text())
    assert found["retrieval_details"]["protocol"]["text"] == "text.txt and other.txt"
    results = found["retrieval"]
    assert {"method", "task", "length", "depth", "asked", "found", "interval"} <= set(results[0])
    assert {(row["task"], row["length"], row["depth"], row["asked"]) for row in results} == {
        ("numbers", 600, 0.5, 8), ("numbers", 1024, 0.5, 8),
    }  # fmt: skip
    assert Counter(row["method"] for row in results) == {
        "plain": 2,
        "ntk": 2,
        "dynamic": 2,
        "dca": 2,
        "crop": 2,
    }  # dynamic is ntk at the target alone
    assert finite_or_null(found)
    page = (report / "index.html").read_text()
    assert "Retrieval by distance: numbers" in page
    assert doctor(*arguments, "--json", out, "--resume") == 0
    assert "numbers" not in capsys.readouterr().err
    assert json.loads(out.read_text())["retrieval"] == results


def test_retrieval_of_the_methods_that_matter(text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without names plain, the best method and crop are asked, and with --measure alone about named numbers."""
    model = write_checkpoint(tmp_path / "long", dataclasses.replace(ROPE, max_position_embeddings=300))
    text.write_text(TEXT * 3)
    out = tmp_path / "out.json"
    given = (
        model,
        "--target",
        600,
        "--text",
        text,
        "--windows",
        1,
        "--protocol",
        '{"retrieval_lengths": [600], "retrieval_samples": 1}',
    )
    assert doctor(*given, "--measure", "loss,retrieval", "--json", out) == 0
    found = json.loads(out.read_text())
    methods = {row["method"] for row in found["retrieval"]}
    others = [one for one in found["methods"] if one["name"] != "crop" and (one["difference_within"] or 0) <= 0.05]
    best = min(others, key=lambda one: one["loss_beyond"])["name"]
    assert methods == {"plain", best, "crop"}
    assert {row["task"] for row in found["retrieval"]} == {"numbers"}
    assert {row["interval"] for row in found["retrieval"]} == {None}
    assert "gives no interval" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--retrieval", "vt"), "RULER's tasks are in lm-eval"),
        (
            ("--retrieval", "passkey", "--protocol", '{"retrieval_lengths": [600, "many"]}'),
            "`retrieval_lengths` has the wrong type",
        ),
        (("--retrieval", "all", "--protocol", '{"retrieval_lengths": [20]}'), "no retrieval task fits"),
        (("--retrieval", "passkey", "--protocol", '{"retrieval_chat": true}'), "no chat template"),
        (("--protocol", '{"retrieval_chat": true}'), "apply only to --retrieval"),
    ],
)
def test_bad_retrieval_is_a_message(
    checkpoint: Path, text: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    """Status 2, and no traceback."""
    assert doctor(checkpoint, "--text", text, "--windows", 1, "--methods", "pi", *arguments) == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert "Traceback" not in shown
    assert "[1/" not in shown  # before the hours of work, not after
