"""A search of several processes: the numbers of one, each round computed once."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from ropewalk.checkpoints.load import save
from ropewalk.checkpoints.tokenizer import TextTokenizer
from tests.diagnosis.models import ROPE, tiny_decoder
from tests.launch.ranks import run_all

pytest.importorskip("typer")
CODE = "import sys; from ropewalk.cli.app import main; main(sys.argv[1:])"


@pytest.mark.slow
def test_two_processes_find_the_numbers_of_one(tmp_path: Path) -> None:
    """With halving and the limit within: points, losses and the verdict; the rounds are shared out."""
    save(
        tiny_decoder(dataclasses.replace(ROPE, max_position_embeddings=32), vocab_size=256),
        tmp_path / "model",
        tokenizer=TextTokenizer.bytes(),
    )
    (tmp_path / "seen.txt").write_text("It was the best of times, it was the worst of times. " * 12)
    (tmp_path / "unseen.txt").write_text("Call me Ishmael. Some years ago, never mind how long precisely. " * 12)
    records: list[dict[str, Any]] = []
    for ranks in (1, 2):
        folder = tmp_path / str(ranks)
        folder.mkdir()
        run_all(
            CODE, ranks, folder, "extend", "search", str(tmp_path / "model"), "--target", "64", "--search-windows", "3",
            "--text", str(tmp_path / "seen.txt"), "--validation", str(tmp_path / "unseen.txt"), "--windows", "3",
            "--budget", "30", "--within", "0.3", "--record", str(folder / "search.json"),
        )  # fmt: skip
        records.append(json.loads((folder / "search.json").read_text()))
        files = list((folder / "cache").glob("ropewalk/search/*/results/*.jsonl"))
        jobs = [json.loads(line)["job"] for path in files for line in path.read_text().splitlines()]
        assert len(jobs) == len(set(jobs))
    one, two = records
    assert len(files) >= 2
    for key in ("points", "best", "held_out", "items_read"):
        assert one[key] == two[key]
