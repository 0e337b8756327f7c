"""The README's code runs, and the numbers that it quotes are those of the records."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_the_five_lines(tmp_path, monkeypatch):
    """The python blocks run as they stand, on a published config."""
    (tmp_path / "path" / "to").mkdir(parents=True)
    shutil.copy(ROOT / "tests/fixtures/configs/llama_3_1_8b.json", tmp_path / "path/to/config.json")
    monkeypatch.chdir(tmp_path)
    first, *others = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    names: dict[str, object] = {}
    exec(first, names)
    assert names["q"].shape == (1, 16, 32, 128)
    for block in others:
        exec(block, names)


def test_the_quoted_table_is_the_record():
    """Every number of the SmolLM2 table is the recorded one, rounded."""
    record = json.loads((ROOT / "benchmarks/results/doctor-smollm2-135m.json").read_text())
    measured = {method["name"]: [f"{loss:.2f}" for loss in method["loss_by_block"]] for method in record["methods"]}
    rows = re.findall(r"^\| (\w+)[^|]*\|((?: \d\.\d\d \|){8})$", README, re.MULTILINE)
    quoted = {name: cells.replace("|", " ").split() for name, cells in rows}
    assert len(quoted) == 6
    assert quoted == {name: measured[name] for name in quoted}
    assert f"{record['recommended']} (recommended)" in README


@pytest.mark.parametrize("name", ["doctor", "inspect", "generate", "train"])
def test_every_command_is_in_the_readme(name):
    """Each command has a line that shows it."""
    assert re.search(rf"^\$ ropewalk {name}", README, re.MULTILINE)
