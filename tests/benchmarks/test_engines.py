"""The record of real engines: few cells are unknown, none is judged wrong, and each deviation can be reproduced."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path

import pytest

from ropewalk.rope.model_ropes import ModelRopes

matrix = pytest.importorskip("engines.matrix", reason="the source distribution has no benchmarks/")
recorded = pytest.importorskip("engines.recorded")
CELLS = matrix.read_record()["cells"]
FAMILIES = {"mlx": 25, "llama.cpp": 10, "onnx": 8, "vllm": 20, "sglang": 25}
REPRODUCTIONS = Path(matrix.__file__).with_name("reproductions")


def test_cells() -> None:
    """Every cell is equal, named, told apart by its plain rope, or not loaded with a reason; few are unknown."""
    outcomes = Counter(cell["outcome"] for cell in CELLS)
    assert set(outcomes) <= {"equal", "named", "other", "unknown", "not loaded", "not expressed"}
    judged = sum(outcomes[kind] for kind in ("equal", "named", "other", "unknown"))
    assert outcomes["unknown"] <= 0.03 * judged
    assert all(cell.get("name") for cell in CELLS if cell["outcome"] != "equal")
    # a block of a cell that is equal acts, so that an engine that ignores it would not be
    equal = [cell for cell in CELLS if cell["outcome"] == "equal" and cell["engine"] != "sglang"]  # not by outputs
    acts = [cell["acts"] for cell in equal if cell["block"] not in ("plain", "window")]
    assert min(acts) > 0.05
    for engine, least in FAMILIES.items():
        loaded = {
            cell["family"] for cell in CELLS if cell["engine"] == engine and cell["outcome"] in ("equal", "named")
        }
        assert len(loaded) >= least


def test_verify_is_right() -> None:
    """No right engine is called wrong, and no wrong one right, where `verify` judged it."""
    for cell in CELLS:
        if cell["outcome"] == "equal" and not cell["block"].startswith("longrope"):  # on one side of its length
            assert cell.get("verdict") in (None, "as expected"), cell
        if cell["outcome"] == "named":
            assert cell.get("verdict") in (None, "other"), cell


@pytest.mark.parametrize(("engine", "former"), [("vllm", False), ("mlx", True)])
def test_tables_say_what_the_running_engine_does(engine: str, former: bool) -> None:
    """The rope of a model class without weights is right where the log-probabilities are."""
    outcomes = {(cell["engine"], cell["family"], cell["block"], cell["spelling"]): cell["outcome"] for cell in CELLS}
    spelling = "rope_scaling" if former else "rope_parameters"
    for family, block in itertools.product(("llama", "qwen3"), recorded.BLOCK_NAMES):
        case = recorded.of_block(engine, family, block, former)
        outcome = outcomes.get((engine, family, block, spelling))
        if outcome is not None and (engine, block) != ("mlx", "dynamic"):  # which changes with the length
            right = recorded.recorded(case).has(ModelRopes.from_hf(case.config), 400)
            assert right == (outcome == "equal"), (family, block)


def test_reproductions_name_the_line() -> None:
    """Each has the version and a line of the engine's source, and imports nothing of ropewalk."""
    files = sorted(REPRODUCTIONS.glob("*.py"))
    assert len(files) >= 7
    for file in files:
        text = file.read_text()
        assert ".py:" in text.split('"""')[1], file.name
        assert "ropewalk" not in text, file.name


def test_the_plug_in_in_vllm() -> None:
    """It says one line about each model that vLLM loads, finds every fault, and calls no layer wrong that is right."""
    loaded = [cell for cell in CELLS if (cell["engine"], cell["spelling"]) == ("vllm", "rope_parameters")
              and cell["outcome"] != "not loaded"]  # fmt: skip
    models = json.loads(matrix.RECORD.with_name("vllm-plugin.json").read_text())["models"]
    assert {f"{cell['family']}: {cell['block']}" for cell in loaded} == models.keys()
    assert all(len(lines) == 1 for of in models.values() for lines in of.values())
    assert all(of["fault"][0][0] == "error" and of["fault"] != of["right"] for of in models.values())
    for cell in loaded:
        ((level, text),) = models[f"{cell['family']}: {cell['block']}"]["right"]
        tables = cell["outcome"] == "named" and not cell["name"].startswith(("the long factors", "queries not scaled"))
        assert level == ("error" if tables else "info"), text
