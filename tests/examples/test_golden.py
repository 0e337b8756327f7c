"""examples/verify: golden predictions of the built-in model, and llama.cpp's server right and wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.layers.material import gguf_of

FOLDER = Path(__file__).parents[2] / "examples/verify"


@pytest.mark.thorough
def test_the_script_runs(tmp_path):
    """From the file alone: the right server passes, the wrong one ends with status 1."""
    pytest.importorskip("xllamacpp", reason="llama.cpp is in the extra llama-cpp")
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    command = ["bash", str(FOLDER / "golden.sh"), str(gguf_of("tiny", tmp_path / "tiny.gguf"))]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
    assert "As expected" in done.stdout


def test_the_workflow_and_the_action():
    """Their YAML is valid, and the action's inputs are those that the workflow sets."""
    yaml = pytest.importorskip("yaml")
    action = yaml.safe_load((FOLDER.parents[1] / "action.yml").read_text())
    steps = yaml.safe_load((FOLDER / "workflow.yml").read_text())["jobs"]["verify"]["steps"]
    [step] = [one for one in steps if "golden" in one.get("with", {})]
    assert set(step["with"]) <= set(action["inputs"])
    assert {name for name, one in action["inputs"].items() if one.get("required")} <= set(step["with"])
    run = action["runs"]["steps"][1]["run"]
    assert "${{" not in run  # inputs reach the shell as variables, not as text
    check = subprocess.run(["bash", "-n"], input=run, text=True, capture_output=True, check=False)
    assert check.returncode == 0, check.stderr
