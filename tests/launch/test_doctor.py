"""The doctor on several processes: every number is that of one process."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import ropewalk as rw
from ropewalk.checkpoints.texts import read_text
from tests.launch.ranks import run_all

SETTINGS = {"target": 512, "methods": ["yarn", "dca"]}

CODE = """
import json, sys
import ropewalk as rw
settings = json.loads(sys.argv[1])
with rw.processes.joined() as launch:
    state = sys.argv[2].replace("RANK", str(launch.rank))
    text = [("whale", open(sys.argv[3]).read())]
    found = rw.doctor("tiny", text=text, state=state, progress=False, windows=2, **settings)
open(sys.argv[4].replace("RANK", str(launch.rank)), "w").write(json.dumps(found.to_json()))
"""


def numbers(document: Any) -> Any:
    """A document without what differs from run to run: times, memory, the machine, and what names times or folders."""
    if isinstance(document, dict):
        left_out = {"environment", "sentence", "reason"}
        return {
            name: numbers(value)
            for name, value in document.items()
            if name not in left_out and "seconds" not in name and "rss" not in name
        }
    if isinstance(document, str):
        return re.sub(r", which takes about [^,.]* here| --state \S+", "", document)
    return [numbers(value) for value in document] if isinstance(document, list) else document


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with a text for two windows."""
    path = tmp_path_factory.mktemp("text") / "whale.txt"
    path.write_text(read_text(None)[1][40_000:46_000])
    return path


@pytest.fixture(scope="module")
def alone(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What one process finds."""
    state = tmp_path_factory.mktemp("state") / "alone"
    words = [("whale", text.read_text())]
    found = rw.doctor("tiny", text=words, state=state, progress=False, windows=2, **SETTINGS)
    return numbers(json.loads(json.dumps(found.to_json())))


@pytest.mark.thorough
@pytest.mark.parametrize("folder", ["shared", "apart-RANK"])
def test_the_numbers_of_one_process(text, alone, tmp_path, folder):
    """Both ranks have all numbers, with a common folder and without, and each did a part of the work."""
    state, out = tmp_path / folder, tmp_path / "out-RANK.json"
    run_all(CODE, 2, tmp_path, json.dumps(SETTINGS), str(state), str(text), str(out))
    for rank in "01":
        assert numbers(json.loads(Path(str(out).replace("RANK", rank)).read_text())) == alone
    kept = [len(path.read_text().splitlines()) for path in tmp_path.glob(f"{folder[:5]}*/windows/results/*.jsonl")]
    due = 2 * (len(SETTINGS["methods"]) + 2)  # plain and crop beside them
    assert (len(kept), sum(kept)) == (2, due)
