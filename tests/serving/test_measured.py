"""What runs of engines showed: the packaged short form is the record, every fault is described, and plans follow it."""

from __future__ import annotations

import json
import runpy
import shlex
from pathlib import Path

import pytest

from ropewalk.errors import RopeError
from ropewalk.serving.applied import DEVIATIONS, Case, applied, measured
from ropewalk.serving.serve import serve_config
from tests.checkpoints.random_models import folder_of
from tests.cli.doctor_runs import run_command

models = pytest.importorskip("engines.models", reason="the source distribution has no benchmarks/")
ROOT = Path(__file__).parents[2]
RECORD = (ROOT / "benchmarks" / "results" / "engines.json").read_text()
SHORT = ROOT / "src" / "ropewalk" / "serving" / "measured.json"
ROWS = [(engine, *row) for engine, one in json.loads(SHORT.read_text()).items() for row in one["rows"]]
LONG = {"rope_type": "longrope", "short_factor": [1.0]}
BLOCKS = {name: {"rope_type": "default", "rope_theta": 1e4, **(block or {})} for name, block in models.BLOCKS.items()}
BLOCKS |= {"longrope, long": {**LONG, "long_factor": [1.0]}, "longrope, short": {**LONG, "long_factor": [2.0]}}


def test_the_packaged_form_is_the_record() -> None:
    """`make docs-tables` writes it."""
    short = runpy.run_path(str(ROOT / "benchmarks" / "engines" / "page.py"))["short"]
    assert SHORT.read_text() == short(json.loads(RECORD))
    cells = [
        one for one in json.loads(RECORD)["cells"] if one["outcome"] != "not expressed" and one["engine"] != "sglang"
    ]
    assert {(row[0], row[1], family) for row in ROWS for family in row[-1].split()} == {
        (one["engine"], one["block"], one["family"]) for one in cells
    }
    for one in cells:
        codes = measured(one["engine"], one["family"], one["block"], one["spelling"])
        assert bool(codes) == (one["outcome"] != "equal")


@pytest.mark.parametrize("engine", ["vllm", "mlx", "onnx", "llama.cpp"])
def test_an_answer_is_that_of_the_run(engine: str) -> None:
    """For each family, block and spelling; what was read does not contradict it, and each fault has words."""
    for name, block, spelling, codes, families in ROWS:
        if name != engine or block.startswith("window") or (engine, codes) == ("llama.cpp", ["not loaded"]):
            continue
        case = {"block": BLOCKS[block], "spelling": spelling.replace("any", "extend apply")}
        for family in families.split():
            answer = applied(engine, Case(**case, model_type=family))
            plain = measured(engine, family, "plain", case["spelling"])
            assert (answer.state == "applied") == (not codes and not plain), (family, block, codes, answer)
            if block != "longrope, short":  # which is not without the long one, that may not have been run
                assert answer.checked.startswith("measured in ")
            shown = [one.code for one in DEVIATIONS if one.code in codes and engine in one.engines]
            assert {*shown} == {*codes}


@pytest.mark.parametrize(
    ("engine", "family", "method", "reason"),
    [
        ("mlx", "gemma3_text", "yarn", None),
        ("mlx", "qwen2", "ntk", None),
        ("mlx", "stablelm", "yarn", "drops the scaling"),
        ("mlx", "glm4", "plain", None),
        ("mlx", "exaone4", "as-is", "does not load"),
        ("mlx", "olmo", "yarn", "no run shows"),
        ("onnx", "mistral", "pi", None),
        ("onnx", "mistral", "yarn", "divides by zero"),
        ("onnx", "llama", "pi", "drops the scaling"),
        ("onnx", "llama", "llama3", None),
        ("onnx", "phi3", "yarn", "does not load"),
    ],
)
def test_plans_for_engines_that_read_only_the_config(
    engine: str, family: str, method: str, reason: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The written folder is run first, and has both spellings; a refusal says why, and how it is known."""
    monkeypatch.chdir(tmp_path)
    source = folder_of(family, tmp_path / "source", **({"sliding_window": None} if family == "mistral" else {}))
    target = 128 if method not in ("plain", "as-is") else None
    if reason is not None:
        with pytest.raises(RopeError, match=reason) as refused:
            serve_config(source, engine, method=method, target=target)
        assert "measured in" in str(refused.value.facts.get("source")) or "ropewalk verify longer" in refused.value.cure
        return
    found = serve_config(source, engine, method=method, target=target)
    first, last = map(shlex.split, found.steps)
    assert run_command(*first[1:]) == 0
    content = json.loads(Path("longer/config.json").read_text())
    assert content["rope_parameters"] == json.loads(json.dumps(found.block))
    assert {"rope_theta", "rope_scaling"} & {*content}
    starts = {
        "mlx": ["mlx_lm.server", "--model", "longer"],
        "onnx": ["python", "-m", "onnxruntime_genai.models.builder"],
    }
    assert last[:3] == starts[engine]
    assert engine == "mlx" or last[3:] == ["-i", "longer", "-o", "model-onnx", "-p", "fp32", "-e", "cpu"]
    again = serve_config("longer", engine)
    assert len(again.steps) == 1, "the written folder is served as it is"
    assert again.checked.startswith("measured in ")
